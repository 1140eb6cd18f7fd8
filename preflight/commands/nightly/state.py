"""Where the sweep stands now: changed in one place, and on disk after every change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.sweeping.screen import clock
from preflight.sweeping.state import WaveState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    from preflight.sweeping.state import Sweep
    from preflight.sweeping.waves import Wave


class Standing:
    """A sweep's state while it goes on. Every change is written; OSError where that fails."""

    def __init__(self, folder: Path, sweep: Sweep) -> None:
        self.folder = folder
        self.sweep = sweep
        self._spent_before_s = sweep.spent_s
        self._began = time.monotonic()
        self.took_s: list[float] = []
        """How long the waves of this call took."""

    def set(self, number: int, **changes: object) -> None:
        """Change one wave."""
        self.sweep = self.sweep.having(number, **changes)
        self.write()

    def leave_out(self, number: int, why: Mapping[str, str]) -> None:
        """Take nodes out of a wave; one of which nobody is left is left out itself."""
        rest = tuple(name for name in self.sweep.waves[number].nodes if name not in why)
        self.sweep = replace(self.sweep, left_out={**self.sweep.left_out, **why})
        changes: dict[str, object] = {"nodes": rest}
        if not rest:
            changes = {"stand": "left out", "why": "somebody works on each of its nodes"}
        self.set(number, **changes)

    def add(self, waves: Iterable[Wave], nodes: Collection[str]) -> None:
        """Add waves of nodes that were left out before."""
        self.sweep = replace(
            self.sweep,
            left_out={n: why for n, why in self.sweep.left_out.items() if n not in nodes},
            waves=(*self.sweep.waves, *(WaveState(nodes=wave) for wave in waves)),
        )
        self.write()

    def write(self) -> None:
        """Write it down, with the time that it took so far."""
        left = any(wave.open or wave.stand == "broken off" for wave in self.sweep.waves)
        self.sweep = replace(
            self.sweep,
            spent_s=round(self._spent_before_s + time.monotonic() - self._began, 1),
            written_s=time.time(),
            finished=not left,
        )
        self.sweep.write(self.folder)

    @property
    def next(self) -> int | None:
        """The wave whose turn it is; None when all had theirs."""
        return next((n for n, wave in enumerate(self.sweep.waves) if wave.open), None)

    @property
    def open_waves(self) -> int:
        """How many have not had their turn."""
        return sum(wave.open for wave in self.sweep.waves)

    @property
    def left_s(self) -> float | None:
        """Time until the sweep must have ended; None where it has no end."""
        return None if self.sweep.ends_s is None else self.sweep.ends_s - time.time()

    @property
    def done_at(self) -> datetime | None:
        """When all will be done, by what the waves so far took; None before the first."""
        if not self.took_s:
            return None
        left_s = self.open_waves * sum(self.took_s) / len(self.took_s)
        return clock(left_s if self.left_s is None else min(left_s, max(0.0, self.left_s)))

    def at(self, number: int) -> str:
        """A wave as a person counts: "3/12"."""
        return f"{number + 1}/{len(self.sweep.waves)}"

    def nodes_after(self, number: int) -> int:
        """How many nodes come after a wave."""
        rest = self.sweep.waves[number + 1 :]
        return sum(len(wave.nodes) for wave in rest if wave.open)
