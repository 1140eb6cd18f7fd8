"""Estimates how long the stages of a run will take, before any node is contacted.

From the nodes, GPUs and NICs that the inventory expects, the plans of burn-in and sweep, and
durations.toml. If a history has the times of the last run of this fleet and tier, those win.
"""

from __future__ import annotations

from itertools import count
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight.burn.burn_in import BURN_SHARE, Devices, burn_plan, fit, nic_turn_s, open_s, phases_s
from preflight.check import Stage, Tier
from preflight.core.thresholds import duration
from preflight.fabric.planner import rounds_that_fit
from preflight.fabric.retest import RETEST_TIMES
from preflight.fabric.sweep_plan import SweepPlan, loaded_s
from preflight.history.run_record import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from preflight.burn.burn_in import Load
    from preflight.facts.burn import Kind
    from preflight.fleet.model import Fleet

GPUS_ASSUMED = 8
"""GPUs of a node that the inventory does not describe: a plan for too few would not fit."""

_SIDES = 2  # NUMA nodes of a machine with 8 GPUs
_STEP_S, _MOST_S = 10, 7 * 86400  # of a budget that is proposed
_DRIVER_GPUS = "/proc/driver/nvidia/gpus"
"""A folder for each GPU of this machine, if the driver is loaded."""

_NVLINK_DOMAIN_MODELS = ("GB200", "GB300")
"""GPUs that share NVLink with those of other nodes. An inventory names no domains: NVML does."""

_DOMAIN_ROUNDS = 3  # fabric/roster.py, `neighbours`


class Times(NamedTuple):
    """The estimate of each stage within one budget, seconds."""

    facts_s: float
    """Logins, facts and ports."""
    burn_s: float
    start_s: float
    """The sweep without rounds and retests: start, inside the nodes, NVLink between them."""
    round_s: float
    retests_s: float
    left_out: tuple[str, ...]
    """Parts of the burn-in for which the budget has no time."""


