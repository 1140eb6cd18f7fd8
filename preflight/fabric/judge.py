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
from preflight.fabric.decoding.culprit import FAILURES, Culprit
from preflight.fabric.decoding.find import find
from preflight.fabric.node_allreduce import judge_inside
from preflight.fabric.nvlink_domain import judge_domains
from preflight.fabric.observed import Observed, observe
from preflight.fabric.outright_blame import blames
from preflight.fabric.pair_summary import Pair, wire_from
from preflight.fabric.phrases import ADVICE, Blame, components
from preflight.fabric.retest import cleared_by_retests, doubts, without_doubts
from preflight.fabric.schedule import Pairing, ordered
from preflight.fabric.socket_fallback import fallback_blames
from preflight.fabric.statistical_blame import statistical_blames, transient_paths
from preflight.facts.burn import Inside, OverNvlink
from preflight.facts.gpu_users import BUSY_PREFIX
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host


class Decoded(Struct, frozen=True):
    """A judged sweep, computed once for checks, report and terminal."""

    judgements: tuple[PairJudgement, ...] = ()
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
    judgements = cleared_by_retests(
        compare(sweep, observed, hosts, earlier, thresholds=limit), observed
    )
    all_blames, hidden, doubted = _blames_and_doubts(judgements, observed, sweep, hosts, limit)
    by_pair = grouped((pair.nodes, pair) for pair in judgements)
    blamed = _blames_by_pair(all_blames, by_pair, doubted)
    hidden_pairs = {pair for blame in hidden for pair in blame.pairs}
    pairs = {
        ends: _summarise(
            rails, blamed[ends], hidden=ends in hidden_pairs, doubt=doubted.get(ends, "")
        )
        for ends, rails in by_pair.items()
    }
    pairs |= left_out_pairs(sweep, names, pairs)
    pairs = {
        ends: _with_missing_rails(_mark_waiting(pair, sweep), sweep) for ends, pair in pairs.items()
    }
    return Decoded(
        judgements,
        all_blames,
        pairs | unblamed_troubles(sweep, names, pairs),
        observed,
        judge_inside(sweep, hosts, limit),
        judge_domains(sweep, hosts, limit),
    )


def _blames_and_doubts(
    judgements: Sequence[PairJudgement],
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
    culprits = find(observed, limit, judgements).culprits
    outright = [culprit for culprit in culprits if culprit.symptom in FAILURES]
    fallbacks = fallback_blames(sweep, hosts)
    outright_blames = blames(outright, judgements, sweep, [host.name for host in hosts], culprits)
    doubted = doubts(outright_blames, judgements, sweep)
    outright_faults = _merge_into_causes(fallbacks, without_doubts(outright_blames, doubted))
    unblamed = [
        culprit
        for culprit in culprits
        if culprit.symptom not in FAILURES and not _explained_by_fallback(culprit, fallbacks)
    ]
    statistical = statistical_blames(unblamed, culprits, observed, judgements)
    statistical_doubts = doubts(statistical, judgements, sweep)
    hidden = without_doubts(statistical, statistical_doubts)
    hidden += list(transient_paths(judgements, observed, (*outright_faults, *hidden), limit))
    return (*outright_faults, *hidden), (*fallbacks, *hidden), doubted | statistical_doubts


def _explained_by_fallback(culprit: Culprit, fallbacks: Sequence[Blame]) -> bool:
    """Whether all parts of a culprit are slow because their data went another way."""
    names = {name for blame in fallbacks for name in (blame.node, *blame.culprits)}
    if culprit.component is None and culprit.symptom != "corrupt":
        names.update(name for blame in fallbacks for name in blame.suspects)
    pairs = {pair for blame in fallbacks for pair in blame.pairs}
    return all(
        (part.kind == "path" and part.nodes in pairs) or names.issuperset(part.nodes)
        for part in culprit.among
    )


def _merge_into_causes(causes: Sequence[Blame], effects: Sequence[Blame]) -> tuple[Blame, ...]:
    """Merge slow or broken pairs into the blame of their known cause: one fault is one blame."""
    remaining = list(effects)
    faults: list[Blame] = []
    for cause in causes:
        merged = [effect for effect in remaining if set(effect.pairs) <= set(cause.pairs)]
        remaining = [effect for effect in remaining if effect not in merged]
        same_part = [effect.sentence for effect in merged if effect.component == cause.component]
        faults.append(replace(cause, sentence="; ".join([cause.sentence, *same_part])))
    return (*faults, *remaining)


def _blames_by_pair(
    all_blames: Sequence[Blame], measured: Collection[Pairing], doubted: Collection[Pairing]
) -> dict[Pairing, list[Blame]]:
    """Return the blames of each pair; a pair without any gets those of its nodes."""
    blamed: dict[Pairing, list[Blame]] = {ends: [] for ends in measured}
    for blame in all_blames:
        for ends in blame.pairs:
            blamed.setdefault(ends, []).append(blame)
    for ends in measured:
        pair_blames = blamed[ends]
        if ends not in doubted and all(blame.kind == "systemic" for blame in pair_blames):
            pair_blames += [blame for blame in all_blames if not set(ends).isdisjoint(blame.nodes)]
    return blamed


_COPIED_FIELDS = (
    *("a", "b", "state", "rail", "at_bytes", "busbw_gbs", "slow", "backend", "error"),
    *("latency_us", "latency_limit_us"),
)
"""Fields that a pair copies from its worst rail."""


def _summarise(
    rails: Sequence[PairJudgement], blamed: Sequence[Blame], *, hidden: bool, doubt: str
) -> Pair:
    """Build the pair from its worst rail."""
    steady = [row for row in rails if not (row.once or row.hung_once)] or rails
    worst = min(steady, key=lambda row: (not row.bad, row.busbw_gbs or 0.0))
    pair = Pair(
        **{name: getattr(worst, name) for name in _COPIED_FIELDS},
        rails=len({row.rail for row in rails}),
        peers_gbs=worst.bound.peers_gbs,
        limit_gbs=worst.bound.gbs,
        limit_origin=worst.bound.origin,
        decided_by=worst.bound.decided_by,
        note=next((f"slow once: {gbs(row.busbw_gbs or 0.0)}" for row in rails if row.once), ""),
        short=worst.how_far if worst.at_bytes < wire_from(worst.backend) else "",
    )
    faults = [blame for blame in blamed if blame.kind != "systemic"]
    if not faults or not (worst.bad or hidden):
        advice = ADVICE["pair"]["past_nics"] if worst.bypass else ""
        return replace(pair, advice=advice, trouble=bool(worst.bypass), doubt=doubt)
    # The advice on a shared cause replaces advice to drain so many nodes.
    shared = [blame for blame in blamed if blame.kind == "systemic"][:1]
    sentences = dict.fromkeys(blame.sentence for blame in (*faults, *shared))
    return replace(
        pair,
        blamed=components(blame.component for blame in faults),
        why="; ".join(filter(None, (*sentences, doubt))),
        advice="; ".join(dict.fromkeys(blame.advice for blame in shared or faults)),
        culprits=_union(blame.nodes for blame in faults) if len(faults) > 1 else faults[0].culprits,
        suspects=_union(blame.suspects for blame in faults),
        events=0 if worst.bad else faults[0].events,
        operations=0 if worst.bad else faults[0].operations,
    )


def _union(name_lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in name_lists for name in names))


