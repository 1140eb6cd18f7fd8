"""Faults that only the samples of the whole fabric show, lasting or healed.

A dead or very slow link condemns its own pairs; 15 per cent on one rail, a spike in a thousand
operations, or a host that is late now and then show against everybody else's.

A reading a little beyond the limit is a busy moment; one far beyond it, over a whole size, is not,
unless an end waited for a CPU as long as such an operation took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.text import either, gbs, size, time_us
from preflight.fabric.advice import more_partners
from preflight.fabric.blame import Blame, ends_words
from preflight.fabric.decoding.explain import EVENTS
from preflight.fabric.decoding.parts import number
from preflight.facts.boards import explained

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.compare import Seen
    from preflight.fabric.culprit import Component, Found, SecondLookSaid
    from preflight.fabric.observed import Observed
    from preflight.fabric.schedule import Pairing


def late_words(one: Found, where: str, observed: Observed) -> str:
    """What is said of it."""
    often = f"{one.events} of {one.operations} operations"
    if still := _explaining(one, observed):
        return (
            f"{where} stood still in {often}, for up to {time_us(one.worst_us)}, and its partners "
            f"waited: {still.words}; the network was as fast as elsewhere"
        )
    return (
        f"{where} began {often} late, by up to {time_us(one.worst_us)} by its own clock, and its "
        "partners waited; the network was as fast as elsewhere"
    )


def late_advice(one: Found, observed: Observed) -> str:
    """Where to look: never at the cable."""
    name = one.among[0].nodes[0]
    if still := _explaining(one, observed):
        return f"look at what {still.suspects} on {name}, not at its link"
    return f"look at what else runs on {name} (load, IRQs, throttling), not at its link"


def _explaining(one: Found, observed: Observed) -> Stillness | None:
    """What froze it, where that is behind most of its events."""
    part = one.among[0]
    still = stillness(observed, part.nodes[0], part.rail)
    return still if still is not None and 2 * still.times >= one.events else None


class Stillness(Struct, frozen=True, kw_only=True):
    """All the times that one node, or one rail of it, stood still during its pairs."""

    stopped: int = 0
    """How often its measuring process was stopped."""
    unrun: int = 0
    """How often its supervisor did not run, and did not wait for a CPU either."""
    most_ms: float

    @property
    def times(self) -> int:
        """Of either kind."""
        return self.stopped + self.unrun

    @property
    def words(self) -> str:
        """What stood still: "its measuring process was stopped 9 times, for up to 152 ms"."""
        what = "its measuring process was stopped" if self._by_signal else "the host did not run"
        times = f"{self.times} times" if self.times > 1 else "once"
        return f"{what} {times}, for up to {time_us(self.most_ms * 1e3)}"

    @property
    def suspects(self) -> str:
        """What does that."""
        if self._by_signal:
            return "stops processes (SIGSTOP, a debugger or profiler, a job scheduler's suspend)"
        return (
            "freezes processes (swapping, stolen CPU or a paused VM, a cgroup's freezer or quota, "
            "soft lockups in dmesg)"
        )

    @property
    def _by_signal(self) -> bool:
        return self.stopped >= self.unrun


def stillness(observed: Observed, name: str, rail: int | None) -> Stillness | None:
    """Sum it up; None where it never stood still."""
    stood = [
        stood
        for each in observed.tried
        if rail in (None, each.rail) and name in (each.a, each.b)
        for stood in (each.stood_a if each.a == name else each.stood_b)
    ]
    stood = [one for one in stood if one.what != "starved"]
    if not stood:
        return None
    stopped = sum(one.times for one in stood if one.what == "stopped")
    unrun = sum(one.times for one in stood if one.what == "host")
    most_ms = max(one.most_ms for one in stood)
    return Stillness(stopped=stopped, unrun=unrun, most_ms=most_ms)


_MOST_NAMES = 3
_AGAIN: Mapping[SecondLookSaid, str] = {
    "": "",
    "none": "",
    "too_short": "; measured again it was quiet, but too shortly to clear it",
    "counter_moved": "; measured again it was quiet, but its counters moved",
}


def subtle(
    found: Iterable[Found], observed: Observed, seen: Sequence[Seen], known: Sequence[Blame]
) -> list[Blame]:
    """Word every fault that is not blamed already; one blame per node, whatever its rails."""
    found = tuple(found)
    blames: list[Blame] = []
    for one in found:
        if one.symptom in ("hung", "no_connect", "broken") or _accounted(one, known):
            continue
        fresh = _blame(one, observed, seen, found)
        same = next((old for old in blames if old.component == fresh.component), None)
        if same is None:
            blames.append(fresh)
        else:
            blames[blames.index(same)] = _joined(same, fresh)
    return blames


def _accounted(one: Found, known: Sequence[Blame]) -> bool:
    """Whether everybody whom it may mean is blamed already, with a grosser sentence."""
    names = {name for blame in known for name in (blame.component, *blame.culprits)}
    if one.named is None and one.symptom != "corrupt":
        names.update(name for blame in known for name in blame.suspects)
    pairs = {pair for blame in known for pair in blame.pairs}
    return all(
        (part.kind == "path" and "-".join(part.nodes) in pairs) or names.issuperset(part.nodes)
        for part in one.among
    )


def _joined(one: Blame, other: Blame) -> Blame:
    return Blame(
        kind=one.kind,
        component=one.component,
        sentence=f"{one.sentence}; {other.sentence}",
        confidence=min(one.confidence, other.confidence),
        advice=one.advice if one.advice == other.advice else f"{one.advice}; {other.advice}",
        pairs=tuple(dict.fromkeys((*one.pairs, *other.pairs))),
        rail=one.rail if one.rail == other.rail else None,
        culprits=one.culprits,
        suspects=one.suspects,
        events=one.events,
        operations=one.operations,
    )


def _blame(one: Found, observed: Observed, seen: Sequence[Seen], found: Sequence[Found]) -> Blame:
    part = one.named
    kind: Literal["node", "endpoint", "path", "leaf_rail", "unresolved"]
    where = _where(one.among[0])
    sentence = _said(one, observed, seen) + _moved(one, observed) + _AGAIN[one.second_look]
    if part is None:
        component, kind = either([_where(each) for each in one.among]), "unresolved"
        sentence += "; the samples do not tell these apart"
    elif part.kind == "path":
        component, kind = f"pair {'-'.join(part.nodes)}", "path"
        sentence += f"; {ends_words(part.nodes[0], part.nodes[1], {part.rail}, found)}"
    elif part.kind == "leaf_rail":
        component, kind = part.name, "leaf_rail"
        sentence += f"; all {len(part.nodes)} nodes under it have it, so it is not theirs"
    else:
        component, kind = part.nodes[0], part.kind
    nodes = part.nodes if part is not None and part.kind == "leaf_rail" else ()
    return Blame(
        kind=kind,
        component=component,
        sentence=sentence,
        confidence=one.confidence,
        advice=_advice(one, observed, where),
        pairs=tuple(f"{a}-{b}" for a, b in _condemned(one, observed)),
        rail=part.rail if part is not None else None,
        culprits=nodes,
        suspects=_suspects(one),
        events=one.events if one.symptom in EVENTS else 0,
        operations=one.operations if one.symptom in EVENTS else 0,
    )


def _condemned(one: Found, observed: Observed) -> Sequence[Pairing]:
    """The pairs that show it: a clean one between a suspect and a third node condemns neither."""
    if one.symptom == "corrupt":
        wrong = {(each.a, each.b) for each in observed.tried if each.state == "corrupt"}
        return [pair for pair in one.pairs if pair in wrong] or one.pairs
    if one.named is not None:
        return one.pairs
    each_of = [set(part.nodes) for part in one.among]
    return [pair for pair in one.pairs if all(nodes & {*pair} for nodes in each_of)] or one.pairs


def _suspects(one: Found) -> tuple[str, ...]:
    """The nodes that are left out where the culprit is one of several; a leaf's only if alone."""
    if one.named is not None:
        return ()
    own = [part for part in one.among if part.kind != "leaf_rail"] or one.among
    return tuple(dict.fromkeys(name for part in own for name in part.nodes))


