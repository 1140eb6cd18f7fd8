"""Jobs with tensor, pipeline, expert and data parallel groups, and what their recorders dump.

The rules of torch and NCCL: a group's calls run in order on a stream of their own; the host calls
ahead of the GPU until it needs a result; a call starts when the results that it needs are there,
and ends when all members have started the same call; sends and receives end in pairs. Nothing here
knows how the dumps are read.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tests.simulate import torch_pickle

FAULTS = (
    "host_stop", "kernel_hang", "wrong_order", "wrong_size", "wrong_dtype", "wrong_op",
    "data_ends", "replica_ends", "two_stop", "died",
)  # fmt: skip
_AHEAD, _ITERATIONS = 150, 3
_LINES = {
    "broadcast": 31, "_all_gather_base": 52, "_reduce_scatter_base": 57, "all_to_all": 64,
    "all_reduce": 88, "barrier": 120,
}  # fmt: skip


@dataclass(eq=False)
class Op:
    """One call of one rank."""

    group: int
    op: str
    size: tuple[int, ...]
    iteration: int
    dtype: str = "BFloat16"
    parts: tuple[tuple[str, int], ...] = ()
    """(send or recv, the other rank): a send or receive, or several that are coalesced."""
    batch: bool = False
    needs: tuple[Op, ...] = ()
    host_needs: tuple[Op, ...] = ()
    is_stuck: bool = False
    """A kernel before it does not end."""
    number: int = 0
    state: str = ""
    time_ns: int = 0
    matched: int = 0

    @property
    def alone(self) -> bool:
        """Whether it is a send or receive."""
        return bool(self.parts)


@dataclass
class Layout:
    """The sizes of a job, and its groups."""

    tp: int
    pp: int
    ep: int
    dp: int
    batched: bool = True
    groups: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    of_rank: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def __post_init__(self) -> None:
        """Number the groups as Megatron does: every rank makes all of them, in one order."""
        everyone = range(self.world)
        self._add("default_pg", [everyone])
        at = {self.rank(p, d, t): (p, d, t) for p, d, t in self.places()}
        kinds = {
            "DATA_PARALLEL_GROUP": "pt", "MODEL_PARALLEL_GROUP": "d",
            "TENSOR_MODEL_PARALLEL_GROUP": "pd", "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "pd",
            "PIPELINE_MODEL_PARALLEL_GROUP": "dt", "EXPERT_MODEL_PARALLEL_GROUP": "pte",
        }  # fmt: skip
        for about, equal in kinds.items():
            members = defaultdict(list)
            for rank in everyone:
                p, d, t = at[rank]
                index = {"p": p, "d": d, "t": t, "e": d // self.ep}
                members[tuple(index[one] for one in equal)].append(rank)
            self._add(about, members.values())

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def places(self) -> Any:
        """(pipeline stage, data index, tensor index) of each rank."""
        return product(range(self.pp), range(self.dp), range(self.tp))

    def rank(self, p: int, d: int, t: int) -> int:
        """The rank at that place."""
        return (p * self.dp + d) * self.tp + t

    def _add(self, about: str, several: Any) -> None:
        for members in several:
            for rank in members:
                self.of_rank[about][rank] = len(self.groups)
            self.groups.append((about, tuple(members)))


class Program:
    """The calls of one rank, as its training loop makes them."""

    def __init__(self, layout: Layout, place: tuple[int, int, int]) -> None:
        self.layout, (self.p, self.d, self.t) = layout, place
        self.rank = layout.rank(*place)
        self.ops: list[Op] = []
        self.front: tuple[Op, ...] = ()
        self.host: tuple[Op, ...] = ()
        self.iteration = 0
        for self.iteration in range(_ITERATIONS):
            self._iteration()
        self.ending = self.call("default_pg", "barrier", (1,))

    def call(self, about: str, op: str, size: tuple[int, ...], *, wait: bool = True) -> Op | None:
        """A collective; `wait`: what follows needs its result."""
        group = self.layout.of_rank[about][self.rank]
        if len(self.layout.groups[group][1]) < 2:
            return None
        one = Op(group, op, size, self.iteration, needs=self.front, host_needs=self.host)
        self.ops.append(one)
        self.host = ()
        if wait:
            self.front = (one,)
        return one

    def _exchange(self, *ways: tuple[str, int]) -> None:
        """Send to and receive from neighbours in the pipeline: `("send", +1)`."""
        layout = self.layout
        parts = [
            (way, layout.rank(self.p + step, self.d, self.t))
            for way, step in ways
            if 0 <= self.p + step < layout.pp
        ]
        if not parts:
            return
        if not layout.batched and self.p % 2:
            parts.reverse()
        group, size = layout.of_rank["PIPELINE_MODEL_PARALLEL_GROUP"][self.rank], (4096, 1, 512)
        each = [tuple(parts)] if layout.batched else [(part,) for part in parts]
        made = [
            Op(
                group, "coalesced" if layout.batched else "p2p", size, self.iteration,
                parts=some, batch=layout.batched, needs=self.front, host_needs=self.host,
            )
            for some in each
        ]  # fmt: skip
        self.host = ()
        self.ops += made
        self.front = tuple(made)

    def _layers(self) -> None:
        tokens = 4096 + 16 * self.rank
        for _ in range(2):
            self.call("TENSOR_MODEL_PARALLEL_GROUP", "_all_gather_base", (4096, 512))
            if self.layout.ep > 1:
                self.call("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "all_reduce", (16,))
                self.call("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", (tokens, 512))
            self.call("TENSOR_MODEL_PARALLEL_GROUP", "_reduce_scatter_base", (8192, 512))
            if self.layout.ep > 1:
                self.call("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", (tokens,))

    def _forward(self) -> None:
        if self.p in (0, self.layout.pp - 1):
            self.call("TENSOR_MODEL_PARALLEL_GROUP", "broadcast", (1, 8192))
        self._layers()

    def _iteration(self) -> None:
        """One forward, one backward, in the order of Megatron's schedule without interleaving."""
        batches = 3
        warm = min(self.layout.pp - self.p - 1, batches)
        for _ in range(warm):
            self._exchange(("recv", -1))
            self._forward()
            self._exchange(("send", 1))
        if warm < batches:
            self._exchange(("recv", -1))
        for number in range(batches - warm):
            self._forward()
            self._exchange(("send", 1), ("recv", 1))
            self._layers()
            if number < batches - warm - 1:
                self._exchange(("send", -1), ("recv", -1))
            else:
                self._exchange(("send", -1))
        for _ in range(warm):
            self._exchange(("recv", 1))
            self._layers()
            self._exchange(("send", -1))
        buckets = [
            self.call("DATA_PARALLEL_GROUP", "_reduce_scatter_base", (1 << 20,), wait=False)
            for _ in range(3)
        ]
        self.front = (*self.front, *(one for one in buckets if one))
        self.call("MODEL_PARALLEL_GROUP", "all_reduce", (1,))
        self.call("default_pg", "all_reduce", (1,))
        self.host = self.front
        self.call("DATA_PARALLEL_GROUP", "_all_gather_base", (1 << 18,))


