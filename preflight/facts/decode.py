"""A node's answer becomes facts here, once: sized, typed, and bound to this run."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from preflight.errors import WireError
from preflight.facts.look_model import NodeLook
from preflight.facts.model import WIRE, Facts
from preflight.facts.ports import Ports

T = TypeVar("T")
Document = TypeVar("Document", Facts, Ports, NodeLook)

_FACTS = msgspec.json.Decoder(Facts)
_PORTS = msgspec.json.Decoder(Ports)
_LOOK = msgspec.json.Decoder(NodeLook)


def decode_facts(document: bytes, nonce: str) -> Facts:
    """Decode the probe's document; WireError if it is not one, or another run's."""
    return _bound(_decode(_FACTS, document), nonce)


def decode_ports(document: bytes, nonce: str) -> Ports:
    """Decode the port stage's document; WireError as above."""
    return _bound(_decode(_PORTS, document), nonce)


def decode_look(document: bytes, nonce: str) -> NodeLook:
    """Decode what a node shows of a job that hangs; WireError as above."""
    return _bound(_decode(_LOOK, document), nonce)


def _decode(decoder: msgspec.json.Decoder[T], document: bytes) -> T:
    try:
        return decoder.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"its answer is not a preflight document: {reason}") from error


def _bound(document: Document, nonce: str) -> Document:
    if document.wire != WIRE:
        raise WireError(f"its answer is version {document.wire}, this preflight reads {WIRE}")
    if document.nonce != nonce:
        raise WireError("its answer belongs to another run")
    return document
