"""From a sweep to pairs that a check can judge: measured, compared with peers, and blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.fabric.blame import Blame, blames, components
from preflight.fabric.compare import Seen, compare
from preflight.fabric.decoding import find
from preflight.fabric.domain_judge import judge_domains
from preflight.fabric.fallen import absorbed, fallen
from preflight.fabric.healed import healed
from preflight.fabric.inside_judge import judge_inside
from preflight.fabric.observed import Observed, observe
from preflight.fabric.owed import left_out, owed
from preflight.fabric.pair import Pair
from preflight.fabric.schedule import Pairing
from preflight.fabric.second_look import borne_out
from preflight.fabric.subtle import subtle
from preflight.fabric.unsettled import certain, doubts
from preflight.fabric.words import gbs
from preflight.facts.inside import Inside
from preflight.facts.nvlink_domain import OverNvlink

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.measure import Summary
    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host


_PAST_NICS = (
    "name each machine once, and unset NCCL_HOSTID in the job's environment: NCCL takes both nodes "
    "for one host; then run again"
)
_ALL_WAITED = "look at the load of the nodes and at the ports open between them; run again"


class Decoded(Struct, frozen=True):
    """A sweep after judgement, worked out once for checks, report and terminal alike."""

    seen: tuple[Seen, ...] = ()
    """Every pair of the sweep on every rail, compared with its peers, in the sweep's order."""
    blames: tuple[Blame, ...] = ()
    pairs: dict[Pairing, Pair] = {}
    """As checks see them; keys hold the earlier node of the fleet first."""
    observed: Observed | None = None
    """The sweep, condensed."""
    inside: dict[str, Inside] = {}
    """What goes on inside of each node of the fleet, by name."""
    over_nvlink: dict[str, OverNvlink] = {}
    """NVLink between nodes, by name of each node that is in an NVLink domain."""


def judge_sweep(
    sweep: Sweep,
    hosts: Sequence[Host],
    earlier: Mapping[str, Sequence[float]] | None = None,
    *,
    observed: Observed | None = None,
    known: Sequence[Summary] = (),
) -> Decoded:
    """Compare, blame, and name every pair that was measured or should have been.

    `hosts` is the fleet in order; `earlier`, what pairs of a small one reached in earlier runs.
    `observed`, and what is `known` of each pair's times, where the sweep does not hold them.
    """
    seen = borne_out(compare(sweep, hosts, earlier, known), sweep)
    names = [host.name for host in hosts]
    observed = observed or observe(sweep)
    findings = find(observed)
    misled = fallen(sweep, hosts)
    plain = blames(seen, sweep, names, findings.found)
    doubted = doubts(plain, seen, sweep)
    gross = absorbed(misled, certain(plain, doubted))
    hidden = subtle(findings.found, observed, seen, (*gross, *plain))
    unsure = doubts(hidden, seen, sweep)
    doubted |= unsure
    found = (*gross, *certain(hidden, unsure))
    named = {name for one in found for name in (one.component, *one.pairs)}
    found = (*found, *healed(seen, observed, named))
    by_pair: dict[Pairing, list[Seen]] = {}
    for one in seen:
        by_pair.setdefault((one.a, one.b), []).append(one)
    backends = {(pair.a, pair.b): pair.backend for pair in sweep.pairs}
    blamed = _by_pair(found, by_pair, doubted)
    subtly = {name for one in (*misled, *found[len(gross) :]) for name in one.pairs}
    pairs = {
        ends: _undetermined(
            _pair(
                rails,
                backends[ends],
                _joined(blamed["-".join(ends)]),
                hidden="-".join(ends) in subtly,
                doubt=doubted.get("-".join(ends), ""),
            ),
            sweep,
        )
        for ends, rails in by_pair.items()
    }
    left = left_out(sweep, names, pairs)
    pairs |= {ends: one if one.trouble else _undetermined(one, sweep) for ends, one in left.items()}
    pairs = {ends: _partial(one, sweep) for ends, one in pairs.items()}
    inside = judge_inside(sweep, hosts)
    domains = judge_domains(sweep, hosts)
    return Decoded(seen, found, pairs | owed(sweep, names, pairs), observed, inside, domains)


