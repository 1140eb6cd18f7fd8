"""Pairs a node owes, since it took no part in the sweep or fell out: none of them is a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.pair import Pair
from preflight.facts.busy import BUSY_WORD
from preflight.facts.wiring import natural
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Pairing


def left_out(
    sweep: Sweep, names: Sequence[str], measured: dict[Pairing, Pair]
) -> dict[Pairing, Pair]:
    """Every pair of a node that took no part; `trouble` if that is the sweep's own finding."""
    pairs: dict[Pairing, Pair] = {}
    for out in (name for name in names if name in sweep.left_out):
        for other in (name for name in names if name != out):
            ends = _ordered(out, other, names)
            if ends not in measured:
                # The sweep's own finding, where an end has it: it is nobody else's verdict.
                culprits = [name for name in ends if name in sweep.troubles]
                pairs[ends] = (
                    _troubled(ends, culprits, sweep) if culprits else _not_run(ends, out, sweep)
                )
    return pairs


def _not_run(ends: Pairing, out: str, sweep: Sweep) -> Pair:
    """A pair of a node that is not to blame for being left out; a path may be."""
    host = sweep.cut_off.get(out, "")
    first, second = sorted((out, host), key=natural)
    return Pair(
        a=ends[0],
        b=ends[1],
        state="not_run",
        error=_reasons([out], sweep),
        busy=tuple(name for name in ends if sweep.left_out.get(name, "").startswith(BUSY_WORD)),
        blamed=f"pair {first}-{second}" if host else "",
        advice=f"open the firewall between {first} and {second}, then run again" if host else "",
        trouble=bool(host),
    )


def owed(sweep: Sweep, names: Sequence[str], pairs: Mapping[Pairing, Pair]) -> dict[Pairing, Pair]:
    """One pair for each node in trouble that no pair condemns: it must not come out ready."""
    condemned = {
        name
        for one in pairs.values()
        if one.bad or one.trouble
        for name in (one.a, one.b)
        if one.blamed == name or name in one.culprits
    }
    found: dict[Pairing, Pair] = {}
    for name in (each for each in sweep.troubles if each in names and each not in condemned):
        own = [one for ends, one in pairs.items() if name in ends and ends not in found]
        own.sort(key=lambda one: (bool(one.blamed), one.state != "not_run"))
        other = next((each for each in names if each != name), None)
        if own or other is not None:
            ends = (own[0].a, own[0].b) if own else _ordered(name, other or name, names)
            found[ends] = _troubled(ends, [name], sweep)
    return found


def _troubled(ends: Pairing, culprits: Sequence[str], sweep: Sweep) -> Pair:
    advice = [sweep.advice[name] for name in culprits if sweep.advice.get(name)]
    return Pair(
        a=ends[0],
        b=ends[1],
        state="not_run",
        error=_reasons(culprits, sweep),
        blamed=" and ".join(culprits),
        culprits=tuple(culprits) if len(culprits) > 1 else (),
        advice="; ".join(dict.fromkeys(advice)),
        trouble=True,
    )


def _reasons(culprits: Sequence[str], sweep: Sweep) -> str:
    """Why nodes took no part, or not to the end; what several were left out for is said once."""
    reasons = {_reason(sweep, name) for name in culprits}
    alike = [name for name in sweep.left_out if sweep.troubles.get(name) in reasons]
    if len(reasons) == 1 and len(alike) > 1 and set(alike).issuperset(culprits):
        return f"{fold(alike)} were left out: {reasons.pop()}"
    if len(culprits) > 1:
        said = (f"{name}: {_reason(sweep, name)}" for name in culprits)
        return f"{' and '.join(culprits)} were left out: {'; '.join(said)}"
    (name,) = culprits
    what = "was left out" if name in sweep.left_out else "fell out of the sweep"
    return f"{name} {what}: {_reason(sweep, name)}"


def _ordered(one: str, other: str, names: Sequence[str]) -> Pairing:
    a, b = sorted((one, other), key=names.index)
    return a, b


def _reason(sweep: Sweep, name: str) -> str:
    return sweep.left_out.get(name) or sweep.troubles[name]
