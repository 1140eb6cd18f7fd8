"""One job at one moment: its ranks with node and place, who waits, and who is elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.facts.job import Connection
from preflight.hang.diagnose.model import IDLE, JobState, NodeState, Seat, Standing, doing
from preflight.hang.diagnose.places import (
    CODE,
    LOCKED,
    OTHERS,
    Native,
    Place,
    channel_words,
    deeper,
    main_frames,
    native_of,
    place_in,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.job import GpuLook, NodeLook, RankLook


_MAPPED = "::ffff:"
_RAS = "28028"
"""The port of NCCL's own roll call (NCCL_RAS_ADDR), which speaks at any time."""


class Wire(Struct, frozen=True, kw_only=True):
    """One rank's end of a connection to another rank."""

    rank: int
    node: str
    peer_rank: int | None
    """None where the other end is on a node that was not looked at."""
    peer_node: str
    """Its address, where its node is not known."""
    end: Connection

    @property
    def stuck(self) -> bool:
        """Whether its kernel sends again what the other end does not acknowledge."""
        return self.end.unacked > 0 and (self.end.retries > 0 or self.end.resent > 0)


def wires_of(ranks: Iterable[tuple[int, str, RankLook]], *, complete: bool) -> tuple[Wire, ...]:
    """Keep the connections between ranks, leave out the store's and strangers'.

    `complete`: every rank was seen, so that an end which is nobody's is no rank's.
    """
    every = [(*one, end) for one in ranks for end in one[2].connections]
    owners = {(_end(end.local), _end(end.peer)): (rank, node) for rank, node, _, end in every}
    found = []
    for rank, node, look, end in every:
        local, peer = _end(end.local), _end(end.peer)
        if _RAS in (local[1], peer[1]) or look.master.rpartition(":")[2] in (local[1], peer[1]):
            continue
        other = owners.get((peer, local))
        if other is None and (complete or _loopback(peer[0])):
            continue
        found.append(
            Wire(
                rank=rank,
                node=node,
                peer_rank=other[0] if other else None,
                peer_node=other[1] if other else peer[0],
                end=end,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.rank, one.end.local, one.end.peer)))


def _end(text: str) -> tuple[str, str]:
    address, _, port = text.rpartition(":")
    address = address.strip("[]").lower()
    return address.removeprefix(_MAPPED), port


def _loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


_USED_MIB, _UUID = 2048, 4
"""What torch takes of a GPU that it uses; of a CPU job on a node with GPUs none is told."""


