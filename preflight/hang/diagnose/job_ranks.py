"""One job at one moment: its ranks, which of them wait, and which are elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.facts.job import Connection, GpuLook, NodeLook, RankLook
from preflight.hang.diagnose.job_state import (
    IDLE,
    JobState,
    NodeState,
    PlaceRow,
    RankState,
)
from preflight.hang.diagnose.places import (
    CODE,
    LOCKED,
    Native,
    Place,
    channel_words,
    main_frames,
    native_of,
    place_in,
    place_of,
    with_native,
)

_MAPPED = "::ffff:"
_RAS = "28028"
"""The port of NCCL's RAS service (NCCL_RAS_ADDR), which sends data at any time."""
_KEEP_ALIVE_BYTES = 60
"""The RAS threads of neighbouring ranks send each other a message of this size once a second, also
while the job hangs: struct rasMsg and its length (NCCL 2.28.9: src/ras/ras_internal.h)."""
_ANSWER_BYTES = 512
"""Most bytes that a question to RAS moves for each rank: its counts and state in a communicator or
two (struct rasCollComms)."""


class Wire(Struct, frozen=True):
    """One rank's end of a connection to another rank."""

    rank: int
    node: str
    peer_rank: int | None
    """None if the other end is on a node without a look."""
    peer_node: str
    """Its address, if its node is unknown."""
    end: Connection

    @property
    def stuck(self) -> bool:
        """Whether its kernel retransmits, because the other end does not acknowledge."""
        return self.end.unacked > 0 and (self.end.retries > 0 or self.end.resent > 0)


def _wires_of(members: Iterable[RankState], *, complete: bool) -> tuple[Wire, ...]:
    """The connections between ranks, without those of the store and of other processes.

    `complete`: every rank was seen, so that an end without a known rank belongs to no rank.
    """
    ends = [(member, end) for member in members for end in member.look.connections]
    owners = {(_end(end.local), _end(end.peer)): member for member, end in ends}
    wires = []
    for member, end in ends:
        local, peer = _end(end.local), _end(end.peer)
        if {_RAS, member.look.master.rpartition(":")[2]}.intersection((local[1], peer[1])):
            continue
        owner = owners.get((peer, local))
        if owner is None and (complete or _loopback(peer[0])):
            continue
        peer_rank, peer_node = (owner.rank, owner.node) if owner else (None, peer[0])
        wires.append(Wire(member.rank, member.node, peer_rank, peer_node, end))
    return tuple(sorted(wires, key=lambda wire: (wire.rank, wire.end.local, wire.end.peer)))


def _end(text: str) -> tuple[str, str]:
    """(address, port) of one end of a connection."""
    address, _, port = text.rpartition(":")
    return address.strip("[]").lower().removeprefix(_MAPPED), port


def _loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


_USED_MIB, _UUID = 2048, 4
"""MiB that torch takes on a GPU it uses: a CPU job on a node with GPUs gets none assigned."""


