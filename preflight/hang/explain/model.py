"""What is read out of a log, whom it names, and its numbers in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import whole
from preflight.facts.boards import known
from preflight.hang.answer_text import Alternative
from preflight.hang.explain.symptom import Category, Symptom

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    line: int
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


class Explanation(Struct, frozen=True, kw_only=True):
    """The answer; `preflight explain --json` prints it as it is (docs/explain.md)."""

    category: Category = "unknown"
    culprits: tuple[str, ...] = ()
    """`rank 3`, `node gpu004`, `gpu 2`, `hca mlx5_1`, `port 29500`."""
    sentence: str
    advice: str
    evidence: tuple[Place, ...] = ()
    confidence: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    cause: str = ""
    next: str = ""
    """What to check next with preflight."""
    lines: int = 0
    """That were read."""


_MOST = 16
_PROOFS = 6
_WORDS = {
    "rank2": "rank",
    "missing": "rank",
    "peer": "node",
    "bus": "gpu",
    "tasks": "task",
    "near": "rank",
    "local_rank": "local rank",
}
"""What a field is of, where that is not its own name."""
_TASK = re.compile(r"/task:(\d{1,9})")


def culprits(same: Sequence[Hit], first: Hit) -> tuple[str, ...]:
    """Who is to blame by the fields that the symptom names, over all its places.

    Where they name nobody, it is the one node whose lines tell of it. A symptom that names no
    field accuses nobody: who writes that line only reports it.
    """
    found: dict[str, None] = {}
    for hit in [first, *same]:
        for field in first.symptom.culprits:
            for name in _first_known(field, hit):
                found.setdefault(name)
    nodes = {hit.speaker.node for hit in [first, *same]}
    telling = first.symptom.culprits and first.symptom.role in ("cause", "sign")
    if not found and telling and len(nodes) == 1:
        return tuple(f"node {node}" for node in nodes if node)
    ranked = any(name.startswith("rank ") for name in found)
    named = [name for name in found if not (ranked and name.startswith("local rank "))]
    return tuple(named)[:_MOST]


def names(speaker: Speaker) -> tuple[str, ...]:
    """`rank 3` and `node gpu004`, as far as they are known."""
    rank = (f"rank {speaker.rank}",) if speaker.rank is not None else ()
    node = (f"node {speaker.node}",) if speaker.node else ()
    return (*rank, *node)


def tasks_of(value: str) -> list[str]:
    """The numbers of JAX's tasks in a list such as `/job:jax_worker/replica:0/task:3`."""
    return sorted(set(_TASK.findall(value)), key=int)


def _first_known(fields: str, hit: Hit) -> tuple[str, ...]:
    """`speaker/gpu` is the rank or node that said it; the GPU only where neither is known."""
    return next(filter(None, (_culprit(field, hit) for field in fields.split("/"))), ())


def _culprit(field: str, hit: Hit) -> tuple[str, ...]:
    if field == "speaker":
        return names(hit.speaker)
    if field == "speaker_node":
        return (f"node {hit.speaker.node}",) if hit.speaker.node else ()
    value = hit.fields.get(field)
    if value is None:
        return ()
    word = _WORDS.get(field, field)
    if word == "task":
        return tuple(f"task {one}" for one in tasks_of(value))
    several = value.split(",") if word == "rank" else [value]
    return tuple(f"{word} {one.strip()}" for one in several)


def proofs(places: Iterable[Place]) -> tuple[Place, ...]:
    """The first few lines, each once, on one line each."""
    seen: dict[tuple[str, int], Place] = {}
    for place in places:
        text = re.sub(r"\s+", " ", place.text).strip()[:240]
        seen.setdefault((place.source, place.line), replace(place, text=text))
    return tuple(seen.values())[:_PROOFS]


def decoded(hit: Hit) -> dict[str, str]:
    """Add who spoke, and what numbers mean: a completion's status, an errno, an Xid."""
    told = dict(hit.fields)
    if hit.speaker.words:
        told.setdefault("speaker", hit.speaker.words)
    if rank := told.get("rank"):
        told["rank_words"] = f"rank{'s' * (',' in rank)} {rank}"
    if tasks := tasks_of(told.get("tasks", "")):
        told["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    for field, meanings in hit.symptom.words.items():
        number = number_of(hit, field)
        words = meanings.get(str(number), meanings.get("", "")) if number else ""
        if words:
            told[f"{field}_words"] = words.format(number=number)
    if "xid" in told:
        told["xid_words"] = known(int(told["xid"])).meaning
    return told


def number_of(hit: Hit, field: str) -> int:
    """The number of a field, or that which a text stands for; 0 where neither is told."""
    told = whole(hit.fields.get(field, ""), 2**64)
    if told is not None:
        return told
    names = hit.symptom.numbers.get(field, {})
    texts = hit.fields.values()
    return int(next((names[name] for name in names if any(name in one for one in texts)), 0))