def _where(part: Component) -> str:
    """The part in an operator's words: "rail 5 of h2", "the path h1-h2"."""
    rail = f"rail {part.rail} of " if part.rail is not None else ""
    name = "-".join(part.nodes) if part.kind == "path" else part.name.split(" rail ")[0]
    return f"the path {name}" if part.kind == "path" and not rail else f"{rail}{name}"


def _said(one: Found, observed: Observed, seen: Sequence[Seen]) -> str:
    where = _where(one.among[0])
    partners = len(one.pairs)
    whom = f" with each of its {partners} partners" if partners > 1 else " with its only partner"
    if one.among[0].kind == "path":
        whom = ""
    if one.symptom == "corrupt":
        said = next((each.summary.error for each in _through(one, seen) if each.summary.error), "")
        often = f"in {one.events} of {one.operations} pairs through {where} sums came out wrong"
        return f"{often} ({said})" if said else often
    if one.symptom == "late":
        return late_words(one, where, observed)
    if one.symptom == "spikes":
        return (
            f"{one.events} of {one.operations} operations through {where} took up to "
            f"{time_us(one.worst_us)}: {_rare(one.events / max(1, one.operations))}, elsewhere "
            f"{_rare(one.elsewhere)}"
        )
    if one.symptom == "latency":
        worst = max(_through(one, seen), key=lambda each: each.latency_us or 0.0, default=None)
        if worst is None or worst.latency_us is None or worst.peers_latency_us is None:
            return f"small messages through {where} are slow{whom}"
        return (
            f"{time_us(worst.latency_us)} at 8 B between {worst.a} and {worst.b}, peers' median "
            f"{time_us(worst.peers_latency_us)}; {where} is slow{whom}"
        )
    return _slow(one, seen, where, whom)


