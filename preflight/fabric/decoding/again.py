"""A path that was hot in its one round, and again when it was measured alone: that is proof.

One round proves no path, for a pause of a host is several events in it. Those measured again are a
handful, and their further rounds are a test of their own, so that less than in a search is enough.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.fabric.decoding.explain import DOUBT, FEW, Accepted
from preflight.fabric.decoding.exposures import Exposures
from preflight.fabric.decoding.parts import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.decoding.parts import Parts
    from preflight.fabric.decoding.rates import Rates


def joined(first: Exposures, again: Exposures) -> Exposures:
    """What was scheduled, and after it what was measured again."""
    return Exposures(
        places=first.places + again.places,
        operations=first.operations + again.operations,
        loaded_s=first.loaded_s + again.loaded_s,
        events=first.events + again.events,
        worst_us=first.worst_us + again.worst_us,
    )


def hot_again(parts: Parts, rates: Rates, border: int, false_alarm: float) -> list[Accepted]:
    """Paths that their retests prove, hottest first; observations from `border` on are retests."""
    suspects = parts.suspects(rates.hot())
    doubted = [
        (key, through)
        for key, through in suspects.items()
        if key.kind == "path" and through[-1] >= border > through[0]
    ]
    rates.leave_out({row for _, through in doubted for row in through})
    proven: list[Accepted] = []
    for key, through in doubted:
        first = [row for row in through if row < border]
        if rates.hunch(first) - parts.penalty(key) <= DOUBT:
            continue
        later = [row for row in through if row >= border]
        strength, gain = rates.fit(later)
        margin = gain - math.log(FEW / false_alarm)
        if margin <= 0 or not rates.enough(strength, later):
            continue
        ends = (suspects[Key("node", name)] for name in (key.one, key.other))
        if all(_fine(own, through, strength, rates) for own in ends):
            proven.append(Accepted(key, through, (), strength, gain, margin))
    return sorted(proven, key=lambda one: -one.gain)


def _fine(own: Sequence[int], path: Sequence[int], strength: float, rates: Rates) -> bool:
    """Whether an end of a path does not show with others what the path shows."""
    others = sorted(set(own).difference(path))
    return bool(others) and rates.fit(others)[1] <= DOUBT and not rates.shows(others, strength, own)