_LIVELY = 5
"""A main thread that waits in a collective gives up the CPU once, not so often in some seconds."""
_FLOW = 1 << 20
"""Bytes a second: what a training step moves, and a heartbeat does not."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The job, as far as it could be seen, sorted for the judges."""

    state: JobState
    world: int
    seats: tuple[Seat, ...]
    """By rank."""
    gone: tuple[tuple[int, str], ...] = ()
    """Ranks that their own node says it lacks, with that node."""
    absent: tuple[int, ...] = ()
    """Further ranks that no node showed."""
    silent: tuple[NodeState, ...] = ()
    """Nodes without an answer."""
    wires: tuple[Wire, ...] = ()
    """Connections between ranks."""
    nameless: bool = False
    """Nobody gave its processes ranks: their pids stand for them."""
    launchers: tuple[str, ...] = ()
    """Kinds of what started the ranks and still waits for them."""

    @cached_property
    def looks(self) -> dict[str, NodeLook]:
        """What those nodes showed that have ranks of the job."""
        ours = {one.node for one in self.seats}
        return {node: look for node, look in self.state.looks.items() if node in ours}

    @cached_property
    def read(self) -> tuple[Seat, ...]:
        """Ranks whose place is known."""
        return tuple(one for one in self.seats if one.place is not None)

    @cached_property
    def unread(self) -> tuple[Seat, ...]:
        """Ranks that are there, and show no stack."""
        return tuple(one for one in self.seats if one.place is None and one.look.state != "disk")

    @cached_property
    def held(self) -> tuple[Seat, ...]:
        """Ranks that hang in the kernel, so that not even their stack can be read."""
        return tuple(one for one in self.seats if one.place is None and one.look.state == "disk")

    @cached_property
    def ended(self) -> tuple[Seat, ...]:
        """Ranks that have left their work and take the group down, or are in their exit."""
        return tuple(one for one in self.read if one.kind == "end")

    @cached_property
    def waiting(self) -> tuple[Seat, ...]:
        """Ranks that wait for other ranks or their GPU, and most of the ranks at one still line."""
        plain = [one for one in self.read if one.waits and one.kind != "end"]
        line = self._same_line() if len(plain) * 2 < self.world else []
        ranks = {one.rank for one in (*plain, *line)}
        return tuple(one for one in self.read if one.rank in ranks)

    def _same_line(self) -> list[Seat]:
        """Most of the ranks stand still at one line of the user's: they wait there.

        A collective that was begun before is waited for in C++ (`work.wait()`, `loss.item()`): in a
        lock or a poll, and not in a file's lock, a pipe or a sleep.
        """
        still = [
            one
            for one in self.read
            if one.place
            and one.place.kind == CODE
            and one.steady
            and not one.computes
            and one.look.state != "disk"
            and channel_words(one.look.wait_channel) in ("", LOCKED)
        ]
        spots = Counter(one.place.key for one in still if one.place)
        spot, number = max(spots.items(), key=lambda item: item[1], default=(None, 0))
        if number * 2 <= self.world:
            return []
        return [one for one in still if one.place and one.place.key == spot]

    @cached_property
    def elsewhere(self) -> tuple[Seat, ...]:
        """Ranks that do something of their own."""
        apart = {one.rank for one in (*self.waiting, *self.ended)}
        return (*(one for one in self.read if one.rank not in apart), *self.held)

    @cached_property
    def moving(self) -> tuple[Seat, ...]:
        """Ranks that went on between the looks, or compute."""
        return tuple(one for one in self.seats if moved(one))

    @cached_property
    def stuck(self) -> tuple[Seat, ...]:
        """Ranks that wait, and were seen to wait for the same in all looks; nobody if some go on.

        A rank of a healthy job may be met twice in one place; not all of those that wait.
        """
        if self._flows() or any(moved(one) for one in self.waiting):
            return ()
        if any(one.came_through for one in self.read):
            return ()
        return tuple(one for one in self.waiting if one.steady)

    def _flows(self) -> bool:
        """Most of the job's nodes move data through their RDMA ports: no rank's kernel tells."""
        spans = {one.node: one.look.look_s for one in self.seats}
        moved_bytes = [
            max((p.received for p in look.ports or () if "/" in p.name), default=0)
            / max(spans[node], 0.1)
            for node, look in self.looks.items()
        ]
        return sum(each >= _FLOW for each in moved_bytes) * 2 > len(self.looks)

    @cached_property
    def quiet_s(self) -> float | None:
        """Since data last came between ranks; None where they meet by other ways than TCP."""
        if any(one.look.gpus for one in self.seats):
            return None
        told = [wire.end.quiet_s for wire in self.wires if wire.end.quiet_s is not None]
        return min(told, default=None)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Who stands where; the most first."""
        rows: dict[tuple[str, str], list[int]] = {}
        for seat in self.seats:
            rows.setdefault(_row(seat), []).append(seat.rank)
        ordered = sorted(rows.items(), key=lambda item: (-len(item[1]), item[1]))
        return tuple(
            Standing(ranks=tuple(ranks), where=where, what=what) for (where, what), ranks in ordered
        )

    def spots(self, seats: tuple[Seat, ...]) -> list[tuple[Seat, ...]]:
        """Ranks by what they wait in; the most first."""
        groups: dict[object, list[Seat]] = {}
        for seat in seats:
            groups.setdefault(seat.place.key if seat.place else None, []).append(seat)
        ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
        return [tuple(group) for group in ordered]

    def meeting(self, seats: tuple[Seat, ...]) -> str:
        """` in all_reduce (train.py:41)` where all of them stand in one place, else nothing."""
        groups = self.spots(seats)
        place = groups[0][0].place
        return f" in {place.where}" if place and len(groups) == 1 else ""


def moved(seat: Seat) -> bool:
    """Whether it went on: other lines, bytes from other ranks, or turns of work while it waited."""
    if seat.place is None:
        return bool(seat.fed)
    if seat.waits:
        turns = seat.place.kind in OTHERS and seat.cpu > IDLE and seat.look.switches > _LIVELY
        return seat.went_on or turns
    return seat.went_on or seat.computes


def _row(seat: Seat) -> tuple[str, str]:
    states = {
        "stopped": "is stopped",
        "traced": "is held by a debugger",
        "zombie": "is dead",
        "gone": "is gone",
    }
    what = states.get(seat.look.state, "")
    if seat.place is None and seat.look.state == "disk":
        return seat.look.wait_channel or "disk", doing(seat)
    if seat.place is None:
        return seat.look.wait_channel or seat.look.state, what or "no stack"
    if what:
        return seat.place.where, what
    return seat.place.where, doing(seat)


def jobs_of(state: JobState) -> tuple[str, ...]:
    """The jobs that were seen, the largest first."""
    counts = Counter(one.job for look in state.looks.values() for one in look.ranks)
    return tuple(sorted(counts, key=lambda job: (-counts[job], job)))


def case_of(state: JobState, job: str) -> Case:
    """Gather one job's ranks from all nodes."""
    seats = _seats(state, job)
    nameless = not seats
    if nameless:
        seats = _by_pid(state, job)
    looks = [one.look for one in seats.values()]
    sizes = [*(one.world_size or 0 for one in looks), *(rank + 1 for rank in seats)]
    world = len(seats) if nameless else max(sizes, default=0)
    gone = [] if nameless else _gone(state, seats)
    named = {rank for rank, _ in gone}
    absent = tuple(r for r in range(world) if r not in seats and r not in named)
    absent = () if nameless else absent
    wires = wires_of(((s.rank, s.node, s.look) for s in seats.values()), complete=not absent)
    natives = _natives(seats.values())
    launchers = [one for look in state.looks.values() for one in look.launchers]
    fed = Counter[int]()
    for wire in wires:
        fed[wire.rank] += wire.end.received
    return Case(
        state=state,
        world=world,
        seats=tuple(
            replace(one, fed=fed[one.rank], place=_with_native(one, natives))
            for _, one in sorted(seats.items())
        ),
        gone=tuple(sorted(gone)),
        absent=absent,
        nameless=nameless,
        wires=wires,
        silent=tuple(node for node in state.nodes if node.look is None),
        launchers=tuple(sorted({one.kind for one in launchers if one.job in (job, "")})),
    )