def _slow(one: Found, seen: Sequence[Seen], where: str, whom: str) -> str:
    rows = [each for each in _through(one, seen) if each.busbw_gbs and each.bound.peers_gbs]
    if not rows:
        return f"{where} is slow{whom}"
    worst = min(rows, key=lambda each: (each.busbw_gbs or 0.0) / (each.bound.peers_gbs or 1.0))
    speed, peers = worst.busbw_gbs or 0.0, worst.bound.peers_gbs or 1.0
    with_whom = {worst.a: worst.b, worst.b: worst.a}.get(one.among[0].nodes[0], worst.b)
    return (
        f"{gbs(speed)} at {size(worst.at_bytes)} with {with_whom}, {1 - speed / peers:.0%} less "
        f"than its peers' median {gbs(peers)}; {where} is slow{whom}"
    )


def _rare(rate: float) -> str:
    return f"1 in {1 / rate:,.0f}" if rate > 0 else "none"


def _through(one: Found, seen: Sequence[Seen]) -> list[Seen]:
    pairs, rails = set(one.pairs), {part.rail for part in one.among}
    return [
        each for each in seen if (each.a, each.b) in pairs and (None in rails or each.rail in rails)
    ]


def _moved(one: Found, observed: Observed) -> str:
    """Counters that moved at the culprit's end while it was loaded: a cable confesses there."""
    part = one.named
    if part is None or part.kind not in ("node", "endpoint"):
        return ""
    (name,) = part.nodes
    total: dict[str, float] = {}
    others: dict[str, None] = {}
    for each in observed.tried:
        if part.rail in (None, each.rail) and name in (each.a, each.b):
            for moved in each.moved_a if each.a == name else each.moved_b:
                if moved.assigned:
                    total[moved.name] = total.get(moved.name, 0.0) + moved.by
                else:
                    others[moved.name] = None
    # An Xid says more than a thousand retransmissions: it leads, with what it means.
    most = sorted(total.items(), key=lambda item: (not item[0].startswith("Xid "), -item[1]))
    told = ", ".join(f"{explained(counter)} +{by:g}" for counter, by in most[:_MOST_NAMES])
    words = f"; counters moved there meanwhile: {told}" if told else ""
    if others:  # every rail reads them, so that what they add up to means nothing
        known = ", ".join(map(explained, list(others)[:_MOST_NAMES]))
        words += f"; counters moved on {name} that are tied to no rail: {known}"
    return words


