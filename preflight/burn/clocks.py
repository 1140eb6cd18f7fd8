"""What a GPU's clocks did under load, in words, and whether something held them down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.burn.limits import limit
from preflight.facts.burn import Throttle
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from preflight.facts.burned import Clocks, Look

FORCED = ("hw_thermal", "hw_power_brake", "hw_slowdown", "sw_thermal")
"""Heat and the power brake; a software power cap is how a healthy GPU meets its power limit."""

_LEAST_LOOKS = 2


def under_load(clocks: Clocks | None) -> tuple[Look, ...]:
    """The looks while it worked; the first was before."""
    return () if clocks is None else tuple(one for one in clocks.looks[1:] if _told(one))


def remark(clocks: Clocks | None) -> str:
    """Its medians under load, "1,980 MHz, 61 C, 640 W"; nothing where nothing was told."""
    looks = under_load(clocks)
    words = []
    for name, unit in (("sm_mhz", "MHz"), ("celsius", "C"), ("watts", "W")):
        told = [value for one in looks if (value := getattr(one, name)) is not None]
        if told:
            words.append(f"{median(told):,.0f} {unit}")
    held = _reasons(looks)
    return ", ".join([*words, *held])


def throttle(name: str, clocks: Clocks | None) -> Throttle | None:
    """What held its clocks down for more than a moment; None if nothing did."""
    looks = under_load(clocks)
    held = [one for one in looks if set(one.reasons or ()) & set(FORCED)]
    if len(held) < max(_LEAST_LOOKS, limit("cuda", "throttled") * len(looks)):
        return None
    return Throttle(
        name=name,
        reasons=tuple(_reasons(tuple(held))),
        looks=len(held),
        of=len(looks),
        remark=remark(clocks),
        cause=name,
    )


def _reasons(looks: tuple[Look, ...]) -> list[str]:
    seen = Counter(reason for one in looks for reason in one.reasons or () if reason in FORCED)
    return [reason for reason, _ in seen.most_common()]


def _told(look: Look) -> bool:
    return look.sm_mhz is not None or look.reasons is not None
