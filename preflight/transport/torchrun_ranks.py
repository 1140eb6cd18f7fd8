"""Reach nodes through the job's own rendezvous store: no login, each rank answers for itself."""

from __future__ import annotations

import queue
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight import __version__
from preflight.core.remote_command import OUTPUT_LIMIT, PipeRemote, ReachError, Remote, Shortfall
from preflight.core.statistics import grouped
from preflight.errors import PreflightError, WireError
from preflight.fleet.launch_line import RankedJob, RankedNode
from preflight.fleet.nodeset import fold, valid_host_name
from preflight.transport import job_store as notes
from preflight.transport import rank_follower as follower
from preflight.transport import reach_error
from preflight.transport.job_store import Place, Present, StoreLostError
from preflight.transport.relay import addresses_towards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.core.remote_command import Connection, HasPayload
    from preflight.fleet.model import Host
    from preflight.transport.bundle import SiteCode
    from preflight.transport.job_store import JobStore, Reply
    from preflight.transport.job_store_hub import RankHub

ROLL_CALL_S = 10.0
"""Wait for a rank to answer; a good one needs milliseconds."""


class TorchrunTransport:
    """The transport to nodes on which torchrun has started ranks."""

    name = "torchrun"

    def __init__(self, job: JobRanks, hub: RankHub, modules: SiteCode = ()) -> None:
        self._job = job
        self._hub = hub
        self._modules = modules

    def connect(self, host: Host, timeout_s: float) -> TorchrunConnection:
        """Ask a node's ranks to answer; ReachError("answer") if none of them does."""
        members = self._job.groups[host.group_rank or 0]
        others = [m.rank for m in members if m.present and m.rank != self._job.place.rank]
        silent = set(self._hub.roll_call(others, min(timeout_s, ROLL_CALL_S)))
        silent |= {m.rank for m in members if m.present is None}
        for member in members:
            theirs = member.present.version[:40] if member.present else __version__
            if theirs != __version__:
                rank = self._job.describe(member)
                raise reach_error("other_version", rank=rank, theirs=theirs, ours=__version__)
        answering = [member for member in members if member.rank not in silent]
        shortfall = self._shortfall([m for m in members if m.rank in silent])
        if shortfall is not None and not answering:
            raise ReachError("answer", shortfall.sentence, shortfall.advice)
        ranks = [self._rank_connection(member) for member in members]
        return TorchrunConnection(self._rank_connection(answering[0]), ranks, shortfall)

    def close(self) -> None:
        """Do nothing: the ranks stay until rank 0 lets all exit together."""

    def _rank_connection(self, member: Member) -> OwnRank | OtherRank:
        rank_name = self._job.describe(member)
        if member.rank == self._job.place.rank:
            return OwnRank(rank_name, self._modules)
        return OtherRank(rank_name, self._hub, member.rank)

    def _shortfall(self, silent: Sequence[Member]) -> Shortfall | None:
        """Name the ranks that do not answer, those that their torchrun ended last."""
        if not silent:
            return None
        ended = [m for m in silent if m.rank in self._hub.ended_by_torchrun]
        lost = [m for m in silent if m not in ended]
        first = (lost or ended)[0]
        count = f", and {len(lost) - 1} more of its ranks" if len(lost) > 1 else ""
        ending = "started, then stopped answering" if lost else "was ended by its own torchrun"
        sentence = f"{self._job.describe(first)}{count} {ending}"
        if lost and ended:
            sentence += f"; its torchrun then ended {_name_ranks(ended)}"
        pid = f" (pid {first.present.pid})" if first.present else ""
        return Shortfall(
            sentence,
            f"look at that process{pid}: dead, stopped, or in D state? dmesg, py-spy dump; "
            "exclude its node if it comes again",
        )


class _RankConnection:
    """A connection to ranks, which start entries of the payload and nothing else."""

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Refuse: ranks run preflight's own entries and nothing else."""
        del timeout_s, limit
        raise reach_error("ranks_only", program=argv[0][:40] if argv else "")

    def close(self) -> None:
        """Do nothing."""


class TorchrunConnection(_RankConnection):
    """A connection to a node through its first rank that answers; `ranks` are all of its ranks."""

    def __init__(
        self, answering_rank: HasPayload, ranks: Sequence[Connection], shortfall: Shortfall | None
    ) -> None:
        self.shortfall = shortfall
        self.ranks = ranks
        self.start_entry = answering_rank.start_entry


