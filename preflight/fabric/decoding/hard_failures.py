"""Decode outright failures: a node is bad if all its pairs are, a path if both its ends are good.

Pure logic over good and bad pairs, without statistics; other code decides which pairs are bad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from preflight.core.statistics import grouped, median
from preflight.fabric.decoding.culprit import EVENTS, FAILURES, SHIFTS, Component, Culprit, Symptom

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.observed import PairResult
    from preflight.fabric.samples import PairState
    from preflight.fabric.schedule import Pairing


_BY_LOSS = ("hung", "error")
_MUCH_SLOWER = 2.0
"""A path that is so many times slower than the node's other pairs has its own fault."""

_CERTAIN, _NODE, _PATH, _UNRESOLVED = 0.95, 0.8, 0.7, 0.3


class PairOutcome(Protocol):
    """One pair's result, for blame."""

    @property
    def nodes(self) -> Pairing:
        """Both of its ends."""

    @property
    def rail(self) -> int:
        """On which of its nodes' rails it was measured."""

    @property
    def bad(self) -> bool:
        """A part is to blame for it."""

    @property
    def good(self) -> bool:
        """It proves both ends good."""

    @property
    def suspect(self) -> str:
        """The end that failed by itself; "" if neither did."""


def decode(tested: Iterable[PairOutcome], silent: Collection[str] = ()) -> tuple[Culprit, ...]:
    """Find the fewest components that explain the bad pairs without guessing.

    A node is at fault if all its pairs are bad, it was tried with at least two partners, and at
    least one of those is cleared by a good pair of its own. A path is at fault if it is bad and
    both its ends have a good pair. The rest is the set among which the culprit lies: nodes that no
    good pair clears, and the paths of their bad pairs.
    A good pair clears a node only on the rails it was measured on.
    `silent`: nodes that stopped answering during the measurement: their bad pairs need no guessing.
    """
    tested = tuple(tested)
    bad = list(dict.fromkeys(outcome.nodes for outcome in tested if outcome.bad))
    cleared = _cleared_nodes(tested, bad)
    partners = grouped((name, other) for a, b in bad for name, other in ((a, b), (b, a)))
    nodes = {
        name: len(cleared.intersection(others))
        for name, others in partners.items()
        if name in silent or _is_at_fault(name, set(others).difference(silent), cleared)
    }
    culprits = [
        _node(name, [pair for pair in bad if name in pair], count, silent=name in silent)
        for name, count in nodes.items()
    ]
    unexplained = [pair for pair in bad if not nodes.keys() & set(pair)]
    suspects: dict[str, list[Pairing]] = {}
    for outcome in tested:
        if outcome.bad and outcome.suspect and outcome.nodes in unexplained:
            suspects.setdefault(outcome.suspect, []).append(outcome.nodes)
            unexplained.remove(outcome.nodes)
    culprits += [_node(name, pairs) for name, pairs in suspects.items()]
    return tuple(culprits + _blame_unexplained(unexplained, cleared))


def _node(
    name: str, pairs: Sequence[Pairing], cleared_partners: int = 0, *, silent: bool = False
) -> Culprit:
    return Culprit(
        among=(Component("node", (name,)),),
        confidence=_CERTAIN if silent or cleared_partners > 1 else _NODE,
        pairs=tuple(pairs),
        cleared_partners=cleared_partners,
    )


def _is_at_fault(name: str, partners: set[str], cleared: set[str]) -> bool:
    """Whether a node is bad with every partner that kept answering, and one is cleared."""
    return name not in cleared and len(partners) > 1 and bool(partners & cleared)


def _cleared_nodes(tested: Sequence[PairOutcome], bad: Collection[Pairing]) -> set[str]:
    """Return nodes that have a good pair on every rail on which they have a bad one.

    A pair with one bad rail is a bad pair. A partner that lacks a rail says nothing about it.
    """
    good = [outcome for outcome in tested if outcome.good and outcome.nodes not in bad]
    good_ends = {(name, outcome.rail) for outcome in good for name in outcome.nodes}
    bad_ends = {(name, outcome.rail) for outcome in tested if outcome.bad for name in outcome.nodes}
    doubtful = {name for name, _ in bad_ends - good_ends}
    return {name for name, _ in good_ends} - doubtful


