"""Compares what torch's watchdog reports: which rank was in which collective, which in none."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.hang.explain.explanation import Hit, rank_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hang.explain.scan import ScanResult


_LEAST = 2
_NEAR = 64
"""Collectives of one group by which a rank may be behind."""
_OUT_OF_STEP = 0.6
"""Confidence of a rank that waits in an earlier call than others, but had called theirs as well."""
_OWN_SIZES = {"ALLTOALL", "ALLTOALL_BASE", "ALLGATHER", "GATHER", "SCATTER", "REDUCE_SCATTER"}
"""A rank may have a size of its own: one odd size among equal ones shows a mismatch, many none."""
_ROOTED = {"GATHER", "SCATTER"}
"""The root has another size than all others."""
_BETWEEN_TWO = {"SEND", "RECV", "RECVANYSOURCE", "COALESCED"}
"""Calls with numbers of their own, which are no collectives."""
_SKEW_S, _HALF_YEAR_S = 300, 180 * 86400
"""Between the clocks of two nodes; times without a year are farther apart over its end."""


class Timeout(Struct, frozen=True, kw_only=True):
    """The timeout of one rank, or its call that failed otherwise."""

    rank: int
    group: str
    seq: int
    op: str
    sizes: tuple[str, str]
    timeout_ms: int
    hit: Hit


class Stall(Struct, frozen=True, kw_only=True):
    """The conclusion from all timeouts."""

    kind: str
    """`mismatch`, `behind`, `missing`, `all` or `some`."""
    ranks: tuple[int, ...]
    """The odd ranks, or all that differ; none for `all` and `some`."""
    sentence: str
    proofs: tuple[Hit, ...]
    confidence: float = 0.0


def timeouts(hits: Sequence[Hit], *, failed: bool = False) -> list[Timeout]:
    """The first timeout of each known rank in each group; with `failed`, also a failed call."""
    by_rank: dict[tuple[int, str], Timeout] = {}
    reads = ("timeout", "call") if failed else ("timeout",)
    positions = _positions(hits)
    several = _several_groups(positions)
    for hit in hits:
        fields = hit.fields
        if hit.symptom.reads not in reads or hit.speaker.rank is None or "seq" not in fields:
            continue
        group = fields.get("group", "")
        if several and not group:
            group = _group_beside(hit, positions)
        by_rank.setdefault(
            (hit.speaker.rank, group),
            Timeout(
                rank=hit.speaker.rank,
                group=group,
                seq=int(fields["seq"]),
                op=fields["op"].lstrip("_"),
                sizes=(fields.get("in", ""), fields.get("out", "")),
                timeout_ms=int(fields.get("timeout_ms", 0)),
                hit=hit,
            ),
        )
    return list(by_rank.values())


def _positions(hits: Sequence[Hit]) -> list[Hit]:
    return [hit for hit in hits if hit.symptom.reads == "position"]


def _several_groups(positions: Sequence[Hit]) -> bool:
    return len({hit.fields.get("group", "") for hit in positions} - {""}) > 1


def _group_beside(late: Hit, positions: Sequence[Hit]) -> str:
    """The group of a timeout without one, as torch 2.5 writes it: the rank's position has it."""
    seq = int(late.fields["seq"])
    groups = {
        hit.fields.get("group", "")
        for hit in positions
        if hit.speaker.rank == late.speaker.rank
        and int(hit.fields["completed"]) < seq <= int(hit.fields["enqueued"])
    }
    return groups.pop() if len(groups) == 1 else ""


def settled(scan: ScanResult) -> dict[str, float]:
    """Add to what is settled, by file, a hang after which the ranks have waited again."""
    times = sorted(
        (hit.time, int(hit.fields["timeout_ms"]) / 1000 + _SKEW_S)
        for hit in scan.hits
        if hit.symptom.reads == "timeout" and hit.time is not None
    )
    over = [time for (time, _), (later, s) in pairwise(times) if s < later - time < _HALF_YEAR_S]
    last = dict(scan.settled_until)
    for hit in scan.hits:
        if over and hit.time is not None and hit.time <= over[-1] + _SKEW_S:
            last[hit.place.source] = max(hit.order, last.get(hit.place.source, 0))
    return last