class OwnRank(_RankConnection):
    """Rank 0, this process: its entries are our child processes."""

    def __init__(self, rank_name: str, modules: SiteCode) -> None:
        self._rank_name, self._modules = rank_name, modules

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Start an entry here."""
        try:
            process, packed = follower.spawn_entry(entry, timeout_s, self._modules)
        except OSError as error:
            raise ReachError(
                "answer",
                f"{self._rank_name}: {follower.spawn_failure(error)}",
                follower.SPAWN_ADVICE,
            ) from error
        remote = PipeRemote(process, timeout_s, limit)
        with suppress(ReachError, TimeoutError):  # reading its answer raises the reason
            remote.send(packed, timeout_s)
        return remote


class OtherRank(_RankConnection):
    """Another rank, which starts entries by order."""

    def __init__(self, rank_name: str, hub: RankHub, rank: int) -> None:
        self._rank_name, self._hub, self._rank = rank_name, hub, rank

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Order the rank to start an entry."""
        return RankRemote(
            self._hub, self._rank, self._rank_name, notes.Start(0, entry, timeout_s, limit)
        )


class RankRemote(Remote):
    """A child process of another rank; its input and output are notes in the store."""

    def __init__(self, hub: RankHub, rank: int, rank_name: str, start: notes.Start) -> None:
        super().__init__(start.timeout_s, start.limit)
        self._hub, self._rank, self._rank_name = hub, rank, rank_name
        self._replies: queue.SimpleQueue[Reply | str] = queue.SimpleQueue()
        self._ended: notes.Ended | None = None
        self._child = hub.attach(rank, self._replies.put)
        self._send_order(replace(start, child=self._child))

    def finish_input(self) -> None:
        """Say that there will be no more input."""
        with suppress(StoreLostError):
            self._hub.send(self._rank, notes.Feed(self._child, last=True))

    def _send_order(self, order: notes.Start | notes.Feed) -> None:
        try:
            self._hub.send(self._rank, order)
        except StoreLostError as error:
            raise self._gone_error(str(error)) from error

    def _write(self, data: memoryview) -> int:
        if self._is_released or self._ended or self._rank in self._hub.lost:
            raise BrokenPipeError
        chunk = bytes(data[: notes.CHUNK])
        self._send_order(notes.Feed(self._child, chunk))
        return len(chunk)

    def _transfer(self, wait_s: float, *, writing: bool) -> bool:
        del writing  # the store takes whatever there is
        try:
            reply = self._replies.get(timeout=wait_s)
        except queue.Empty:
            return False
        if isinstance(reply, str):
            self._is_released = True
            raise self._gone_error(reply)
        if isinstance(reply, notes.Unable):
            raise ReachError("answer", f"{self._rank_name}: {reply.sentence}", reply.advice)
        if isinstance(reply, notes.Ended):
            self._ended = reply
            self._buffer.ended = True
        elif isinstance(reply, notes.Output):
            self._buffer.add_stdout(reply.out)
            self._buffer.add_stderr(reply.err)
        return True

    def _gone_error(self, why: str) -> ReachError:
        return reach_error("rank_gone", rank=self._rank_name, why=why)

    def _exited(self, wait_s: float) -> bool:
        if self._ended is None and wait_s > 0:
            self._transfer(wait_s, writing=False)
        return self._ended is not None

    def _release(self) -> int | None:
        self._hub.detach(self._rank, self._child)
        if self._ended is not None:
            return self._ended.status
        with suppress(PreflightError):
            self._hub.send(self._rank, notes.End(self._child))
        return None


def _name_ranks(members: Sequence[Member]) -> str:
    numbers = ", ".join(str(member.rank) for member in members)
    return f"rank {numbers}" if len(members) == 1 else f"ranks {numbers}"


_SET_PER_RANK = frozenset(("RANK", "LOCAL_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES"))


class Member(Struct, frozen=True, kw_only=True):
    """One rank; `present` is None if it never answered."""

    rank: int
    index_on_node: int
    group: int
    present: Present | None = None

    @property
    def is_regular(self) -> bool:
        """Whether the rank runs on the node of its number: torchrun numbers ranks by node."""
        return self.present is None or self.present.group == self.group


class JobRanks(Struct, frozen=True, kw_only=True):
    """The ranks of the job, in order."""

    members: tuple[Member, ...]
    place: Place

    @classmethod
    def from_answers(cls, place: Place, present: Mapping[int, Present]) -> JobRanks:
        """Place every rank of the world on its node; torchrun numbers them node by node."""
        members = [
            Member(
                rank=rank,
                index_on_node=rank % place.local_world_size,
                group=rank // place.local_world_size,
                present=present.get(rank),
            )
            for rank in range(place.world_size)
        ]
        return cls(members=tuple(members), place=place)

    @property
    def groups(self) -> dict[int, tuple[Member, ...]]:
        """The ranks of each node, by its group rank."""
        by_group = grouped((member.group, member) for member in self.members)
        return {group: tuple(members) for group, members in by_group.items()}

    def describe(self, member: Member) -> str:
        """Name a rank for messages: "rank 5 (h3, local rank 1)"."""
        answer = next((m.present for m in self.groups[member.group] if m.present), None)
        where = answer.hostname[:64] if answer else f"node of group rank {member.group}"
        return f"rank {member.rank} ({where}, local rank {member.index_on_node})"

    def ranked(self) -> RankedJob:
        """The nodes of these ranks, for the fleet."""
        return RankedJob(
            nodes=tuple(self._node(group, label) for group, label in _labels(self.groups).items()),
            ranks=len(self.members),
            per_node=self.place.local_world_size,
            restarts=self.place.max_restarts,
        )

    def _node(self, group: int, label: str) -> RankedNode:
        answers = [member.present for member in self.groups[group] if member.present]
        if not answers:
            return RankedNode(group=group, label=label, address=label)
        first = answers[0]
        return RankedNode(
            group=group,
            label=label,
            hostname=first.hostname,
            address=valid_host_name(self._address(first), label),
            python=(first.python,),
            environ=_node_environ([answer.environ for answer in answers]),
            uneven=_differing_variables([answer.environ for answer in answers]),
        )

    def _address(self, answer: Present) -> str:
        """Return its address for other nodes; rank 0's node may resolve its name to loopback."""
        others = [m.present.address for m in self.members if m.present and m.group != answer.group]
        if (
            answer.rank < self.place.local_world_size
            and answer.address.startswith("127.")
            and others
        ):
            return next(addresses_towards(others[0]), answer.address)
        return answer.address


