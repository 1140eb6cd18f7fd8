"""Whether a named node could be told from those it was measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fabric.culprit import Component

if TYPE_CHECKING:
    from preflight.fabric.culprit import Found
    from preflight.fabric.decoding.trials import Trials
    from preflight.fabric.observed import Observed

_TWO = 2
_UNPROVEN = 0.3


def proven(one: Found, observed: Observed, trials: Trials) -> Found:
    """Count its cleared partners; with fewer than two partners, or none cleared, name the set.

    A partner is cleared that was measured with somebody else whom nothing is found against.
    """
    part = one.named
    if part is None or part.kind not in ("node", "endpoint") or one.symptom == "late":
        return one
    (name,) = part.nodes
    partners = {each.b if each.a == name else each.a for each in trials.of(name, part.rail)}
    fine = trials.fine(part.rail)
    cleared = partners & fine
    if name in observed.silent or (len(partners) >= _TWO and cleared):
        return replace(one, cleared_partners=len(cleared))
    others = [_same(part, partner) for partner in sorted(partners - fine)]
    paths = [_path(part, partner) for partner in sorted(partners)]
    among = (part, *others, *paths) if len(partners) < _TWO else (part, *others)
    return replace(one, among=among, confidence=_UNPROVEN, cleared_partners=len(cleared))


def _same(part: Component, name: str) -> Component:
    return Component(part.kind, part.name.replace(part.nodes[0], name, 1), (name,), part.rail)


def _path(part: Component, partner: str) -> Component:
    on = f" rail {part.rail}" if part.rail is not None else ""
    nodes = (part.nodes[0], partner)
    return Component("path", f"{'-'.join(nodes)}{on}", nodes, part.rail)
