"""Messages on outright failures and very slow pairs: seen and expected numbers, and advice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from preflight.core.statistics import SYSTEMIC_NODES, shared_cause
from preflight.core.text import gbs, join_or, size, time_us
from preflight.fabric.decoding.culprit import Component, Culprit
from preflight.fabric.observed import STOOD_STILL
from preflight.fabric.phrases import (
    ADVICE,
    OWN_CAUSES,
    STATES,
    Blame,
    advice_on,
    after_signal,
    both_fine,
    more_partners,
    on_port,
    on_slow_ports,
    ports,
    unresolved_advice,
    with_partners,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.samples import End, PairState, Sweep


_SYSTEMIC = 0.8

_WORST: tuple[PairState, ...] = ("corrupt", "hung", "no_connect", "absent", "error")


def blames(
    outright: Iterable[Culprit],
    judgements: Sequence[PairJudgement],
    sweep: Sweep,
    names: Sequence[str],
    proven: Sequence[Culprit],
) -> tuple[Blame, ...]:
    """Blame the parts behind bad pairs, each judged by itself; `names`: the fleet in order.

    `statistical_blames` handles wrong sums: a good pair does not clear a GPU that corrupts data
    now and then.
    `proven`: the culprits by all samples together; if a node is slow or loses data, some of its
    pairs are bad for that reason, which is not a second fault.
    """
    bad = [pair for pair in judgements if pair.bad and pair.state != "corrupt"]
    order = {name: number for number, name in enumerate(names)}
    culprits = [
        (culprit, tuple(sorted(culprit.nodes, key=lambda name: order.get(name, len(order)))))
        for culprit in outright
    ]
    all_bad = len(bad) > 1 and not any(pair.good for pair in judgements)
    nodes = {name for pair in judgements for name in pair.nodes}
    remedy = more_partners(len(nodes), len({pair.nodes for pair in judgements}))
    bad_nodes = frozenset(culprit.node for culprit, _ in culprits if culprit.node)
    why = "no good pair" if all_bad else "too few pairs"
    context = _Context(bad, sweep, proven, bad_nodes, why, remedy)
    single = [_blame_of(culprit, ordered_names, context) for culprit, ordered_names in culprits]
    kinds = [_fault_kind(culprit, bad) for culprit, _ in culprits]
    return (*_systemic(single, kinds, bad, len(nodes)), *single)


class _Context(NamedTuple):
    """The input of all blames of one sweep."""

    bad: Sequence[PairJudgement]
    sweep: Sweep
    proven: Sequence[Culprit]
    bad_nodes: frozenset[str]
    why_open: str
    """What is missing to separate a node from a path."""
    more: str
    """The nodes or pairs to measure again then."""


def _blame_of(culprit: Culprit, names: tuple[str, ...], context: _Context) -> Blame:
    """Blame one culprit; `names`: its nodes in fleet order."""
    sweep, troubles, name = context.sweep, context.sweep.troubles, culprit.node
    pairs = [pair for pair in context.bad if pair.nodes in culprit.pairs]
    # Without those that are bad because their other end stopped answering.
    silent = troubles.keys() - set(names)
    pairs = [pair for pair in pairs if silent.isdisjoint(pair.nodes)] or pairs
    if name:
        pairs = _pairs_on_rails_at_fault(pairs)
    clear_pairs = [pair for pair in pairs if not context.bad_nodes.issuperset(pair.nodes)]
    worst = _worst_pair(clear_pairs or pairs)
    rails = sorted({pair.rail for pair in pairs if pair.bad})
    many_rails = any(pair.rail for pair in sweep.pairs)
    where = f" on rail {', '.join(map(str, rails))}" if many_rails else ""
    ends = _ends(worst, sweep, name)
    cause = _own_cause(ends)
    if cause is not None:  # the other end only waited for it, or lost it
        worst = replace(worst, state=cause.state)
    what = _observation(worst, name, troubles, where)
    if name:
        partners = len({pair.partner(name) for pair in pairs})
        extent = with_partners(f"{name} is {'slow' if worst.slow else 'bad'}", partners) + where
        sentence = f"{what}; {extent}"
        if worst.suspect == name and not culprit.cleared_partners:
            how = "stood still" if STOOD_STILL in worst.error else "died"
            how = "failed" if cause is not None else how
            sentence = f"{what}; only the process on {name} {how}"
        if worst.state == "absent" and name in troubles:
            sentence = f"it fell out of the sweep: {troubles[name]}; {extent}"
    elif culprit.kind == "path":
        sentence = f"{what}; {both_fine(names, {pair.rail for pair in pairs}, context.proven)}"
    else:
        sentence = f"{what}; {context.why_open} to tell a node from the path between them"
    one_rail = many_rails and len(rails) == 1 and not name
    advice = sweep.advice.get(names[0]) if len(names) == 1 else ""
    return Blame(
        kind=culprit.kind,
        among=_parts(culprit.kind, names),
        sentence=sentence,
        confidence=culprit.confidence,
        advice=advice or _advice(culprit, names, worst, context.more, ends),
        pairs=culprit.pairs,
        rail=rails[0] if one_rail else None,
    )


def _parts(kind: str, names: tuple[str, ...]) -> tuple[Component, ...]:
    """Return the path, or the nodes of which one is at fault; the sentence names the path."""
    if kind == "path":
        return (Component("path", names),)
    return tuple(Component("node", (name,)) for name in names)


def _pairs_on_rails_at_fault(pairs: Sequence[PairJudgement]) -> list[PairJudgement]:
    """Return a node's bad pairs on the rails that are bad with most partners."""
    partners = Counter(pair.rail for pair in pairs)
    most = max(partners.values())
    return [pair for pair in pairs if 2 * partners[pair.rail] > most]


