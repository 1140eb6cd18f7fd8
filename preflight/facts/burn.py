"""What a node said of its devices under load: these types are the wire's events (docs/wire.md).

Kept as they came, every sample of them, so that a run can be judged again.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.errors import WireError
from preflight.facts.basics import Count, Index, Line

Kind = Literal["cuda", "cpu"]
"""`cpu`: this torch sees no GPU, and CPUs stand for the devices."""

Measure = Literal[
    "gemm_tflops",
    "memory_gbs",
    "h2d_gbs",
    "d2h_gbs",
    "p2p_gbs",
    "launch_us",
    "sustained_tflops",
    "host_copy_gbs",
    "host_gflops",
    "nic_gbits",
]
"""The unit is in the name; GB/s are 1e9 bytes. Only `launch_us` is better when it is less."""

Phase = Literal["open", "gemm", "memory", "integrity", "launch", "sustained", "pcie", "p2p"]
_Error = Annotated[str, Meta(max_length=512)]
_Name = Annotated[str, Meta(max_length=64)]
_Rate = Annotated[float, Meta(gt=0, le=1e9)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Ready(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="ready"
):
    """Its Python has torch, which sees so many devices."""

    torch: _Name
    kind: Kind
    devices: Annotated[int, Meta(ge=0, le=64)]


class NoTorch(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="no_torch"
):
    """Its Python has none, or one that cannot be loaded."""

    error: _Error


class Busy(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="busy"
):
    """Another run measures this node; two at once would measure each other."""

    error: _Error


class Step(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="step"
):
    """It begins a phase."""

    phase: _Name
    done: Index
    of: Index


class Opened(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="opened"
):
    """A device came up."""

    device: Index
    name: Line
    bus_id: Line = ""
    numa: int | None = None
    memory_mib: Count | None = None


class Reading(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="reading"
):
    """One series of samples: of a device, between two, with one NUMA side, or of a NIC."""

    measure: Measure
    samples: Annotated[tuple[_Rate, ...], Meta(min_length=1, max_length=2048)]
    device: Index | None = None
    to: Index | None = None
    side: Index | None = None
    name: _Name = ""
    direct: bool | None = None
    """Between two GPUs: whether they reach each other's memory without the host's."""
    waited: _Share = 0.0
    """The share of the time for which the process had no CPU though it was ready."""
    threads: Index | None = None


class Proof(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="proof"
):
    """How often something was computed or remembered, and how often wrong."""

    device: Index
    to: Index | None = None
    what: Literal["product", "memory", "load", "p2p"]
    rounds: Count
    wrong: Count
    """Results of the product or under load; words of memory or of what was sent."""
    first: _Error = ""
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,16}\Z")] = ""
    """Of every bit of the result: equal wherever the same product came out right."""
    size: _Name = ""


class Look(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One look at a GPU's clocks; None for what NVML would not tell."""

    at_s: Annotated[float, Meta(ge=0, le=1e6)]
    sm_mhz: Count | None = None
    memory_mhz: Count | None = None
    celsius: Annotated[int, Meta(ge=-273, le=1000)] | None = None
    watts: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    reasons: Annotated[tuple[_Name, ...], Meta(max_length=8)] | None = None


class Clocks(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="clocks"
):
    """The looks before and during the sustained load; none where there is no NVML."""

    device: Index
    looks: Annotated[tuple[Look, ...], Meta(max_length=2048)]


class Lost(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="lost"
):
    """A device did not come through a phase, and takes no part in later ones."""

    device: Index
    to: Index | None = None
    phase: Phase
    how: Literal["hung", "died", "error", "held"]
    """`held`: another process has it to itself, which is no fault of the device."""
    error: _Error
    starved: bool = False
    """Its process waited for a CPU for most of that time: that is no proof against the device."""


class Absent(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="absent"
):
    """Something is not there to be measured."""

    what: Literal["nic"]
    error: _Error


class Trouble(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="trouble"
):
    """Something that is there could not be measured."""

    what: Literal["nic", "host"]
    error: _Error


class NoTime(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="no_time"
):
    """Parts that are there and had no turn, as the time of the burn-in was up."""

    what: Literal["nic"]
    names: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=256)]


class Alive(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="alive"
):
    """Nothing new, but its line works and it is not frozen."""


class Done(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="done"
):
    """All that was asked is done."""


Event = (
    Ready
    | NoTorch
    | Busy
    | Step
    | Opened
    | Reading
    | Proof
    | Clocks
    | Lost
    | Absent
    | Trouble
    | NoTime
    | Alive
    | Done
)


class Burned(Struct, frozen=True, kw_only=True):
    """All that one node said, and why there is no more of it."""

    ready: Ready | None = None
    opened: tuple[Opened, ...] = ()
    readings: tuple[Reading, ...] = ()
    proofs: tuple[Proof, ...] = ()
    clocks: tuple[Clocks, ...] = ()
    lost: tuple[Lost, ...] = ()
    absent: tuple[Absent, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    no_time: tuple[NoTime, ...] = ()
    done: bool = False
    left_out: str = ""
    """Why it was not loaded, through no fault of its own."""
    trouble: str = ""
    """Why it fell out, or could not take part."""
    advice: str = ""
    stopped: bool = False
    """Our own time was up, or the run was interrupted."""
    seconds: float = 0.0


_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode_burned(document: bytes) -> Event:
    """Decode one event; WireError if it is none."""
    try:
        return _DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"its burn-in said something else than it should: {reason}") from error
