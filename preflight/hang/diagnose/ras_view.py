"""NCCL's RAS report as the job's ranks, and which of them wait for which others.

NCCL counts the collectives that each rank has launched in each communicator. A rank waits for those
that have launched fewer; a rank that waits for no other and that others wait for is the cause.
Send and receive are not counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.core.statistics import grouped
from preflight.hang.call_waits import components
from preflight.hang.diagnose.job_state import RankState, busy_percents, count, describe_ranks, ranks
from preflight.hang.ras_report import ReportError, read_report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.job import RankLook, RasLook
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.ras_report import Absence, Absent, Communicator, Member, Process, RasReport

Counts = tuple[tuple[str, int], ...]
"""Operations by function, sorted."""

_MOST_CAUSES = 2
"""Most causes to name by counts alone: more are ranks that wait for a cause that is not seen."""
_PAIR = 2
_HALTED = ("stopped", "disk")
_BUSY = 50
"""Percent: NCCL's kernel keeps the GPU of a rank that waits in a collective busy."""


def view_of(ras: RasLook, case: Case | None) -> RasView | str:
    """Read the report; a sentence if there is none to judge."""
    if ras.why:
        return ras.why
    try:
        view = RasView(read_report(ras.content, is_json=ras.json), case)
    except ReportError as error:
        return f"RAS did not answer: {error}"
    fault = "another job on this node shares its port (NCCL_RAS_ADDR sets one)"
    return f"RAS did not answer: {fault}" if view.foreign else view


def _nccl_pid(look: RankLook) -> int:
    """The pid by which NCCL knows a rank."""
    return look.pid if look.inner_pid is None else look.inner_pid


