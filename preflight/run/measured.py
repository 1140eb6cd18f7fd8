"""Everything a run has measured so far, and its progress."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from preflight.check import Stage
from preflight.fabric.planner import Planned
from preflight.fabric.samples import Sweep
from preflight.facts.burn import Burned
from preflight.facts.model import Facts, Ports
from preflight.facts.node import Reach
from preflight.fleet.nodeset import check_names
from preflight.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence


LARGEST = 1 << 30
"""Bytes of a measured.json; a node takes some 100 KiB at most, a pair 50."""


class Measured(Struct, frozen=True, kw_only=True):
    """By node name. A stage adds its own part and leaves the rest as it was."""

    nonce: str
    reach: dict[str, Reach] = {}
    facts: dict[str, Facts] = {}
    ports: dict[str, Ports] = {}
    port_troubles: dict[str, str] = {}
    """Why a node that took part in the port stage gave no usable report."""
    burned: dict[str, Burned] = {}
    """What each node said of its devices under load."""
    planned: Planned | None = None
    """The rounds that were to be measured, over all nodes."""
    sweep: Sweep | None = None
    skipped: dict[Stage, Verdict] = {}
    """Stages that were not run, and the verdict that everyone gets instead."""

    def encode(self) -> bytes:
        """Write it for another process of the same run, or for judging it again later."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> Measured:
        """Read what `encode` wrote; ValueError if it is not that, or names what is no node."""
        read = msgspec.json.decode(content, type=cls)
        check_names(chain(read.reach, read.facts, read.ports, read.port_troubles, read.burned))
        rounds = read.planned.rounds if read.planned else ()
        check_names(chain(*chain(*rounds), read.planned.leaves if read.planned else ()))
        return read


class Progress(Protocol):
    """Called from the run's main thread and from its helpers; must be quick and never raise."""

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Say how far a phase is, and for whom it waits."""

    def line(self, text: str) -> None:
        """Say something that stays on the screen."""


class Silent:
    """For callers that show nothing."""

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show nothing."""

    def line(self, text: str) -> None:
        """Show nothing."""
