"""A machine that got worse never gets a better verdict: random edits, one after another.

The inventory expects a whole machine. 1,000 machines here; PREFLIGHT_CASES says how many, and
PREFLIGHT_SEED draws others.

What the inventory does not expect, GPUs beside it show, however few: as long as one of them is
whole, no further one that gets worse eases the verdict. Once all are alike, the board's own numbers
remain, and they warn. What it expects stays a failure. So each edit is also made on one GPU after
another.
"""

# ruff: noqa: E501  a table of edits
from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec.structs import replace

from preflight.commands.read import fact_checks
from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.facts.gpu import GpuHealth
from preflight.facts.machine import Dimm, Edac, Governor, LogLine
from preflight.facts.node import Group, Net, Node, Reach
from preflight.facts.node_network import Counter, Counters
from preflight.fleet.model import Expected, Job
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.core.registry import Registered
    from preflight.facts import Facts
    from preflight.facts.model import Gpu, Nic

CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
SEED = os.environ.get("PREFLIGHT_SEED", "1")
SHARE = 4
"""Cases are dealt to so many tests, which run beside each other."""
EXPECTED = Expected(
    gpus=8, gpu_model="H100 80GB", nvlinks_per_gpu=18, nics=8, nic_gbits=400, power_limit_w=700, ecc=True,
    pcie_lanes=16, pcie_generation=5,
)  # fmt: skip
RANK = {"ok": 0, "not_run": 0, "warn": 1, "unknown": 2, "flaky": 3, "fail": 3}
FAIL = RANK["fail"]
CHECKS = [one for one in Registry(load_folder(shipped_folder())) if one.check.id in fact_checks()]

Known = Literal["by inventory", "by board", "by peers"]
Edit = tuple[str, "Callable[[random.Random, Facts], Facts]"]


def _any_of(
    name: str, change: Callable[[random.Random, Any], Any]
) -> Callable[[random.Random, Facts], Facts]:
    """Change one of a node's GPUs or NICs."""

    def edit(pick: random.Random, one: Facts) -> Facts:
        each = list(getattr(one, name) or ())
        if not each:
            return one  # nothing is told of them
        at = pick.randrange(len(each))
        each[at] = change(pick, each[at])
        return replace(one, **{name: tuple(each)})

    return edit


def _health(
    change: Callable[[random.Random, GpuHealth], dict[str, Any]],
) -> Callable[[random.Random, Facts], Facts]:
    def of_gpu(pick: random.Random, gpu: Gpu) -> Gpu:
        health = gpu.health or GpuHealth()
        return replace(gpu, health=replace(health, **change(pick, health)))

    return _any_of("gpus", of_gpu)


def _port(**changes: object) -> Callable[[random.Random, Facts], Facts]:
    def of_nic(_: random.Random, nic: Nic) -> Nic:
        told = nic.ports and all(getattr(nic.ports[0], name) is not None for name in changes)
        if not told or ("state" in changes and not nic.ports[0].state):
            return nic
        return replace(nic, ports=(replace(nic.ports[0], **changes), *nic.ports[1:]))

    return _any_of("nics", of_nic)


def _link_down(pick: random.Random, gpu: Gpu) -> Gpu:
    links = list(gpu.links or ())
    if links:
        at = pick.randrange(len(links))
        links[at] = replace(links[at], up=False)
    return replace(gpu, links=tuple(links))


