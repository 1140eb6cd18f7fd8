"""What a log shows of a failure, and the answer: who, where, and the words for it."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import whole
from preflight.facts.boards import xid_info
from preflight.hang.answer_text import Alternative, rows
from preflight.hang.call_waits import Wait
from preflight.hang.diagnose.job_state import ranks
from preflight.hang.explain.symptom import Category, Symptom

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class Speaker(Struct, frozen=True, kw_only=True):
    """The process that wrote a line, as far as the line shows it."""

    rank: int | None = None
    """Global rank."""
    node: str = ""
    pid: int | None = None
    label: str = ""
    """The launcher's prefix."""

    def joined(self, other: Speaker) -> Speaker:
        """Fill gaps from another speaker."""
        return Speaker(
            rank=self.rank if self.rank is not None else other.rank,
            node=self.node or other.node,
            pid=self.pid if self.pid is not None else other.pid,
            label=self.label or other.label,
        )

    @property
    def words(self) -> str:
        """`rank 3 on gpu004`, or as much of it as is known."""
        rank = f"rank {self.rank}" if self.rank is not None else ""
        return " on ".join(filter(None, (rank, self.node)))


class Place(Struct, frozen=True):
    """A line of a log."""

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
    time: float | None
    """Seconds since 1 March; None if the line has no time."""
    order: int
    """The number of the line among all lines read."""
    tried_again: bool = False
    """Whether the line itself says so."""
    before: tuple[Place, ...] = ()
    """The lines right before it, if it reports the end of a process."""

    @property
    def retried(self) -> bool:
        """Whether it counts only if nothing else failed."""
        return self.symptom.retried or self.tried_again

    @property
    def reports_exit(self) -> bool:
        """Whether a launcher reports with which code a process ended."""
        return self.symptom.role == "echo" and "code" in self.fields


class Explanation(Struct, frozen=True, kw_only=True):
    """The answer; `preflight explain --json` prints it as it is (docs/reference/explain.md)."""

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
    """How many lines were read."""
    consequences: tuple[str, ...] = ()
    """Failures that followed from it."""
    line: str = ""
    """The line of the script where the culprit was, where dumps show it."""
    waits: tuple[Wait, ...] = ()
    """Where each rank waited, and for which ranks, from flight recorder dumps."""
    unseen: tuple[str, ...] = ()
    """What the dumps do not show."""


LIKELY = 0.5
"""Confidence below which an answer is shown as unclear."""
_MOST = 16
_PROOFS = 6
_LONGEST = 240
"""Characters shown of a line."""
_ROWS = 8
"""Rows of the table of waits on a terminal."""
_WORDS = {
    "rank2": "rank",
    "missing": "rank",
    "peer": "node",
    "bus": "gpu",
    "tasks": "task",
    "near": "rank",
    "local_rank": "local rank",
}
"""The kind of a culprit, if it differs from the field's name."""
_TASK = re.compile(r"/task:(\d{1,9})")


def culprits(same: Sequence[Hit], first: Hit) -> tuple[str, ...]:
    """The culprits by the fields that the symptom names, over all its hits.

    If the fields are empty, the culprit is the node, if only one reports it. A symptom without
    culprit fields names no culprit: the writer of the line only reports the failure. Where hits
    name both ends of different paths, or different pairs of ranks, what all of them share is the
    culprit, if anything.
    """
    fields = first.symptom.culprits
    of_hits = [
        dict.fromkeys(name for field in fields for name in _first_known(field, hit))
        for hit in [first, *same]
    ]
    all_names = {name: None for of_hit in of_hits for name in of_hit}
    shared = [name for name in all_names if all(name in of_hit for of_hit in of_hits)]
    nodes = {hit.speaker.node for hit in [first, *same]}
    if len(nodes) > 1:  # each node has such an HCA
        shared = [name for name in shared if not name.startswith("hca ")]
    if {"peer", "rank2"} & {*fields} and shared:
        return tuple(shared)
    telling = first.symptom.culprits and first.symptom.role in ("cause", "sign")
    if not all_names and telling and len(nodes) == 1:
        return tuple(f"node {node}" for node in nodes if node)
    has_rank = any(name.startswith("rank ") for name in all_names)
    who = [name for name in all_names if not (has_rank and name.startswith("local rank "))]
    return tuple(who)[:_MOST]