def _mark_waiting(pair: Pair, sweep: Sweep) -> Pair:
    """Mark a pair as not measured, which is no pass, if its nodes only waited for another.

    The same if it had no turn because the time was up: the reason is given once for both ends.
    """
    if pair.state != "not_run" or pair.trouble:
        return pair
    if sweep.unfinished and sweep.unfinished in pair.error:
        return replace(pair, waited=True, error=sweep.unfinished)
    if sweep.waited.keys().isdisjoint((pair.a, pair.b)):
        return pair
    if sweep.troubles:
        return replace(pair, waited=True)
    return replace(pair, trouble=True, advice=ADVICE["pair"]["all_waited"])


def _with_missing_rails(pair: Pair, sweep: Sweep) -> Pair:
    lacks = [
        f"{name} lacks {sweep.short[name]}" for name in (pair.a, pair.b) if name in sweep.short
    ]
    return replace(pair, partial="; ".join(lacks)) if lacks else pair


def left_out_pairs(
    sweep: Sweep, names: Sequence[str], measured: dict[Pairing, Pair]
) -> dict[Pairing, Pair]:
    """Return every pair of a node that took no part; `trouble` if the sweep itself found why."""
    pairs: dict[Pairing, Pair] = {}
    for absent in (name for name in names if name in sweep.left_out):
        for other in (name for name in names if name != absent):
            ends = ordered((absent, other), names.index)
            if ends not in measured:
                # If the sweep found an end at fault, no other check reports that.
                culprits = [name for name in ends if name in sweep.troubles]
                trouble = _trouble_pair(ends, culprits, sweep) if culprits else None
                pairs[ends] = trouble or _not_run(ends, absent, sweep)
    return pairs


def _not_run(ends: Pairing, absent: str, sweep: Sweep) -> Pair:
    """Return a pair of a node that was left out through no fault of its own; a path may be bad."""
    host = sweep.cut_off.get(absent, "")
    first, second = sorted((absent, host), key=natural)
    return Pair(
        a=ends[0],
        b=ends[1],
        state="not_run",
        error=_reasons([absent], sweep),
        busy=tuple(name for name in ends if sweep.left_out.get(name, "").startswith(BUSY_PREFIX)),
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
        for pair in pairs.values()
        if pair.bad or pair.trouble
        for name in (pair.a, pair.b)
        if pair.blamed == name or name in pair.culprits
    }
    by_ends: dict[Pairing, Pair] = {}
    for name in (name for name in sweep.troubles if name in names and name not in blamed):
        free = [pair for ends, pair in pairs.items() if name in ends and ends not in by_ends]
        free.sort(key=lambda pair: (bool(pair.blamed), pair.state != "not_run"))
        other = next((node for node in names if node != name), None)
        if free or other is not None:
            ends = (free[0].a, free[0].b) if free else ordered((name, other or name), names.index)
            by_ends[ends] = _trouble_pair(ends, [name], sweep)
    return by_ends


def _trouble_pair(ends: Pairing, culprits: Sequence[str], sweep: Sweep) -> Pair:
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
    same_reason = [name for name in sweep.left_out if sweep.troubles.get(name) in reasons]
    if len(reasons) == 1 and len(same_reason) > 1 and set(same_reason).issuperset(culprits):
        return f"{fold(same_reason)} were left out: {reasons.pop()}"
    if len(culprits) > 1:
        details = "; ".join(f"{name}: {_reason(sweep, name)}" for name in culprits)
        return f"{' and '.join(culprits)} were left out: {details}"
    (name,) = culprits
    what = "was left out" if name in sweep.left_out else "fell out of the sweep"
    return f"{name} {what}: {_reason(sweep, name)}"


def _reason(sweep: Sweep, name: str) -> str:
    return sweep.left_out.get(name) or sweep.troubles[name]
