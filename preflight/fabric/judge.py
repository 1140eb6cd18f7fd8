"""Turn a sweep into pairs that a check can judge: measured, compared with peers, and blamed.

Partners of nodes that are down get extra pairs (repairs); suspects are measured again with cleared
partners (retests), which the schedule may not have paired with them.

Of a slow node's pairs some fall below an absolute limit and some do not; judged one by one they
would blame the paths to good partners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import gbs, natural
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.compare import PairJudgement, compare
from preflight.fabric.decoding import find
from preflight.fabric.decoding.culprit import FAILURES, Culprit
from preflight.fabric.node_allreduce import judge_inside
from preflight.fabric.nvlink_domain import judge_domains
from preflight.fabric.observed import Observed, observe
from preflight.fabric.outright_blame import blames
from preflight.fabric.pair_summary import Pair, wire_from
from preflight.fabric.phrases import Blame, components
from preflight.fabric.retest import cleared_by_retests, doubts, without_doubts
from preflight.fabric.schedule import Pairing, ordered
from preflight.fabric.socket_fallback import fallback_blames
from preflight.fabric.statistical_blame import statistical_blames, transient_paths
from preflight.facts.burn import Inside, OverNvlink
from preflight.facts.gpu_users import BUSY_WORD
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host


def left_out(
    sweep: Sweep, names: Sequence[str], measured: dict[Pairing, Pair]
) -> dict[Pairing, Pair]:
    """Return every pair of a node that took no part; `trouble` if the sweep itself found why."""
    pairs: dict[Pairing, Pair] = {}
    for out in (name for name in names if name in sweep.left_out):
        for other in (name for name in names if name != out):
            ends = ordered((out, other), names.index)
            if ends not in measured:
                # If the sweep found an end at fault, no other check reports that.
                culprits = [name for name in ends if name in sweep.troubles]
                pairs[ends] = (
                    _troubled(ends, culprits, sweep) if culprits else _not_run(ends, out, sweep)
                )
    return pairs


def _not_run(ends: Pairing, out: str, sweep: Sweep) -> Pair:
    """Return a pair of a node that was left out through no fault of its own; a path may be bad."""
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
        shut=bool(host),
    )


def unblamed_troubles(
    sweep: Sweep, names: Sequence[str], pairs: Mapping[Pairing, Pair]
) -> dict[Pairing, Pair]:
    """Return a pair for each node in trouble that no pair blames, so that it is not ready."""
    blamed = {
        name
        for one in pairs.values()
        if one.bad or one.trouble
        for name in (one.a, one.b)
        if one.blamed == name or name in one.culprits
    }
    found: dict[Pairing, Pair] = {}
    for name in (each for each in sweep.troubles if each in names and each not in blamed):
        own = [one for ends, one in pairs.items() if name in ends and ends not in found]
        own.sort(key=lambda one: (bool(one.blamed), one.state != "not_run"))
        other = next((each for each in names if each != name), None)
        if own or other is not None:
            ends = (own[0].a, own[0].b) if own else ordered((name, other or name), names.index)
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
    """Say why nodes took no part, or not to the end; a shared reason is given once."""
    reasons = {_reason(sweep, name) for name in culprits}
    alike = [name for name in sweep.left_out if sweep.troubles.get(name) in reasons]
    if len(reasons) == 1 and len(alike) > 1 and set(alike).issuperset(culprits):
        return f"{fold(alike)} were left out: {reasons.pop()}"
    if len(culprits) > 1:
        each = "; ".join(f"{name}: {_reason(sweep, name)}" for name in culprits)
        return f"{' and '.join(culprits)} were left out: {each}"
    (name,) = culprits
    what = "was left out" if name in sweep.left_out else "fell out of the sweep"
    return f"{name} {what}: {_reason(sweep, name)}"


def _reason(sweep: Sweep, name: str) -> str:
    return sweep.left_out.get(name) or sweep.troubles[name]


_PAST_NICS = (
    "name each machine once, and unset NCCL_HOSTID in the job's environment: NCCL takes both nodes "
    "for one host; then run again"
)
_ALL_WAITED = "look at the load of the nodes and at the ports open between them; run again"


class Decoded(Struct, frozen=True):
    """A judged sweep, computed once for checks, report and terminal."""

    seen: tuple[PairJudgement, ...] = ()
    """Every pair of the sweep on every rail, compared with its peers, in the sweep's order."""
    blames: tuple[Blame, ...] = ()
    pairs: dict[Pairing, Pair] = {}
    """The pairs for checks; in the keys the earlier node of the fleet comes first."""
    observed: Observed | None = None
    """The sweep, condensed."""
    inside: dict[str, Inside] = {}
    """The all-reduce inside each node of the fleet, by name."""
    over_nvlink: dict[str, OverNvlink] = {}
    """NVLink between nodes, by name of each node that is in an NVLink domain."""


