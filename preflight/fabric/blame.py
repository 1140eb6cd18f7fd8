"""The component that a sweep's samples condemn, in words an operator can act on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import LEAST, shared_cause
from preflight.core.text import either, gbs, size, time_us
from preflight.fabric.advice import (
    OWN_CAUSES,
    advice_on,
    after_signal,
    more_partners,
    on_port,
    on_slow_ports,
    partners_words,
    ports,
    unresolved_advice,
)
from preflight.fabric.observed import STOOD_STILL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.decoding.explain import Culprit
    from preflight.fabric.decoding.parts import Found
    from preflight.fabric.samples import End, PairState, Sweep


_OF_A_NODE = ("node", "endpoint")


def ends_words(a: str, b: str, rails: Collection[int | None], found: Sequence[Found]) -> str:
    """Say which ends of a bad path are fine with others, and which have another fault besides."""
    parts = [one.named for one in found if one.named is not None]
    named = [part for part in parts if part.kind in _OF_A_NODE and {a, b}.intersection(part.nodes)]
    there = [part for part in named if part.rail is None or not {None, part.rail}.isdisjoint(rails)]
    ill = [name for name in (a, b) if any(name in part.nodes for part in there)]
    if len(ill) == len((a, b)):
        return f"{a} and {b} have faults of their own besides"
    if ill:
        return f"{b if ill == [a] else a} is fine with others, {ill[0]} has another fault besides"
    on = ", ".join(str(rail) for rail in sorted(rail for rail in rails if rail is not None))
    where = f"on rail {on} " if named and on else ""
    return f"{where}{a} and {b} are both fine with others"


_SYSTEMIC = 0.8
_TWO = 2

_WORST: tuple[PairState, ...] = ("corrupt", "hung", "no_connect", "absent", "error")
_STATE_WORDS: dict[PairState, str] = {
    "corrupt": "sums came out wrong",
    "hung": "all-reduces hung",
    "no_connect": "no connection came about",
    "absent": "it did not come to the measurement",
    "error": "all-reduces broke off",
}
_ADVICE: dict[PairState, str] = {
    "corrupt": "take {0} out of service now and run its memory and link diagnostics",
    "hung": "look at {0} for stopped or D-state processes and at {1}; exclude it, run again",
    "no_connect": "check firewall, route and interface (--preflight-interface) of {0}",
    "absent": "look at {0}: its load, out-of-memory kills, processes in D state; run again",
    "error": "read what {0} said in report.json; look at its kernel log and link",
}
_PATH_ADVICE = (
    "check what lies between {0}: cables, switch ports, routes, firewall; "
    "until then keep them in different jobs"
)
_SLOW_ADVICE = "check link rate, cable, port errors (ethtool -S) and shaping of {0}; exclude it"


class Blame(Struct, frozen=True, kw_only=True):
    """One component, or the set among which it lies, with the pairs that point at it."""

    kind: Literal["node", "endpoint", "path", "leaf_rail", "unresolved", "systemic"]
    component: str
    """"h3", "pair h1-h2", "h1 or h2", "fleet"."""
    sentence: str
    confidence: float
    """0 to 1: how far the samples at hand exclude other explanations."""
    advice: str
    pairs: tuple[str, ...]
    rail: int | None = None
    """The one rail that is meant; None: all of them."""
    culprits: tuple[str, ...] = ()
    """The nodes that must be left out for it, where the component is no single node."""
    suspects: tuple[str, ...] = ()
    """The nodes among which the culprit lies, where no more is known: none is proven fit."""
    events: int = 0
    """Of what comes and goes: how often, in how many operations."""
    operations: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that is at fault for sure; none for a path, whose two nodes are fine."""
        return self.culprits or ((self.component,) if self.kind in ("node", "endpoint") else ())


def components(found: Iterable[Blame]) -> str:
    """Say whom several blames of one pair mean: "h1 and pair h1-h2"."""
    return " and ".join(dict.fromkeys(one.component for one in found))