def _seats(state: JobState, job: str) -> dict[int, Seat]:
    seats: dict[int, Seat] = {}
    children = _children(state)
    for node in state.nodes:
        if node.look is None:
            continue
        for look in _main_ones(one for one in node.look.ranks if one.job == job):
            if look.rank is not None:
                old = seats.get(look.rank)
                if old is None or _rather(look, old.look, children):
                    seats[look.rank] = _seat(look, node)
    return seats


def _by_pid(state: JobState, job: str) -> dict[int, Seat]:
    """Processes that nobody gave a rank (`torch.multiprocessing.spawn`), on one node."""
    nodes = [one for one in state.nodes if one.look and any(r.job == job for r in one.look.ranks)]
    if len(nodes) != 1 or nodes[0].look is None:
        return {}
    looks = [one for one in nodes[0].look.ranks if one.job == job and not _is_worker(one)]
    return {one.pid: _seat(one, nodes[0]) for one in looks}


def _rather(new: RankLook, old: RankLook, children: frozenset[int]) -> bool:
    """Of two that claim one rank: the newest start, what a launcher started, the older process.

    What a rank started has its environment, and may outlive it.
    """

    def order(one: RankLook) -> tuple[int, bool, float]:
        return one.restarts or 0, one.pid in children, one.age_s

    return order(new) > order(old)


