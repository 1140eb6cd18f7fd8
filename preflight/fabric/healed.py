"""A link that was slow by far and then was not is flaky: never told as if nothing had been.

A reading a little beyond the limit is a busy moment; one far beyond it, over a whole size, is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.blame import Blame
from preflight.fabric.decoding.numbers import number
from preflight.fabric.second_look import ALSO_HEALTHY
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
    "look for a link between {0} and {1} that comes and goes: port errors, flaps in the switch's "
    "log, cable; run again"
)


def healed(seen: Sequence[Seen], observed: Observed, blamed: Collection[str]) -> Iterator[Blame]:
    """Blame each path whose slow reading was taken back by quick ones, if it was slow by far.

    Or if it was slower than its peers at all, and an error counter moved there. `blamed`:
    components and pairs that are named anyway, with what went through them.
    """
    yield from _far_off(seen, blamed)
    yield from _confessing(seen, observed, blamed)


def _far_off(seen: Sequence[Seen], blamed: Collection[str]) -> Iterator[Blame]:
    pairs = dict.fromkeys((one.a, one.b, one.rail) for one in seen if one.once)
    for a, b, rail in pairs:
        readings = [one for one in seen if (one.a, one.b, one.rail) == (a, b, rail)]
        far = [one for one in readings if _far(one)]
        if not far or not {a, b, f"pair {a}-{b}"}.isdisjoint(blamed):
            continue
        then = " and ".join(gbs(one.busbw_gbs or 0.0) for one in readings if not one.once)
        limit = f"limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin}"
        yield Blame(
            kind="path",
            component=f"pair {a}-{b}",
            sentence=f"slow when first measured, {gbs(far[0].busbw_gbs or 0.0)}, "
            f"then {then} ({limit})",
            confidence=_CONFIDENCE,
            advice=_ADVICE.format(a, b),
            pairs=(f"{a}-{b}",),
            rail=rail if len({one.rail for one in seen}) > 1 else None,
            events=len(far),
            operations=len(readings),
        )


def _confessing(
    seen: Sequence[Seen], observed: Observed, blamed: Collection[str]
) -> Iterator[Blame]:
    border = observed.retested
    again = {(one.a, one.b, one.rail) for one in observed.tried if 0 < border <= one.round}
    moved: dict[tuple[str, str, int], dict[str, None]] = {}
    for one in observed.tried:
        for each in (*one.moved_a, *one.moved_b):
            where = (one.a, one.b, one.rail)
            if where in again and not each.name.startswith(ALSO_HEALTHY):
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
        yield Blame(
            kind="path",
            component=f"pair {a}-{b}",
            sentence=f"slow when first measured, {gbs(slow[0].busbw_gbs or 0.0)}, then {then} "
            f"({peers}), but {', '.join(counters)} moved",
            confidence=_CONFIDENCE,
            advice=_ADVICE.format(a, b),
            pairs=(f"{a}-{b}",),
            rail=rail if len({one.rail for one in seen}) > 1 else None,
            events=len(slow),
            operations=len(readings),
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
