"""A link that was slow by far and then was not is flaky: never told as if nothing had been.

A reading a little beyond the limit is a busy moment; one far beyond it, over a whole size, is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.blame import Blame
from preflight.fabric.words import gbs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.fabric.compare import Seen

FAR = 0.25
"""Of the limit: below it even the fastest operation was no busy moment (healthy pairs of shared
cores were seen at half of it)."""

_LEAST = 3  # operations: one alone may have waited for anything
_CONFIDENCE = 0.5
_ADVICE = (
    "look for a link between {0} and {1} that comes and goes: port errors, flaps in the switch's "
    "log, cable; run again"
)


def healed(seen: Sequence[Seen], blamed: Collection[str]) -> Iterator[Blame]:
    """Blame each path whose slow reading was taken back by quick ones, if it was slow by far.

    `blamed`: components that are named anyway, with what went through them.
    """
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


def _far(one: Seen) -> bool:
    if one.once != "bandwidth" or one.bound.gbs is None:
        return False
    most = one.summary.sizes[-1]
    return most.iterations >= _LEAST and most.best_gbs < FAR * one.bound.gbs