def _children(state: JobState) -> frozenset[int]:
    looks = state.looks.values()
    return frozenset(pid for look in looks for one in look.launchers for pid in one.children)


def _main_ones(looks: Iterable[RankLook]) -> list[RankLook]:
    """Leave out a rank's own children, which have its environment: loader workers, compilers."""
    every = [one for one in looks if not _is_worker(one)]
    ranks = {(one.pid, one.rank) for one in every}
    return [one for one in every if (one.parent, one.rank) not in ranks]


def _is_worker(look: RankLook) -> bool:
    """A loader's worker whose rank has died stands in for nobody."""
    frames = main_frames(look.stacks) or main_frames(look.later)
    return any(frame.function == "_worker_loop" for frame in frames)


def _seat(look: RankLook, node: NodeState) -> Seat:
    first, later = place_of(look.stacks), place_of(look.later)
    if first is None and later is None:
        first = place_of(look.native)
    return Seat(
        rank=look.pid if look.rank is None else look.rank,
        node=node.node,
        look=look,
        gpu_look=_gpu(look, node.look),
        place=later or first,
        before=first if later is not None else None,
        seen=tuple((place_in(one.frames), one.times) for one in look.sightings if one.frames),
    )


def _natives(seats: Iterable[Seat]) -> dict[object, Native]:
    """What C and C++ tell of a place: read of one rank, it holds for all that stand there."""
    told: dict[object, Native] = {}
    for seat in seats:
        native = native_of(seat.look.native)
        if seat.place is not None and native is not None:
            told[seat.place.key] = native
    return told


def _with_native(seat: Seat, natives: dict[object, Native]) -> Place | None:
    if seat.place is None or (seat.cpu >= IDLE and not seat.look.gpus):
        return seat.place
    return deeper(seat.place, natives.get(seat.place.key))


def _gpu(look: RankLook, node: NodeLook | None) -> GpuLook | None:
    """The GPU that it has memory on; with several, or where none is told, the one of its place."""
    if node is None or not node.gpus:
        return None
    owned = [one for one in node.gpus if one.uuid in look.gpus or look.pid in one.pids]
    if len(owned) == 1 or look.local_rank is None:
        return owned[0] if len(owned) == 1 else None
    listed = [one.strip() for one in (look.visible or "").split(",") if one.strip()]
    if look.visible is not None and look.local_rank >= len(listed):
        return None
    mine = listed[look.local_rank] if listed else str(look.local_rank)
    for gpu in node.gpus:
        used = gpu in owned or (gpu.memory_used_mib or 0) >= _USED_MIB
        if used and (str(gpu.index) == mine or (len(mine) > _UUID and gpu.uuid.startswith(mine))):
            return gpu
    return None


def _gone(state: JobState, seats: dict[int, Seat]) -> list[tuple[int, str]]:
    """Ranks between those of a node that answered, whose processes are not there any more."""
    found: list[tuple[int, str]] = []
    looks = grouped((one.node, one.look) for one in seats.values())
    for node in state.nodes:
        here = looks.get(node.node, [])
        placed = [(one.rank, one.local_rank) for one in here if one.local_rank is not None]
        bases = {rank - local for rank, local in placed if rank is not None and local is not None}
        size = max((one.local_world_size or 0 for one in here), default=0)
        if node.look is None or len(bases) != 1 or node.look.hidden:
            continue
        base = bases.pop()
        found += [(rank, node.node) for rank in range(base, base + size) if rank not in seats]
    return found