@dataclass(frozen=True)
class RasView:
    """A report with its ranks named as the job names them."""

    report: RasReport
    case: Case | None
    """The job as its nodes show it; None where this login may read no rank."""

    @property
    def members(self) -> tuple[RankState, ...]:
        """The visible ranks."""
        return self.case.members if self.case else ()

    @cached_property
    def world_group(self) -> Communicator | None:
        """The communicator of all ranks: its numbers are the job's.

        Not where a process has several GPUs (JAX), or the ranks are numbered by their pids.
        """
        if self.case and self.case.without_ranks:
            return None
        largest = max((group.size for group in self.report.communicators), default=0)
        world = self.case.world if self.case else largest
        fitting = [group for group in self.report.communicators if group.size == world == largest]
        best = max(fitting, key=lambda group: len(group.everyone), default=None)
        ids = [member.process[:2] for member in best.everyone if member.process[0]] if best else []
        return best if len(ids) == len(set(ids)) or self.case is None else None

    @cached_property
    def _pids(self) -> dict[int, list[RankState]]:
        return grouped((_nccl_pid(member.look), member) for member in self.members)

    @cached_property
    def numbers(self) -> dict[Process, int]:
        """The job's rank of each process that the report names."""
        numbers: dict[Process, int] = {}
        for group in self.report.communicators:
            for member in group.everyone:
                states = self._pids.get(member.process[1], [])
                if len(states) == 1:
                    numbers[member.process] = states[0].rank
        if self.world_group is not None:
            for member in self.world_group.everyone:
                if member.process[0]:
                    numbers[member.process] = member.rank
        return numbers

    def number(self, group: Communicator, member: Member | Absent) -> int | None:
        """The job's rank of a communicator's rank; None if it cannot be known."""
        if self.world_group is not None and group.size == self.world_group.size:
            return member.rank
        return self.numbers.get(member.process)

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return self.case.world if self.case else self.world_group.size if self.world_group else 0

    def states(self, wanted: Iterable[int]) -> tuple[RankState, ...]:
        """What is known of these ranks on their nodes."""
        numbers = set(wanted)
        return tuple(member for member in self.members if member.rank in numbers)

    def names(self, wanted: Iterable[int]) -> str:
        """`rank 17 (gpu003, GPU 1)`; the address where the node is not known."""
        states, numbers = self.states(wanted), sorted(wanted)
        if len(states) == len(numbers):
            return describe_ranks(states)
        host_of = {rank: process[0] for process, rank in self.numbers.items()}
        hosts = list(dict.fromkeys(host_of[rank] for rank in numbers if host_of.get(rank)))
        return ranks(numbers) + f" ({', '.join(hosts[:3])})" * bool(hosts)

    def absent(self, *wanted: Absence) -> dict[int, Absence]:
        """The missing ranks of these kinds."""
        absences: dict[int, Absence] = {}
        for group in self.report.communicators:
            for member in group.absent:
                rank = self.number(group, member)
                if rank is not None and member.why in wanted:
                    absences[rank] = member.why
        for _, pid, why in self.report.absent:
            states = self._pids.get(pid, [])
            if len(states) == 1 and why in wanted:
                absences[states[0].rank] = why
        return dict(sorted(absences.items()))

    def whole_nodes(self, wanted: Iterable[int]) -> list[str]:
        """Nodes all of whose ranks are among these, if the job has other nodes."""
        numbers = set(wanted)
        by_node = grouped((member.node, member.rank) for member in self.members)
        full = [node for node, node_ranks in by_node.items() if numbers.issuperset(node_ranks)]
        return full if len(full) < len(by_node) else []

    @cached_property
    def busy(self) -> set[int]:
        """Ranks whose GPU works."""
        return {rank for rank, busy in busy_percents(self.members).items() if busy >= _BUSY}

    def rest_and_work(self, wanted: set[int]) -> tuple[set[int], set[int]]:
        """Those of these ranks whose GPU or process is at rest, and those whose GPU works.

        A GPU is at rest only if at least half of the job's GPUs work.
        """
        with_gpu = set(busy_percents(self.members))
        idle = with_gpu - self.busy if len(with_gpu) <= 2 * len(self.busy) else set()
        halted = {member.rank for member in self.members if member.look.state in _HALTED}
        rest = wanted & (idle | halted)
        return rest, (with_gpu & wanted) - rest

    @cached_property
    def foreign(self) -> bool:
        """Whether the report is of another job: NCCL binds the port with SO_REUSEPORT.

        A size that fits proves nothing where other jobs run: these often have the same.
        """
        pids = {pid for _, pid in self.processes}
        if self.case is None or not pids or pids & self._pids.keys():
            return False
        looks = self.case.state.looks.values()
        alone = not any(look.hidden for look in looks)
        others = {_nccl_pid(rank) for look in looks for rank in look.ranks}
        return self.world_group is None or not alone or bool(pids & others)

    @cached_property
    def processes(self) -> set[tuple[str, int]]:
        """(node's address, pid) of each process that the report names."""
        members = (member for group in self.report.communicators for member in group.everyone)
        return {member.process[:2] for member in members if member.process[1] >= 0}


@dataclass
class Waits:
    """Which ranks wait for which: names of communicators by rank."""

    behind: dict[int, set[str]] = field(default_factory=dict)
    """Communicators in which others have launched more."""
    ahead: dict[int, set[str]] = field(default_factory=dict)
    """Communicators in which others have launched less, or are missing."""
    minority: dict[int, int] = field(default_factory=dict)
    """Size of the smallest group, less than half of a communicator, in which it differs."""
    apart: dict[int, set[str]] = field(default_factory=dict)
    """Communicators in which most launched something that it did not, and the other way."""
    linked: list[set[int]] = field(default_factory=list)
    """Ranks that may wait for each other uncounted: they share a communicator without collectives,
    or one of which the text form does not name all ranks."""
    equal: list[set[int]] = field(default_factory=list)
    """Members of communicators in which all have launched the same."""
    levels: dict[str, list[list[int]]] = field(default_factory=dict)
    """Ranks of each communicator in which they differ, those with the fewest operations first."""
    proof: dict[str, str] = field(default_factory=dict)

    unread: bool = False
    """Whether the text form does not show which of a communicator's ranks launched what."""

    @property
    def alike(self) -> bool:
        """Whether all ranks launched the same in all communicators."""
        return not (self.levels or self.ahead or self.unread)

    @property
    def awaited(self) -> set[int]:
        """Ranks for which others wait, and that wait for no other in any communicator."""
        return {rank for rank in self.behind if rank not in self.ahead}

    def evidence(self, ranks_shown: Iterable[int]) -> tuple[str, ...]:
        """The counts of up to four communicators in which these ranks differ."""
        sets = (self.behind, self.ahead, self.apart)
        names = {name for rank in ranks_shown for by_rank in sets for name in by_rank.get(rank, ())}
        return tuple(f"RAS: {self.proof[name]}" for name in sorted(names & set(self.proof))[:4])


