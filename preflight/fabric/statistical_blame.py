"""Messages on faults that show only in comparison: with the whole fabric, or with retests.

A dead or very slow link shows in its own pairs; 15 per cent on one rail, a spike in a thousand
operations, or a host that is sometimes late show only in comparison with all others.

A path may be bad for a while: slow or hung at first, and good in retests. A result just beyond the
limit is a busy moment; one far beyond it, over a whole size, is not, unless an end waited for a CPU
as long as such an operation took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import gbs, percent, size, time_us
from preflight.fabric.decoding.culprit import EVENTS, Component, Culprit, RetestDoubt
from preflight.fabric.phrases import ADVICE, STATES, Blame, both_fine, more_partners, with_partners
from preflight.fabric.retest import retested_counters
from preflight.facts.boards import explain_xid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.core.thresholds import Thresholds
    from preflight.fabric.compare import PairJudgement
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


def _standstill(culprit: Culprit, observed: Observed) -> tuple[str, str] | None:
    """Say how often a late host stood still and why, if that explains most events."""
    part = culprit.among[0]
    name, rail = part.nodes[0], part.rail
    stalls = [
        stalls
        for result in observed.tried
        if rail in (None, result.rail) and name in result.nodes
        for stalls in result.end(name).stood
        if stalls.what != "starved"
    ]
    times = sum(stall.times for stall in stalls)
    if not times or 2 * times < culprit.events:
        return None
    stopped = sum(stall.times for stall in stalls if stall.what == "stopped")
    how, suspects = _STOPPED if 2 * stopped >= times else _FROZEN
    often = f"{times} times" if times > 1 else "once"
    longest = time_us(max(stall.most_ms for stall in stalls) * 1e3)
    return f"{how} {often}, for up to {longest}", suspects


_BUSY = "what else runs on {0} (load, IRQs, throttling)"
_MOST_NAMES = 3
_RETEST_WORDS: Mapping[RetestDoubt, str] = {
    "too_short": "; measured again it was quiet, but too shortly to clear it",
    "counter_moved": "; measured again it was quiet, but its counters moved",
}


def statistical_blames(
    unblamed: Iterable[Culprit],
    proven: Sequence[Culprit],
    observed: Observed,
    judgements: Sequence[PairJudgement],
) -> list[Blame]:
    """Blame each fault; one blame per node, whatever its rails. `proven`: all proven culprits."""
    blames: dict[str, Blame] = {}
    for culprit in unblamed:
        blame = _blame(culprit, observed, judgements, proven)
        earlier = blames.get(blame.component)
        blames[blame.component] = _join(earlier, blame) if earlier else blame
    return list(blames.values())


def _join(first: Blame, second: Blame) -> Blame:
    return replace(
        first,
        sentence=f"{first.sentence}; {second.sentence}",
        confidence=min(first.confidence, second.confidence),
        advice="; ".join(dict.fromkeys((first.advice, second.advice))),
        pairs=tuple(dict.fromkeys((*first.pairs, *second.pairs))),
        rail=first.rail if first.rail == second.rail else None,
    )


def _blame(
    culprit: Culprit,
    observed: Observed,
    judgements: Sequence[PairJudgement],
    proven: Sequence[Culprit],
) -> Blame:
    part = culprit.component
    sentence = (
        _sentence(culprit, observed, judgements)
        + _counter_words(culprit, observed)
        + _RETEST_WORDS.get(culprit.second_look, "")
    )
    if part is None:
        sentence += "; the samples do not tell these apart"
    elif part.kind == "path":
        sentence += f"; {both_fine(part.nodes, {part.rail}, proven)}"
    elif part.kind == "leaf_rail":
        sentence += f"; all {len(part.nodes)} nodes under it have it, so it is not theirs"
    blame = Blame(
        kind=culprit.kind,
        among=culprit.among,
        sentence=sentence,
        confidence=culprit.confidence,
        advice="",
        pairs=tuple(_pairs_that_show(culprit, observed)),
        rail=part.rail if part is not None else None,
        events=culprit.events if culprit.symptom in EVENTS else 0,
        operations=culprit.operations if culprit.symptom in EVENTS else 0,
    )
    return replace(blame, advice=_advice(culprit, observed, blame.suspects))


def _pairs_that_show(culprit: Culprit, observed: Observed) -> Sequence[Pairing]:
    """Return the pairs that show a culprit, without clean ones of a suspect and a third node."""
    if culprit.symptom == "corrupt":
        wrong = {result.nodes for result in observed.tried if result.state == "corrupt"}
        return [pair for pair in culprit.pairs if pair in wrong] or culprit.pairs
    if culprit.component is not None:
        return culprit.pairs
    each_of = [set(part.nodes) for part in culprit.among]
    pairs = [pair for pair in culprit.pairs if all(nodes & {*pair} for nodes in each_of)]
    return pairs or culprit.pairs


def _sentence(culprit: Culprit, observed: Observed, judgements: Sequence[PairJudgement]) -> str:
    where = culprit.among[0].words
    pairs, rails = set(culprit.pairs), {part.rail for part in culprit.among}
    rows = [
        row for row in judgements if row.nodes in pairs and (None in rails or row.rail in rails)
    ]
    if culprit.symptom == "corrupt":
        error = next((row.error for row in rows if row.error), "")
        often = (
            f"in {culprit.events} of {culprit.operations} pairs through {where} sums came out wrong"
        )
        return f"{often} ({error})" if error else often
    if culprit.symptom == "late":
        often = f"{culprit.events} of {culprit.operations} operations"
        standstill, waited = _standstill(culprit, observed), "and its partners waited"
        longest = f"up to {time_us(culprit.worst_us)}"
        began = (
            f"stood still in {often}, for {longest}, {waited}: {standstill[0]}"
            if standstill
            else f"began {often} late, by {longest} by its own clock, {waited}"
        )
        return f"{where} {began}; the network was as fast as elsewhere"
    if culprit.symptom == "spikes":
        share = culprit.events / max(1, culprit.operations)
        return (
            f"{culprit.events} of {culprit.operations} operations through {where} took up to "
            f"{time_us(culprit.worst_us)}: {_one_in(share)}, elsewhere {_one_in(culprit.elsewhere)}"
        )
    return _latency(culprit, rows) if culprit.symptom == "latency" else _bandwidth(culprit, rows)


def _latency(culprit: Culprit, rows: Sequence[PairJudgement]) -> str:
    where = culprit.among[0].words
    worst = max(rows, key=lambda row: row.latency_us or 0.0, default=None)
    if worst is None or worst.latency_us is None or worst.peers_latency_us is None:
        return _with_each(f"small messages through {where} are slow", culprit)
    return (
        f"{time_us(worst.latency_us)} at 8 B between {worst.a} and {worst.b}, peers' median "
        f"{time_us(worst.peers_latency_us)}; {_with_each(f'{where} is slow', culprit)}"
    )


def _bandwidth(culprit: Culprit, rows: Sequence[PairJudgement]) -> str:
    slow = _with_each(f"{culprit.among[0].words} is slow", culprit)
    rows = [row for row in rows if row.busbw_gbs and row.bound.peers_gbs]
    if not rows:
        return slow
    worst = min(rows, key=lambda row: (row.busbw_gbs or 0.0) / (row.bound.peers_gbs or 1.0))
    speed, peers = worst.busbw_gbs or 0.0, worst.bound.peers_gbs or 1.0
    partner = worst.partner(culprit.among[0].nodes[0])
    return (
        f"median {gbs(speed)} at {size(worst.at_bytes)} with {partner}, "
        f"{percent(1 - speed / peers)} less than its peers' median {gbs(peers)}; {slow}"
    )


def _with_each(what: str, culprit: Culprit) -> str:
    return what if culprit.among[0].kind == "path" else with_partners(what, len(culprit.pairs))


def _one_in(rate: float) -> str:
    return f"1 in {1 / rate:,.0f}" if rate > 0 else "none"


def _counter_words(culprit: Culprit, observed: Observed) -> str:
    """Say which counters moved at the culprit's end under load: a bad cable shows there."""
    part, name = culprit.component, culprit.node
    if part is None or not name:
        return ""
    total: dict[str, float] = {}
    unassigned: dict[str, None] = {}
    for result in observed.tried:
        if part.rail in (None, result.rail) and name in result.nodes:
            for moved in result.end(name).moved:
                if moved.assigned:
                    total[moved.name] = total.get(moved.name, 0.0) + moved.by
                else:
                    unassigned[moved.name] = None
    # An Xid is stronger evidence than a thousand retransmissions: it comes first, explained.
    most = sorted(total.items(), key=lambda item: (not item[0].startswith("Xid "), -item[1]))
    counters = ", ".join(f"{explain_xid(counter)} +{by:g}" for counter, by in most[:_MOST_NAMES])
    words = f"; counters moved there meanwhile: {counters}" if counters else ""
    if unassigned:  # every rail reads them, so their sum means nothing
        names = ", ".join(map(explain_xid, list(unassigned)[:_MOST_NAMES]))
        words += f"; counters moved on {name} that are tied to no rail: {names}"
    return words


