"""Paths that were bad for a while: slow or hung at first, and good in retests.

A result just beyond the limit is a busy moment; one far beyond it, over a whole size, is not,
unless an end waited for a CPU as long as such an operation took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.statistics import grouped
from preflight.core.text import gbs
from preflight.fabric.decoding.culprit import Component
from preflight.fabric.phrases import Blame
from preflight.fabric.retest import counters_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.core.thresholds import Thresholds
    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.observed import Observed


FAR = 0.25
"""Share of the limit below which even a fastest operation is not a busy moment (good pairs of
shared cores were seen at half of the limit)."""

_LEAST = 3  # operations: a single one may have waited for anything
_CONFIDENCE = 0.5
_ADVICE = (
    "what was slow comes and goes; one reading cannot tell {0}'s link, {1}'s and the way between "
    "apart: port errors of both, flaps in the switch's log, cables; run again"
)
_HUNG_ONCE = (
    "one hang that does not come again cannot tell {0}, {1} and the way between them apart: look "
    "at Xids and port errors of both; run again"
)


def transient_paths(
    seen: Sequence[PairJudgement],
    observed: Observed,
    blamed: Sequence[Blame],
    limit: Thresholds,
) -> Iterator[Blame]:
    """Blame each path that hung once, or whose withdrawn slow result was far beyond the limit.

    Or that was slower than its peers while an error counter moved there. `blamed`: named anyway.
    """
    nodes = {one.node for one in blamed}
    paths = {one.among[0].nodes for one in blamed if one.kind == "path"}
    pairs = {pair for one in blamed for pair in one.pairs}
    readings = grouped((one.path, one) for one in seen)
    many = len({rail for _, _, rail in readings}) > 1
    left = {
        (a, b, rail): own
        for (a, b, rail), own in readings.items()
        if nodes.isdisjoint((a, b)) and (a, b) not in paths
    }
    for own in left.values():
        yield from _hung_once(own, many=many)
    for own in left.values():
        far = [one for one in own if _far(one) and not _starved(one, observed)]
        if far:
            then = _speeds(one for one in own if not one.once)
            bound = f"limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin}"
            yield _recovered(far, len(own), f"then {then} ({bound})", many=many)
    for where, counters in counters_again(observed).items():
        if where in left and where[:2] not in pairs:
            effect = limit.of(observed.backend)("slow_effect")
            yield from _with_counters(left[where], counters, observed.retested, effect, many=many)


def _speeds(readings: Iterable[PairJudgement]) -> str:
    return " and ".join(gbs(one.busbw_gbs or 0.0) for one in readings)


def _hung_once(own: Sequence[PairJudgement], *, many: bool) -> Iterator[Blame]:
    for one in (each for each in own if each.hung_once):
        where = f" on rail {one.rail}" if many else ""
        then = _speeds(each for each in own if each.good)
        sentence = f"an all-reduce hung once{where} ({one.summary.error}), then {then}"
        yield _passing([one], len(own), sentence, _HUNG_ONCE, many=many)


def _with_counters(
    own: Sequence[PairJudgement], counters: Iterable[str], border: int, effect: float, *, many: bool
) -> Iterator[Blame]:
    slow = [one for one in own if one.round < border and _less(one, effect)]
    quick = [one for one in own if one.round >= border]
    if slow and quick and all(one.good and not _less(one, effect) for one in quick):
        peers = f"peers' median {gbs(slow[0].bound.peers_gbs or 0.0)}"
        rest = f"then {_speeds(quick)} ({peers}), but {', '.join(counters)} moved"
        yield _recovered(slow, len(own), rest, many=many)


def _recovered(slow: Sequence[PairJudgement], readings: int, rest: str, *, many: bool) -> Blame:
    """Blame a path that was slow in some measurements; `rest`: how the others went."""
    sentence = f"slow when first measured, median {_speeds(slow[:1])}, {rest}"
    return _passing(slow, readings, sentence, _ADVICE, many=many)


def _passing(
    bad: Sequence[PairJudgement], readings: int, sentence: str, advice: str, *, many: bool
) -> Blame:
    """Blame a path with some bad and some good measurements; `many`: on several rails."""
    first = bad[0]
    rail = first.rail if many else None
    return Blame(
        kind="path",
        among=(Component("path", first.nodes, rail),),
        sentence=sentence,
        confidence=_CONFIDENCE,
        advice=advice.format(*first.nodes),
        pairs=(first.nodes,),
        rail=rail,
        events=len(bad),
        operations=readings,
    )


def _less(one: PairJudgement, effect: float) -> bool:
    """Whether it is slower than its peers by enough to matter."""
    peers = one.bound.peers_gbs
    return bool(peers and one.busbw_gbs) and (one.busbw_gbs or 0.0) < (1 - effect) * (peers or 0.0)


def _far(one: PairJudgement) -> bool:
    if one.once != "bandwidth" or one.bound.gbs is None:
        return False
    most = one.summary.sizes[-1]
    return most.iterations >= _LEAST and most.best_gbs < FAR * one.bound.gbs


def _starved(one: PairJudgement, observed: Observed) -> bool:
    """Whether an end waited for a CPU for as long as one of those operations took."""
    where = one.turn
    took_ms = one.summary.sizes[-1].p50_us / 1e3
    return any(
        stood.what == "starved" and stood.most_ms >= took_ms
        for tried in observed.tried
        if tried.turn == where
        for stood in (*tried.first.stood, *tried.second.stood)
    )