def _ends(worst: PairJudgement, sweep: Sweep, name: str) -> list[End]:
    """Return both ends' accounts of a pair on a rail, the worst last; if equal, that of `name`."""
    ends = [end for pair in sweep.pairs if pair.path == worst.path for end in pair.ends]
    return sorted(
        ends, key=lambda end: (end.state != "measured", bool(end.error), end.node == name)
    )


def _own_cause(ends: Sequence[End]) -> End | None:
    """Return the end that reports its own fault, if the other end only failed because of it."""
    with_own_cause = [end for end in ends if any(cause in end.error for cause in OWN_CAUSES)]
    ports = [end for end in ends if end.error and on_port("", end.error, "")]
    culprits = with_own_cause or ports
    return culprits[-1] if culprits and culprits[-1].state != "measured" else None


def _advice(
    culprit: Culprit, names: tuple[str, ...], worst: PairJudgement, more: str, ends: Sequence[End]
) -> str:
    """Return advice; `more`: what to measure again, if the samples do not settle it."""
    cause = _own_cause(ends)
    advice = ""
    if cause is not None:
        other = worst.partner(cause.node)
        advice = advice_on(cause.node, cause.error) or on_port(cause.node, cause.error, other)
    # The port of a named node, else the ports of both ends.
    at_fault = names if culprit.node else worst.nodes
    nets = {end.node: end.net for end in ends if end.node in at_fault}
    if cause is None and worst.slow:
        advice = on_slow_ports(nets)
    if culprit.kind == "path" and worst.state != "corrupt":
        nodes = " and ".join(names)
        look = advice.removesuffix("; run again").removesuffix("; exclude it")
        path_advice = f"{look}, and what lies between; until then keep {nodes} in different jobs"
        return path_advice if advice else ADVICE["pair"]["path"].format(nodes)
    advice = advice or (ADVICE["pair"]["slow"] if worst.slow else after_signal(worst.error))
    advice = (advice or STATES[worst.state]["advice"]).format(
        join_or(names), ports(nets) or "its link"
    )
    return unresolved_advice(advice, names, more)


def _worst_pair(bad: Sequence[PairJudgement]) -> PairJudgement:
    """Wrong data before hangs before slowness; among the slow, the slowest."""
    return min(
        bad,
        key=lambda pair: (
            _WORST.index(pair.state) if pair.state in _WORST else len(_WORST),
            pair.busbw_gbs or 0.0,
        ),
    )


def _observation(worst: PairJudgement, name: str, troubles: Mapping[str, str], where: str) -> str:
    """Say the seen and the expected number, or what happened instead.

    `name`: the node at fault; `where`: the rails of a pair.
    """
    between = f"with {worst.partner(name)}" if name else f"between {worst.a} and {worst.b}{where}"
    if worst.slow == "reach":
        return f"{worst.how_far} {between}"
    if worst.slow == "latency" and worst.latency_us is not None:
        took = f"{time_us(worst.latency_us)} at {size(worst.sizes[0].size_bytes)}"
        peers = f"peers' median {time_us(worst.peers_latency_us or 0.0)}"
        return f"{took} {between}; {peers}, limit {time_us(worst.latency_limit_us or 0.0)}"
    if worst.slow and worst.busbw_gbs is not None:
        speed = f"median {gbs(worst.busbw_gbs)} at {size(worst.at_bytes)}"
        return f"{speed} {between}; {worst.bound.words}"
    error = troubles.get(name) or worst.error
    if error and not name and not error.startswith((f"{worst.a}: ", f"{worst.b}: ")):
        error = f"each end: {error}"
    return f"{STATES[worst.state]['words']} {between}" + (f" ({error})" if error else "")


def _fault_kind(culprit: Culprit, bad: Sequence[PairJudgement]) -> str:
    """Name the kind of a node's fault, by its worst pair: different kinds share no cause."""
    worst = _worst_pair([pair for pair in bad if pair.nodes in culprit.pairs])
    return ("slow" if worst.slow else worst.state) if culprit.node else ""


def _systemic(
    blames: Sequence[Blame], causes: Sequence[str], bad: Sequence[PairJudgement], nodes: int
) -> list[Blame]:
    """Say that so many faults at once are more likely one cause; counted on nodes, not pairs."""
    most = max((causes.count(cause) for cause in causes if cause), default=0)
    affected = bool(blames) and nodes >= SYSTEMIC_NODES and {n for pair in bad for n in pair.nodes}
    if shared_cause(most, nodes):
        sentence = f"{most} of {nodes} nodes are blamed at once"
    elif affected and not most and len(affected) == nodes:
        sentence = f"all {nodes} nodes are in bad pairs and no pair clears any of them"
    else:
        return []
    return [
        Blame(
            kind="systemic",
            sentence=f"{sentence}: one shared cause is likelier than that many faults",
            confidence=_SYSTEMIC,
            advice="check what they share (switch, configuration, image); drain none for this",
            pairs=tuple(dict.fromkeys(pair.nodes for pair in bad)),
        )
    ]
