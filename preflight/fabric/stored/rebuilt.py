"""The short form as the sweep that it is of, so that both forms are judged by the same code.

What it does not hold stays out: who waited for whom, why a sweep ended, a node's own rails, times
one by one. A pair without times is no measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.measure import SizeSummary, Summary, busbw_gbs, lost_words
from preflight.fabric.observed import BETWEEN_WAYS
from preflight.fabric.samples import End, Ladder, PairSamples, Sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed, Tried
    from preflight.fabric.samples import PairState

    Turn = tuple[str, str, int, int]

UNTIMED = "none of its times is stored"


class Rebuilt(NamedTuple):
    """A sweep whose ends hold no times, and what those came to, pair by pair."""

    sweep: Sweep
    summaries: tuple[Summary, ...]


def rebuilt(observed: Observed) -> Rebuilt:
    """Undo what `observe` does, as far as it can be undone."""
    digests: dict[Turn, list[Digest]] = {}
    rungs: dict[int, int] = {}
    for one in observed.digests:
        digests.setdefault((one.a, one.b, one.rail, one.round), []).append(one)
        if one.phase == "ladder":
            rungs[one.size_bytes] = max(rungs.get(one.size_bytes, 0), one.operations)
    whole = [(one, digests.get((one.a, one.b, one.rail, one.round), [])) for one in observed.tried]
    untimed = any(_came_to(one, own)[1] == UNTIMED for one, own in whole)
    return Rebuilt(
        Sweep(
            ladder=tuple(Ladder(size, 0, count) for size, count in sorted(rungs.items())),
            rounds=(),
            pairs=tuple(_pair(one, own, observed.backend) for one, own in whole),
            troubles=dict(observed.silent),
            unfinished=UNTIMED if untimed else "",
            leaves=dict(observed.leaves),
            retested=observed.retested,
        ),
        tuple(_summary(one, own) for one, own in whole),
    )


def _pair(one: Tried, own: Sequence[Digest], backend: str) -> PairSamples:
    ways = one.net.split(BETWEEN_WAYS)
    state, error = _came_to(one, own)
    lost = _lost(one)
    ends = [
        None if name in lost else End(name, state, error=said, moved=moved, net=way)
        for name, moved, way in ((one.a, one.moved_a, ways[0]), (one.b, one.moved_b, ways[-1]))
        for said in (error if one.stood_still in ("", name) else "",)
    ]
    return PairSamples(one.a, one.b, one.rail, one.round, backend, *ends)


def _summary(one: Tried, own: Sequence[Digest]) -> Summary:
    ladder = sorted((each for each in own if each.phase == "ladder"), key=lambda d: d.size_bytes)
    state, error = _came_to(one, own)
    if _lost(one):
        return Summary("absent", (), "")
    return Summary(state, tuple(map(_size, ladder)), error)


def _lost(one: Tried) -> tuple[str, ...]:
    """Whose account of a pair was lost, by what was said of it."""
    ways = ((one.a,), (one.b,), (one.a, one.b)) if one.state == "not_run" else ()
    return next((names for names in ways if one.error == lost_words(names)), ())


def _came_to(one: Tried, own: Sequence[Digest]) -> tuple[PairState, str]:
    """Its state, and what was said of it; where an account was lost, by the other end's alone."""
    if _lost(one):
        return "measured", ""
    if one.state in ("measured", "not_run") and not own:
        return "not_run", UNTIMED
    return one.state, _once(one)


def _once(one: Tried) -> str:
    """What both ends said in the same words is said once."""
    joint = f"; {one.b}: "
    body = one.error.removeprefix(f"{one.a}: ")
    words = body[: max(0, len(body) - len(joint)) // 2]
    return words if words and one.error == f"{one.a}: {words}{joint}{words}" else one.error


def _size(one: Digest) -> SizeSummary:
    return SizeSummary(
        size_bytes=one.size_bytes,
        iterations=one.operations,
        busbw_gbs=round(busbw_gbs(one.size_bytes, one.p50_us / 1e6), 6),
        best_gbs=round(busbw_gbs(one.size_bytes, one.best_us / 1e6), 6),
        p50_us=one.p50_us,
        p99_us=one.p99_us,
        max_us=one.most_us,
        ends_p99_us=(None, None),
    )