def judge_sweep(
    sweep: Sweep,
    hosts: Sequence[Host],
    earlier: Mapping[str, Sequence[float]] | None = None,
    *,
    observed: Observed | None = None,
    limit: Thresholds = SHIPPED,
) -> Decoded:
    """Judge every pair that was measured or should have been, and name the culprits.

    `hosts`: the fleet in order. `earlier`: what pairs of a small fleet reached in earlier runs.
    `observed`: the sweep, condensed, if that is known or the sweep has no times.
    """
    names = [host.name for host in hosts]
    observed = observed or observe(sweep)
    seen = cleared_by_retests(compare(sweep, observed, hosts, earlier, thresholds=limit), observed)
    found, hidden, doubted = _named(seen, observed, sweep, hosts, limit)
    by_pair = grouped((one.nodes, one) for one in seen)
    backends = {pair.nodes: pair.backend for pair in sweep.pairs}
    blamed = _by_pair(found, by_pair, doubted)
    shown = {pair for one in hidden for pair in one.pairs}
    pairs = {
        ends: _undetermined(
            _pair(
                rails, backends[ends], blamed[ends],
                hidden=ends in shown, doubt=doubted.get(ends, ""),
            ),
            sweep,
        )
        for ends, rails in by_pair.items()
    }  # fmt: skip
    left = left_out(sweep, names, pairs)
    pairs |= {ends: one if one.trouble else _undetermined(one, sweep) for ends, one in left.items()}
    pairs = {ends: _partial(one, sweep) for ends, one in pairs.items()}
    inside = judge_inside(sweep, hosts, limit)
    domains = judge_domains(sweep, hosts, limit)
    return Decoded(
        seen, found, pairs | unblamed_troubles(sweep, names, pairs), observed, inside, domains
    )


def _by_pair(
    found: Sequence[Blame], tried: Collection[Pairing], doubted: Collection[Pairing]
) -> dict[Pairing, list[Blame]]:
    """Return the blames of each pair; a pair without a fault of its own gets its node's."""
    blamed: dict[Pairing, list[Blame]] = {ends: [] for ends in tried}
    for one in found:
        for ends in one.pairs:
            blamed.setdefault(ends, []).append(one)
    for ends in tried:
        own = blamed[ends]
        if ends not in doubted and all(one.kind == "systemic" for one in own):
            own += [one for one in found if not set(ends).isdisjoint(one.nodes)]
    return blamed


def _partial(pair: Pair, sweep: Sweep) -> Pair:
    lacks = [
        f"{name} lacks {sweep.short[name]}" for name in (pair.a, pair.b) if name in sweep.short
    ]
    return replace(pair, partial="; ".join(lacks)) if lacks else pair


def _undetermined(pair: Pair, sweep: Sweep) -> Pair:
    """Mark a pair as not measured, which is no pass, if its nodes only waited for another.

    The same if it had no turn because the time was up: the reason is given once for both ends.
    """
    if pair.state == "not_run" and sweep.unfinished and sweep.unfinished in pair.error:
        return replace(pair, waited=True, error=sweep.unfinished)
    waited = not sweep.waited.keys().isdisjoint((pair.a, pair.b))
    if pair.state != "not_run" or pair.trouble or not waited:
        return pair
    if sweep.troubles:
        return replace(pair, waited=True)
    return replace(pair, trouble=True, advice=_ALL_WAITED)


_AS_SEEN = (
    *("a", "b", "state", "rail", "at_bytes", "busbw_gbs", "slow"),
    *("latency_us", "latency_limit_us"),
)
"""Fields that a pair copies from its worst rail."""