def rank_words(some: Collection[int], most: int = 8) -> str:
    """`rank 3`, or the first ranges of many: `ranks 0-3,7 ...`."""
    ranges = ranks(some).split(",")
    return ",".join(ranges[:most]) + (" ..." if len(ranges) > most else "")


def names(speaker: Speaker) -> tuple[str, ...]:
    """`rank 3` and `node gpu004`, as far as they are known."""
    rank = (f"rank {speaker.rank}",) if speaker.rank is not None else ()
    node = (f"node {speaker.node}",) if speaker.node else ()
    return (*rank, *node)


def tasks_of(value: str) -> list[str]:
    """The numbers of JAX's tasks in a list such as `/job:jax_worker/replica:0/task:3`."""
    return sorted(set(_TASK.findall(value)), key=int)


def _first_known(fields: str, hit: Hit) -> tuple[str, ...]:
    """`speaker/gpu` is the rank or node that wrote it; the GPU only if neither is known."""
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
        return tuple(f"task {task}" for task in tasks_of(value))
    parts = value.split(",") if word == "rank" else [value]
    return tuple(f"{word} {part.strip()}" for part in parts)


def proofs(places: Iterable[Place]) -> tuple[Place, ...]:
    """The first few lines, each once, on one line each."""
    by_line: dict[tuple[str, int], Place] = {}
    for place in places:
        text = " ".join(place.text.split())
        if len(text) > _LONGEST:
            whole_words = text[: _LONGEST + 1].rpartition(" ")[0]
            text = f"{whole_words or text[:_LONGEST]} ..."
        by_line.setdefault((place.source, place.line), replace(place, text=text))
    return tuple(by_line.values())[:_PROOFS]


def with_meanings(hit: Hit) -> dict[str, str]:
    """Add the speaker and the meaning of numbers: a completion's status, an errno, an Xid."""
    fields = {name: " ".join(value.split()) for name, value in hit.fields.items()}
    if hit.speaker.words:
        fields.setdefault("speaker", hit.speaker.words)
    if rank := fields.get("rank"):
        numbers = rank.replace(" ", "").split(",")
        plain = all(map(str.isdecimal, numbers))
        fields["rank_words"] = rank_words({*map(int, numbers)}) if plain else f"rank {rank}"
    if tasks := tasks_of(fields.get("tasks", "")):
        fields["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    for field, meanings in hit.symptom.words.items():
        number = number_of(hit, field)
        words = meanings.get(str(number), meanings.get("", "")) if number else ""
        if words:
            fields[f"{field}_words"] = words.format(number=number)
    if "xid" in fields:
        fields["xid_words"] = xid_info(int(fields["xid"])).meaning
    return fields


def number_of(hit: Hit, field: str) -> int:
    """The number of a field, or the number that a text stands for; 0 without either."""
    number = whole(hit.fields.get(field, ""), 2**64)
    if number is not None:
        return number
    names = hit.symptom.numbers.get(field, {})
    texts = hit.fields.values()
    return int(next((names[name] for name in names if any(name in text for text in texts)), 0))


def lines(answer: Explanation, width: int) -> list[str]:
    """The lines of the answer, wrapped."""
    kind = "dumps" if answer.waits else "lines"
    sections = (
        ("what", [answer.sentence]),
        ("who", [", ".join(answer.culprits) or f"not shown by these {kind}"]),
        ("line", [answer.line]),
        ("why", [answer.cause]),
        ("do", [answer.advice]),
        ("next", [answer.next]),
        ("proof", [f"{proof.source}:{proof.line}: {proof.text}" for proof in answer.evidence]),
        ("then", answer.consequences),
        ("waits", _waits(answer)),
        ("unseen", answer.unseen),
        ("or", [other.words for other in answer.alternatives]),
    )
    category: str = answer.category
    if 0 < answer.confidence < LIKELY:
        category = "unclear" if category == "unknown" else f"unclear: {category}"
    return rows(category, answer.confidence, sections, width)


def _waits(answer: Explanation) -> list[str]:
    """What each rank waits for: `ranks 0-7: send in PIPELINE, for ranks 8-15`."""
    rows = []
    for row in islice(answer.waits, _ROWS):
        number = f" {row.number}" if row.number else ""
        away = f"for {ranks(row.waits_for)}" if row.waits_for else "all ranks are there"
        rows.append(f"{ranks(row.ranks)}: {row.call}{number} in {row.group}, {row.state}: {away}")
    more = len(answer.waits) - _ROWS
    return rows + [f"... {more} more: --json has them"] * (more > 0)
