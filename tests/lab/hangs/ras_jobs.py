"""Hanging jobs drawn by seed: a simulated tensor, pipeline and data parallel training with a fault.

Hosts launch operations in the order of the program; each GPU runs them in that order, and one
completes when all its members have reached it. A host waits at each synchronisation. What RAS
would report of the job, what the nodes show of it, and the ranks at fault come from one simulation.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from preflight.facts.job import GpuLook
from tests.lab.hangs.ras_mesh import Comm, Job, Peer
from tests.unit.hang.diagnose.jobs import at, collective, job, standing

FAULTS = ("stop", "stop", "two", "signal", "dead", "cut", "exhausted", "order", "skip", "kernel",
          "error")  # fmt: skip
SIZES = (8, 8, 16, 16, 32, 64, 128, 256, 512, 1024, 4096)
VERSIONS = ("2.24.3", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.30.7")
FAULT_LINE, STEPS, SYNC = 77, 5, ("", "")
Op = tuple[str, str]
"""(communicator, function); SYNC for a synchronisation, function "p2p" for send and receive."""


@dataclass
class Drawn:
    """One job that hangs."""

    seed: int
    fault: str
    world: int
    blind: bool
    """No stack can be read."""
    culprits: frozenset[int]
    """Ranks at fault; all members of the communicator whose kernel hangs."""
    any_of: bool
    """Whether any of them is right, or none: a kernel's hang lies between them."""
    nameless: bool
    """Whether no reader can name the ranks at fault, as docs/internals/contest.md explains."""
    line: bool
    """Whether the fault has a line of its own."""
    ras: Job
    state: Any


@dataclass
class _Rank:
    program: list[Op]
    at: int = 0
    launched: list[tuple[str, int, str]] = field(default_factory=list)
    done: int = 0
    seq: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    stops: int | None = None