def judge(hits: Sequence[Hit], scan: ScanResult) -> Stall | None:
    """Compare the ranks that timed out; None if no rank's number is known."""
    # A call that failed shows no wait: only what the rank called under its number.
    calls, late = timeouts(hits, failed=True), timeouts(hits)
    collectives = [timeout for timeout in late if timeout.op not in _BETWEEN_TWO]
    verdict = _mismatched(calls)
    if verdict is None and not _wait_for_a_silent_rank(collectives, hits, scan):
        verdict = _behind(collectives, hits) or _earlier(collectives, _positions(hits))
    if verdict is None and late:
        verdict = _missing(late, scan)
    if verdict is None:
        return None
    if _may_be_of_several_groups(calls, hits, scan):
        return replace(verdict, confidence=0.4, sentence=verdict.sentence + _OF_SEVERAL)
    certain = scan.world_size or _positions(hits) or all(call.group for call in calls)
    return replace(verdict, confidence=verdict.confidence or (0.85 if certain else 0.7))


def _wait_for_a_silent_rank(late: Sequence[Timeout], hits: Sequence[Hit], scan: ScanResult) -> bool:
    """Whether all ranks wait, except fewer that report nothing.

    If a rank stops within a collective, some of the others still end it, and wait in the next.
    """
    waits = {timeout.rank for timeout in late}
    there = waits | {hit.speaker.rank for hit in _positions(hits)}
    numbers = {timeout.seq for timeout in late}
    follow = len({timeout.group for timeout in late}) == 1 and max(numbers) - min(numbers) == 1
    return follow and there == waits and len(waits) < scan.world_size < 2 * len(waits)


_OF_SEVERAL = "; but no line shows whether they are of one group"


def _may_be_of_several_groups(
    calls: Sequence[Timeout], hits: Sequence[Hit], scan: ScanResult
) -> bool:
    """Whether a call whose line names no group may be of another than those it is compared with.

    Torch 2.3 counts groups in each process: two ranks may then have one place in one "group".
    """
    positions = _positions(hits)
    ranked = [hit for hit in hits if "group_rank" in hit.fields and hit.speaker.rank is not None]
    places, waits = set(), set()
    for hit in ranked:
        if "group" in hit.fields:
            places.add((hit.fields["group"], hit.fields["group_rank"], hit.speaker.rank))
        elif hit.symptom.reads == "timeout":
            waits.add((hit.speaker.rank, hit.fields["op"], hit.fields.get("seq")))
    place_of_two = len({place[:2] for place in places}) < len(places)
    if all(call.group or _group_beside(call.hit, positions) for call in calls):
        return place_of_two
    return (
        scan.has_subgroups
        or place_of_two
        or len({rank for rank, *_ in waits}) < len(waits)
        or _several_groups(positions)
        or any(call.op in _BETWEEN_TWO for call in calls)
        or any(map(_is_of_part, ranked))
    )


def _is_of_part(hit: Hit) -> bool:
    """Whether the rank in its group is not its rank, or not the number that mpirun gives it."""
    label, numbers = hit.speaker.label, {hit.fields["group_rank"], str(hit.speaker.rank)}
    return len(numbers | ({label.rpartition(" ")[2]} if "mpirun " in label else set())) > 1