def _pair(
    rails: Sequence[PairJudgement],
    backend: str,
    blamed: Sequence[Blame],
    *,
    hidden: bool,
    doubt: str,
) -> Pair:
    """Build the pair from its worst rail."""
    steady = [one for one in rails if not (one.once or one.hung_once)] or rails
    worst = min(steady, key=lambda one: (not one.bad, one.busbw_gbs or 0.0))
    pair = Pair(
        **{name: getattr(worst, name) for name in _AS_SEEN},
        backend=backend,
        rails=len({one.rail for one in rails}),
        peers_gbs=worst.bound.peers_gbs,
        limit_gbs=worst.bound.gbs,
        limit_origin=worst.bound.origin,
        decided_by=worst.bound.decided_by,
        error=worst.summary.error,
        note=next((f"slow once: {gbs(one.busbw_gbs or 0.0)}" for one in rails if one.once), ""),
        short=worst.how_far if worst.at_bytes < wire_from(backend) else "",
    )
    own = [one for one in blamed if one.kind != "systemic"]
    if not own or not (worst.bad or hidden):
        past = bool(worst.bypass)
        return replace(pair, advice=_PAST_NICS if past else "", trouble=past, doubt=doubt)
    # The advice on a shared cause replaces advice to drain so many nodes.
    shared = [one for one in blamed if one.kind == "systemic"][:1]
    sentences = dict.fromkeys(one.sentence for one in (*own, *shared))
    return replace(
        pair,
        blamed=components(one.component for one in own),
        why="; ".join(filter(None, (*sentences, doubt))),
        advice="; ".join(dict.fromkeys(one.advice for one in shared or own)),
        culprits=_together(one.nodes for one in own) if len(own) > 1 else own[0].culprits,
        suspects=_together(one.suspects for one in own),
        events=0 if worst.bad else own[0].events,
        operations=0 if worst.bad else own[0].operations,
    )


def _together(several: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in several for name in names))


def _named(
    seen: Sequence[PairJudgement],
    observed: Observed,
    sweep: Sweep,
    hosts: Sequence[Host],
    limit: Thresholds,
) -> tuple[tuple[Blame, ...], tuple[Blame, ...], dict[Pairing, str]]:
    """Return one blame per fault: data past the NICs, outright failures, statistical findings.

    A finding is left out if an earlier one explains it, an outright one also if it only shows what
    the samples prove of a node. Paths that were bad for a while come last.
    Then again the blames that a single pair need not show, and why pairs cannot be judged.
    """
    culprits = find(observed, limit, seen).culprits
    outright = [one for one in culprits if one.symptom in FAILURES]
    fallen = fallback_blames(sweep, hosts)
    plain = blames(outright, seen, sweep, [host.name for host in hosts], culprits)
    doubted = doubts(plain, seen, sweep)
    gross = _under_their_causes(fallen, without_doubts(plain, doubted))
    left = [
        one for one in culprits if one.symptom not in FAILURES and not _fallen_back(one, fallen)
    ]
    subtle = statistical_blames(left, culprits, observed, seen)
    unsure = doubts(subtle, seen, sweep)
    hidden = without_doubts(subtle, unsure)
    hidden += list(transient_paths(seen, observed, (*gross, *hidden), limit))
    return (*gross, *hidden), (*fallen, *hidden), doubted | unsure


def _fallen_back(one: Culprit, fallen: Sequence[Blame]) -> bool:
    """Whether all parts that it may mean are slow because their data went another way."""
    names = {name for blame in fallen for name in (blame.node, *blame.culprits)}
    if one.component is None and one.symptom != "corrupt":
        names.update(name for blame in fallen for name in blame.suspects)
    pairs = {pair for blame in fallen for pair in blame.pairs}
    return all(
        (part.kind == "path" and part.nodes in pairs) or names.issuperset(part.nodes)
        for part in one.among
    )


def _under_their_causes(causes: Sequence[Blame], effects: Sequence[Blame]) -> tuple[Blame, ...]:
    """Merge slow or broken pairs into the blame of their known cause: one fault is one blame."""
    left = list(effects)
    found: list[Blame] = []
    for cause in causes:
        own = [one for one in left if set(one.pairs) <= set(cause.pairs)]
        left = [one for one in left if one not in own]
        same = [one.sentence for one in own if one.component == cause.component]
        found.append(replace(cause, sentence="; ".join([cause.sentence, *same])))
    return (*found, *left)
