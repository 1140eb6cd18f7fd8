"""What the time-outs of torch's watchdog tell together: who was in what, and who was not there."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.hang.explain.model import Explanation, Hit, Speaker, names, proofs
from preflight.hang.explain.tracebacks import in_time

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.hang.explain.model import Place
    from preflight.hang.explain.tracebacks import Raised


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
    who = _numbers(set(odd), most=len(odd))
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
        told = f"{_numbers(missing)} did not come to {words}, in which {_ranks(same)} waited"
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
    return _numbers({one.rank for one in some})


def _numbers(ranks: Collection[int], most: int = 8) -> str:
    shown = sorted(ranks)
    words = ", ".join(map(str, shown[:most])) + (" ..." if len(shown) > most else "")
    return f"rank{'s' * (len(shown) > 1)} {words}"


ECHOES = frozenset((
    "ChildFailedError", "DistBackendError", "DistStoreError", "DistNetworkError",
    "RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousClosedError",
    "ProcessRaisedException", "ProcessExitedException", "SignalException", "CalledProcessError",
    "SystemExit", "KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError", "EOFError",
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError",
))  # fmt: skip
"""Exceptions that tell of somebody else's end, or that have symptoms of their own."""
_WRAPS = re.compile(
    r"NCCL (?:[Ee]rror|communicator was aborted)|nccl\w{0,60}Error|unhandled (?:system|cuda) error"
    r"|Timed out waiting \d+ms for (?:recv|send)|[Cc]onnection (?:closed|reset) by|[Bb]roken pipe"
    r"|Socket Timeout|Application timeout caused pair closure|worker process.{0,40}(?:died|exited)"
)
"""What an exception says that only passes on what a library met: its cause stands elsewhere."""


def survivors(hits: Sequence[Hit]) -> dict[int, int]:
    """Ranks that waited in a collective until it timed out, and the line in which they say so.

    Whoever raises before that has caught it: a dead rank waits for nobody.
    """
    return {one.rank: one.hit.order for one in waiting(hits)}


def own_faults(raised: Sequence[Raised], survived: dict[int, int]) -> list[Raised]:
    """Those that ended their rank, and are no echo of another rank's end."""
    return [
        one
        for one in raised
        if one.kind not in ECHOES
        and not _WRAPS.search(one.said)
        and one.order >= survived.get(-1 if one.speaker.rank is None else one.speaker.rank, 0)
    ]


def of_exceptions(thrown: Sequence[Raised], roots: Collection[int]) -> Explanation:
    """Code that raised: the first rank to do so ended the others.

    `roots`: ranks that torchrun saw fail first.
    """
    seen_first = [one for one in thrown if one.speaker.rank in roots]
    first = in_time(seen_first or thrown)[0]
    same = [one for one in thrown if (one.kind, one.said) == (first.kind, first.said)]
    ranks = sorted({one.speaker.rank for one in same if one.speaker.rank is not None})
    place = f" at {first.file}:{first.line}" if first.file else ""
    code = f" ({first.code})" if first.code else ""
    who = first.speaker.words or "a rank"
    named = names(first.speaker)
    if len(ranks) > 1:
        who = _numbers(ranks)
        named = tuple(f"rank {rank}" for rank in ranks[:16])
    said = f": {first.said}" if first.said else ""
    return Explanation(
        category="other",
        culprits=named,
        sentence=f"{who} raised {first.kind}{said}{place}{code}",
        cause="an exception in the script or in a library; what other ranks say after it is echo",
        advice="mend the code at that line; the others only waited for this rank",
        next=with_script("preflight lint SCRIPT", [first]),
        evidence=proofs(one.place for one in [first, *same, *thrown]),
        confidence=0.8,
    )


def with_script(words: str, raised: Sequence[Raised]) -> str:
    """A command of ours with the script that these exceptions name, where all name the same."""
    scripts = {one.script for one in raised if one.kind not in ECHOES and one.script}
    if len(scripts) != 1 or not words.endswith(" SCRIPT"):
        return words
    (script,) = scripts
    return f"{words.removesuffix('SCRIPT')}{shlex.quote(script)}"


SUMMARY, ALONE = "child_failed", "failed_alone"
_LONG = 12
"""Lines of the summary of one failed rank."""
_ABOVE = 6
"""Lines before that, among which the summary says whether another failed."""
_RAISED = "1"
"""How Python exits by an exception."""


class Summaries:
    """All that the logs hold; who is who may stand behind what it tells of."""

    def __init__(self) -> None:
        self._told: list[tuple[Hit, Speaker]] = []
        self._at: dict[tuple[str, int], Speaker] = {}
        self._alone: list[Place] = []

    def take(self, hit: Hit) -> int | None:
        """Keep what belongs to a summary; the rank that was the first to fail, if this names it."""
        if hit.symptom.id == ALONE:
            self._alone.append(hit.place)
        if hit.symptom.id != SUMMARY:
            return None
        named = Speaker(rank=int(hit.fields["rank"]), node=hit.fields.get("node", ""))
        self._told.append((hit, named))
        self._at.setdefault((hit.place.source, hit.place.line), named)
        return named.rank

    def within(self, place: Place) -> Speaker | None:
        """Whom the summary that a line stands in is of."""
        above = range(place.line - _LONG + 1, place.line)
        return next(filter(None, (self._at.get((place.source, number)) for number in above)), None)

    def named(self, raised: Sequence[Raised]) -> list[Raised]:
        """Exceptions with the ranks that are known from the summaries."""
        alone = self._of_the_only_one(raised)
        return [self._whose(one, alone) for one in raised]

    def _whose(self, one: Raised, alone: tuple[Raised, Speaker] | None) -> Raised:
        if one.speaker.rank is not None:
            return one
        if alone is not None and one is alone[0]:
            return replace(one, speaker=alone[1])
        named = self.within(replace(one.place, line=one.began))
        return one if named is None else replace(one, speaker=named)

    def _of_the_only_one(self, raised: Sequence[Raised]) -> tuple[Raised, Speaker] | None:
        """The one exception before the summary of a rank that failed alone, by an exception.

        Of two, one may be another rank's, who caught it.
        """
        if len({named.rank for _, named in self._told}) != 1:
            return None
        hit, named = self._told[0]
        place = hit.place
        alone = any(
            one.source == place.source and 0 < place.line - one.line <= _ABOVE
            for one in self._alone
        )
        own = [
            one
            for one in raised
            if one.kind not in ECHOES
            and not (one.place.source == place.source and one.place.line > place.line)
        ]
        if not alone or hit.fields.get("exitcode") != _RAISED or len(own) != 1:
            return None
        (one,) = own
        if one.speaker.rank is not None or one.place.source != place.source:
            return None
        return one, named
