"""Faults that only the samples of the whole fabric show, lasting or healed.

A dead or very slow link condemns its own pairs; 15 per cent on one rail, a spike in a thousand
operations, or a host that is late now and then show against everybody else's.

A reading a little beyond the limit is a busy moment; one far beyond it, over a whole size, is not,
unless an end waited for a CPU as long as such an operation took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import either, gbs, size, time_us
from preflight.fabric.advice import more_partners, partners_words
from preflight.fabric.blame import Blame, ends_words
from preflight.fabric.decoding.explain import EVENTS
from preflight.fabric.retest import counters_again
from preflight.facts.boards import explained

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from preflight.core.thresholds import Thresholds
    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.decoding.parts import Component, Found, RetestDoubt
    from preflight.fabric.observed import Observed
    from preflight.fabric.schedule import Pairing


_STOPPED = (
    "its measuring process was stopped",
    "stops processes (SIGSTOP, a debugger or profiler, a job scheduler's suspend)",
)
_FROZEN = (
    "the host did not run",
    (
        "freezes processes (swapping, stolen CPU or a paused VM, a cgroup's freezer or quota, "
        "soft lockups in dmesg)"
    ),
)


def _standstill(one: Found, observed: Observed) -> tuple[str, str] | None:
    """How often a late host stood still and what does that, where it explains most events."""
    part = one.among[0]
    name, rail = part.nodes[0], part.rail
    stood = [
        stood
        for each in observed.tried
        if rail in (None, each.rail) and name in each.nodes
        for stood in (each.stood_a if each.a == name else each.stood_b)
        if stood.what != "starved"
    ]
    times = sum(each.times for each in stood)
    if not times or 2 * times < one.events:
        return None
    stopped = sum(each.times for each in stood if each.what == "stopped")
    how, suspects = _STOPPED if 2 * stopped >= times else _FROZEN
    often = f"{times} times" if times > 1 else "once"
    return f"{how} {often}, for up to {time_us(max(s.most_ms for s in stood) * 1e3)}", suspects


_BUSY = "what else runs on {0} (load, IRQs, throttling)"
_MOST_NAMES = 3
_AGAIN: Mapping[RetestDoubt, str] = {
    "": "",
    "none": "",
    "too_short": "; measured again it was quiet, but too shortly to clear it",
    "counter_moved": "; measured again it was quiet, but its counters moved",
}


def statistical_blames(
    unblamed: Iterable[Found],
    found: Sequence[Found],
    observed: Observed,
    seen: Sequence[PairJudgement],
) -> list[Blame]:
    """Word each fault; one blame per node, whatever its rails. `found`: all that samples prove."""
    blames: list[Blame] = []
    for one in unblamed:
        fresh = _blame(one, observed, seen, found)
        same = next((old for old in blames if old.component == fresh.component), None)
        if same is None:
            blames.append(fresh)
        else:
            blames[blames.index(same)] = _joined(same, fresh)
    return blames


def _joined(one: Blame, other: Blame) -> Blame:
    return replace(
        one,
        sentence=f"{one.sentence}; {other.sentence}",
        confidence=min(one.confidence, other.confidence),
        advice="; ".join(dict.fromkeys((one.advice, other.advice))),
        pairs=tuple(dict.fromkeys((*one.pairs, *other.pairs))),
        rail=one.rail if one.rail == other.rail else None,
    )


def _blame(
    one: Found, observed: Observed, seen: Sequence[PairJudgement], found: Sequence[Found]
) -> Blame:
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
        wrong = {each.nodes for each in observed.tried if each.state == "corrupt"}
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


def _said(one: Found, observed: Observed, seen: Sequence[PairJudgement]) -> str:
    where = _where(one.among[0])
    partners = len(one.pairs)
    whom = "" if one.among[0].kind == "path" else f" with {partners_words(partners)}"
    if one.symptom == "corrupt":
        said = next((each.summary.error for each in _through(one, seen) if each.summary.error), "")
        often = f"in {one.events} of {one.operations} pairs through {where} sums came out wrong"
        return f"{often} ({said})" if said else often
    if one.symptom == "late":
        often = f"{one.events} of {one.operations} operations"
        still, waited = _standstill(one, observed), "and its partners waited"
        longest = f"up to {time_us(one.worst_us)}"
        began = (
            f"stood still in {often}, for {longest}, {waited}: {still[0]}"
            if still
            else f"began {often} late, by {longest} by its own clock, {waited}"
        )
        return f"{where} {began}; the network was as fast as elsewhere"
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


def _slow(one: Found, seen: Sequence[PairJudgement], where: str, whom: str) -> str:
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


def _through(one: Found, seen: Sequence[PairJudgement]) -> list[PairJudgement]:
    pairs, rails = set(one.pairs), {part.rail for part in one.among}
    return [each for each in seen if each.nodes in pairs and (None in rails or each.rail in rails)]


def _moved(one: Found, observed: Observed) -> str:
    """Counters that moved at the culprit's end while it was loaded: a cable confesses there."""
    part = one.named
    if part is None or part.kind not in ("node", "endpoint"):
        return ""
    (name,) = part.nodes
    total: dict[str, float] = {}
    others: dict[str, None] = {}
    for each in observed.tried:
        if part.rail in (None, each.rail) and name in each.nodes:
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
        pairs = {each.nodes for each in observed.tried}
        partners = more_partners(len(observed.nodes), len(pairs))
        every = {1: "it", 2: "both"}.get(len(_suspects(one)), "them")
        return f"exclude {every}, or run again {partners} to tell them apart"
    if one.symptom == "corrupt":
        return f"take {name} out of service now and run its memory and link diagnostics"
    if one.symptom == "late":  # never at the cable
        still = _standstill(one, observed)
        where = f"what {still[1]} on {name}" if still else _BUSY.format(name)
        return f"look at {where}, not at its link"
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


