"""What the time-outs of torch's watchdog tell together: who was in what, and who was not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.hang.explain.symptom import Hit, rank_words

if TYPE_CHECKING:
    from collections.abc import Sequence


WATCHDOG, STATUS = "watchdog", "group_status"
_LEAST = 2


class Waiting(Struct, frozen=True, kw_only=True):
    """One rank's time-out."""

    rank: int
    group: str
    seq: int
    op: str
    sizes: tuple[str, str]
    timeout_ms: int
    hit: Hit


class Verdict(Struct, frozen=True, kw_only=True):
    """What follows from all of them."""

    kind: str
    """`mismatch`, `behind`, `missing`, `all` or `some`."""
    ranks: tuple[int, ...]
    """Who is odd; nobody where it is `all` or `some`."""
    sentence: str
    proofs: tuple[Hit, ...]


def waiting(hits: Sequence[Hit]) -> list[Waiting]:
    """The first time-out of each rank in each group, where its rank is known."""
    found: dict[tuple[int, str], Waiting] = {}
    for hit in hits:
        told = hit.fields
        if hit.symptom.id != WATCHDOG or hit.speaker.rank is None or "seq" not in told:
            continue
        key = (hit.speaker.rank, told.get("group", ""))
        found.setdefault(
            key,
            Waiting(
                rank=hit.speaker.rank,
                group=told.get("group", ""),
                seq=int(told["seq"]),
                op=told["op"].lstrip("_"),
                sizes=(told.get("in", ""), told.get("out", "")),
                timeout_ms=int(told["timeout_ms"]),
                hit=hit,
            ),
        )
    return list(found.values())


def judge(hits: Sequence[Hit], seen: set[int], world: int) -> Verdict | None:
    """Compare the ranks that timed out; None where no rank's number is known.

    `seen`: ranks that any line is from, so that one which is silent here is silent indeed;
    `world`: the number of ranks, 0 if nobody told.
    """
    late = waiting(hits)
    if not late:
        return None
    return _mismatched(late) or _behind(late, hits) or _missing(late, seen, world)


def _mismatched(late: Sequence[Waiting]) -> Verdict | None:
    """The same number in one group, but not the same collective or not the same size."""
    by_call: dict[tuple[str, int], dict[tuple[str, tuple[str, str]], list[Waiting]]] = {}
    for one in late:
        calls = by_call.setdefault((one.group, one.seq), {})
        calls.setdefault((one.op, one.sizes), []).append(one)
    for (_, seq), calls in by_call.items():
        if len(calls) < _LEAST:
            continue
        sides = sorted(calls.values(), key=len)
        words = " and ".join(
            f"{_ranks(side)} in {side[0].op} of {side[0].sizes[0] or '?'}" for side in sides[:3]
        )
        odd = sides[0] if len(sides[0]) < len(sides[-1]) else [one for s in sides for one in s]
        return Verdict(
            kind="mismatch",
            ranks=tuple(sorted(one.rank for one in odd)),
            sentence=f"collective {seq} was not the same everywhere: {words}",
            proofs=tuple(side[0].hit for side in sides[:3]),
        )
    return None


def _behind(late: Sequence[Waiting], hits: Sequence[Hit]) -> Verdict | None:
    """A rank whose last enqueued work is before the one in which others wait."""
    waits: dict[str, Waiting] = {}
    for one in late:
        best = waits.get(one.group)
        if best is None or one.seq > best.seq:
            waits[one.group] = one
    odd: dict[int, tuple[Hit, int, Waiting]] = {}
    for hit in hits:
        # The time-out's own line tells no group, the status beside it does.
        ahead = waits.get(hit.fields.get("group", ""), waits.get(""))
        rank = hit.speaker.rank
        if hit.symptom.id != STATUS or ahead is None or rank is None or rank == ahead.rank:
            continue
        enqueued = int(hit.fields["enqueued"])
        if 0 <= enqueued < ahead.seq:
            odd[rank] = (hit, enqueued, ahead)
    if not odd:
        return None
    _, (_, enqueued, ahead) = next(iter(odd.items()))
    who = rank_words(set(odd), most=len(odd))
    return Verdict(
        kind="behind",
        ranks=tuple(sorted(odd)),
        sentence=f"{who} had come to collective {enqueued} only, where rank {ahead.rank} waited "
        f"in number {ahead.seq} ({ahead.op})",
        proofs=(*(hit for hit, _, _ in odd.values()), ahead.hit),
    )


def _missing(late: Sequence[Waiting], seen: set[int], world: int) -> Verdict:
    """Those who were there all the time and did not wait where the others did."""
    first = min(late, key=lambda one: one.hit.order)
    call = (first.group, first.seq, first.op)
    same = [one for one in late if (one.group, one.seq, one.op) == call]
    there = {one.rank for one in same}
    of = world or _size(first)
    # Of a greater number more are missing than are there: nobody is named, and nothing is counted.
    whole = 0 < of <= 2 * len(there) and len(there) >= _LEAST and first.group in ("", "0")
    missing = set(range(of)) - there if whole else set()
    words = f"{first.op} number {first.seq}"
    proofs = tuple(one.hit for one in same[:3])
    if whole and not missing:
        told = f"all {of} ranks waited in {words} and none got through"
        return Verdict(kind="all", ranks=(), sentence=told, proofs=proofs)
    # Whose log is not here cannot be told from who did not come.
    if missing and missing <= seen and len(missing) <= len(there):
        told = f"{rank_words(missing)} did not come to {words}, in which {_ranks(same)} waited"
        return Verdict(kind="missing", ranks=tuple(sorted(missing)), sentence=told, proofs=proofs)
    of_all = f" of {of}" if of else ""
    told = f"{_ranks(same)}{of_all} waited in {words} for {first.timeout_ms / 1000:g} s"
    return Verdict(kind="some", ranks=(), sentence=told, proofs=proofs)


def _size(one: Waiting) -> int:
    """How many ranks the group has, by what a collective takes in and gives out; 0 if unknown."""
    taken, given = (int(each or 0) for each in one.sizes)
    if "ALLGATHER" in one.op.upper() and taken and given % taken == 0:
        return given // taken
    if "REDUCE_SCATTER" in one.op.upper() and given and taken % given == 0:
        return taken // given
    return 0


def _ranks(some: Sequence[Waiting]) -> str:
    return rank_words({one.rank for one in some})


def survivors(hits: Sequence[Hit]) -> dict[int, int]:
    """Ranks that waited in a collective until it timed out, and the line in which they say so.

    Whoever raises before that has caught it: a dead rank waits for nobody.
    """
    return {one.rank: one.hit.order for one in waiting(hits)}
