"""A node's answer becomes facts here, once: sized, typed, and bound to this run."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from preflight.errors import WireError
from preflight.facts.basics import Count, Index, Line, Seconds, Text
from preflight.facts.job import NodeLook
from preflight.facts.model import WIRE, Facts, Process

Connected = Literal["ok", "refused", "timeout", "unreachable", "reset", "wrong_answer", "error"]
"""`wrong_answer`: somebody accepted who is not this run's listener."""


class Attempt(Struct, frozen=True, forbid_unknown_fields=True):
    """One connection this node tried to a listener of this run on another node."""

    target: Line
    """Name of the node that listens."""
    port: Index
    kind: Literal["master", "data"]
    result: Connected
    error: Text = ""
    ms: Seconds = 0.0


class MasterPort(Struct, frozen=True, forbid_unknown_fields=True):
    """The master port as the master itself found it: bound for real, without SO_REUSEADDR."""

    port: Index
    bound: bool
    error: Text = ""
    holder: Process | None = None
    """Who holds it; `user` is known (from the socket's uid) even where the pid is hidden (0)."""
    lingering: Count = 0
    """Connections of that port still in TIME_WAIT or other closing states."""
    free_again: bool | None = None
    """After our listener left: bound once more without SO_REUSEADDR. None when never bound."""


class Ports(Struct, frozen=True, forbid_unknown_fields=True):
    """One node's whole answer to the port stage."""

    wire: int
    nonce: Line
    host: Line
    seconds: Seconds
    ephemeral_low: Annotated[int, Meta(ge=0, le=65535)]
    ephemeral_high: Annotated[int, Meta(ge=0, le=65535)]
    listening: tuple[Index, ...] = ()
    """The data ports on which this node listened."""
    master: MasterPort | None = None
    """Only from the master."""
    attempts: tuple[Attempt, ...] = ()


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
