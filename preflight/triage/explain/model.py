"""What is read out of a log, and what is said of it in the end."""

from __future__ import annotations

from msgspec import Struct

from preflight.triage.symptom import Category, Symptom


class Speaker(Struct, frozen=True, kw_only=True):
    """Who wrote a line, as far as the line tells."""

    rank: int | None = None
    """Global rank."""
    node: str = ""
    pid: int | None = None

    def joined(self, other: Speaker) -> Speaker:
        """Complete it by what another knows."""
        return Speaker(
            rank=self.rank if self.rank is not None else other.rank,
            node=self.node or other.node,
            pid=self.pid if self.pid is not None else other.pid,
        )

    @property
    def words(self) -> str:
        """`rank 3 on gpu004`, or as much of it as is known."""
        rank = f"rank {self.rank}" if self.rank is not None else ""
        return " on ".join(filter(None, (rank, self.node)))


class Place(Struct, frozen=True):
    """Where a line stands."""

    source: str
    number: int
    text: str
    """Cleaned and cut."""


class Hit(Struct, frozen=True, kw_only=True):
    """One symptom in one place."""

    symptom: Symptom
    place: Place
    speaker: Speaker
    fields: dict[str, str]
    time: tuple[float, ...] | None
    """Comparable with other times of the same form; None where the line tells none."""
    order: int
    """The how-many-th line it is of all that were read."""


class Proof(Struct, frozen=True):
    """A line that proves something."""

    source: str
    line: int
    text: str


class Alternative(Struct, frozen=True):
    """What it might be instead, and why it comes second."""

    category: Category
    sentence: str
    confidence: float


class Explanation(Struct, frozen=True, kw_only=True):
    """The answer; `preflight explain --json` prints it as it is (docs/explain.md)."""

    category: Category
    culprits: tuple[str, ...]
    """`rank 3`, `node gpu004`, `gpu 2`, `hca mlx5_1`, `port 29500`."""
    sentence: str
    advice: str
    evidence: tuple[Proof, ...]
    confidence: float
    alternatives: tuple[Alternative, ...] = ()
    cause: str = ""
    next: str = ""
    """What to check next with preflight."""
    lines: int = 0
    """That were read."""