def transient_paths(
    seen: Sequence[PairJudgement], observed: Observed, blamed: Collection[str], limit: Thresholds
) -> Iterator[Blame]:
    """Blame each path that hung once, or whose slow reading was taken back, if it was slow by far.

    Or if it was slower than its peers at all, and an error counter moved there. `blamed`:
    components and pairs that are named anyway, with what went through them.
    """
    readings = grouped((one.path, one) for one in seen)
    many = len({rail for _, _, rail in readings}) > 1
    left = {
        (a, b, rail): own
        for (a, b, rail), own in readings.items()
        if {a, b, f"pair {a}-{b}"}.isdisjoint(blamed)
    }
    for own in left.values():
        yield from _hung_once(own, many=many)
    for own in left.values():
        far = [one for one in own if _far(one) and not _starved(one, observed)]
        if far:
            then = _speeds(one for one in own if not one.once)
            bound = f"limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin}"
            yield _recovered(far, len(own), f"then {then} ({bound})", many=many)
    for where, counters in counters_again(observed).items():
        if where in left and left[where][0].name not in blamed:
            effect = limit.of(observed.backend)("slow_effect")
            yield from _confessed(left[where], counters, observed.retested, effect, many=many)


def _speeds(readings: Iterable[PairJudgement]) -> str:
    return " and ".join(gbs(one.busbw_gbs or 0.0) for one in readings)


def _hung_once(own: Sequence[PairJudgement], *, many: bool) -> Iterator[Blame]:
    for one in (each for each in own if each.hung_once):
        where = f" on rail {one.rail}" if many else ""
        then = _speeds(each for each in own if each.good)
        sentence = f"an all-reduce hung once{where} ({one.summary.error}), then {then}"
        yield _passing([one], len(own), sentence, _HUNG_ONCE, many=many)


def _confessed(
    own: Sequence[PairJudgement], counters: Iterable[str], border: int, effect: float, *, many: bool
) -> Iterator[Blame]:
    slow = [one for one in own if one.round < border and _less(one, effect)]
    quick = [one for one in own if one.round >= border]
    if slow and quick and all(one.good and not _less(one, effect) for one in quick):
        peers = f"peers' median {gbs(slow[0].bound.peers_gbs or 0.0)}"
        rest = f"then {_speeds(quick)} ({peers}), but {', '.join(counters)} moved"
        yield _recovered(slow, len(own), rest, many=many)


def _recovered(slow: Sequence[PairJudgement], readings: int, rest: str, *, many: bool) -> Blame:
    """A path that was slow in some of its readings; `rest`: how it went on."""
    sentence = f"slow when first measured, {_speeds(slow[:1])}, {rest}"
    return _passing(slow, readings, sentence, _ADVICE, many=many)


def _passing(
    bad: Sequence[PairJudgement], readings: int, sentence: str, advice: str, *, many: bool
) -> Blame:
    """A path of whose readings some were bad and the others fine; `many`: of several rails."""
    first = bad[0]
    return Blame(
        kind="path",
        component=f"pair {first.name}",
        sentence=sentence,
        confidence=_CONFIDENCE,
        advice=advice.format(*first.nodes),
        pairs=(first.name,),
        rail=first.rail if many else None,
        events=len(bad),
        operations=readings,
    )


def _less(one: PairJudgement, effect: float) -> bool:
    """Whether it is slower than its peers by as much as matters."""
    peers = one.bound.peers_gbs
    return bool(peers and one.busbw_gbs) and (one.busbw_gbs or 0.0) < (1 - effect) * (peers or 0.0)


def _far(one: PairJudgement) -> bool:
    if one.once != "bandwidth" or one.bound.gbs is None:
        return False
    most = one.summary.sizes[-1]
    return most.iterations >= _LEAST and most.best_gbs < FAR * one.bound.gbs


def _starved(one: PairJudgement, observed: Observed) -> bool:
    """Whether others had an end's CPU for as long as one of those operations took."""
    where = one.turn
    took_ms = one.summary.sizes[-1].p50_us / 1e3
    return any(
        stood.what == "starved" and stood.most_ms >= took_ms
        for tried in observed.tried
        if tried.turn == where
        for stood in (*tried.stood_a, *tried.stood_b)
    )