def waits_of(view: RasView) -> Waits:
    """Compare the counts of the ranks in each communicator.

    Ranks that the text form does not name have negative numbers, and are never an answer.
    """
    waits = Waits()
    named_ranks: set[int] = set()
    unnamed = -1
    for group in view.report.communicators:
        counts: dict[int, dict[str, int]] = {}
        for member in group.members:
            number = view.number(group, member)
            unnamed -= number is None
            rank = unnamed if number is None else number
            if sum(member.counts.values()) <= sum(counts.get(rank, member.counts).values()):
                counts[rank] = member.counts  # of a process with several GPUs the one behind
        named_ranks |= {rank for rank in counts if rank >= 0}
        if any(sum(by_function.values()) for by_function in counts.values()):
            _compare(group.name, counts, waits, missing=bool(group.absent))
        elif any(counts.values()):
            waits.linked.append(set(counts))
        waits.unread |= any(not by_function for by_function in counts.values())
    if unnamed < -1:
        waits.linked.append(named_ranks | {-1})
    return waits


def _compare(name: str, members: dict[int, dict[str, int]], waits: Waits, *, missing: bool) -> None:
    vectors = grouped((tuple(sorted(counts.items())), rank) for rank, counts in members.items())
    totals = {vector: sum(number for _, number in vector) for vector in vectors}
    most, least = max(totals.values()), min(totals.values())
    usual = max(vectors, key=lambda vector: (len(vectors[vector]), totals[vector]))
    for vector, group in vectors.items():
        job_ranks = [rank for rank in group if rank >= 0]
        relations = (
            (waits.behind, totals[vector] < most),
            (waits.ahead, totals[vector] > least or missing),
            (waits.apart, not (_is_below(vector, usual) or _is_below(usual, vector))),
        )
        for names, holds in relations:
            for rank in job_ranks if holds else ():
                names.setdefault(rank, set()).add(name)
        if len(group) * 2 < len(members):
            for rank in job_ranks:
                waits.minority[rank] = min(len(group), waits.minority.get(rank, len(group)))
    if len(vectors) == 1 and not missing:
        waits.equal.append(set(members))
    if len(vectors) > 1:
        ordered = sorted(vectors, key=lambda vector: totals[vector])
        waits.levels[name] = [[rank for rank in vectors[vector] if rank >= 0] for vector in ordered]
        waits.proof[name] = f"communicator {name}: " + "; ".join(
            f"{_rank_words(vectors[vector])} launched {_words(vector)}" for vector in ordered[:3]
        )


def _rank_words(members: list[int]) -> str:
    job_ranks = [rank for rank in members if rank >= 0]
    return ranks(job_ranks) if len(job_ranks) == len(members) else count(len(members))


def _is_below(low: Counts, high: Counts) -> bool:
    high_counts = dict(high)
    return all(number <= high_counts.get(name, 0) for name, number in low)


def _words(counts: Counts) -> str:
    return " and ".join(f"{number} {name}" for name, number in counts if number) or "nothing"