class Workload(Struct, frozen=True, kw_only=True):
    """What a run consists of, as far as this is known before the nodes answer."""

    nodes: int
    gpus: int
    """The most GPUs of any node; 0: the sweep uses gloo."""
    nics: int
    """The most NICs of any node that the burn-in measures one by one."""
    assumed: bool
    """Whether the number of GPUs is only assumed."""
    tier: Tier
    stages: frozenset[Stage]
    nvlink_domains: bool = False
    """Nodes may share NVLink."""
    catch_rate: float | None = None
    last: Cost | None = None
    """The times of the last run of this fleet and tier."""

    def times(self, wall_s: float) -> Times:
        """Estimate every stage, with as much of it as fits into a budget."""
        facts_s = duration("facts.node_s") + self.nodes * duration("facts.each_s")
        facts_s += duration("ports.stage_s") if "net" in self.stages else 0.0
        burn_s, left_out = 0.0, tuple[str, ...]()
        if "local" in self.stages:
            burn_s, left_out = self._burn(wall_s - facts_s)
        start_s = round_s = retests_s = 0.0
        if "fabric" in self.stages and (self.nodes > 1 or self.gpus > 1):
            # A retest has few pairs, none of them as slow as the slowest of many.
            round_s, retest_s = self._round_s(self.nodes), self._round_s(1, RETEST_TIMES)
            start_s = duration("torch.import_s") + duration("torch.doubling_s") * log2(self.nodes)
            if self.gpus:
                start_s += open_s(self.gpus)
            if self.gpus > 1:
                start_s += round_s + duration("nccl.inside_s")
            if self.nodes > 1:
                start_s += _DOMAIN_ROUNDS * round_s if self.nvlink_domains else 0.0
                retests_s = duration("retest.rounds") * retest_s
            if self.catch_rate is not None:
                start_s += loaded_s(self.catch_rate)
        return Times(facts_s, burn_s, start_s, round_s, retests_s, left_out)

    def cost(self, wall_s: float) -> Cost:
        """The time of a round and of everything else: the last run's, or estimated."""
        if self.last is not None:
            return self.last
        times = self.times(wall_s)
        other_s = times.facts_s + times.burn_s + times.start_s + times.retests_s
        return Cost(times.round_s, other_s)

    def too_small(self, wall_s: float) -> str:
        """Why a budget is too small for the smallest useful run, and what to type; else "".

        Useful is a complete, possibly short burn-in, the inside of the nodes, and one round.
        """
        if not self.stages & {"local", "fabric"} or self._fits_smallest_run(wall_s):
            return ""
        enough_s = _first_budget(wall_s, self._fits_smallest_run)
        return (
            f"{wall_s:g} s is too short: the smallest useful run takes about "
            f"{self._smallest_run_s(enough_s):.0f} s; give --preflight-budget={enough_s}"
        )

    def lines(self, wall_s: float, rounds: int, wanted: int) -> list[str]:
        """The estimate's lines in the header; `rounds` of the `wanted` ones are planned."""
        times, cost = self.times(wall_s), self.cost(wall_s)
        extent = f"{rounds} of {wanted}" if rounds < wanted else f"{rounds}"
        text = f"{extent} round{'s' if extent != '1' else ''}"
        if self.last is not None:
            stages = f"{cost.other_s:.0f} s and {text} of {cost.round_s:.1f} s, as in the last run,"
        else:
            parts = [f"{times.facts_s:.0f} s facts"]
            parts += [f"{times.burn_s:.0f} s burn-in"] if times.burn_s else []
            if times.start_s:
                where = f"({text})" if rounds else "inside the node"
                sweep_s = times.start_s + times.retests_s + rounds * times.round_s
                parts.append(f"{sweep_s:.0f} s sweep {where}")
            stages = ", ".join(parts)
        certain = not self.assumed or not (times.burn_s or times.start_s)
        assumed = "" if certain else f"; assumes {self.gpus} GPUs a node"
        lines = [f"time     about {stages} of {wall_s:g} s{assumed}"]
        if why := self.too_small(wall_s):
            lines.append(f"budget   {why}")
        elif left_out := self._left_out(wall_s, rounds, wanted):
            enough_s = _first_budget(wall_s, lambda budget_s: self._fits_all(budget_s, wanted))
            hint = f"; --preflight-budget={enough_s} has time for all" if enough_s < _MOST_S else ""
            lines.append(f"left out {', '.join(left_out)}: no time in {wall_s:g} s{hint}")
        return lines

    @property
    def without_assumed_gpus(self) -> Workload:
        """The same run without the GPUs that are only assumed."""
        return replace(self, gpus=0, nics=0) if self.assumed else self

    def _fits_smallest_run(self, wall_s: float) -> bool:
        """Whether there is time for one round, by the last run's times or by the estimate.

        Either suffices: one slow run must not make preflight refuse all later ones.
        """
        if self.last is not None and self.last.other_s + self.last.round_s <= wall_s:
            return True
        times = self.times(wall_s)
        # The burn-in ends at its share; the sweep gets the rest.
        burn_fits = times.burn_s <= BURN_SHARE * (wall_s - times.facts_s) + _STEP_S / 100
        return burn_fits and self._smallest_run_s(wall_s) <= wall_s

    def _smallest_run_s(self, wall_s: float) -> float:
        """The time of everything with one round and no retests."""
        times = self.times(wall_s)
        rounds_s = times.round_s if self.nodes > 1 else 0.0
        return times.facts_s + times.burn_s + times.start_s + rounds_s

    def _fits_all(self, wall_s: float, rounds: int) -> bool:
        """Whether everything fits into a budget, with the planner's margin."""
        fits = rounds_that_fit(wall_s, self.cost(wall_s)) >= max(1, rounds)
        return fits and not self._left_out(wall_s, rounds, rounds)

    def _left_out(self, wall_s: float, rounds: int, wanted: int) -> list[str]:
        """The parts that do not fit into the budget."""
        cost, times = self.cost(wall_s), self.times(wall_s)
        parts = list(times.left_out)
        excess_s = cost.other_s + rounds * cost.round_s - wall_s
        retests_s = min(times.retests_s, cost.other_s)
        if excess_s > retests_s and cost.round_s:  # more rounds were requested than fit
            rounds = max(0, rounds - ceil((excess_s - retests_s) / cost.round_s))
        if rounds < wanted:
            parts.append(f"{wanted - rounds} of {wanted} rounds")
        if excess_s > 0 and retests_s:
            parts.append("retests of suspects")
        return parts

    def _burn(self, left_s: float) -> tuple[float, tuple[str, ...]]:
        kind: Kind = "cuda" if self.gpus else "cpu"
        nic_turns = ceil(self.nics / _SIDES)
        devices = Devices(gpus=self.gpus or _SIDES, sides=_SIDES, nic_turns=nic_turns)
        full = burn_plan(self.tier).load_of(kind)
        load = fit(burn_plan(self.tier), left_s, devices).load_of(kind)
        phases = phases_s(load, kind, devices)
        left_out = []
        if full.sustained and load.sustained and load.sustained.seconds < full.sustained.seconds:
            missing_s = full.sustained.seconds - load.sustained.seconds
            left_out.append(f"{missing_s:.3g} of {full.sustained.seconds:g} s of sustained load")
        turns = _nic_turns(load, devices)
        if turns < devices.nic_turns and load.nic is not None:
            phases["nic"] = turns * nic_turn_s(load.nic)
            unmeasured = self.nics - turns * _SIDES
            left_out.append(f"loopback of {unmeasured} of {self.nics} NICs a node")
        return sum(phases.values()), tuple(left_out)

    def _round_s(self, nodes: int, times: int = 1) -> float:
        """The time of the slowest pair of `nodes`, with `times` as many iterations."""
        plan, backend = SweepPlan(nodes=(), rounds=()), "nccl" if self.gpus else "gloo"
        ladder, soak = plan.sizes(backend)
        limits = plan.nccl_budget if self.gpus else plan.gloo_budget
        wire_gbs = duration(f"{backend}.wire_gbs")
        spent_s = duration(f"{backend}.setup_s")
        spent_s += duration(f"{backend}.doubling_s") * max(0.0, log2(nodes) - 1)
        for rung in (*ladder, *([soak] if soak is not None else [])):
            box_s = limits.soak_s if rung is soak else limits.box_s
            one_s = duration(f"{backend}.operation_s") + rung.size_bytes / wire_gbs / 1e9
            spent_s += rung.warmup * one_s + min(box_s, rung.iterations * one_s) * times
        return spent_s