def _advice(culprit: Culprit, observed: Observed, suspects: Sequence[str]) -> str:
    name, where = culprit.among[0].nodes[0], culprit.among[0].words
    if culprit.component is None:
        pairs = {result.nodes for result in observed.tried}
        partners = more_partners(len(observed.nodes), len(pairs))
        all_suspects = {1: "it", 2: "both"}.get(len(suspects), "them")
        return f"exclude {all_suspects}, or run again {partners} to tell them apart"
    if culprit.symptom == "corrupt":
        return STATES["corrupt"]["advice"].format(name)
    if culprit.symptom == "late":  # never at the cable
        standstill = _standstill(culprit, observed)
        where = f"what {standstill[1]} on {name}" if standstill else _BUSY.format(name)
        return f"look at {where}, not at its link"
    if culprit.component.kind == "path":
        return f"check what lies on {where}: cables, switch ports, routes; keep the two apart"
    if culprit.component.kind == "leaf_rail":
        return f"look at the leaf switch and its uplinks for {where} before its nodes"
    what = (
        "reseat or swap the cable" if culprit.symptom == "spikes" else "check link rate and cable"
    )
    return f"{what} of {where}, read its port's error counters; exclude {name} until then"


FAR_SHARE = 0.25
"""Share of the limit below which even a fastest operation is not a busy moment (good pairs of
shared cores were seen at half of the limit)."""