_TRAINING_BYTES_S = 1 << 20
"""Bytes per second: a training step moves this much, a heartbeat does not."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job's ranks as its nodes show them, grouped by what they do; each judge takes one."""

    state: JobState
    world: int
    members: tuple[RankState, ...]
    """By rank."""
    gone: tuple[tuple[int, str], ...] = ()
    """(rank, node): ranks whose process their node no longer has."""
    absent: tuple[int, ...] = ()
    """Other ranks that no node shows."""
    wires: tuple[Wire, ...] = ()
    """Connections between ranks."""
    without_ranks: bool = False
    """The processes have no ranks: their pids replace them."""
    launchers: tuple[str, ...] = ()
    """Kinds of launchers that still wait for the ranks."""

    @cached_property
    def looks(self) -> dict[str, NodeLook]:
        """The looks of the nodes with ranks of the job."""
        nodes = {member.node for member in self.members}
        return {node: look for node, look in self.state.looks.items() if node in nodes}

    @cached_property
    def readable(self) -> tuple[RankState, ...]:
        """Ranks with a known place."""
        return tuple(member for member in self.members if member.place is not None)

    @cached_property
    def unreadable(self) -> tuple[RankState, ...]:
        """Ranks that exist but show no stack."""
        return tuple(
            member for member in self.members if member.place is None and not member.in_kernel
        )

    @cached_property
    def in_kernel(self) -> tuple[RankState, ...]:
        """Ranks that hang in the kernel."""
        return tuple(member for member in self.members if member.in_kernel)

    @cached_property
    def ended(self) -> tuple[RankState, ...]:
        """Ranks that have finished: they destroy the group or exit."""
        return tuple(member for member in self.readable if member.kind == "end")

    @cached_property
    def waiting(self) -> tuple[RankState, ...]:
        """Ranks that wait for other ranks or their GPU, or are in the majority at one line."""
        in_a_wait = [member for member in self.readable if member.waits and member.kind != "end"]
        same_line = self._same_line() if len(in_a_wait) * 2 < self.world else ()
        ranks = {member.rank for member in (*in_a_wait, *same_line)}
        return tuple(member for member in self.readable if member.rank in ranks)

    def _same_line(self) -> tuple[RankState, ...]:
        """The majority of ranks, if they stand still at one line of the user's code: they wait.

        The wait for an earlier collective is in C++ (`work.wait()`, `loss.item()`): in a lock or a
        poll, and not in a file's lock, a pipe or a sleep.
        """
        steady_ranks = tuple(
            member
            for member in self.readable
            if member.kind == CODE
            and member.steady
            and not member.computes
            and member.look.state != "disk"
            and channel_words(member.look.wait_channel) in ("", LOCKED)
        )
        most = max(self.spots(steady_ranks), key=len, default=())
        return most if len(most) * 2 > self.world else ()

    @cached_property
    def elsewhere(self) -> tuple[RankState, ...]:
        """Ranks that do something else than wait or finish."""
        others = {member.rank for member in (*self.waiting, *self.ended)}
        return (*(member for member in self.readable if member.rank not in others), *self.in_kernel)

    @cached_property
    def moving(self) -> tuple[RankState, ...]:
        """Ranks that moved on between the looks, or compute."""
        return tuple(member for member in self.members if member.moved)

    @cached_property
    def stuck(self) -> tuple[RankState, ...]:
        """Ranks that wait in the same place in all looks; none if some move on.

        In a healthy job two looks may find one rank in the same place, but not all that wait.
        """
        if self._flows() or any(member.moved for member in self.waiting):
            return ()
        if any(member.came_through for member in self.readable):
            return ()
        return tuple(member for member in self.waiting if member.steady)

    def _flows(self) -> bool:
        """Whether most of the job's nodes move data through RDMA ports, which no socket shows."""
        spans = {member.node: member.look.look_s for member in self.members}
        moved_bytes = [
            max((p.received for p in look.ports or () if "/" in p.name), default=0)
            / max(spans[node], 0.1)
            for node, look in self.looks.items()
        ]
        return sum(rate >= _TRAINING_BYTES_S for rate in moved_bytes) * 2 > len(self.looks)

    @cached_property
    def quiet_s(self) -> float | None:
        """Seconds since data last passed between ranks; None if they do not use TCP."""
        if any(member.look.gpus for member in self.members):
            return None
        silences_s = [wire.end.quiet_s for wire in self.wires if wire.end.quiet_s is not None]
        return min(silences_s, default=None)

    @cached_property
    def standings(self) -> tuple[PlaceRow, ...]:
        """The ranks in each place, most ranks first."""
        rows = grouped((_where_and_what(member), member.rank) for member in self.members)
        ordered = sorted(rows.items(), key=lambda item: (-len(item[1]), item[1]))
        return tuple(
            PlaceRow(ranks=tuple(ranks), where=where, what=what) for (where, what), ranks in ordered
        )

    def spots(self, members: tuple[RankState, ...]) -> list[tuple[RankState, ...]]:
        """Ranks grouped by place, most ranks first."""
        groups = grouped((member.place and member.place.key, member) for member in members)
        ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
        return [tuple(group) for group in ordered]

    def meeting(self, members: tuple[RankState, ...]) -> str:
        """` in all_reduce (train.py:41)` if all of them are in one place, otherwise empty."""
        groups = self.spots(members)
        place = groups[0][0].place
        return f" in {place.where}" if place and len(groups) == 1 else ""