def _by_pair(
    found: Sequence[Blame], tried: Collection[Pairing], doubted: Collection[str]
) -> dict[str, list[Blame]]:
    """Who is blamed for each pair. One that only showed what its node has anyway is that node's."""
    blamed: dict[str, list[Blame]] = {"-".join(ends): [] for ends in tried}
    for one in found:
        for name in one.pairs:
            blamed.setdefault(name, []).append(one)
    for ends in tried:
        own = blamed["-".join(ends)]
        if "-".join(ends) not in doubted and all(one.kind == "systemic" for one in own):
            own += [one for one in found if not set(ends).isdisjoint(one.nodes)]
    return blamed


def _joined(found: Sequence[Blame]) -> Blame | None:
    """Both culprits of a pair, and a shared cause in place of advice to drain so many."""
    own = [one for one in found if one.kind != "systemic"]
    shared = next((one for one in found if one.kind == "systemic"), None)
    if not own:
        return None
    sentences = [one.sentence for one in own] + ([shared.sentence] if shared else [])
    return replace(
        own[0],
        component=components(own),
        sentence="; ".join(dict.fromkeys(sentences)),
        advice=shared.advice if shared else "; ".join(dict.fromkeys(one.advice for one in own)),
        culprits=_together(one.nodes for one in own) if len(own) > 1 else own[0].culprits,
        suspects=_together(one.suspects for one in own),
    )


def _together(several: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in several for name in names))


def _partial(pair: Pair, sweep: Sweep) -> Pair:
    lacks = [
        f"{name} lacks {sweep.short[name]}" for name in (pair.a, pair.b) if name in sweep.short
    ]
    return replace(pair, partial="; ".join(lacks)) if lacks else pair


def _undetermined(pair: Pair, sweep: Sweep) -> Pair:
    """A measurement that ended while its nodes waited for another is missing, which is no pass.

    Nor is one that had no turn because the time was up: it says so once, for both ends.
    """
    if pair.state == "not_run" and sweep.unfinished and sweep.unfinished in pair.error:
        return replace(pair, waited=True, error=sweep.unfinished)
    waited = not sweep.waited.keys().isdisjoint((pair.a, pair.b))
    if pair.state != "not_run" or pair.trouble or not waited:
        return pair
    if sweep.troubles:
        return replace(pair, waited=True)
    return replace(pair, trouble=True, advice=_ALL_WAITED)


def _pair(
    rails: Sequence[Seen],
    backend: str,
    found: Blame | None,
    *,
    hidden: bool = False,
    doubt: str = "",
) -> Pair:
    """The worst rail stands for the pair."""
    steady = [one for one in rails if not (one.once or one.hung_once)] or rails
    worst = min(steady, key=lambda one: (not one.bad, one.busbw_gbs or 0.0))
    bad = found is not None and (worst.bad or hidden)
    past = bool(worst.bypass) and not bad
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
        decided_by=worst.bound.decided_by,
        latency_us=worst.latency_us,
        peers_latency_us=worst.peers_latency_us,
        latency_limit_us=worst.latency_limit_us,
        slow=worst.slow,
        error=worst.summary.error,
        blamed=found.component if found and bad else "",
        why="; ".join(filter(None, (found.sentence, doubt))) if found and bad else "",
        advice=found.advice if found and bad else _PAST_NICS if past else "",
        trouble=past,
        culprits=found.culprits if found and bad else (),
        suspects=found.suspects if found and bad else (),
        events=found.events if found and bad and not worst.bad else 0,
        operations=found.operations if found and bad and not worst.bad else 0,
        doubt="" if bad else doubt,
        note=next((f"slow once: {gbs(one.busbw_gbs or 0.0)}" for one in rails if one.once), ""),
        short=worst.how_far if worst.short else "",
    )
