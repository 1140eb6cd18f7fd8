"""What is read out of a log, whom it names, and its numbers in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.facts.boards import known
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


def proofs(places: Iterable[Place]) -> tuple[Proof, ...]:
    """The first few lines, each once, on one line each."""
    seen: dict[tuple[str, int], Proof] = {}
    for place in places:
        seen.setdefault((place.source, place.number), _proof(place))
    return tuple(seen.values())[:_PROOFS]


def _proof(place: Place) -> Proof:
    return Proof(place.source, place.number, re.sub(r"\s+", " ", place.text).strip()[:240])


STATUS = {
    4: "a local memory access was refused (local protection error)",
    5: "the queue had been flushed: a consequence of an earlier failure at either end",
    9: "the peer refused the request (remote invalid request)",
    10: "the peer refused access to its memory (remote access error)",
    11: "the peer failed in carrying it out (remote operation error)",
    12: "the peer did not acknowledge in time, retries used up (transport retry counter exceeded)",
    13: "the peer was not ready to receive, retries used up (RNR retry counter exceeded)",
}
"""enum ibv_wc_status of rdma-core, libibverbs/verbs.h."""

FLUSHED = 5

VENDOR = {
    129: "Mellanox syndrome 0x81: no acknowledgement came, the path or the peer is dead",
    130: "Mellanox syndrome 0x82: the peer answered that it was not ready",
    136: "Mellanox syndrome 0x88: the peer refused access to its memory",
    138: "Mellanox syndrome 0x8a: the peer took the request for invalid",
    244: "Mellanox syndrome 0xf4: the queue was flushed",
    249: "Mellanox syndrome 0xf9: the queue was flushed",
}
"""`vendor err` as mlx5 fills it in: the low byte of the completion's vendor syndrome."""

ERRNO = {
    19: "errno 19, the device does not know that port, path or interface (No such device)",
    22: "errno 22, a GID or an attribute does not fit the other end's",
    61: "errno 61, the GID at that index is empty",
    101: "errno 101, no route between these two ports",
    110: "errno 110, the other end did not answer",
    113: "errno 113, no way to the other end",
}
"""What ibv_modify_qp returns on the way to RTR."""

ERRNO_OF = {
    "Invalid argument": 22,
    "No data available": 61,
    "Network is unreachable": 101,
    "Connection timed out": 110,
    "No route to host": 113,
}

NAMES = {
    "RETRY_EXC_ERR": 12,
    "Transport retry count exceeded": 12,
    "RNR_RETRY_EXC_ERR": 13,
}


def decoded(hit: Hit) -> dict[str, str]:
    """Add who spoke, and what the numbers of InfiniBand, errno and Xid mean."""
    told = dict(hit.fields)
    if hit.speaker.words:
        told.setdefault("speaker", hit.speaker.words)
    if rank := told.get("rank"):
        told["rank_words"] = f"rank{'s' * (',' in rank)} {rank}"
    if tasks := tasks_of(told.get("tasks", "")):
        told["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    if status := status_of(told):
        vendor = VENDOR.get(int(told.get("vendor", "0")), "")
        words = STATUS.get(status, f"status {status}")
        told["status_words"] = f"{words}{f'; {vendor}' if vendor else ''}"
    errno = errno_of(told)
    if errno and "errno_words" not in told and hit.symptom.id == "ib_queue_pair":
        told["errno_words"] = ERRNO.get(errno, f"errno {errno}")
    if "xid" in told:
        told["xid_words"] = known(int(told["xid"])).meaning
    return told


def status_of(told: dict[str, str]) -> int:
    """The status of a completion; 0 where none is told."""
    said = told.get("status", "")
    return int(said) if said.isdecimal() else NAMES.get(said, 0)


def errno_of(told: dict[str, str]) -> int:
    """The errno, by number or by Linux' words for it; 0 where none is told."""
    if told.get("errno", "").isdecimal():
        return int(told["errno"])
    said = told.get("said", "")
    return next((number for words, number in ERRNO_OF.items() if words in said), 0)