def _advice(one: Found, observed: Observed, where: str) -> str:
    name = one.among[0].nodes[0]
    if one.named is None:
        pairs = {(each.a, each.b) for each in observed.tried}
        partners = more_partners(len(observed.nodes), len(pairs))
        every = {1: "it", 2: "both"}.get(len(_suspects(one)), "them")
        return f"exclude {every}, or run again {partners} to tell them apart"
    if one.symptom == "corrupt":
        return f"take {name} out of service now and run its memory and link diagnostics"
    if one.symptom == "late":
        return late_advice(one, observed)
    if one.named.kind == "path":
        return f"check what lies on {where}: cables, switch ports, routes; keep the two apart"
    if one.named.kind == "leaf_rail":
        return f"look at the leaf switch and its uplinks for {where} before its nodes"
    what = "reseat or swap the cable" if one.symptom == "spikes" else "check link rate and cable"
    return f"{what} of {where}, read its port's error counters; exclude {name} until then"


FAR = 0.25
"""Of the limit: below it even the fastest operation was no busy moment (healthy pairs of shared
cores were seen at half of it)."""

_LEAST = 3  # operations: one alone may have waited for anything
_CONFIDENCE = 0.5
_ADVICE = (
    "what was slow comes and goes; one reading cannot tell {0}'s link, {1}'s and the way between "
    "apart: port errors of both, flaps in the switch's log, cables; run again"
)
_HUNG_ONCE = (
    "one hang that does not come again cannot tell {0}, {1} and the way between them apart: look "
    "at Xids and port errors of both; run again"
)


def healed(seen: Sequence[Seen], observed: Observed, blamed: Collection[str]) -> Iterator[Blame]:
    """Blame each path that hung once, or whose slow reading was taken back, if it was slow by far.

    Or if it was slower than its peers at all, and an error counter moved there. `blamed`:
    components and pairs that are named anyway, with what went through them.
    """
    yield from _hung_once(seen, blamed)
    yield from _far_off(seen, observed, blamed)
    yield from _confessing(seen, observed, blamed)


def _hung_once(seen: Sequence[Seen], blamed: Collection[str]) -> Iterator[Blame]:
    many = len({one.rail for one in seen}) > 1
    for one in (each for each in seen if each.hung_once):
        if not {one.a, one.b, f"pair {one.a}-{one.b}"}.isdisjoint(blamed):
            continue
        readings = [each for each in seen if _recovered_part(each) == _recovered_part(one)]
        then = " and ".join(gbs(each.busbw_gbs or 0.0) for each in readings if each.good)
        where = f" on rail {one.rail}" if many else ""
        yield Blame(
            kind="path",
            component=f"pair {one.a}-{one.b}",
            sentence=f"an all-reduce hung once{where} ({one.summary.error}), then {then}",
            confidence=_CONFIDENCE,
            advice=_HUNG_ONCE.format(one.a, one.b),
            pairs=(one.name,),
            rail=one.rail if many else None,
            events=1,
            operations=len(readings),
        )


def _recovered_part(one: Seen) -> tuple[str, str, int]:
    return one.a, one.b, one.rail


