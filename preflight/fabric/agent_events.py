"""What an agent may say during a sweep: small, typed, bounded; anything else ends its part."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.errors import WireError
from preflight.fabric.samples import End

_Error = Annotated[str, Meta(max_length=512)]
_BusId = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\Z")]
_Name = Annotated[str, Meta(max_length=255)]
_Small = Annotated[int, Meta(ge=0, le=2**16)]


class Ready(Struct, frozen=True, tag_field="event", tag="ready"):
    """Its Python has torch."""

    torch: Annotated[str, Meta(max_length=64)]
    cuda: bool
    gpus: _Small
    rails: _Small = 0
    """How many rails it has, where each is a rank of the job; 0 leaves the choice to us."""
    bus_ids: Annotated[tuple[_BusId, ...], Meta(max_length=256)] = ()
    """PCI addresses of its GPUs, in CUDA's order; none where NVML does not tell them."""


class NoTorch(Struct, frozen=True, tag_field="event", tag="no_torch"):
    """Its Python has none, or one that cannot be loaded."""

    error: _Error


class Busy(Struct, frozen=True, tag_field="event", tag="busy"):
    """Another run measures this node; two at once would measure each other."""

    error: _Error


class Taken(Struct, frozen=True, tag_field="event", tag="taken"):
    """What an earlier run left there is stuck and will never let go of it."""

    error: _Error
    advice: _Error


class Store(Struct, frozen=True, tag_field="event", tag="store"):
    """It hosts the store, on this port."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class Account(End, frozen=True, kw_only=True):
    """What one rail of one node says of one turn of measuring; whose word it is, we know."""

    node: str = ""
    rail: _Small
    backend: Literal["gloo", "nccl"]
    error: _Error = ""
    started_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class PairSeen(Account, frozen=True, kw_only=True, tag_field="event", tag="pair"):
    """One end's account of one pair on one rail in one round."""

    round: _Small
    a: _Name
    b: _Name
    plan: Annotated[str, Meta(max_length=64)] = ""
    """Digest of what both ends had to agree upon."""


class InsideSeen(Account, frozen=True, kw_only=True, tag_field="event", tag="inside"):
    """One rail's account of the all-reduce inside of its node."""


class NcclLog(Struct, frozen=True, tag_field="event", tag="nccl_log"):
    """What NCCL logged so far in one measuring process of one rail; only where it was asked for."""

    rail: _Small
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    text: Annotated[str, Meta(max_length=260 << 10, pattern=r"^[\t\n -~]*\Z")]


class DomainSeen(Account, frozen=True, kw_only=True, tag_field="event", tag="domain"):
    """One end's account of one rail of a pair over NVLink between nodes."""

    round: _Small
    a: _Name
    b: _Name


class Trouble(Struct, frozen=True, tag_field="event", tag="trouble"):
    """It could not go on."""

    error: _Error


class Done(Struct, frozen=True, tag_field="event", tag="done"):
    """All its rails are through."""


class Rest(Struct, frozen=True, tag_field="event", tag="rest"):
    """All its rails are through what was ordered, and wait for more."""


class Alive(Struct, frozen=True, tag_field="event", tag="alive"):
    """Nothing new, but its line works and it is not frozen."""


class Lapsed(Struct, frozen=True, tag_field="event", tag="lapsed"):
    """It leaves, because the sweep's store has been silent for the length of the lease."""

    error: _Error


Event = (
    Ready
    | NoTorch
    | Busy
    | Taken
    | Store
    | PairSeen
    | InsideSeen
    | NcclLog
    | DomainSeen
    | Trouble
    | Done
    | Rest
    | Alive
    | Lapsed
)

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode_event(document: bytes) -> Event:
    """Decode one event; WireError if it is none."""
    try:
        return _DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"its sweep said something else than it should: {reason}") from error