def blames(
    outright: Iterable[Culprit],
    seen: Sequence[PairJudgement],
    sweep: Sweep,
    names: Sequence[str],
    found: Sequence[Found] = (),
) -> tuple[Blame, ...]:
    """Word who is to blame for bad pairs, each judged by itself; `names` is the fleet in order.

    Wrong sums are left to `statistical_blames`: a good pair does not clear a GPU that corrupts now
    and then.
    `found`: what all samples together prove; some pairs of a node that is slow, or loses what it
    sends, are bad for that, and that is no second fault.
    """
    bad = [one for one in seen if one.bad and one.state != "corrupt"]
    place = {name: number for number, name in enumerate(names)}
    culprits = [
        replace(culprit, among=tuple(sorted(culprit.among, key=lambda n: place.get(n, len(place)))))
        for culprit in outright
    ]
    all_bad = len(bad) > 1 and not any(one.good for one in seen)
    nodes = {name for one in seen for name in one.nodes}
    partners = more_partners(len(nodes), len({one.nodes for one in seen}))
    bad_nodes = {name for one in culprits if one.kind == "node" for name in one.among}
    worded = [
        _worded(culprit, bad, sweep, found, bad_nodes, all_bad=all_bad, partners=partners)
        for culprit in culprits
    ]
    causes = [_cause(culprit, bad) for culprit in culprits]
    return (*_systemic(worded, causes, bad, len(nodes)), *worded)


def _worded(
    culprit: Culprit,
    bad: Sequence[PairJudgement],
    sweep: Sweep,
    found: Sequence[Found],
    bad_nodes: Collection[str],
    *,
    all_bad: bool,
    partners: str,
) -> Blame:
    troubles = sweep.troubles
    mine = [one for one in bad if one.nodes in culprit.pairs]
    mine = [one for one in mine if not _others(one, culprit, troubles)] or mine
    if culprit.kind == "node":
        mine = _on_own_rails(mine)
    alone = [one for one in mine if len({*one.nodes}.intersection(bad_nodes)) < _TWO]
    worst = _worst(alone or mine)
    rails = sorted({one.rail for one in mine if one.bad})
    several = any(pair.rail for pair in sweep.pairs)
    where = f" on rail {', '.join(map(str, rails))}" if several else ""
    told = _ends(worst, sweep, culprit.among if culprit.kind == "node" else ())
    cause = _own_cause(told)
    if cause is not None:  # the other end merely waited for it, or lost it
        worst = replace(worst, state=cause.state)
    if culprit.kind == "node":
        name = culprit.among[0]
        own = {one.a if one.b == name else one.b for one in mine}
        how = "slow" if worst.slow else "bad"
        each = f"{name} is {how} with {partners_words(len(own))}{where}"
        sentence = f"{_what(worst, name, troubles)}; {each}"
        if worst.suspect == name and not culprit.cleared_partners:
            how = "stood still" if STOOD_STILL in worst.summary.error else "died"
            how = "failed" if cause is not None else how
            sentence = f"{_what(worst, name, troubles)}; only the process on {name} {how}"
        if worst.state == "absent" and name in troubles:
            sentence = f"it fell out of the sweep: {troubles[name]}; {each}"
    elif culprit.kind == "path":
        a, b = culprit.among
        ends = ends_words(a, b, {one.rail for one in mine}, found)
        sentence = f"{_what(worst, '', troubles, where)}; {ends}"
    else:
        why = "no good pair" if all_bad else "too few pairs"
        what = _what(worst, "", troubles, where)
        sentence = f"{what}; {why} to tell a node from the path between"
    return Blame(
        kind=culprit.kind,
        component=culprit.component,
        sentence=sentence,
        confidence=culprit.confidence,
        advice=sweep.advice.get(culprit.component) or _advice(culprit, worst, partners, told),
        pairs=tuple(f"{a}-{b}" for a, b in culprit.pairs),
        rail=rails[0] if several and len(rails) == 1 and culprit.kind != "node" else None,
        suspects=culprit.suspects,
    )


def _others(one: PairJudgement, culprit: Culprit, troubles: Mapping[str, str]) -> bool:
    """Whether a pair is bad because of its other end, which fell silent."""
    return any(name in troubles and name not in culprit.among for name in one.nodes)


def _on_own_rails(mine: Sequence[PairJudgement]) -> list[PairJudgement]:
    """A node's bad pairs without those on a rail that is bad with few partners: theirs, not its."""
    partners = Counter(one.rail for one in mine)
    most = max(partners.values())
    return [one for one in mine if 2 * partners[one.rail] > most]


def _ends(worst: PairJudgement, sweep: Sweep, named: Collection[str]) -> tuple[End, ...]:
    """What either end told of that pair on that rail, the worst last; of two alike the named."""
    own = worst.path
    told = [pair for pair in sweep.pairs if pair.path == own]
    ends = [end for pair in told for end in pair.ends]
    return tuple(
        sorted(ends, key=lambda end: (end.state != "measured", bool(end.error), end.node in named))
    )


