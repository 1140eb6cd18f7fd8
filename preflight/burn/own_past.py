"""A device's own earlier nights: what it is held against where it has no peers and no floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.burn.limits import known, limit
from preflight.burn.units import speed
from preflight.burn.yardstick import Bound
from preflight.history.night import LONGEST_WORD
from preflight.history.units import of_slot, unit_key
from preflight.stats.own_past import usual

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.facts.burned import Burned
    from preflight.facts.model import Facts

_UNSTEADY = frozenset({"p2p_gbs"})
"""A way between two GPUs is neither one's; two or more of a kind are held against each other."""


def conditions(burned: Burned, facts: Facts | None) -> str:
    """What must be the same for two nights to be compared: another torch may be slower."""
    if burned.ready is None:
        return ""
    driver = facts.driver.version if facts is not None else ""
    words = (burned.ready.kind, f"torch {burned.ready.torch}", driver and f"driver {driver}")
    return ", ".join(filter(None, words))[:LONGEST_WORD]


def key_of(raw: Raw, burned: Burned, facts: Facts | None) -> str:
    """By what a history keeps a series: its GPU's UUID where it is a GPU's, else its node."""
    gpus = facts.gpus or () if facts is not None else ()
    under = conditions(burned, facts)
    for gpu in gpus if raw.kind == "cuda" else ():
        rest = of_slot(raw.name, gpu.index)
        if rest is not None:
            return unit_key(gpu.uuid, raw.measure, rest, under)
    return unit_key(raw.node, raw.measure, raw.name, under)


def own_nights(raw: Raw, earlier: Sequence[float]) -> Bound | None:
    """What it must reach by its own nights; None where there are too few to say.

    An effect that counts against peers must be missing here too, and six times its own scatter.
    """
    if raw.measure in _UNSTEADY:
        return None
    effect = known(raw.kind, raw.measure)
    found = usual(
        [speed(raw.measure, value) for value in earlier if value > 0],
        effect=limit(raw.kind, "effect") if effect is None else effect,
        scatter=limit(raw.kind, "scatter"),
    )
    if found is None:
        return None
    words = f"{found.share:.2g} of its median in {found.nights} earlier runs, no peers"
    return Bound(found.least, words)


def earlier_of(
    raws: Sequence[Raw],
    fleet: Mapping[str, Burned],
    facts: Mapping[str, Facts],
    units: Mapping[str, Sequence[float]],
) -> dict[tuple[str, str, str], Sequence[float]]:
    """The earlier nights of these series, by node, measure and name."""
    found: dict[tuple[str, str, str], Sequence[float]] = {}
    for raw in raws if units else ():
        nights = units.get(key_of(raw, fleet[raw.node], facts.get(raw.node)), ())
        if nights:
            found[raw.node, raw.measure, raw.name] = nights
    return found
