"""A link that was slow by far and then was not is flaky: never told as if nothing had been.

A reading a little beyond the limit is a busy moment; one far beyond it, over a whole size, is not,
unless an end waited for a CPU as long as such an operation took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.blame import Blame
from preflight.fabric.decoding.numbers import number
from preflight.fabric.words import gbs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.fabric.compare import Seen
    from preflight.fabric.observed import Observed

FAR = 0.25
"""Of the limit: below it even the fastest operation was no busy moment (healthy pairs of shared
cores were seen at half of it)."""

_LEAST = 3  # operations: one alone may have waited for anything
_CONFIDENCE = 0.5
_ADVICE = (
    "what was slow comes and goes; one reading cannot tell {0}'s link, {1}'s and the way between "
    "apart: port errors of both, flaps in the switch's log, cables; run again"
)
_HUNG_ONCE = (
    "one hang that does not come again cannot tell {0}, {1} and the way between them apart: look "
    "at Xids and port errors of both; run again"
)


def healed(seen: Sequence[Seen], observed: Observed, blamed: Collection[str]) -> Iterator[Blame]:
    """Blame each path that hung once, or whose slow reading was taken back, if it was slow by far.

    Or if it was slower than its peers at all, and an error counter moved there. `blamed`:
    components and pairs that are named anyway, with what went through them.
    """
    yield from _hung_once(seen, blamed)
    yield from _far_off(seen, observed, blamed)
    yield from _confessing(seen, observed, blamed)


def _hung_once(seen: Sequence[Seen], blamed: Collection[str]) -> Iterator[Blame]:
    many = len({one.rail for one in seen}) > 1
    for one in (each for each in seen if each.hung_once):
        if not {one.a, one.b, f"pair {one.a}-{one.b}"}.isdisjoint(blamed):
            continue
        readings = [each for each in seen if _where(each) == _where(one)]
        then = " and ".join(gbs(each.busbw_gbs or 0.0) for each in readings if each.good)
        where = f" on rail {one.rail}" if many else ""
        yield Blame(
            kind="path",
            component=f"pair {one.a}-{one.b}",
            sentence=f"an all-reduce hung once{where} ({one.summary.error}), then {then}",
            confidence=_CONFIDENCE,
            advice=_HUNG_ONCE.format(one.a, one.b),
            pairs=(one.name,),
            rail=one.rail if many else None,
            events=1,
            operations=len(readings),
        )


def _where(one: Seen) -> tuple[str, str, int]:
    return one.a, one.b, one.rail


def _far_off(seen: Sequence[Seen], observed: Observed, blamed: Collection[str]) -> Iterator[Blame]:
    pairs = dict.fromkeys((one.a, one.b, one.rail) for one in seen if one.once)
    for a, b, rail in pairs:
        readings = [one for one in seen if (one.a, one.b, one.rail) == (a, b, rail)]
        far = [one for one in readings if _far(one) and not _starved(one, observed)]
        if not far or not {a, b, f"pair {a}-{b}"}.isdisjoint(blamed):
            continue
        then = " and ".join(gbs(one.busbw_gbs or 0.0) for one in readings if not one.once)
        limit = f"limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin}"
        many = len({one.rail for one in seen}) > 1
        yield _blame(far, len(readings), f"then {then} ({limit})", rail if many else None)


def _confessing(
    seen: Sequence[Seen], observed: Observed, blamed: Collection[str]
) -> Iterator[Blame]:
    border = observed.retested
    again = {(one.a, one.b, one.rail) for one in observed.tried if 0 < border <= one.round}
    moved: dict[tuple[str, str, int], dict[str, None]] = {}
    for one in observed.tried:
        for each in (*one.moved_a, *one.moved_b):
            where = (one.a, one.b, one.rail)
            if where in again and each.proves:
                moved.setdefault(where, {})[each.name] = None
    effect = number(observed.backend, "slow_effect") if moved else 0.0
    for (a, b, rail), counters in moved.items():
        readings = [one for one in seen if (one.a, one.b, one.rail) == (a, b, rail)]
        slow = [one for one in readings if one.round < border and _less(one, effect)]
        quick = [one for one in readings if one.round >= border]
        clean = quick and all(one.good and not _less(one, effect) for one in quick)
        if not slow or not clean or not {a, b, f"{a}-{b}", f"pair {a}-{b}"}.isdisjoint(blamed):
            continue
        then = " and ".join(gbs(one.busbw_gbs or 0.0) for one in quick)
        peers = f"peers' median {gbs(slow[0].bound.peers_gbs or 0.0)}"
        rest = f"then {then} ({peers}), but {', '.join(counters)} moved"
        many = len({one.rail for one in seen}) > 1
        yield _blame(slow, len(readings), rest, rail if many else None)


def _blame(slow: Sequence[Seen], readings: int, rest: str, rail: int | None) -> Blame:
    """A path that was slow in some of its readings; `rest`: how it went on."""
    a, b, gbs_then = slow[0].a, slow[0].b, slow[0].busbw_gbs or 0.0
    return Blame(
        kind="path",
        component=f"pair {a}-{b}",
        sentence=f"slow when first measured, {gbs(gbs_then)}, {rest}",
        confidence=_CONFIDENCE,
        advice=_ADVICE.format(a, b),
        pairs=(f"{a}-{b}",),
        rail=rail,
        events=len(slow),
        operations=readings,
    )


def _less(one: Seen, effect: float) -> bool:
    """Whether it is slower than its peers by as much as matters."""
    peers = one.bound.peers_gbs
    return bool(peers and one.busbw_gbs) and (one.busbw_gbs or 0.0) < (1 - effect) * (peers or 0.0)


def _far(one: Seen) -> bool:
    if one.once != "bandwidth" or one.bound.gbs is None:
        return False
    most = one.summary.sizes[-1]
    return most.iterations >= _LEAST and most.best_gbs < FAR * one.bound.gbs


def _starved(one: Seen, observed: Observed) -> bool:
    """Whether others had an end's CPU for as long as one of those operations took."""
    where = (one.a, one.b, one.rail, one.round)
    took_ms = one.summary.sizes[-1].p50_us / 1e3
    return any(
        stood.what == "starved" and stood.most_ms >= took_ms
        for tried in observed.tried
        if (tried.a, tried.b, tried.rail, tried.round) == where
        for stood in (*tried.stood_a, *tried.stood_b)
    )