def _mismatched(late: Sequence[Timeout]) -> Stall | None:
    """The same number in one group, but a different collective or size."""
    by_call: dict[tuple[str, int], dict[tuple[str, tuple[str, str]], list[Timeout]]] = {}
    has_group = any(call.group for call in late)
    for call in late:
        if call.op not in _BETWEEN_TWO and bool(call.group) == has_group:
            calls = by_call.setdefault((call.group, call.seq), {})
            calls.setdefault((call.op, call.sizes), []).append(call)
    for (_, seq), calls in by_call.items():
        ops = {op for op, _ in calls}
        if len(calls) < _LEAST or (len(calls) > _LEAST and len(ops) == 1 and ops <= _OWN_SIZES):
            continue
        if len(ops) == 1 and ops <= _ROOTED:
            continue
        sides = sorted(calls.values(), key=len)
        words = " and ".join(
            f"{_ranks(side)} in {side[0].op} of {side[0].sizes[0] or '?'}" for side in sides[:3]
        )
        odd = sides[0] if len(sides[0]) < len(sides[-1]) else [call for s in sides for call in s]
        if odd is not sides[0] and any(call.hit.symptom.reads == "call" for call in odd):
            odd = []  # the rank that found the mismatch at once may be innocent
        return Stall(
            kind="mismatch",
            ranks=tuple(sorted(call.rank for call in odd)),
            sentence=f"the ranks' calls differ in collective {seq}: {words}",
            proofs=tuple(side[0].hit for side in sides[:3]),
        )
    return None


def _behind(late: Sequence[Timeout], hits: Sequence[Hit]) -> Stall | None:
    """A rank whose last enqueued collective comes before the one in which others wait."""
    waits: dict[str, Timeout] = {}
    for timeout in sorted(late, key=lambda timeout: -timeout.seq):
        waits.setdefault(timeout.group, timeout)
    odd: dict[int, tuple[Hit, int, Timeout]] = {}
    positions = _positions(hits)
    # A timeout without a group is of the only group that the positions name.
    nameless = None if _several_groups(positions) else waits.get("")
    for hit in positions:
        ahead = waits.get(hit.fields.get("group", ""), nameless)
        rank = hit.speaker.rank
        if ahead is None or rank is None or rank == ahead.rank:
            continue
        enqueued = int(hit.fields["enqueued"])
        if max(0, ahead.seq - _NEAR) <= enqueued < ahead.seq:
            odd[rank] = (hit, enqueued, ahead)
    if not odd:
        return None
    _, (_, enqueued, ahead) = next(iter(odd.items()))
    who = rank_words(set(odd), most=len(odd))
    return Stall(
        kind="behind",
        ranks=tuple(sorted(odd)),
        sentence=f"{who} had only reached collective {enqueued}, while rank {ahead.rank} waited "
        f"in number {ahead.seq} ({ahead.op})",
        proofs=(*(hit for hit, _, _ in odd.values()), ahead.hit),
    )


def _earlier(late: Sequence[Timeout], positions: Sequence[Hit]) -> Stall | None:
    """The fewer ranks that wait in an earlier collective of the same group than the others.

    One that has already called the later collective is less surely at fault.
    """
    for group in {timeout.group: None for timeout in late}:
        here = [timeout for timeout in late if timeout.group == group]
        last = max(timeout.seq for timeout in here)
        ahead = [timeout for timeout in here if timeout.seq == last]
        odd = [timeout for timeout in here if timeout.seq < last]
        if not odd or min(timeout.seq for timeout in odd) < last - _NEAR:
            continue  # the timeout's line names no group: these are two groups
        if len(odd) > len(ahead):
            continue
        ranks = tuple(sorted(timeout.rank for timeout in odd))
        called = any(
            hit.speaker.rank in ranks and int(hit.fields["enqueued"]) >= last for hit in positions
        )
        return Stall(
            kind="behind",
            ranks=ranks,
            confidence=_OUT_OF_STEP * called,
            sentence=f"{_ranks(odd)} waited in {odd[0].op} number {odd[0].seq}, while "
            f"{_ranks(ahead)} waited in number {last} ({ahead[0].op})"
            + "; but the later call had been made there, too: the calls may be out of step"
            * called,
            proofs=(*(timeout.hit for timeout in odd), ahead[0].hit),
        )
    return None