def _far_off(seen: Sequence[Seen], observed: Observed, blamed: Collection[str]) -> Iterator[Blame]:
    pairs = dict.fromkeys((one.a, one.b, one.rail) for one in seen if one.once)
    for a, b, rail in pairs:
        readings = [one for one in seen if (one.a, one.b, one.rail) == (a, b, rail)]
        far = [one for one in readings if _far(one) and not _starved(one, observed)]
        if not far or not {a, b, f"pair {a}-{b}"}.isdisjoint(blamed):
            continue
        then = " and ".join(gbs(one.busbw_gbs or 0.0) for one in readings if not one.once)
        limit = f"limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin}"
        many = len({one.rail for one in seen}) > 1
        yield _recovered_blame(far, len(readings), f"then {then} ({limit})", rail if many else None)


def _confessing(
    seen: Sequence[Seen], observed: Observed, blamed: Collection[str]
) -> Iterator[Blame]:
    border = observed.retested
    again = {(one.a, one.b, one.rail) for one in observed.tried if 0 < border <= one.round}
    moved: dict[tuple[str, str, int], dict[str, None]] = {}
    for one in observed.tried:
        for each in (*one.moved_a, *one.moved_b):
            where = (one.a, one.b, one.rail)
            if where in again and each.proves:
                moved.setdefault(where, {})[each.name] = None
    effect = number(observed.backend, "slow_effect") if moved else 0.0
    for (a, b, rail), counters in moved.items():
        readings = [one for one in seen if (one.a, one.b, one.rail) == (a, b, rail)]
        slow = [one for one in readings if one.round < border and _less(one, effect)]
        quick = [one for one in readings if one.round >= border]
        clean = quick and all(one.good and not _less(one, effect) for one in quick)
        if not slow or not clean or not {a, b, f"{a}-{b}", f"pair {a}-{b}"}.isdisjoint(blamed):
            continue
        then = " and ".join(gbs(one.busbw_gbs or 0.0) for one in quick)
        peers = f"peers' median {gbs(slow[0].bound.peers_gbs or 0.0)}"
        rest = f"then {then} ({peers}), but {', '.join(counters)} moved"
        many = len({one.rail for one in seen}) > 1
        yield _recovered_blame(slow, len(readings), rest, rail if many else None)


def _recovered_blame(slow: Sequence[Seen], readings: int, rest: str, rail: int | None) -> Blame:
    """A path that was slow in some of its readings; `rest`: how it went on."""
    a, b, gbs_then = slow[0].a, slow[0].b, slow[0].busbw_gbs or 0.0
    return Blame(
        kind="path",
        component=f"pair {a}-{b}",
        sentence=f"slow when first measured, {gbs(gbs_then)}, {rest}",
        confidence=_CONFIDENCE,
        advice=_ADVICE.format(a, b),
        pairs=(f"{a}-{b}",),
        rail=rail,
        events=len(slow),
        operations=readings,
    )


def _less(one: Seen, effect: float) -> bool:
    """Whether it is slower than its peers by as much as matters."""
    peers = one.bound.peers_gbs
    return bool(peers and one.busbw_gbs) and (one.busbw_gbs or 0.0) < (1 - effect) * (peers or 0.0)


def _far(one: Seen) -> bool:
    if one.once != "bandwidth" or one.bound.gbs is None:
        return False
    most = one.summary.sizes[-1]
    return most.iterations >= _LEAST and most.best_gbs < FAR * one.bound.gbs


def _starved(one: Seen, observed: Observed) -> bool:
    """Whether others had an end's CPU for as long as one of those operations took."""
    where = (one.a, one.b, one.rail, one.round)
    took_ms = one.summary.sizes[-1].p50_us / 1e3
    return any(
        stood.what == "starved" and stood.most_ms >= took_ms
        for tried in observed.tried
        if (tried.a, tried.b, tried.rail, tried.round) == where
        for stood in (*tried.stood_a, *tried.stood_b)
    )
