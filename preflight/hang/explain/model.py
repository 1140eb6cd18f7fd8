"""Whom an explanation names, and by which lines: only who a line itself tells of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.triage.explain.model import Proof

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.triage.explain.model import Hit, Place, Speaker

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