_STATE_WORDS = {
    "stopped": "is stopped", "traced": "is held by a debugger",
    "zombie": "is dead", "gone": "is gone",
}  # fmt: skip


def _where_and_what(member: RankState) -> tuple[str, str]:
    place, look = member.place, member.look
    where = place.where if place else look.wait_channel or look.state
    seen = member.activity if place or member.in_kernel else "no stack"
    return where, _STATE_WORDS.get(look.state, seen)


def jobs_of(state: JobState) -> tuple[str, ...]:
    """The names of the jobs, largest first; if the user chose one by name or master, only that.

    A job whose master is on the loopback is named after its node: another node has such a master
    too.
    """
    looks = [rank for look in state.looks.values() for rank in look.ranks]
    counts = Counter(look.job for look in looks if state.job in ("", look.job, look.master))
    if state.job in counts:
        return (state.job,)
    return tuple(sorted(counts, key=lambda job: (-counts[job], job)))


def case_of(state: JobState, job: str) -> Case:
    """Collect one job's ranks from all nodes."""
    members = _rank_states(state, job)
    without_ranks = not members
    if without_ranks:
        members = _rank_states_by_pid(state, job)
    looks = [member.look for member in members.values()]
    sizes = [*(look.world_size or 0 for look in looks), *(rank + 1 for rank in members)]
    world = len(members) if without_ranks else max(sizes, default=0)
    gone = [] if without_ranks else _missing_processes(state, members)
    known_ranks = {*members, *(rank for rank, _ in gone)}
    expected = () if without_ranks else range(world)
    absent = tuple(rank for rank in expected if rank not in known_ranks)
    wires = _wires_of(members.values(), complete=not absent)
    natives = _native_by_place(members.values())
    launchers = [launcher for look in state.looks.values() for launcher in look.launchers]
    served = {_end(wire.end.local) for wire in wires if wire.end.served}
    fed = Counter[int]()
    for wire in wires:
        ends = {_end(wire.end.local), _end(wire.end.peer)}
        most = _ras_bytes(members[wire.rank].look, world, served & ends)
        if max(wire.end.sent, wire.end.received) > most:
            fed[wire.rank] += wire.end.received
    return Case(
        state=state,
        world=world,
        members=tuple(
            replace(member, fed=fed[member.rank], place=_with_native(member, natives))
            for _, member in sorted(members.items())
        ),
        gone=tuple(sorted(gone)),
        absent=absent,
        without_ranks=without_ranks,
        wires=wires,
        launchers=tuple(
            sorted({launcher.kind for launcher in launchers if launcher.job in (job, "")})
        ),
    )


def _ras_bytes(look: RankLook, world: int, served: set[tuple[str, str]]) -> float:
    """The most that RAS threads sent on a connection between the looks: no data of the job.

    `served`: the ends of the connection that still accept others. Only there it may be part of an
    answer, which the ranks hand on to each other.
    """
    if not look.ras:
        return 0
    return _KEEP_ALIVE_BYTES * (look.look_s + 1) + bool(served) * (4096 + _ANSWER_BYTES * world)


def _rank_states(state: JobState, job: str) -> dict[int, RankState]:
    launchers = [launcher for look in state.looks.values() for launcher in look.launchers]
    children = {pid for launcher in launchers for pid in launcher.children}
    looks = [
        (look, node)
        for node in state.nodes
        if node.look is not None
        for look in _main_processes(rank for rank in node.look.ranks if rank.job == job)
    ]
    users = Counter(look.uid for look, _ in looks)

    def precedence(process: tuple[RankLook, NodeState]) -> tuple[int, int, bool, float]:
        """Of processes with the same rank: newest restart, launcher's child, older one.

        A rank's child inherits its environment, and may outlive it. But first the user with more
        ranks of the job counts: any other user can copy the variables of one.
        """
        look, _ = process
        return users[look.uid], look.restarts or 0, look.pid in children, look.age_s

    return {
        rank: _rank_state(*max(processes, key=precedence))
        for rank, processes in grouped((look.rank, (look, node)) for look, node in looks).items()
        if rank is not None
    }