def draw(seed: int, *, sizes: tuple[int, ...] = SIZES, faults: tuple[str, ...] = FAULTS) -> Drawn:
    """Draw a job and let it run until nothing moves; another fault if it ends all the same."""
    dice = random.Random(seed)  # noqa: S311 (a draw, no secret)
    world = dice.choice(sizes)
    tensor = dice.choice([one for one in (1, 2, 4, 8) if one <= world // 2])
    stages = dice.choice([one for one in (1, 1, 2, 4) if tensor * one <= world // 2])
    groups = _layout(world, tensor, stages)
    fault = dice.choice(faults)
    asynchronous = fault != "order" and dice.random() < 0.5
    programs = _programs(world, tensor, stages, groups, dice, asynchronous=asynchronous)
    ranks = [_Rank(program) for program in programs]
    victim = dice.randrange(world)
    fault = _sorts(fault, programs[victim], groups)
    culprits, stuck = _apply(fault, ranks, groups, victim, dice)
    _run(ranks, groups, stuck)
    if all(one.done == len(one.program) - one.program.count(SYNC) for one in ranks):
        return draw(seed, sizes=sizes, faults=("stop",))
    if fault == "two":
        culprits = {one for one in culprits if _awaited(ranks, groups, one)}
    blind = dice.random() < 0.5
    before = dice.getstate()

    def files(ranks: list[_Rank]) -> tuple[Job, Any]:
        dice.setstate(before)
        ras = _ras(fault, culprits, ranks, groups, dice)
        has_gpus = dice.random() < 0.95
        return ras, _state(fault, culprits, ranks, world, blind=blind, gpus=has_gpus)

    ras, state = files(ranks)
    nameless = fault == "cut" and 2 * len(culprits) == world
    if fault == "kernel":
        nameless = len(culprits) == world or any(
            files(_hung(programs, groups, other)) == (ras, state)
            for other in _others(groups, stuck)
        )
    has_line = fault in ("stop", "two") and not blind
    return Drawn(
        seed=seed, fault=fault, world=world, blind=blind, culprits=frozenset(culprits),
        any_of=fault == "kernel", nameless=nameless, line=has_line, ras=ras, state=state,
    )  # fmt: skip


_MOST_OTHERS = 8
"""Communicators whose hang is compared: one with the same files is enough."""


def _others(groups: dict[str, list[int]], stuck: str) -> list[str]:
    """Some communicators that share no rank with this one, those of its kind and near it first."""
    names = list(groups)
    fit = [one for one in names if not set(groups[one]) & set(groups[stuck])]
    place = names.index(stuck)
    fit.sort(key=lambda one: (one[:2] != stuck[:2], abs(names.index(one) - place)))
    return fit[:_MOST_OTHERS]


def _hung(programs: list[list[Op]], groups: dict[str, list[int]], stuck: str) -> list[_Rank]:
    """The same job, in which the kernel of this communicator hangs."""
    ranks = [_Rank(program) for program in programs]
    _run(ranks, groups, stuck)
    return ranks


def _layout(world: int, tensor: int, stages: int) -> dict[str, list[int]]:
    """Communicators by name; rank = (replica * stages + stage) * tensor + place."""
    groups = {"world": list(range(world))}
    block = tensor * stages
    for start in range(0, world, tensor):
        if tensor > 1:
            groups[f"tp{start}"] = list(range(start, start + tensor))
    for offset in range(block):
        groups[f"dp{offset}"] = list(range(offset, world, block))
    for start in range(0, world, block):
        for place in range(tensor if stages > 1 else 0):
            groups[f"pp{start + place}"] = [start + place + s * tensor for s in range(stages)]
    return groups


def _programs(
    world: int, tensor: int, stages: int, groups: dict[str, list[int]], dice: random.Random,
    *, asynchronous: bool,
) -> list[list[Op]]:  # fmt: skip
    layers, batches = dice.choice((1, 2)), dice.choice((1, 2))
    reduce = dice.choice(("AllReduce", "ReduceScatter"))
    whole = dice.random() < 0.6
    of: list[dict[str, str]] = [{} for _ in range(world)]
    for name, members in groups.items():
        for rank in members:
            of[rank][name[:2]] = name
    programs = []
    for rank in range(world):
        stage = rank // tensor % stages
        before, after = rank - tensor, rank + tensor
        step: list[Op] = []
        for _ in range(batches):
            for enter, leave in ((before, after), (after, before)):
                if 0 <= _stage(enter, tensor, stages, rank) < stages:
                    step.append((f"{min(rank, enter)}-{max(rank, enter)}", "p2p"))
                step += [(of[rank].get("tp", ""), "AllReduce")] * (layers if tensor > 1 else 0)
                if 0 <= _stage(leave, tensor, stages, rank) < stages:
                    step.append((f"{min(rank, leave)}-{max(rank, leave)}", "p2p"))
        assert 0 <= stage < stages
        if len(groups[of[rank]["dp"]]) > 1:
            step += [(of[rank]["dp"], reduce), (of[rank]["dp"], "AllGather")]
        step += [("world", "AllReduce")] * whole
        if asynchronous:
            step.append(SYNC)
        else:
            step = [each for op in step for each in (op, SYNC)]
        programs.append(step * STEPS)
    return programs


def _stage(other: int, tensor: int, stages: int, rank: int) -> int:
    """The stage of a neighbour in the same replica; -1 outside of it."""
    block = tensor * stages
    inside = other >= 0 and other // block == rank // block
    return other // tensor % stages if inside else -1


def _apply(
    fault: str,
    ranks: list[_Rank],
    groups: dict[str, list[int]],
    victim: int,
    dice: random.Random,
) -> tuple[set[int], str]:
    """Change the programs; return the ranks at fault, and the communicator that hangs."""
    world = len(ranks)
    program = ranks[victim].program
    middle = len(program) // STEPS
    when = dice.randrange(middle, 2 * middle)
    culprits = {victim}
    if fault == "two":
        culprits.add(dice.choice([one for one in range(world) if one != victim]))
    if fault == "cut":
        node = victim // 8 * 8
        culprits = set(range(node, min(node + 8, world)))
        if len(culprits) == world:
            culprits, fault = {victim}, "signal"
    if fault in ("stop", "two", "signal", "dead", "cut", "exhausted", "error"):
        for one in culprits:
            ranks[one].stops = when
    plain = [n for n in range(middle, 2 * middle) if program[n] != SYNC and program[n][1] != "p2p"]
    if fault == "kernel":
        name = program[dice.choice(plain)][0]
        return set(groups[name]), name
    if fault in ("skip", "order"):
        _desync(fault, program, [n for n in plain if len(groups[program[n][0]]) > 2], dice)
    return culprits, ""


def _sorts(fault: str, program: list[Op], groups: dict[str, list[int]]) -> str:
    """The fault, or a stop where this rank's program has no groups with a majority for it."""
    places = [op for op in program if len(groups.get(op[0], ())) > 2]
    enough = {"skip": bool(places), "order": len(set(places)) > 1}
    return fault if enough.get(fault, True) else "stop"


def _desync(fault: str, program: list[Op], places: list[int], dice: random.Random) -> None:
    """Skip a collective, or call two in the other order."""
    if fault == "skip":
        del program[dice.choice(places)]
        return
    a, b = dice.choice([(a, b) for a, b in pairwise(places) if program[a] != program[b]])
    program[a], program[b] = program[b], program[a]


def _awaited(ranks: list[_Rank], groups: dict[str, list[int]], victim: int) -> bool:
    """Whether any rank waits in an operation that this one has not launched."""
    heads = {one.launched[one.done] for one in ranks if one.done < len(one.launched)}
    return any(
        ranks[victim].seq[name] <= seq
        for name, seq, _ in heads
        if victim in groups.get(name, map(int, name.split("-") if "-" in name else ()))
    )


def _run(ranks: list[_Rank], groups: dict[str, list[int]], stuck: str) -> None:
    """Run hosts and GPUs until nothing moves."""
    reached: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    stuck_at = 1 if stuck else 0
    todo = list(range(len(ranks)))
    while todo:
        number = todo.pop()
        rank = ranks[number]
        _launch(rank)
        if rank.done >= len(rank.launched):
            continue
        name, seq, function = rank.launched[rank.done]
        reached[name, seq][number] = function
        there = reached[name, seq]
        hangs = name == stuck and seq >= stuck_at
        size = len(groups[name]) if name in groups else 2
        if len(there) == size and len(set(there.values())) == 1 and not hangs:
            for one in reached.pop((name, seq)):
                ranks[one].done += 1
                todo.append(one)


def _launch(rank: _Rank) -> None:
    """Let the host launch what it can."""
    while rank.at < len(rank.program):
        if rank.stops is not None and rank.at >= rank.stops:
            return
        name, function = rank.program[rank.at]
        if (name, function) == SYNC:
            if rank.done < len(rank.launched):
                return
        else:
            rank.launched.append((name, rank.seq[name], function))
            rank.seq[name] += 1
            if function != "p2p":
                own = rank.counts.setdefault(name, {})
                own[function] = own.get(function, 0) + 1
        rank.at += 1


def _ras(
    fault: str, culprits: set[int], ranks: list[_Rank], groups: dict[str, list[int]],
    dice: random.Random,
) -> Job:  # fmt: skip
    silent = {"signal": "late", "dead": "dead", "cut": dice.choice(("late", "dead"))}.get(fault, "")
    peers = [
        Peer(
            f"10.0.{n // 8 // 250}.{n // 8 % 250 + 1}", 1000 + n, n % 8,
            silent if silent and n in culprits else "yes",
        )
        for n in range(len(ranks))
    ]  # fmt: skip
    base = {kind: dice.randrange(0, 90000) for kind in ("wo", "tp", "dp")}
    comms = []
    for name, members in groups.items():
        offset = base.get(name[:2], 0)
        counts = {}
        for one in members:
            own = ranks[one].counts.get(name, {})
            counts[one] = {f: n + (offset if f == "AllReduce" else 0) for f, n in own.items()}
            if offset and "AllReduce" not in own:
                counts[one]["AllReduce"] = offset
        comm = Comm(hash=dice.getrandbits(64), ranks=members, counts=counts)
        for one in culprits.intersection(members) if fault == "exhausted" else ():
            comm.status[one] = "NOCOMM"
        if fault == "error":
            comm.errors = {
                one: dice.choice((1, 2)) if one in culprits else 6
                for one in members
                if one in culprits or dice.random() < 0.1
            }
        comms.append(comm)
    return Job(peers, comms, version=dice.choice(VERSIONS[fault == "order" :]))


def _state(
    fault: str, culprits: set[int], ranks: list[_Rank], world: int, *, blind: bool, gpus: bool
) -> Any:
    def where(number: int) -> dict[str, Any]:
        rank, guilty = ranks[number], number in culprits and fault != "kernel"
        if fault == "dead" and guilty:
            return {"state": "absent"}
        more: dict[str, Any] = {"wait_channel": "futex_do_wait"}
        if gpus:
            more["gpus"] = (f"GPU-{number}",)
        if fault == "signal" and guilty:
            more["state"] = "stopped"
        if blind:
            return {**more, "no_stacks": "kernel.yama.ptrace_scope is 3"}
        if guilty and fault in ("stop", "two", "error"):
            return standing(at(FAULT_LINE, "evaluate"), **{**more, "wait_channel": "hrtimer"})
        if guilty and fault == "exhausted":
            return standing(collective("destroy_process_group", 99), **more)
        waits = rank.launched[rank.done][0] if rank.done < len(rank.launched) else "world"
        operation = "recv" if "-" in waits else "all_reduce"
        return standing(collective(operation, 40 + rank.at % 20), **more)

    looks: dict[str, dict[str, Any]] = {}
    for start in range(0, world, 8):
        looks[f"gpu{start // 8 + 1:03}"] = {
            "gpus": tuple(
                GpuLook(
                    index=n - start, uuid=f"GPU-{n}",
                    busy_percent=100 if ranks[n].done < len(ranks[n].launched) else 2,
                )
                for n in range(start, min(start + 8, world))
            )
        }  # fmt: skip
    return job(world, where, nodes=looks if gpus else None)