def _own_cause(ends: Sequence[End]) -> End | None:
    """The end that says what went wrong with it, where the other one only ended for that."""
    owns = [end for end in ends if any(each in end.error for each in OWN_CAUSES)]
    ports = [end for end in ends if end.error and on_port("", end.error, "")]
    found = owns or ports
    return found[-1] if found and found[-1].state != "measured" else None


def _advice(culprit: Culprit, worst: PairJudgement, partners: str, ends: Sequence[End]) -> str:
    who, both = either(culprit.among), " and ".join(culprit.among)
    cause = _own_cause(ends)
    said = ""
    if cause is not None:
        other = worst.a if cause.node == worst.b else worst.b
        said = advice_on(cause.node, cause.error) or on_port(cause.node, cause.error, other)
    # Of a node that is named its own port, else the ports of both ends.
    own = culprit.among if culprit.kind == "node" else worst.nodes
    nets = {end.node: end.net for end in ends if end.node in own}
    if cause is None and worst.slow:
        said = on_slow_ports(nets)
    if culprit.kind == "path" and worst.state != "corrupt":
        look = said.removesuffix("; run again").removesuffix("; exclude it")
        apart = f"{look}, and what lies between; until then keep {both} in different jobs"
        return apart if said else _PATH_ADVICE.format(both)
    said = said or (_SLOW_ADVICE if worst.slow else after_signal(worst.summary.error))
    said = (said or _ADVICE[worst.state]).format(who, ports(nets) or "its link")
    return unresolved_advice(said, culprit.among, partners)


def _worst(bad: Sequence[PairJudgement]) -> PairJudgement:
    """Wrong data before hangs before slowness; among the slow, the slowest."""
    return min(
        bad,
        key=lambda one: (
            _WORST.index(one.state) if one.state in _WORST else len(_WORST),
            one.busbw_gbs or 0.0,
        ),
    )


def _what(worst: PairJudgement, name: str, troubles: Mapping[str, str], where: str = "") -> str:
    """The number seen and the number expected, or what happened instead; `where`: on which rail."""
    other = {worst.a: worst.b, worst.b: worst.a}.get(name)
    between = f"with {other}" if other else f"between {worst.a} and {worst.b}{where}"
    if worst.slow == "reach":
        return f"{worst.how_far} {between}"
    if worst.slow == "latency" and worst.latency_us is not None:
        reached = f"{time_us(worst.latency_us)} at {size(worst.summary.sizes[0].size_bytes)}"
        peers = f"peers' median {time_us(worst.peers_latency_us or 0.0)}"
        return f"{reached} {between}; {peers}, limit {time_us(worst.latency_limit_us or 0.0)}"
    if worst.slow and worst.busbw_gbs is not None:
        reached = f"{gbs(worst.busbw_gbs)} at {size(worst.at_bytes)}"
        return f"{reached} {between}; {worst.bound.words}"
    said = troubles.get(name) or worst.summary.error
    if said and not name and not said.startswith((f"{worst.a}: ", f"{worst.b}: ")):
        said = f"each end: {said}"
    return f"{_STATE_WORDS[worst.state]} {between}" + (f" ({said})" if said else "")


def _cause(culprit: Culprit, bad: Sequence[PairJudgement]) -> str:
    """What the worst of a node's pairs has: faults of different kinds share no cause."""
    worst = _worst([one for one in bad if one.nodes in culprit.pairs])
    return ("slow" if worst.slow else worst.state) if culprit.kind == "node" else ""


def _systemic(
    found: Sequence[Blame], causes: Sequence[str], bad: Sequence[PairJudgement], nodes: int
) -> list[Blame]:
    """Say that so many faults at once are more likely one cause; counted on nodes, not pairs."""
    most = max((causes.count(cause) for cause in causes if cause), default=0)
    everyone = bool(found) and nodes >= LEAST and {n for one in bad for n in one.nodes}
    if shared_cause(most, nodes):
        sentence = f"{most} of {nodes} nodes are blamed at once"
    elif everyone and not most and len(everyone) == nodes:
        sentence = f"all {nodes} nodes are in bad pairs and no pair clears any of them"
    else:
        return []
    return [
        Blame(
            kind="systemic",
            component="fleet",
            sentence=f"{sentence}: one shared cause is likelier than that many faults",
            confidence=_SYSTEMIC,
            advice="check what they share (switch, configuration, image); drain none for this",
            pairs=tuple(dict.fromkeys(one.name for one in bad)),
        )
    ]