_LEAST = 3  # operations: a single one may have waited for anything
_CONFIDENCE = 0.5


def transient_paths(
    judgements: Sequence[PairJudgement],
    observed: Observed,
    blamed: Sequence[Blame],
    limit: Thresholds,
) -> Iterator[Blame]:
    """Blame each path that was bad once: it hung, or was far below its limit.

    Or it was slower than its peers while an error counter moved there. `blamed`: all other blames.
    """
    nodes = {blame.node for blame in blamed}
    paths = {blame.among[0].nodes for blame in blamed if blame.kind == "path"}
    pairs = {pair for blame in blamed for pair in blame.pairs}
    all_readings = grouped((reading.path, reading) for reading in judgements)
    multirail = len({rail for _, _, rail in all_readings}) > 1
    by_path = {
        (a, b, rail): readings
        for (a, b, rail), readings in all_readings.items()
        if nodes.isdisjoint((a, b)) and (a, b) not in paths
    }
    for readings in by_path.values():
        yield from _hung_once(readings, multirail=multirail)
    for readings in by_path.values():
        far = [one for one in readings if _is_far_below(one) and not _waited_for_cpu(one, observed)]
        if far:
            speeds = _speeds(reading for reading in readings if not reading.once)
            rest = f"then {speeds} (limit {gbs(far[0].bound.gbs or 0.0)}, {far[0].bound.origin})"
            yield _blame_recovered(far, len(readings), rest, multirail=multirail)
    for path, counters in retested_counters(observed).items():
        if path in by_path and path[:2] not in pairs:
            effect = limit.for_backend(observed.backend)("slow_effect")
            slow, retests = _slow_and_recovered(by_path[path], observed.retested, effect)
            if slow:
                peers = f"peers' median {gbs(slow[0].bound.peers_gbs or 0.0)}"
                rest = f"then {_speeds(retests)} ({peers}), but {', '.join(counters)} moved"
                yield _blame_recovered(slow, len(by_path[path]), rest, multirail=multirail)