@dataclass
class Case:
    """A job that hangs, and the truth."""

    seed: int
    fault: str
    layout: Layout
    culprits: frozenset[int]
    dumps: dict[int, bytes]
    """Without those of the ranks that left none."""
    active: bool = False
    """Whether they have only unfinished calls, as with TORCH_INCLUDE_ONLY_ACTIVE=1."""


class Job:
    """All ranks of a job, run until nothing moves."""

    def __init__(self, layout: Layout, draw: random.Random) -> None:
        self.layout, self.draw = layout, draw
        programs = [Program(layout, place) for place in layout.places()]
        self.ops = {one.rank: one.ops for one in programs}
        self.stop = {rank: len(ops) for rank, ops in self.ops.items()}
        """The host of a rank makes only so many calls."""
        self.made = dict.fromkeys(self.ops, 0)
        self.waiting: dict[int, list[Op]] = {rank: [] for rank in self.ops}
        self.started: dict[tuple[int, int], dict[int, Op]] = defaultdict(dict)
        self.pairs: dict[tuple[int, int, int, str], deque[Op]] = defaultdict(deque)
        self.clock_ns = 1_758_000_000 * 10**9
        self._stacks: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._lines: dict[tuple[str, str, int], dict[str, Any]] = {}

    def run(self) -> None:
        """Until no rank makes, starts or ends a call."""
        for ops in self.ops.values():
            numbers: Counter[tuple[int, bool]] = Counter()
            for op in ops:
                numbers[op.group, op.alone] += 1
                op.number = numbers[op.group, op.alone]
        moved = True
        while moved:
            self.clock_ns += 1_000_000
            moved = False
            for rank in self.ops:
                moved |= self._host(rank)
                moved |= self._gpu(rank)

    def _host(self, rank: int) -> bool:
        ops, first = self.ops[rank], self.made[rank]
        for _ in range(self.draw.randint(1, 12)):
            at = self.made[rank]
            if at >= self.stop[rank] or any(one.state != "completed" for one in ops[at].host_needs):
                break
            if at >= _AHEAD and ops[at - _AHEAD].state != "completed":
                break
            ops[at].state = "scheduled"
            ops[at].time_ns = self.clock_ns + at
            self.waiting[rank].append(ops[at])
            self.made[rank] += 1
        return self.made[rank] > first

    def _gpu(self, rank: int) -> bool:
        streams: set[object] = set()
        moved = False
        for op in self.waiting[rank]:
            lanes = (
                {(op.group, peer) for _, peer in op.parts}
                if not op.batch and op.alone
                else {op.group}
            )
            if (
                op.state == "scheduled" and not op.is_stuck and not lanes & streams
                and all(one.state == "completed" for one in op.needs)
            ):  # fmt: skip
                op.state = "started"
                moved = True
                self._arrive(rank, op)
            if op.state != "completed":
                streams |= lanes
        self.waiting[rank] = [op for op in self.waiting[rank] if op.state != "completed"]
        return moved

    def _arrive(self, rank: int, op: Op) -> None:
        if not op.alone:
            here = self.started[op.group, op.number]
            here[rank] = op
            same = {
                (one.op, one.dtype, one.op != "all_to_all" and one.size) for one in here.values()
            }
            if len(here) == len(self.layout.groups[op.group][1]) and len(same) == 1:
                for one in here.values():
                    one.state = "completed"
            return
        for way, peer in op.parts:
            other = self.pairs[op.group, peer, rank, "recv" if way == "send" else "send"]
            if not other:
                self.pairs[op.group, rank, peer, way].append(op)
                continue
            for one in (op, other.popleft()):
                one.matched += 1
                if one.matched == len(one.parts):
                    one.state = "completed"

    # -- the recorder

    def dump(
        self, rank: int, *, entries: int, timing: bool, active: bool, earlier: int = 0,
        deep: int = 0,
    ) -> bytes:  # fmt: skip
        """What torch writes: pickle, version 2.10.

        `earlier`: iterations like the first one that had ended before it; `deep`: lines of a
        trainer in the stack of each call.
        """
        mine = [
            (number, about, members)
            for number, (about, members) in enumerate(self.layout.groups)
            if rank in members
        ]
        made = self.ops[rank][: self.made[rank]]
        first = [op for op in made if op.iteration == 0]
        turns = Counter((op.group, op.alone) for op in first)
        local = {number: at for at, (number, _, _) in enumerate(mine)}
        every: list[dict[str, Any]] = []
        for turn, ops in [*enumerate([first] * earlier), (earlier, made)]:
            for op in ops:
                here = replace(
                    op,
                    number=op.number + turn * turns[op.group, op.alone],
                    time_ns=op.time_ns - (earlier - turn) * 10**9,
                )
                stack = self._stack(op, deep)
                every += self._entries(rank, here, local[op.group], stack, timing=timing)
        for number, one in enumerate(every):
            one["record_id"] = number
        every = every[-entries:]
        if active:
            every = [one for one in every if one["state"] != "completed"]
        document = {
            "version": "2.10",
            "pg_config": {
                str(number): {"name": str(number), "desc": about, "ranks": str(list(members))}
                for number, about, members in mine
            },
            "comm_lib_version": "2.27.5",
            "pg_status": {
                str(at): self._status(rank, number, earlier * turns[number, False])
                for at, (number, _, _) in enumerate(mine)
            },
            "entries": every,
        }
        return torch_pickle.dumps(document)

    def _status(self, rank: int, group: int, earlier: int) -> dict[str, int]:
        mine = [op for op in self.ops[rank][: self.made[rank]] if op.group == group]
        done = [op.number for op in mine if op.state == "completed"]
        return {
            "last_enqueued_collective": max((op.number + earlier for op in mine), default=-1),
            "last_started_collective": -1,
            "last_completed_collective": max((number + earlier for number in done), default=-1),
        }

    def _stack(self, op: Op, deep: int) -> list[dict[str, Any]]:
        """The lines that led into a call, innermost first; each line is one object, as in torch."""
        about = self.layout.groups[op.group][0]
        if (op.op, about) not in self._stacks:
            torch = "/opt/torch/distributed/distributed_c10d.py"
            lines = [(op.op, torch, 2800), ("step", "/home/u/train.py", _LINES.get(op.op, 70))]
            trainer = [
                (f"forward_{at}", f"/opt/megatron/core/part_{at % 9}.py", 50 + len(about) + at)
                for at in range(deep)
            ]
            self._stacks[op.op, about] = [
                self._lines.setdefault(one, {"name": one[0], "filename": one[1], "line": one[2]})
                for one in [lines[0], *trainer, lines[1]]
            ]
        return [*self._stacks[op.op, about]]

    def _entries(
        self, rank: int, op: Op, pg: int, stack: list[dict[str, Any]], *, timing: bool
    ) -> list[dict[str, Any]]:
        about, members = self.layout.groups[op.group]
        state = op.state if timing or op.state != "started" else "scheduled"
        local = {one: at for at, one in enumerate(members)} if op.parts else {}
        names = [
            f"{way} {local[rank]}{'->' if way == 'send' else '<-'}{local[peer]}"
            for way, peer in op.parts
        ]
        whole = ["coalesced"] if op.batch else ([] if op.alone else [op.op])
        return [
            {
                "frames": [*stack],
                "record_id": 0,
                "pg_id": pg,
                "process_group": (str(op.group), about),
                "thread_name": "python",
                "thread_id": "140358426172288",
                "collective_seq_id": 0 if op.alone else op.number,
                "p2p_seq_id": op.number if op.alone else 0,
                "op_id": op.number,
                "profiling_name": f"nccl:{name}",
                "time_created_ns": op.time_ns,
                "input_sizes": [] if name == "coalesced" else [list(op.size)],
                "input_dtypes": [] if name == "coalesced" else [op.dtype],
                "output_sizes": [] if name == "coalesced" else [_output(op, len(members))],
                "output_dtypes": [] if name == "coalesced" else [op.dtype],
                "state": "scheduled" if op.batch and name != "coalesced" else state,
                "time_discovered_started_ns": op.time_ns if state != "scheduled" else None,
                "time_discovered_completed_ns": op.time_ns if state == "completed" else None,
                "retired": state == "completed" and not (op.batch and name != "coalesced"),
                "timeout_ms": 600000,
                "is_p2p": op.alone,
            }
            for name in names + whole
        ]