def causes_of(view: RasView, waits: Waits) -> tuple[set[int], set[int]]:
    """(causes, candidates): ranks that others wait for and that wait for no other.

    A GPU that rests tells a rank whose host has stopped from one that waits in a send or receive,
    which NCCL does not count. Without that, the rank that holds up most communicators is the cause.
    """
    awaited = waits.awaited
    resting, working = view.rest_and_work(awaited)
    if resting or (awaited and working == awaited):
        return resting, set()
    if any(rank in waits.ahead and rank not in waits.behind for rank in waits.minority):
        return set(), set()
    causes_and_candidates: tuple[set[int], set[int]] = set(), set()
    links: dict[int, list[int]] = {rank: [] for rank in awaited}
    for group in waits.linked:
        for one, other in pairwise(group & awaited):
            links[one].append(other)
            links[other].append(one)
    for linked in components(links):
        most = max(len(waits.behind[rank]) for rank in linked)
        hold_most = {rank for rank in linked if len(waits.behind[rank]) == most}
        causes_and_candidates[len(hold_most) > 1 and len(linked) > 1].update(hold_most)
    causes, candidates = causes_and_candidates
    unnamed = any(min(linked) < 0 for linked in waits.linked)  # one of these may hold up as many
    if len(causes) > _MOST_CAUSES or (unnamed and len(causes) < len(awaited)):
        return set(), causes | candidates
    # In a send or receive with a rank that waits, it may wait for that one.
    waiting = {rank for rank in waits.behind if rank in waits.ahead}
    doubtful = {rank for linked in waits.linked if linked & waiting for rank in linked & causes}
    surer = causes - doubtful or causes
    return surer, candidates | (causes - surer)


def odd_order(view: RasView, waits: Waits) -> set[int]:
    """Ranks that launched in another order than most, if all GPUs work: each waits for another.

    Such a rank is behind in one communicator while most others of it are behind elsewhere. Without
    such a difference it is the smallest minority. If those that wait for no other rank, also in no
    send or receive, are exactly one communicator, in which all launched the same, its kernel hangs.
    """
    awaited = waits.awaited - {member.rank for member in view.members if member.kind == "p2p"}
    turned: Counter[int] = Counter()
    for name, levels in waits.levels.items():
        late, early = _late_and_early(levels, name, waits)
        above, below = sum(map(len, late)), 0
        if sum(map(len, levels)) == _PAIR:  # no count shows which of the two is wrong
            continue
        for late_here, early_here in zip(late, early, strict=True):
            above -= len(late_here)
            turned.update(dict.fromkeys(early_here, above))
            turned.update(dict.fromkeys(late_here, below))
            below += len(early_here)
    most = max(turned.values(), default=0)
    few = {rank for rank, times in turned.items() if times == most}
    if len(awaited) > 1 and awaited in waits.equal and len(few) != 1:
        return awaited
    if most:
        return few if len(few) == 1 or few in waits.equal else set()
    least = min(waits.minority.values(), default=0)
    few = {rank for rank, size in waits.minority.items() if size == least}
    linked = [group for group in waits.linked if few & group]
    waiting = all(rank in waits.behind and rank not in waits.ahead for rank in few)
    doubtful = any(len(group & few) > 1 for group in linked)
    if waiting:  # perhaps in a send or receive, with one that is behind, too
        others = set(waits.behind) - few
        doubtful = bool(others) and any(group & others or min(group) < 0 for group in linked)
    in_kernel = few in waits.equal and not few <= set(waits.ahead)
    return few if in_kernel or (len(few) == 1 and not doubtful) else set()


def _late_and_early(
    levels: list[list[int]], name: str, waits: Waits
) -> tuple[list[list[int]], list[list[int]]]:
    """Of each level those that are behind in another communicator, too, and the rest."""
    late = [[rank for rank in level if waits.behind.get(rank, set()) - {name}] for level in levels]
    all_late = {rank for level in late for rank in level}
    return late, [[rank for rank in level if rank not in all_late] for level in levels]
