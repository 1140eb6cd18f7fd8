"""Whose fault it is: a node is bad if even its best pair is, a path if both its ends are fine.

Pure logic over which pairs were good and which bad; what "bad" means is decided elsewhere.

Independent tests per node blame the partners of a bad one (two wrong blames per run at 4 nodes in
simulation). Here each accepted part takes its effect out of the observations before the next.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.core.text import either
from preflight.fabric.decoding.parts import alike
from preflight.fabric.schedule import Pairing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.parts import Component, Found, Key, Parts


_TWO = 2
_CONFIDENCE = {"node": 0.8, "path": 0.7, "unresolved": 0.3}


class Tested(Protocol):
    """One pair's result, as far as blame is concerned."""

    @property
    def nodes(self) -> Pairing:
        """Both of its ends."""

    @property
    def rail(self) -> int:
        """On which of its nodes' rails it was measured."""

    @property
    def bad(self) -> bool:
        """Somebody is to blame for it."""

    @property
    def good(self) -> bool:
        """It clears both ends."""

    @property
    def suspect(self) -> str:
        """The end that was seen to fail by itself; nothing if neither was."""


class Culprit(Struct, frozen=True):
    """A component, or the set among which it lies, and the bad pairs that it explains."""

    kind: Literal["node", "path", "unresolved"]
    among: tuple[str, ...]
    """One node; both ends of a path; or every node that may be the one."""
    pairs: tuple[Pairing, ...]
    cleared_partners: int = 0
    """Of a node: how many partners are known to be fine by another pair."""
    silent: bool = False
    """A node that fell silent during the measurement."""

    @property
    def component(self) -> str:
        """Whom to blame, as reports write it: "h3", "pair h1-h2", "h1 or h2"."""
        return f"pair {'-'.join(self.among)}" if self.kind == "path" else either(self.among)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The nodes among which the culprit lies, where no more is known."""
        return self.among if self.kind == "unresolved" else ()

    @property
    def confidence(self) -> float:
        """0 to 1: how far the pairs exclude other explanations."""
        sure = self.kind == "node" and (self.silent or self.cleared_partners >= _TWO)
        return 0.95 if sure else _CONFIDENCE[self.kind]


def decode(tested: Iterable[Tested], silent: Collection[str] = ()) -> tuple[Culprit, ...]:
    """Find the fewest components that explain the bad pairs without guessing.

    A node is condemned if all its pairs are bad, it was tried with at least two partners, and at
    least one of those is cleared by a good pair of its own. A path is condemned if it is bad and
    both its ends have a good pair. The rest is said as the set among which the culprit lies.
    A good pair clears a node only on the rails it was measured on.
    `silent` are nodes that fell silent during the measurement: their bad pairs need no guessing.
    """
    tested = tuple(tested)
    bad = list(dict.fromkeys(one.nodes for one in tested if one.bad))
    cleared = _cleared(tested, bad)
    partners: dict[str, set[str]] = {}
    for a, b in bad:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    nodes = {
        name: len(others & cleared)
        for name, others in partners.items()
        if name in silent or _condemned(name, others - set(silent), cleared)
    }
    culprits = [
        Culprit("node", (name,), tuple(pair for pair in bad if name in pair), count, name in silent)
        for name, count in nodes.items()
    ]
    unexplained = [pair for pair in bad if not nodes.keys() & set(pair)]
    suspects: dict[str, list[Pairing]] = {}
    for one in tested:
        if one.bad and one.suspect and one.nodes in unexplained:
            suspects.setdefault(one.suspect, []).append(one.nodes)
            unexplained.remove(one.nodes)
    culprits += [Culprit("node", (name,), tuple(own)) for name, own in suspects.items()]
    return tuple(culprits + _rest(unexplained, cleared))


def decode_rails(
    tested: Iterable[Tested], silent: Collection[str] = ()
) -> tuple[dict[int, Culprit], ...]:
    """Decode each rail by itself; of one component, what each rail that names it says."""
    found: dict[tuple[str, tuple[str, ...]], dict[int, Culprit]] = {}
    for rail, own in sorted(grouped((one.rail, one) for one in tested).items()):
        for culprit in decode(own, silent):
            found.setdefault((culprit.kind, culprit.among), {})[rail] = culprit
    return tuple(found.values())


def _condemned(name: str, partners: set[str], cleared: set[str]) -> bool:
    """Whether a node is bad with every partner that did not fall silent, and one is cleared."""
    return name not in cleared and len(partners) >= _TWO and bool(partners & cleared)


def _cleared(tested: Sequence[Tested], bad: Collection[Pairing]) -> set[str]:
    """The nodes that have a good pair on every rail on which they have a bad one.

    A pair with one bad rail is a bad pair. A partner that lacks a rail says nothing about it.
    """
    good = [one for one in tested if one.good and one.nodes not in bad]
    fine = {(name, one.rail) for one in good for name in one.nodes}
    ill = {(name, one.rail) for one in tested if one.bad for name in one.nodes}
    doubtful = {name for name, _ in ill - fine}
    return {name for name, _ in fine} - doubtful


def _rest(unexplained: Sequence[Pairing], cleared: set[str]) -> list[Culprit]:
    paths = [pair for pair in unexplained if cleared.issuperset(pair)]
    found = [Culprit("path", pair, (pair,)) for pair in paths]
    for group in _connected([pair for pair in unexplained if pair not in paths], cleared):
        names = dict.fromkeys(name for pair in group for name in pair)
        among = tuple(name for name in names if name not in cleared)
        found.append(Culprit("unresolved", among, tuple(group)))
    return found


def _connected(pairs: Sequence[Pairing], cleared: set[str]) -> list[list[Pairing]]:
    """Gather pairs that share a suspect: one culprit may explain them together."""
    groups: list[tuple[set[str], list[Pairing]]] = []
    for pair in pairs:
        suspects = set(pair) - cleared
        joined = [group for group in groups if group[0] & suspects]
        groups = [group for group in groups if group not in joined]
        names = suspects.union(*(group[0] for group in joined))
        groups.append((names, [each for group in joined for each in group[1]] + [pair]))
    return [group for _, group in groups]


TIE = 3.0
"""Nats: explanations nearer than that (20 to 1) are not told apart."""

_WIDER = 1.0

_SAME = 0.5
"""A rival explains the same if most of its gain is gone once the other is accepted."""

_RIVAL = 2 * TIE

_LEAF = 3
"""So many of a leaf's nodes must show a fault before it is the leaf's: two may both be bad."""

DOUBT, FEW = 5.0, 8
"""Nats from which a part is worth a second look, and how many are looked at again."""

_MOST_PATHS = FEW // 2
"""Of those, paths whose one round is no proof, however much it shows."""

_MOST = 256
"""Parts at fault that one search names; more is no list of faults."""


class Model(Protocol):
    """What healthy observations look like, and what a fault does to them."""

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The strength of a fault of a part with these observations, and its gain in nats."""

    def hunch(self, through: Sequence[int]) -> float:
        """The gain of a fault of a part if a single round were proof enough."""

    def accept(self, through: Sequence[int], strength: float) -> None:
        """From now on these observations are expected to show it."""

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether a fault of that strength matters at all."""

    def shows(self, some: Sequence[int], strength: float, beside: Sequence[int]) -> bool:
        """Whether some of a part's observations fit that fault better than none.

        `beside`: all of the part's; what healthy is like is taken from the others.
        """

    def leave_out(self, some: Collection[int]) -> None:
        """From now on these are no yardstick for others."""


class Accepted(NamedTuple):
    """One fault: the part, its observations, those that explain it as well, strength and gain."""

    key: Key
    through: list[int]
    """The observations that were made through it."""
    ties: tuple[Key, ...]
    strength: float
    gain: float
    margin: float
    """By how much the next explanation is worse, nats."""


class Explained(NamedTuple):
    """What a search names, and what it suspects without proof, the likeliest first."""

    accepted: list[Accepted]
    doubted: list[Key]


def explain(
    parts: Parts, through: Mapping[Key, list[int]], model: Model, false_alarm: float
) -> Explained:
    """Name parts until nothing is left that beats chance over all that were suspected.

    `false_alarm`: how probable it may be that a healthy fabric has any part named; infinite where
    no healthy fabric shows anything, and all that was seen must have a cause.
    """
    if not through:
        return Explained([], [])
    # Every observation had the chance to make its parts suspects, so all of those were tested.
    tested = max(len(through), parts.tested)
    threshold = math.log(tested / false_alarm) if math.isfinite(false_alarm) else -math.inf
    queue = _queue(parts, through, model)
    found: list[Accepted] = []
    doubted: list[Key] = []
    tried_at = -1
    while queue and len(found) < _MOST:
        _, key = heapq.heappop(queue)
        strength, gain = model.fit(through[key])
        score = gain - parts.penalty(key)
        if queue and -queue[0][0] > score:
            heapq.heappush(queue, (-score, key))  # it was better before others were accepted
            continue
        if gain <= 0 or score <= threshold:
            left = [key, *(other for _, other in queue)]
            by_fit = _doubted(left, lambda own: model.fit(own)[1], parts, through, model)
            doubted = by_fit[:FEW]
            if len(found) > tried_at and _several(doubted, parts, through, model, threshold):
                tried_at = len(found)
                queue = _queue(parts, {one: through[one] for one in left}, model)
                continue
            doubted = list(dict.fromkeys([*_hot_once(left, parts, through, model), *doubted]))
            break
        if not model.enough(strength, through[key]) or not _whole(key, parts, through, model):
            continue
        near = _near(key, gain, parts, through, model)
        model.accept(through[key], strength)
        lags = {
            other: gain - before
            for other, before in near.items()
            if model.fit(through[other])[1] < _SAME * before
        }
        ties = tuple(sorted(o for o, lag in lags.items() if lag < _tie(key, o, through)))
        margin = max(0.0, min(lags.values(), default=gain))
        found.append(Accepted(key, through[key], ties, strength, gain, margin))
    return Explained(found, doubted)


def _queue(parts: Parts, through: Mapping[Key, list[int]], model: Model) -> list[tuple[float, Key]]:
    queue = [(parts.penalty(key) - model.fit(own)[1], key) for key, own in through.items()]
    heapq.heapify(queue)
    return queue


def _several(
    doubted: Sequence[Key],
    parts: Parts,
    through: Mapping[Key, list[int]],
    model: Model,
    threshold: float,
) -> bool:
    """Whether parts that spoil each other's yardstick are proven once all are left out of it.

    Each of two late hosts among eight makes the other look usual. All of them must then be proven.
    """
    chosen: list[Key] = []
    aside: set[int] = set()
    for key in doubted:
        own = through[key]
        known = any(alike(key, other) for other in chosen)
        if not known and len(aside.intersection(own)) * 2 < len(own):
            chosen.append(key)
            aside.update(own)
            if len(chosen) > 1:
                model.leave_out(aside)
                fits = [(one, *model.fit(through[one])) for one in chosen]
                if all(
                    gain - parts.penalty(one) > threshold and model.enough(strength, through[one])
                    for one, strength, gain in fits
                ):
                    return True
    model.leave_out(())
    return False


def _doubted(
    keys: Iterable[Key],
    gain: Callable[[Sequence[int]], float],
    parts: Parts,
    through: Mapping[Key, list[int]],
    model: Model,
) -> list[Key]:
    """Those whose evidence would convince a reader who had suspected them alone, hottest first."""
    ranked = sorted((parts.penalty(key) - gain(through[key]), key) for key in keys)
    return [
        key
        for loss, key in ranked
        if loss < -DOUBT and model.enough(model.fit(through[key])[0], through[key])
    ]


def _hot_once(
    left: Sequence[Key], parts: Parts, through: Mapping[Key, list[int]], model: Model
) -> list[Key]:
    """Paths that nothing but the limit of what one round may prove keeps from being suspected.

    The hottest first; of a path and its rails only the hottest.
    """
    pairs: dict[tuple[str, str], Key] = {}
    paths = (key for key in left if key.kind == "path")
    for key in _doubted(paths, model.hunch, parts, through, model):
        pairs.setdefault((key.one, key.other), key)
    return list(pairs.values())[:_MOST_PATHS]


def _whole(key: Key, parts: Parts, through: Mapping[Key, list[int]], model: Model) -> bool:
    """Whether a part is bad as such: most of what it holds shows it, and nobody most of it."""
    members = parts.members(key)
    if not members:
        return True
    strength, gain = model.fit(through[key])
    own = set(through[key])
    if key.kind == "leaf_rail":
        nodes = (theirs for other, theirs in through.items() if other.kind in ("node", "endpoint"))
        shared = [common for theirs in nodes if len(common := own.intersection(theirs)) > 1]
        if max((model.fit(sorted(common))[1] for common in shared), default=0.0) >= _SAME * gain:
            return False
    sharing = [*members, *_outside(members, through)] if key.kind == "leaf_rail" else members
    seen = [(one, sorted(own.intersection(through[one]))) for one in sharing if one in through]
    seen.sort(key=lambda two: -model.fit(two[1])[1] if two[1] else 0.0)
    hot = 0
    left = own
    for one, theirs in seen:
        # What two of them share counts for the likelier.
        mine = [number for number in theirs if number in left]
        if mine and model.shows(mine, strength, through[key]):
            hot += one in members
            left = left.difference(mine)
    together = [number for number in own if parts.whole(number)]
    if together and model.shows(together, strength, through[key]):
        return True
    return hot * 2 > len(members) and (key.kind != "leaf_rail" or hot >= _LEAF)


def _outside(members: Sequence[Key], through: Mapping[Key, list[int]]) -> list[Key]:
    """What else of their kind is suspected: a bad node elsewhere is met by all of a leaf."""
    like = members[0]
    known = set(members)
    return [
        key
        for key in through
        if key.kind == like.kind and key.rail == like.rail and key not in known
    ]


def _tie(key: Key, other: Key, through: Mapping[Key, list[int]]) -> float:
    """How near is as good. A wider part, of which the rest is clean, must do better than a part."""
    return _WIDER if set(through[key]) < set(through[other]) else TIE


def _near(
    key: Key, gain: float, parts: Parts, through: Mapping[Key, list[int]], model: Model
) -> dict[Key, float]:
    """Parts that share observations with it, and what each would gain in its place."""
    own = set(through[key])
    near: dict[Key, float] = {}
    for other, theirs in through.items():
        if other == key or own.isdisjoint(theirs) or alike(key, other):
            continue
        gains = model.fit(theirs)[1]
        rival = gains > gain - _RIVAL
        if gains > 0 and not (rival and not _whole(other, parts, through, model)):
            near[other] = gains
    return near


EVENTS = ("spikes", "late")
_BY_EVENTS = ("slow", "latency", "hung", "broken")
"""What so many events can make of a pair; it takes more to keep it from connecting."""

_MOST_SHARE_EXPLAINED = 0.5


def known(fresh: Found, found: Sequence[Found]) -> bool:
    """Whether parts that are named account for it, whatever their symptoms.

    A part accounts for what goes through it, never for what is wider and shows with others too: a
    path for neither end, a node for no leaf. But a rail accounts for its node, which one repairs
    at the same place; most of a leaf's nodes for the leaf; and one of a set for the set's wider.
    """
    named = [one.named for one in found if one.named is not None]
    return all(
        _mostly(part, named) or any(_accounts(other, part, fresh.among) for other in named)
        for part in fresh.among
    )


def due_to(fresh: Found, one: Found) -> bool:
    """Whether a path was slow, or hung, for a wider part that loses or holds up what it sends."""
    path, part = one.named, fresh.named
    if path is None or path.kind != "path" or part is None or part.kind == "path":
        return False
    return one.symptom in _BY_EVENTS and fresh.symptom in EVENTS and within(path, part)


def within(part: Component, other: Component) -> bool:
    """Whether all that goes through `part` goes through `other`."""
    rails = other.rail is None or part.rail == other.rail
    if other.kind == "path":
        return rails and part.kind == "path" and set(part.nodes) == set(other.nodes)
    if part.kind == "path":
        return rails and bool(set(part.nodes) & set(other.nodes))
    return rails and set(part.nodes) <= set(other.nodes)


def _accounts(other: Component, part: Component, among: Sequence[Component]) -> bool:
    """Whether `other`, which is named, accounts for a part of those `among` which a fault lies."""
    if within(part, other):
        return True
    return within(other, part) and any(_same_place(other, one) for one in among)


def _same_place(part: Component, whole: Component) -> bool:
    """Whether it is that part, or a rail of it."""
    return within(part, whole) and set(part.nodes) == set(whole.nodes)


def _mostly(part: Component, named: Sequence[Component]) -> bool:
    """Whether most nodes under a leaf are named on that rail."""
    if part.kind != "leaf_rail":
        return False
    own = (
        one for one in named if one.kind in ("node", "endpoint") and one.rail in (None, part.rail)
    )
    bad = {name for one in own for name in one.nodes}
    return len(bad.intersection(part.nodes)) > _MOST_SHARE_EXPLAINED * len(part.nodes)
