"""Nodes that turned out alike, as groups of an inventory, with what they reached in a sweep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.burn.floors import baseline_of
from preflight.burn.units import units
from preflight.fabric.inside_measure import measure_inside
from preflight.fabric.measure import summarise, wire_from
from preflight.facts.found import found
from preflight.facts.found_modes import MODES, found_modes
from preflight.fleet.model import Host, Promise
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.facts.burned import Burned
    from preflight.facts.model import Facts

HARDWARE = ("gpus", "gpu_model", "nvlinks_per_gpu", "nics", "nic_gbits", "nic_link")
"""What is learned of a node, and tells one kind of node from another."""

HAS = (*HARDWARE[:3], *MODES, *HARDWARE[3:])
"""What is learned of a group; the rest of a promise is for people to write."""


class Baseline(Struct, frozen=True):
    """What a group reached, as a median, and of how many: "28 pairs"."""

    value: float
    of: str


class LearnedGroup(Struct, frozen=True, kw_only=True):
    """Nodes with the same hardware and the same way in."""

    name: str
    hosts: tuple[Host, ...]
    has: Promise
    baselines: dict[str, Baseline]
    remark: str
    """How it is unlike the larger group that it was in; empty for that one."""
    left_open: tuple[str, ...] = ()
    """Settings that are not promised although its GPUs tell them, and why."""


def learned_groups(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    sweep: Sweep | None,
    burned: Mapping[str, Burned] | None = None,
) -> tuple[LearnedGroup, ...]:
    """Put nodes together that are alike and were in one group; the larger of two keeps its name."""
    alike: list[tuple[Host, Promise, list[Host]]] = []
    for host in hosts:
        has, way = found(facts[host.name]), _way(host)
        same = next((one for kind, its, one in alike if (kind, its) == (way, has)), None)
        if same is None:
            alike.append((way, has, [host]))
        else:
            same.append(host)
    alike.sort(key=lambda one: -len(one[2]))
    taken: dict[str, Promise] = {}
    groups = []
    for way, has, members in alike:
        wanted = _slug(way.group if way.group != "all" else _kind(has))
        name = next(name for name in _numbered(wanted) if name not in taken)
        remark = "" if name == wanted else f"unlike {wanted}: {_differences(has, taken[wanted])}"
        taken[name] = has
        names = {host.name for host in members}
        reached = dict(_burned(burned or {}, facts, names))
        reached |= dict(_reached(sweep, names)) if sweep else {}
        modes = found_modes(has, {host.name: facts[host.name] for host in members})
        groups.append(
            LearnedGroup(
                name=name, hosts=tuple(members), has=modes.promise, baselines=reached,
                remark=remark, left_open=modes.left_open,
            )
        )  # fmt: skip
    return tuple(groups)


def _way(host: Host) -> Host:
    """A host without what is its own: two that are equal then are reached alike."""
    return replace(host, name="", address="", leaf="", promised=Promise(), group_rank=None, off={})


def _kind(has: Promise) -> str:
    return f"{has.gpu_model or 'gpu'}-x{has.gpus}" if has.gpus else "nodes"


def _slug(name: str) -> str:
    """A bare key of TOML."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name.removeprefix("NVIDIA ")).strip("-")
    return slug[:60].lower() if name.startswith("NVIDIA ") else slug[:60] or "nodes"


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _differences(has: Promise, usual: Promise) -> str:
    differ = [
        f"{name} {getattr(has, name)}, not {getattr(usual, name)}"
        for name in HARDWARE
        if getattr(has, name) != getattr(usual, name)
    ]
    return "; ".join(differ) or "another way in"


def _burned(
    burned: Mapping[str, Burned], facts: Mapping[str, Facts], names: set[str]
) -> Iterator[tuple[str, Baseline]]:
    """What their GPUs reached under load: the median over parts of the best that each did."""
    series: dict[str, list[float]] = {}
    for name in sorted(names & burned.keys()):
        for raw in units(name, burned[name], facts.get(name)):
            if measure := baseline_of(raw):
                series.setdefault(measure, []).append(raw.best)
    for name, values in series.items():
        yield name, Baseline(round(median(values), 3), _many(len(values), "reading"))


def _reached(sweep: Sweep, names: set[str]) -> Iterator[tuple[str, Baseline]]:
    """What NCCL reached among these nodes; by gloo, CPUs measure each other and no NIC."""
    pairs = [
        summary.sizes[-1].busbw_gbs
        for pair in sweep.pairs
        if pair.backend == "nccl" and {pair.a, pair.b} <= names
        for summary in (summarise(pair),)
        if summary.state == "measured" and summary.sizes
        and summary.sizes[-1].size_bytes >= wire_from(pair.backend)
    ]  # fmt: skip
    if pairs:
        yield "rail", Baseline(round(median(pairs), 3), _many(len(pairs), "pair"))
    inside = [
        one.sizes[-1].busbw_gbs
        for samples in sweep.inside
        if samples.backend == "nccl" and samples.node in names
        for one in (measure_inside(samples),)
        if one.state == "measured"
    ]
    if inside:
        yield "all_reduce", Baseline(round(median(inside), 3), _many(len(inside), "node"))


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
