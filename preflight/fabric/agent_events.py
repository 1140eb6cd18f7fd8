"""The events that a node's agent may send during a sweep, as types of bounded size."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.fabric.samples import Backend, End, Rail, Round
from preflight.facts.basics import wire_errors
from preflight.facts.burn import Alive, Busy, Done, NoTorch

_Error = Annotated[str, Meta(max_length=512)]
_BusId = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\Z")]
_Name = Annotated[str, Meta(max_length=255)]
_Small = Annotated[int, Meta(ge=0, le=2**16)]


class Ready(Struct, frozen=True, tag_field="event", tag="ready"):
    """The node's Python has torch."""

    torch: Annotated[str, Meta(max_length=64)]
    cuda: bool
    gpus: _Small
    rails: _Small = 0
    """How many rails it has, if each is a rank of the job; 0: the controller chooses."""
    bus_ids: Annotated[tuple[_BusId, ...], Meta(max_length=256)] = ()
    """PCI addresses of its GPUs, in CUDA's order; none if NVML does not know them."""


class Taken(Struct, frozen=True, tag_field="event", tag="taken"):
    """A stuck process of an earlier run holds this node and will not release it."""

    error: _Error
    advice: _Error


class Store(Struct, frozen=True, tag_field="event", tag="store"):
    """The node hosts the store, on this port."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class Account(End, frozen=True, kw_only=True):
    """One rail's account of one measurement; the connection says which node it is from."""

    node: str = ""
    rail: Rail
    backend: Backend
    error: _Error = ""


class PairAccount(Account, frozen=True, kw_only=True, tag_field="event", tag="pair"):
    """One end's account of one pair on one rail in one round."""

    round: Round
    a: _Name
    b: _Name
    plan: Annotated[str, Meta(max_length=64)] = ""
    """Digest of what both ends must agree upon."""


class InsideAccount(Account, frozen=True, kw_only=True, tag_field="event", tag="inside"):
    """One rail's account of the all-reduce inside its node."""


class NcclLog(Struct, frozen=True, tag_field="event", tag="nccl_log"):
    """NCCL's log so far of one measuring process of one rail; sent only on request."""

    rail: Rail
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    text: Annotated[str, Meta(max_length=260 << 10, pattern=r"^[\t\n -~]*\Z")]


class DomainAccount(Account, frozen=True, kw_only=True, tag_field="event", tag="domain"):
    """One end's account of one rail of a pair over NVLink between nodes."""

    round: Round
    a: _Name
    b: _Name


Measurement = PairAccount | InsideAccount | DomainAccount | NcclLog


class Trouble(Struct, frozen=True, tag_field="event", tag="trouble"):
    """The agent could not go on."""

    error: _Error


class Rest(Struct, frozen=True, tag_field="event", tag="rest"):
    """All rails of the node have finished what was ordered, and wait for more."""


class Lapsed(Struct, frozen=True, tag_field="event", tag="lapsed"):
    """The agent stops, because the store did not answer for the length of the lease."""

    error: _Error


Event = (
    Ready | NoTorch | Busy | Taken | Store | Measurement | Trouble | Done | Rest | Alive | Lapsed
)

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode_event(document: bytes) -> Event:
    """Decode one event; WireError if it is not one."""
    with wire_errors("its sweep sent an invalid event"):
        return _DECODER.decode(document)