def _blame_unexplained(unexplained: Sequence[Pairing], cleared: set[str]) -> list[Culprit]:
    paths = [pair for pair in unexplained if cleared.issuperset(pair)]
    culprits = [
        Culprit(among=(Component("path", pair),), confidence=_PATH, pairs=(pair,)) for pair in paths
    ]
    for group in _group_by_suspect([pair for pair in unexplained if pair not in paths], cleared):
        names = dict.fromkeys(name for pair in group for name in pair if name not in cleared)
        nodes = [Component("node", (name,)) for name in names]
        suspect_paths = [Component("path", pair) for pair in group]
        culprits.append(
            Culprit(among=(*nodes, *suspect_paths), confidence=_UNRESOLVED, pairs=tuple(group))
        )
    return culprits


def _group_by_suspect(pairs: Sequence[Pairing], cleared: set[str]) -> list[list[Pairing]]:
    """Gather pairs that share a suspect: one culprit may explain them together."""
    groups: list[tuple[set[str], list[Pairing]]] = []
    for pair in pairs:
        suspects = set(pair) - cleared
        joined = [group for group in groups if group[0] & suspects]
        groups = [group for group in groups if group not in joined]
        names = suspects.union(*(group[0] for group in joined))
        groups.append((names, [other for group in joined for other in group[1]] + [pair]))
    return [group for _, group in groups]


def bad_by_themselves(
    tested: Iterable[PairJudgement | PairResult], silent: Collection[str]
) -> list[Culprit]:
    """Decode pairs that failed, or are slow beyond doubt; wrong sums need all samples.

    A good pair does not clear a GPU that corrupts data now and then.
    """
    steady = [outcome for outcome in tested if outcome.state != "corrupt"]
    states = grouped((outcome.nodes, outcome.state) for outcome in steady if outcome.bad)
    return [
        replace(
            culprit,
            symptom=_symptom(culprit, {state for pair in culprit.pairs for state in states[pair]}),
        )
        for culprit in decode(steady, silent)
    ]


def _symptom(culprit: Culprit, states: Collection[PairState]) -> Symptom:
    # Many events of a node can make its paths hang, but not keep them from connecting.
    if culprit.kind == "path" and not {"no_connect", "absent"}.isdisjoint(states):
        return "no_connect"
    kinds: tuple[Symptom, ...] = ("hung", "no_connect")
    return next((kind for kind in kinds if kind in states), "broken")


def without_effects(culprits: Sequence[Culprit], pairs: Sequence[PairJudgement]) -> list[Culprit]:
    """Drop outright bad paths and sets whose pairs are bad because of a proven culprit."""
    bad = [pair for pair in pairs if pair.bad and pair.state != "corrupt"]
    proven = [culprit for culprit in culprits if culprit.node and culprit.symptom not in FAILURES]
    return [
        culprit
        for culprit in culprits
        if culprit.node
        or culprit.symptom not in FAILURES
        or not all(
            any(_explains(cause, pair, pairs) for cause in proven)
            for pair in bad
            if pair.nodes in culprit.pairs
        )
    ]


def _explains(culprit: Culprit, pair: PairJudgement, pairs: Sequence[PairJudgement]) -> bool:
    part = culprit.among[0]
    if culprit.node not in pair.nodes:
        return False
    if culprit.symptom in EVENTS:
        return bool(pair.slow) or pair.state in _BY_LOSS
    if culprit.symptom not in SHIFTS or part.rail not in (None, pair.rail):
        return False
    return bool(pair.slow) and pair.nodes in culprit.pairs and not _has_own_fault(pair, part, pairs)


def _has_own_fault(pair: PairJudgement, part: Component, pairs: Sequence[PairJudgement]) -> bool:
    """Whether a pair is much slower than the other pairs of the node."""
    if pair.slow == "reach":
        return False
    others = [
        other.times_slower(pair.slow)
        for other in pairs
        if part.nodes[0] in other.nodes
        and part.rail in (None, other.rail)
        and other.nodes != pair.nodes
    ]
    peers = [times for times in others if times is not None]
    times = pair.times_slower(pair.slow)
    return times is None or not peers or times > _MUCH_SLOWER * median(peers)