def workload(
    fleet: Fleet,
    tier: Tier,
    stages: Collection[Stage],
    *,
    catch_rate: float | None = None,
    last: Cost | None = None,
) -> Workload:
    """Derive the workload from the fleet. A node has the GPUs that the inventory expects.

    Without that number it has one GPU per rank, else those of this machine if it is the fleet, else
    eight are assumed.
    """
    counts = [host.expected.gpus for host in fleet.hosts if host.expected.gpus is not None]
    number = max(counts, default=fleet.job.nproc_per_node)
    if number is None and all(host.transport == "local" for host in fleet.hosts):
        number = _local_gpus()
    gpus = GPUS_ASSUMED if number is None else number
    models = {host.expected.gpu_model or "" for host in fleet.hosts}
    nics = [host.expected.nics for host in fleet.hosts if host.expected.nics is not None]
    return Workload(
        nodes=len(fleet.hosts),
        gpus=gpus,
        nics=max(nics, default=gpus),
        assumed=number is None,
        tier=tier,
        stages=frozenset(stages),
        nvlink_domains=any(name in model for model in models for name in _NVLINK_DOMAIN_MODELS),
        catch_rate=catch_rate,
        last=last,
    )


def _local_gpus() -> int:
    try:
        return sum(1 for _ in Path(_DRIVER_GPUS).iterdir())
    except OSError:
        return 0


def _first_budget(from_s: float, enough: Callable[[float], bool]) -> int:
    """The smallest budget, in steps of 10 s, that is enough."""
    budgets = count(ceil(from_s / _STEP_S) * _STEP_S, _STEP_S)
    return next(budget_s for budget_s in budgets if budget_s >= _MOST_S or enough(budget_s))


def _nic_turns(load: Load, devices: Devices) -> int:
    """How many NICs of one NUMA node the burn-in has time for, by the estimate."""
    if load.nic is None:
        return 0
    return min(devices.nic_turns, int(load.limit_s["nic"] / nic_turn_s(load.nic) + 0.01))