def _missing(late: Sequence[Timeout], scan: ScanResult) -> Stall:
    """Ranks that wrote lines and did not wait in the collective of the others."""
    first = min(late, key=lambda timeout: timeout.hit.order)
    near = range(first.seq - _NEAR, first.seq)
    before = [timeout for timeout in late if timeout.group == first.group and timeout.seq in near]
    first = min(before, key=lambda timeout: timeout.seq, default=first)
    call = (first.group, first.op)
    same = [
        timeout
        for timeout in late
        if (timeout.group, timeout.op) == call and 0 <= timeout.seq - first.seq < _NEAR
    ]
    # A rank whose position shows that it had called it was there, too.
    there = {timeout.rank for timeout in same} | {
        hit.speaker.rank
        for hit in _positions(scan.hits)
        if hit.speaker.rank is not None
        and hit.fields.get("group", "") in ("", first.group or hit.fields.get("group", ""))
        and int(hit.fields["completed"]) < first.seq <= int(hit.fields["enqueued"])
    }
    writers = scan.writers.union(hit.speaker.rank for hit in scan.hits)
    of = scan.world_size or _size(first)
    # A rank that waited elsewhere shows that there are several groups.
    job = range(of) or (scan.writers if len(same) == len(late) else ())
    # If no fewer ranks are missing than present, either may be at fault.
    size = of or len(job)
    whole = 0 < size < 2 * len(there) and len(there) >= _LEAST and first.group in ("", "0")
    missing = set(job) - there if whole else set()
    # Ray prints one of several lines that differ only in numbers, and none after its driver's end.
    by_ray = any("pid=" in timeout.hit.speaker.label for timeout in same)
    if by_ray and (len(missing) > 1 or any("x across cluster]" in o.hit.place.text for o in same)):
        missing, whole = set(), False
    words = f"{first.op} number {first.seq}"
    who = rank_words(there)
    proofs = tuple(timeout.hit for timeout in same[:3])
    if of and whole and not missing:
        sentence = f"all {of} ranks waited in {words} and none got through"
        return Stall(kind="all", ranks=(), sentence=sentence, proofs=proofs)
    # A rank without a log looks the same as a missing one.
    alone = len({timeout.hit.place.source for timeout in same}) == 1 and len(there) > _LEAST
    is_shown = missing <= writers or (alone and len(missing) == 1)
    if missing and is_shown:
        verb = (
            "did not reach" if {timeout.seq for timeout in same} == {first.seq} else "did not end"
        )
        sentence = f"{rank_words(missing)} {verb} {words}, in which {who} waited"
        return Stall(kind="missing", ranks=tuple(sorted(missing)), sentence=sentence, proofs=proofs)
    of_all = f" of {of}" if of > max(there) else ""
    sentence = f"{who}{of_all} waited in {words} for {first.timeout_ms / 1000:g} s"
    return Stall(kind="some", ranks=(), sentence=sentence, proofs=proofs)


def _size(timeout: Timeout) -> int:
    """The size of the group, from a collective's input and output sizes; 0 if unknown."""
    small, large = sorted(int(size or 0) for size in timeout.sizes)
    if "ALLGATHER" not in timeout.op.upper() and "REDUCE_SCATTER" not in timeout.op.upper():
        return 0
    return large // small if 0 < small < large and large % small == 0 else 0


def _ranks(late: Sequence[Timeout]) -> str:
    return rank_words({timeout.rank for timeout in late})


def survivors(hits: Sequence[Hit]) -> dict[int, int]:
    """Ranks that waited in a collective until it timed out, and the line that reports it.

    A rank that raised before that caught its exception: a dead rank does not wait.
    """
    return {timeout.rank: timeout.hit.order for timeout in timeouts(hits)}
