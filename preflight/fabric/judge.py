"""From a sweep to pairs that a check can judge: measured, compared with peers, and blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.blame import Blame, blames
from preflight.fabric.compare import Seen, compare
from preflight.fabric.pair import Pair
from preflight.fabric.schedule import Pairing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host


class Decoded(Struct, frozen=True):
    """A sweep after judgement, worked out once for checks, report and terminal alike."""

    seen: tuple[Seen, ...] = ()
    """Every pair of the sweep on every rail, compared with its peers, in the sweep's order."""
    blames: tuple[Blame, ...] = ()
    pairs: dict[Pairing, Pair] = {}
    """As checks see them; keys hold the earlier node of the fleet first."""


def judge_sweep(sweep: Sweep, hosts: Sequence[Host]) -> Decoded:
    """Compare, blame, and name every pair that was measured or should have been.

    `hosts` is the fleet in order.
    """
    seen = compare(sweep, hosts)
    found = blames(seen, sweep.troubles)
    by_pair: dict[Pairing, list[Seen]] = {}
    for one in seen:
        by_pair.setdefault((one.a, one.b), []).append(one)
    backends = {(pair.a, pair.b): pair.backend for pair in sweep.pairs}
    blamed = {name: one for one in found if one.kind != "systemic" for name in one.pairs}
    pairs = {
        names: _pair(rails, backends[names], blamed.get(f"{names[0]}-{names[1]}"))
        for names, rails in by_pair.items()
    }
    return Decoded(seen, found, pairs | _left_out(sweep, [host.name for host in hosts], pairs))


def _pair(rails: Sequence[Seen], backend: str, found: Blame | None) -> Pair:
    """The worst rail stands for the pair."""
    worst = min(rails, key=lambda one: (not one.bad, one.busbw_gbs or 0.0))
    return Pair(
        a=worst.a,
        b=worst.b,
        state=worst.state,
        backend=backend,
        rail=worst.rail,
        rails=len({one.rail for one in rails}),
        sizes=worst.summary.sizes,
        at_bytes=worst.at_bytes,
        busbw_gbs=worst.busbw_gbs,
        peers_gbs=worst.bound.peers_gbs,
        peers=worst.bound.peers,
        limit_gbs=worst.bound.gbs,
        limit_origin=worst.bound.origin,
        latency_us=worst.latency_us,
        peers_latency_us=worst.peers_latency_us,
        latency_limit_us=worst.latency_limit_us,
        slow=worst.slow,
        error=worst.summary.error,
        blamed=found.component if found and worst.bad else "",
        why=found.sentence if found and worst.bad else "",
        advice=found.advice if found and worst.bad else "",
    )


def _left_out(
    sweep: Sweep, names: Sequence[str], measured: dict[Pairing, Pair]
) -> dict[Pairing, Pair]:
    """Every pair of a node that took no part; `trouble` if that is the sweep's own finding."""
    place = {name: number for number, name in enumerate(names)}
    pairs: dict[Pairing, Pair] = {}
    for out in (name for name in names if name in sweep.left_out):
        for other in (name for name in names if name != out):
            one, two = sorted((out, other), key=place.__getitem__)
            # The sweep's own finding, where one end has it: it is nobody else's verdict.
            culprit = next((n for n in (one, two) if n in sweep.troubles), "")
            if (one, two) not in measured:
                pairs[one, two] = Pair(
                    a=one,
                    b=two,
                    state="not_run",
                    error=f"{culprit or out} was left out: {_reason(sweep, culprit or out)}",
                    blamed=culprit,
                    trouble=bool(culprit),
                )
    return pairs


def _reason(sweep: Sweep, name: str) -> str:
    return sweep.left_out.get(name) or sweep.troubles[name]
