"""One node's words during its burn-in, kept in order; what it cannot have seen is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import WireError
from preflight.facts.burned import (
    Absent,
    Burned,
    Busy,
    Clocks,
    Done,
    Lost,
    NoTime,
    NoTorch,
    Opened,
    Proof,
    Reading,
    Ready,
    Step,
    Trouble,
)
from preflight.facts.words import count
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.facts.burned import Event

MOST = 20_000
"""Events of one node: 64 GPUs have 4,032 ways between them, each with a reading and a proof."""

MORE_TIME = "give more: --preflight-budget=SECONDS"
_NO_TORCH = "name the job's Python with --preflight-python"


class Collected:
    """What a node has said so far."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.done = False
        self.busy = ""
        self.no_torch = ""
        self._ready: Ready | None = None
        self._kept: list[Event] = []
        self._seen: set[tuple[object, ...]] = set()

    def take(self, event: Event) -> None:
        """Keep an event; WireError for one that was said twice, or of a device it has not."""
        if len(self._kept) >= MOST:
            raise WireError("its burn-in said more than there was to say")
        if isinstance(event, Step):
            self.step = event
        elif isinstance(event, Done):
            self.done = True
        elif isinstance(event, Busy):
            self.busy = event.error
        elif isinstance(event, NoTorch):
            self.no_torch = event.error
        elif isinstance(event, Ready):
            self._refuse(self._ready is not None)
            self._ready = event
        else:
            self._refuse(self._told_twice(event))
            self._kept.append(event)

    def result(
        self, *, trouble: str = "", advice: str = "", stopped: bool = False, seconds: float = 0.0
    ) -> Burned:
        """Everything, and why there is no more of it."""
        if self.no_torch:
            trouble, advice = f"no usable torch in its Python: {self.no_torch}", _NO_TORCH
        kept = self._kept
        return Burned(
            ready=self._ready,
            opened=tuple(one for one in kept if isinstance(one, Opened)),
            readings=tuple(one for one in kept if isinstance(one, Reading)),
            proofs=tuple(one for one in kept if isinstance(one, Proof)),
            clocks=tuple(one for one in kept if isinstance(one, Clocks)),
            lost=tuple(one for one in kept if isinstance(one, Lost)),
            absent=tuple(one for one in kept if isinstance(one, Absent)),
            troubles=tuple(one for one in kept if isinstance(one, Trouble)),
            no_time=tuple(one for one in kept if isinstance(one, NoTime)),
            done=self.done,
            left_out=f"busy: {self.busy}" if self.busy else "",
            trouble=trouble,
            advice=advice,
            stopped=stopped,
            seconds=round(seconds, 3),
        )

    def _told_twice(self, event: Event) -> bool:
        devices = self._ready.devices if self._ready is not None else 0
        ends = (getattr(event, "device", None), getattr(event, "to", None))
        if any(end is not None and end >= devices for end in ends):
            return True
        if isinstance(event, Reading):
            key: tuple[object, ...] = ("reading", event.measure, *ends, event.side, event.name)
        elif isinstance(event, Proof):
            key = ("proof", event.what, *ends)
        elif isinstance(event, Opened | Clocks | NoTime):
            key = (type(event).__name__, *ends)
        else:
            return False
        told = key in self._seen
        self._seen.add(key)
        return told

    @staticmethod
    def _refuse(wrong: bool) -> None:  # noqa: FBT001 - a condition, not a switch
        if wrong:
            raise WireError("its burn-in tells of something twice, or of a device that it has not")


def no_time_lines(fleet: Mapping[str, Burned]) -> Iterator[str]:
    """Which parts of which nodes had no turn: "h[1-2]: no time for the loopback of 4 NICs, ..."."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, burned in fleet.items():
        for one in burned.no_time:
            alike.setdefault(one.names, []).append(node)
    for names, nodes in alike.items():
        nics = count(len(names), "NIC")
        yield f"{fold(nodes)}: no time for the loopback of {nics}: {', '.join(names)}; {MORE_TIME}"
