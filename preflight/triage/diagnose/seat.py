"""One rank of a job: where it stood at each look, whether it waits, and whether anything moved."""

from __future__ import annotations

from msgspec import Struct

from preflight.facts.look_model import RankLook
from preflight.triage.diagnose.places import CODE, OTHERS, Place

BUSY = 0.5
"""Of a core: a main thread that uses so much computes, or spins."""
IDLE = 0.05
"""Of a core: one that uses less waits for something."""


class Seat(Struct, frozen=True, kw_only=True):
    """One rank of the job."""

    rank: int
    node: str
    look: RankLook
    gpu: int | None = None
    place: Place | None = None
    """At the last look."""
    before: Place | None = None
    """At the first, where there were two."""
    seen: tuple[tuple[Place, int], ...] = ()
    """Of many quick looks between the two: where, and how often."""
    fed: int = 0
    """Bytes that came from other ranks between the looks."""

    @property
    def name(self) -> str:
        """`rank 17 (gpu003, GPU 1)`."""
        return f"rank {self.rank} ({self.node}{'' if self.gpu is None else f', GPU {self.gpu}'})"

    @property
    def cpu(self) -> float:
        """Of a core, what its main thread used."""
        return self.look.main_cpu_s / self.look.look_s if self.look.look_s > 0 else 0.0

    @property
    def waits(self) -> bool:
        """Whether it stands where others are waited for: other ranks, or its own GPU."""
        place = self.place
        if place is None or self.look.state == "disk":
            return False
        if place.waits == "idle":
            return place.kind != CODE and (self.cpu < IDLE or bool(self.look.gpus))
        return place.waits == "yes"

    @property
    def steady(self) -> bool:
        """Two looks or more saw it in one place only, and nothing came in meanwhile."""
        if self.place is None or self.fed or (self.before is None and not self.seen):
            return False
        others = {one.key for one, _ in self.seen} | {(self.before or self.place).key}
        return others == {self.place.key}

    @property
    def went_on(self) -> bool:
        """It was seen in another place meanwhile, or other ranks' data came in."""
        if self.place is None:
            return False
        before = {one.key for one, _ in self.seen} | {(self.before or self.place).key}
        return bool(self.fed) or before != {self.place.key}

    @property
    def came_through(self) -> bool:
        """It was met in a collective, and later elsewhere: what it waited for has come."""
        if self.place is None or self.before is None:
            return False
        return self.before.kind in OTHERS and self.before.key != self.place.key

    @property
    def computes(self) -> bool:
        """It works by itself: not a GPU's program that spins until its GPU is done."""
        return self.cpu >= BUSY and not self.look.gpus