def _labels(groups: Mapping[int, Sequence[Member]]) -> dict[int, str]:
    """Return a name for each node: short if unique, numbered if agents share a host."""
    full = {group: _hostname(members, group) for group, members in groups.items()}
    short = {group: valid_host_name(name.partition(".")[0], name) for group, name in full.items()}
    for labels in (short, full):
        if len(set(labels.values())) == len(labels):
            return labels
    times = Counter(full.values())
    return {
        group: f"{name.partition('.')[0]}-{group}" if times[name] > 1 else name
        for group, name in full.items()
    }


def _hostname(members: Iterable[Member], group: int) -> str:
    hostname = next((member.present.hostname for member in members if member.present), "")
    return valid_host_name(hostname, f"group-{group}")


def _node_environ(environs: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the environment of a node: its first rank's, with the GPUs of all its ranks."""
    name = "CUDA_VISIBLE_DEVICES"
    devices = list(dict.fromkeys(environ[name] for environ in environs if name in environ))
    joined = dict(environs[0])
    if len(devices) > 1:
        joined[name] = ",".join(devices)
    return joined


def _differing_variables(environs: Sequence[dict[str, str]]) -> dict[str, tuple[str | None, ...]]:
    """Return variables that differ between a node's ranks, except those set for each rank."""
    names = {name for environ in environs for name in environ}
    values = {name: tuple(environ.get(name) for environ in environs) for name in sorted(names)}
    return {
        name: row
        for name, row in values.items()
        if len(set(row)) > 1 and name not in _SET_PER_RANK and not name.startswith("TORCHELASTIC_")
    }


def missing(job: JobRanks) -> str:
    """Name the ranks that never answered; "" if all did."""
    silent = [member for member in job.members if member.present is None]
    ranks = ", ".join(job.describe(member) for member in silent[:4])
    more = f" and ranks {fold(str(m.rank) for m in silent[4:])}" if len(silent) > 4 else ""  # noqa: PLR2004
    return ranks + more


GATHER_S = 90.0
"""Wait for the first half of the ranks: their Python may come from a cold network file system."""

STRAGGLER_S = 10.0
"""Wait for the rest: this, and twice the time that the first half needed."""

_PROGRESS_S = 5.0
_POLL_S = 0.2


def gather(place: Place, store: JobStore, nonce: str, report: Callable[[str], None]) -> JobRanks:
    """Return all ranks; those that never answered have no `present`."""
    answers: dict[int, Present] = {place.rank: follower.describe_rank(place, nonce)}
    began = reported_at = time.monotonic()
    deadline = began + GATHER_S
    half_answered = False
    while len(answers) < place.world_size:
        for rank in range(place.world_size):
            if rank not in answers and store.has(f"present/{rank}"):
                _read_answer(answers, rank, store, nonce)
        now = time.monotonic()
        if not half_answered and len(answers) * 2 >= place.world_size:
            half_answered, deadline = True, now + STRAGGLER_S + 2 * (now - began)
        if len(answers) == place.world_size or now > deadline:
            break
        if now - reported_at > _PROGRESS_S:
            reported_at = now
            report(f"{len(answers)} of {place.world_size} ranks have answered; waiting for "
                 f"{missing(JobRanks.from_answers(place, answers))}")  # fmt: skip
        time.sleep(_POLL_S)
    return JobRanks.from_answers(place, answers)


def _read_answer(answers: dict[int, Present], rank: int, store: JobStore, nonce: str) -> None:
    """Read a rank's first note; one with a wrong number counts as missing."""
    try:
        note = store.read(f"present/{rank}")
        answer = notes.decode_note(note, Present, nonce) if note is not None else None
    except WireError:
        return
    if answer is not None and answer.rank == rank:
        answers[rank] = answer