def _speeds(readings: Iterable[PairJudgement]) -> str:
    return " and ".join(gbs(reading.busbw_gbs or 0.0) for reading in readings)


def _hung_once(readings: Sequence[PairJudgement], *, multirail: bool) -> Iterator[Blame]:
    for reading in (reading for reading in readings if reading.hung_once):
        where = f" on rail {reading.rail}" if multirail else ""
        then = _speeds(pair for pair in readings if pair.good)
        sentence = f"an all-reduce hung once{where} ({reading.error}), then {then}"
        yield _transient_blame([reading], len(readings), sentence, "hung_once", multirail=multirail)


def _slow_and_recovered(
    readings: Sequence[PairJudgement], first_retest: int, effect: float
) -> tuple[Sequence[PairJudgement], Sequence[PairJudgement]]:
    """Return the slow scheduled measurements and the retests, if all of these are good."""
    slow = [pair for pair in readings if pair.round < first_retest and _is_slower(pair, effect)]
    retests = [pair for pair in readings if pair.round >= first_retest]
    good = [pair for pair in retests if pair.good and not _is_slower(pair, effect)]
    return (slow, retests) if retests and good == retests else ((), ())


def _blame_recovered(
    slow: Sequence[PairJudgement], readings: int, rest: str, *, multirail: bool
) -> Blame:
    """Blame a path that was slow in some measurements; `rest`: how the others went."""
    sentence = f"slow when first measured, median {_speeds(slow[:1])}, {rest}"
    return _transient_blame(slow, readings, sentence, "was_slow", multirail=multirail)


def _transient_blame(
    bad: Sequence[PairJudgement], readings: int, sentence: str, fault: str, *, multirail: bool
) -> Blame:
    """Blame a path with some bad and some good measurements; `multirail`: name its rail.

    `fault`: the name of its advice in advice.toml.
    """
    first = bad[0]
    rail = first.rail if multirail else None
    return Blame(
        kind="path",
        among=(Component("path", first.nodes, rail),),
        sentence=sentence,
        confidence=_CONFIDENCE,
        advice=ADVICE["pair"][fault].format(*first.nodes),
        pairs=(first.nodes,),
        rail=rail,
        events=len(bad),
        operations=readings,
    )


def _is_slower(reading: PairJudgement, effect: float) -> bool:
    """Whether a pair is slower than its peers by enough to matter."""
    return 0.0 < (reading.busbw_gbs or 0.0) < (1 - effect) * (reading.bound.peers_gbs or 0.0)


def _is_far_below(reading: PairJudgement) -> bool:
    if reading.once != "bandwidth" or reading.bound.gbs is None:
        return False
    most = reading.sizes[-1]
    return most.operations >= _LEAST and most.best_gbs < FAR_SHARE * reading.bound.gbs


def _waited_for_cpu(reading: PairJudgement, observed: Observed) -> bool:
    """Whether an end waited for a CPU for as long as one of those operations took."""
    where = reading.key
    took_ms = reading.sizes[-1].p50_us / 1e3
    return any(
        stood.what == "starved" and stood.most_ms >= took_ms
        for tried in observed.tried
        if tried.key == where
        for stood in (*tried.first.stood, *tried.second.stood)
    )