def _slower(pick: random.Random, health: GpuHealth) -> dict[str, Any]:
    links = list(health.link_errors or ())
    if not links:
        return {}
    at = pick.randrange(len(links))
    links[at] = replace(links[at], mbps=(links[at].mbps or 0) // 2)
    return {"link_errors": tuple(links)}


def _noisy(pick: random.Random, health: GpuHealth) -> dict[str, Any]:
    links = list(health.link_errors or ())
    if not links:
        return {}
    at = pick.randrange(len(links))
    links[at] = replace(links[at], replays=(links[at].replays or 0) + 10**7)
    return {"link_errors": tuple(links)}


def _without_one(name: str) -> Callable[[random.Random, Facts], Facts]:
    def edit(pick: random.Random, one: Facts) -> Facts:
        left = list(getattr(one, name) or ())
        if not left:
            return one
        left.pop(pick.randrange(len(left)))
        return replace(one, **{name: tuple(left)})

    return edit


def _says(*texts: str) -> Callable[[random.Random, Facts], Facts]:
    def edit(pick: random.Random, one: Facts) -> Facts:
        log = one.kernel_log
        if log is None:
            return one
        return replace(
            one, kernel_log=replace(log, lines=(*log.lines, LogLine(pick.choice(texts))))
        )

    return edit


def _machine(**changes: object) -> Callable[[random.Random, Facts], Facts]:
    return lambda _, one: replace(one, machine=one.machine and replace(one.machine, **changes))


EDITS: tuple[Edit, ...] = (
    ("a GPU is gone", _without_one("gpus")),
    ("a NIC is gone", _without_one("nics")),
    ("a link is down", _any_of("gpus", _link_down)),
    ("a link is slower", _health(_slower)),
    ("a link sends again", _health(_noisy)),
    ("ECC errors", _health(lambda _, h: {"ecc_volatile_uncorrected": (h.ecc_volatile_uncorrected or 0) + 3})),
    ("a remap failed", _health(lambda *_: {"remap_failed": True})),
    ("a remap is pending", _health(lambda *_: {"remap_pending": True})),
    ("half the lanes", _health(lambda _, h: {"pcie_width": max(1, (h.pcie_width or 2) // 2)})),
    ("a slow slot", _health(lambda *_: {"pcie_gen_max": 1, "pcie_gen": 1})),
    ("a lower power limit", _health(lambda _, h: {"power_limit_w": (h.power_limit_w or 100.0) / 2})),
    ("hotter", _health(lambda _, h: {"margin_c": (h.margin_c or 0) - 60})),
    ("a thermal slowdown", _health(lambda _, h: {"clock_reasons": (*(h.clock_reasons or ()), "hw_thermal")})),
    ("no fabric", _health(lambda *_: {"fabric_state": "in progress"})),
    ("a reading fails", _health(lambda _, h: {"errors": (*h.errors, "temperature_c: GPU is lost")})),
    ("ECC is off", _health(lambda *_: {"ecc_on": False, "ecc_pending": False})),
    ("less memory", _any_of("gpus", lambda _, gpu: replace(gpu, memory_total_mib=(gpu.memory_total_mib or 0) // 2))),
    ("persistence is off", _health(lambda *_: {"persistence": False})),
    ("a small window", _health(lambda _, h: {"bar1_total_mib": (h.bar1_total_mib or 2) // 2})),
    ("prohibited", _health(lambda *_: {"compute_mode": "prohibited"})),
    ("a port is down", _port(state="1: DOWN", phys_state="2: Polling")),
    ("a port is off", _port(state="1: DOWN", phys_state="3: Disabled")),
    ("a port is slow", _port(rate="100 Gb/sec (1X NDR)")),
    ("a port counts errors", _port(counters=Counters(read=1, nonzero=(Counter("symbol_error", 10**6, 10**6),)))),
    ("an Xid", _says(*(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, x" for code in (79, 48, 94, 119)))),
    ("a NIC's firmware", _says("mlx5_core 0000:1a:00.0: poll_health:801:(pid 0): device's health compromised")),
    ("a NIC's trouble", _says("mlx5_core 0000:1a:00.0: cmd_work_handler:1003:(pid 9): failed to allocate")),
    ("a machine check", _says("mce: [Hardware Error]: CPU 7: Machine Check: 0 Bank 1: be00000000800400")),
    ("a lost DIMM word", _machine(edac=Edac(32, (Dimm("P1-DIMMA1", corrected=9, uncorrected=2),)))),
    ("slow governors", _machine(governors=(Governor("powersave", "intel_pstate", 192),))),
)  # fmt: skip


def _node(one: Facts, expected: Expected) -> Node:
    return Node(
        name="h1", expected=expected, reach=Reach("captured"), facts=one,
        group=Group("group", {"h1": one}), job=Job(),
        net=Net(own=None, trouble="not asked", master="", is_master=False,
                master_port_origin="", to_me=(), others_to_master=()),
    )  # fmt: skip


def verdicts(
    one: Facts, expected: Expected = EXPECTED, checks: Sequence[Registered] = CHECKS
) -> dict[str, str]:
    """What every check of one node says of it, by id."""
    node = _node(one, expected)
    return {each.check.id: str(each.conclude(node).outcome.value) for each in checks}


def gravest(said: Mapping[str, str]) -> int:
    """The rank of the worst outcome."""
    return max((RANK[outcome] for outcome in said.values()), default=0)


def rank_of(one: Facts, expected: Expected, order: list[Registered]) -> int:
    """The same of a node, by these checks; one that fails comes first the next time."""
    node, rank = _node(one, expected), 0
    for at, each in enumerate(order):
        rank = max(rank, RANK[str(each.conclude(node).outcome.value)])
        if rank == FAIL:
            order.insert(0, order.pop(at))
            break
    return rank


def eased_by_edits(
    whole: Facts, expected: Expected, cases: Iterable[int]
) -> list[tuple[int, tuple[str, ...]]]:
    """Of each case, by its number: the edits after which the gravest outcome was not as grave."""
    eased, order = [], list(CHECKS)
    healthy = rank_of(whole, expected, order)
    for case in cases:
        pick = random.Random(f"{SEED} {case}")  # noqa: S311
        one, done, rank = whole, list[str](), healthy
        for name, edit in pick.choices(EDITS, k=4):
            one = edit(pick, one)
            done.append(name)
            now = rank_of(one, expected, order)
            if now < rank:
                eased.append((case, tuple(done)))
            rank = now
    return eased


class _Number(random.Random):
    """Picks the device of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Of so many."""
        del stop, step
        return self.number % start


def eased_one_by_one(
    whole: Facts,
    rank: Callable[[Facts], int],
    edits: Iterable[str],
    known: Known,
) -> list[tuple[str, list[int]]]:
    """The edits with the ranks after which one GPU more eased the verdict.

    The last one may where the right number is known by the board, from a failure to a warning, or
    by peers, to nothing.
    """
    eased, healthy = [], rank(whole)
    for name in edits if whole.gpus else ():
        one, ranks = whole, [healthy]
        for at in range(len(whole.gpus or ())):
            one = dict(EDITS)[name](_Number(at), one)
            ranks.append(rank(one))
        worst = sorted(ranks[:-1])
        by_board = min(ranks[1], RANK["warn"])
        least = {"by inventory": max(worst), "by board": by_board, "by peers": 0}[known]
        if ranks[:-1] != worst or ranks[-1] < least:
            eased.append((name, ranks))
    return eased


OF_GPUS = (
    "a link is down", "a link is slower", "a link sends again", "ECC errors", "a remap failed",
    "a remap is pending", "half the lanes", "a slow slot", "a lower power limit", "hotter",
    "a thermal slowdown", "no fabric", "a reading fails", "ECC is off", "less memory", "prohibited",
)  # fmt: skip
OF_PEERS = ("persistence is off", "a small window")
"""Only peers show these: on all GPUs they may be a site's choice."""


@pytest.mark.parametrize("expected", [EXPECTED, Expected()], ids=["inventory", "no inventory"])
def test_one_gpu_more_that_gets_worse_never_eases_the_verdict(expected: Expected) -> None:
    """Half of the GPUs prove as much as one: where a board says what is right, peers do not vote."""
    whole, order = facts(), list(CHECKS)

    def rank(one: Facts) -> int:
        return rank_of(one, expected, order)

    known: Known = "by inventory" if expected.gpus else "by board"
    assert eased_one_by_one(whole, rank, OF_GPUS, known) == []
    assert eased_one_by_one(whole, rank, OF_PEERS, "by peers") == []


def test_the_whole_machine_is_ready() -> None:
    """Edits begin at a machine of which nothing is said."""
    odd = {check: outcome for check, outcome in verdicts(facts()).items() if RANK[outcome] > 1}
    assert odd == {}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit[0])
def test_each_edit_is_seen(edit: Edit) -> None:
    """Alone, it makes some check worse than on the whole machine."""
    before, after = verdicts(facts()), verdicts(edit[1](random.Random(7), facts()))  # noqa: S311
    assert any(RANK[after[check]] > RANK[before[check]] for check in before), edit[0]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARE))
def test_no_edit_that_makes_a_machine_worse_makes_its_verdict_better(share: int) -> None:
    """Four edits after another, of any GPU, NIC or line; the gravest outcome never eases."""
    assert eased_by_edits(facts(), EXPECTED, range(share, CASES, SHARE)) == []