def _output(op: Op, ranks: int) -> list[int]:
    first, *rest = op.size
    if op.op == "_all_gather_base":
        first *= ranks
    if op.op == "_reduce_scatter_base":
        first //= ranks
    return [first, *rest]


def draw_case(seed: int, fault: str = "") -> Case:
    """A job that hangs by the fault; the same for the same seed."""
    for turn in range(100):
        draw = random.Random(f"{seed}/{turn}")  # noqa: S311  the same job each time
        case = _try(seed, draw, fault or FAULTS[seed % len(FAULTS)])
        if case is not None:
            return case
    raise AssertionError(f"no hang drawn for {seed}")


def _draw_layout(draw: random.Random) -> Layout:
    while True:
        tp, pp, dp = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4)), draw.choice((1, 2, 4, 8))
        if 4 <= tp * pp * dp <= 64:
            ep = draw.choice([size for size in (1, 2, 4) if dp % size == 0])
            return Layout(tp, pp, ep, dp, batched=draw.random() < 0.5)


def _try(seed: int, draw: random.Random, fault: str) -> Case | None:
    layout = _draw_layout(draw)
    job = Job(layout, draw)
    rank = draw.randrange(layout.world)
    faulty = plant(job, rank, fault, draw)
    if not faulty:
        return None
    job.run()
    if all(
        job.made[one] == len(ops) and all(op.state == "completed" for op in ops)
        for one, ops in job.ops.items()
    ):
        return None  # it came through
    # A rank that waits for another before its own fault is innocent.
    culprits = {one for one, at in faulty.items() if _has_come(job, one, at, fault)}
    if not culprits:
        return None
    timing = fault == "kernel_hang" or draw.random() < 0.3
    entries = draw.choice((2000, 2000, 200))
    active = draw.random() < 0.3
    gone = set(faulty) if fault == "died" else set()
    if draw.random() < 0.15 and layout.world > 8 and fault != "died":
        gone |= {draw.choice([one for one in range(layout.world) if one not in culprits])}
    dumps = {
        one: job.dump(one, entries=entries, timing=timing, active=active)
        for one in range(layout.world)
        if one not in gone
    }
    return Case(seed, fault, layout, frozenset(culprits), dumps, active)