def _rank_states_by_pid(state: JobState, job: str) -> dict[int, RankState]:
    """Processes without a rank variable (`torch.multiprocessing.spawn`), on one node."""
    nodes = [
        node for node in state.nodes if node.look and any(r.job == job for r in node.look.ranks)
    ]
    if len(nodes) != 1 or nodes[0].look is None:
        return {}
    looks = [look for look in nodes[0].look.ranks if look.job == job and not _is_worker(look)]
    return {look.pid: _rank_state(look, nodes[0]) for look in looks}


def _main_processes(looks: Iterable[RankLook]) -> list[RankLook]:
    """Leave out children of ranks, which inherit the environment: loader workers, compilers."""
    main_looks = [look for look in looks if not _is_worker(look)]
    ranks = {(look.pid, look.rank) for look in main_looks}
    return [look for look in main_looks if (look.parent, look.rank) not in ranks]


def _is_worker(look: RankLook) -> bool:
    """Whether it is a DataLoader worker: one whose rank has died is not that rank."""
    frames = main_frames(look.stacks) or main_frames(look.later)
    return any(frame.function == "_worker_loop" for frame in frames)


def _rank_state(look: RankLook, node: NodeState) -> RankState:
    first, later = place_of(look.stacks), place_of(look.later)
    if first is None and later is None:
        first = place_of(look.native)
    return RankState(
        rank=look.pid if look.rank is None else look.rank,
        node=node.node,
        look=look,
        gpu_look=_gpu(look, node.look),
        place=later or first,
        before=first if later is not None else None,
        seen=tuple(
            (place_in(sighting.frames), sighting.times)
            for sighting in look.sightings
            if sighting.frames
        ),
    )


def _native_by_place(members: Iterable[RankState]) -> dict[object, Native]:
    """C and C++ functions by place: those read of one rank hold for all in that place."""
    return {
        member.place.key: native
        for member in members
        if member.place is not None and (native := native_of(member.look.native)) is not None
    }


def _with_native(member: RankState, natives: dict[object, Native]) -> Place | None:
    if member.place is None or (member.cpu >= IDLE and not member.look.gpus):
        return member.place
    return with_native(member.place, natives.get(member.place.key))


def _gpu(look: RankLook, node: NodeLook | None) -> GpuLook | None:
    """The GPU on which it has memory; if that is not exactly one, the GPU of its local rank."""
    if node is None or not node.gpus:
        return None
    with_memory = [gpu for gpu in node.gpus if gpu.uuid in look.gpus or look.pid in gpu.pids]
    if len(with_memory) == 1 or look.local_rank is None:
        return with_memory[0] if len(with_memory) == 1 else None
    visible_names = [word.strip() for word in (look.visible or "").split(",") if word.strip()]
    if look.visible is not None and look.local_rank >= len(visible_names):
        return None
    name = visible_names[look.local_rank] if visible_names else str(look.local_rank)
    for gpu in node.gpus:
        used = gpu in with_memory or (gpu.memory_used_mib or 0) >= _USED_MIB
        if used and (str(gpu.index) == name or (len(name) > _UUID and gpu.uuid.startswith(name))):
            return gpu
    return None


def _missing_processes(state: JobState, members: dict[int, RankState]) -> list[tuple[int, str]]:
    """(rank, node) of processes that are missing on a node that answered."""
    gone: list[tuple[int, str]] = []
    looks = grouped((member.node, member.look) for member in members.values())
    for node in state.nodes:
        here = looks.get(node.node, [])
        placed = [(look.rank, look.local_rank) for look in here if look.local_rank is not None]
        bases = {rank - local for rank, local in placed if rank is not None and local is not None}
        size = max((look.local_world_size or 0 for look in here), default=0)
        if node.look is None or len(bases) != 1 or node.look.hidden:
            continue
        if state.narrowed and not node.look.launchers:
            continue
        base = bases.pop()
        gone += [(rank, node.node) for rank in range(base, base + size) if rank not in members]
    return gone
