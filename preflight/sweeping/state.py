"""`sweep.json`: where a sweep stands, written whole after each step, so that a killed one goes on.

It also tells later nights who was looked at, and with whom.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight.check import Tier
from preflight.report.files import write_atomically
from preflight.report.runs import KEEP
from preflight.sweeping.idle import Whom

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA, NAME, LARGEST = 1, "sweep.json", 64 << 20
TOO_OLD_S = 12 * 3600.0
"""A sweep is not gone on with after so long: the next night begins anew, with who is waiting."""

Stand = Literal["waiting", "begun", "done", "broken off", "left out"]
"""`begun`: it runs now, or was killed. `broken off`: a job came, or its process died."""

Name = Annotated[str, Meta(max_length=253)]


class WaveState(Struct, frozen=True, kw_only=True):
    """One wave, and what became of it."""

    nodes: tuple[Name, ...]
    stand: Stand = "waiting"
    folder: str = ""
    """Of its latest try, beside sweep.json; "" before the first."""
    tries: int = 0
    why: str = ""
    """Why it was broken off, or left out."""
    whole: bool = False
    """Every pair of its nodes was measured."""

    @property
    def open(self) -> bool:
        """Whether it is still to be judged."""
        return self.stand in ("waiting", "begun")


class Sweep(Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA
    preflight: str
    sweep: str
    """Its random id."""
    started_s: float
    """Seconds since the epoch."""
    words: tuple[str, ...]
    """How it was called: the options of every wave."""
    cwd: str
    """Where relative paths in them begin."""
    folders: tuple[str, ...] = ()
    """The site's own checks."""
    tier: Tier
    usual_s: float
    """What a wave gets where the time is long enough."""
    most: int
    """Nodes of a wave."""
    whom: Whom = "all"
    reservation: str = ""
    """Who is looked at."""
    strict: bool = False
    metrics: str = ""
    exclude_file: str = ""
    """Files that the whole sweep writes, not each wave; "" where none was asked for."""
    keep: int = KEEP
    """Sweeps of which the waves' folders stay."""
    nodes: tuple[Name, ...]
    """The fleet in order, the nodes that are left out among them."""
    origin: str
    leaves: dict[str, str] = {}
    topology: str = ""
    left_out: dict[str, str] = {}
    """Nodes that were not to be looked at, and why."""
    waves: tuple[WaveState, ...] = ()
    ends_s: float | None = None
    """When it must have ended; None: when it is done."""
    spent_s: float = 0.0
    """Seconds that it ran, all calls together."""
    written_s: float = 0.0
    """When it was written last, seconds since the epoch."""
    finished: bool = False
    """Nothing is left of it to go on with."""

    def write(self, folder: Path) -> None:
        """Write it in one piece; OSError if that fails."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_atomically(folder / NAME, content + b"\n")

    def having(self, number: int, **changes: object) -> Sweep:
        """Return it with one wave changed."""
        waves = list(self.waves)
        waves[number] = replace(waves[number], **changes)
        return replace(self, waves=tuple(waves))

    @property
    def idle_s(self) -> float:
        """For how long nobody has gone on with it."""
        return datetime.now(UTC).timestamp() - max(self.started_s, self.written_s)