def _has_come(job: Job, rank: int, at: int, fault: str) -> bool:
    ops = job.ops[rank]
    if fault in ("wrong_size", "wrong_dtype", "wrong_op", "wrong_order"):
        return ops[at].state == "started"
    if fault == "kernel_hang":
        return ops[at].state == "scheduled" and all(
            one.state == "completed" for one in ops[at].needs
        )
    before = ops[:at] if fault in ("host_stop", "two_stop", "died") else ops[: at - 1]
    return job.made[rank] >= at and all(one.state == "completed" for one in before)


def plant(job: Job, rank: int, fault: str, draw: random.Random) -> dict[int, int]:
    """Plant the fault; the ranks at fault, and the call at which each is at fault."""
    ops = job.ops[rank]
    middle = [number for number, op in enumerate(ops) if op.iteration == 1]
    at = draw.choice(middle)
    if fault in ("host_stop", "died"):
        job.stop[rank] = at
        return {rank: at}
    if fault == "two_stop":
        other = draw.choice([one for one in job.ops if one != rank])
        place = draw.choice([n for n, op in enumerate(job.ops[other]) if op.iteration == 1])
        job.stop.update({rank: at, other: place})
        return {rank: at, other: place}
    if fault == "kernel_hang":
        ops[at].is_stuck = True
        return {rank: at}
    if fault in ("data_ends", "replica_ends"):
        layout = job.layout
        data = {layout.rank(p, d, t): d for p, d, t in layout.places()}
        ranks = (
            [one for one in job.ops if data[one] == data[rank]]
            if fault == "replica_ends"
            else [rank]
        )
        if layout.dp < 3 and fault == "replica_ends":
            return {}
        kind = draw.choice(("barrier", "idle"))
        for one in ranks:
            first = next(n for n, op in enumerate(job.ops[one]) if op.iteration == 2)
            job.ops[one][first:-1] = []
            last = job.ops[one][-1]
            last.needs = (job.ops[one][first - 1],)
            last.host_needs = ()
            job.stop[one] = first + (kind == "barrier")
        return {one: job.stop[one] for one in ranks}
    return _change(job, rank, fault, at, draw)


def _change(job: Job, rank: int, fault: str, at: int, draw: random.Random) -> dict[int, int]:
    """Another call, another size or type, or two calls in the other order."""
    ops = job.ops[rank]
    fixed = [
        n
        for n, op in enumerate(ops)
        if op.iteration == 1 and op.op in _LINES and op.op != "all_to_all"
    ]
    if not fixed:
        return {}
    if fault == "wrong_order":
        swaps = [n for n in range(at, len(ops) - 1) if ops[n].iteration == 1 and not ops[n].alone
                 and not ops[n + 1].alone and ops[n].needs != ops[n + 1].needs
                 and ops[n].op != ops[n + 1].op]  # fmt: skip
        if not swaps:
            return {}
        at = swaps[0]
        one, two = ops[at], ops[at + 1]
        ops[at], ops[at + 1] = two, one
        two.needs, one.needs = one.needs, (two,)
        two.host_needs, one.host_needs = one.host_needs, ()
        for later in ops[at + 2 :]:
            later.needs = tuple(one if need is two else need for need in later.needs)
        return {rank: at}
    at = draw.choice(fixed)
    op = ops[at]
    if fault == "wrong_size":
        op.size = (op.size[0] // 2 + 1, *op.size[1:])
    elif fault == "wrong_dtype":
        op.dtype = "Float"
    else:
        op.op = "all_reduce" if op.op != "all_reduce" else "_all_gather_base"
    return {rank: at}
