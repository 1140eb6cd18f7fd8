"""Groups like nodes for an inventory, with their bandwidth in a sweep.

A setting is an operator's choice, not hardware: nodes that differ only in a setting stay in one
group, and the operator decides which value is right. A value that a check warns of is not learned.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from preflight.burn.units import baseline_of, series_of_node
from preflight.checks.gpu.readings import reading
from preflight.checks.gpu.test_settings import is_workstation
from preflight.core.statistics import grouped, median
from preflight.core.text import count
from preflight.core.thresholds import SHIPPED
from preflight.fabric.node_allreduce import measure_inside
from preflight.fabric.observed import digests, ladder
from preflight.fabric.pair_summary import joint_state, wire_from
from preflight.facts.boards import board, link_counts
from preflight.fleet.model import Expected, Host
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.facts.burn import Burned
    from preflight.facts.model import Facts, Gpu


_T = TypeVar("_T")
_RATE = re.compile(r"(\d+)(?:\.\d+)?\s*Gb/sec")
_LINKS = {"infiniband": "ib", "ethernet": "roce"}


def unlearnable(facts: Facts) -> str:
    """Return why nothing can be learned from a node's facts; "" if it can.

    A node whose driver does not answer would be learned as one without GPUs.
    """
    if facts.driver.state in ("hung", "error"):
        return f"its GPU driver does not answer ({facts.driver.error or facts.driver.state})"
    if facts.driver.state == "answered" and facts.gpus is None:
        return "its driver does not list its GPUs"
    broken = [line for line in facts.problems if line.startswith("GPU ")]
    return f"one of its GPUs cannot be read: {broken[0]}" if broken else ""


def expected_of(facts: Facts) -> Expected:
    """Return the hardware of a node that can be expected of all nodes like it."""
    gpus = facts.gpus or ()
    nics, rates, links = _live_ports(facts)
    return Expected(
        gpus=len(gpus) or None,
        gpu_model=_common_value(gpu.name for gpu in gpus),
        nvlinks_per_gpu=_common_value(link_counts(facts) or ()) or None,
        nics=nics or None,
        nic_gbits=_common_value(rates),
        nic_link="ib" if links == "ib" else "roce" if links == "roce" else None,
    )


def _live_ports(facts: Facts) -> tuple[int, list[int | None], str]:
    """Return the number of devices with a live port of the most frequent layer, rates, and layer.

    A front-end network of another layer, and ports without a cable, are not learned.
    """
    live = [
        (nic.name, _LINKS.get(port.link_layer.lower(), ""), _RATE.match(port.rate))
        for nic in facts.nics or ()
        for port in nic.ports
        if "ACTIVE" in port.state.upper()
    ]
    layers = Counter(layer for _, layer, _ in live)
    layer = max(layers, key=lambda name: (layers[name], name == "ib"), default="")
    names = {name for name, link, _ in live if link == layer}
    rates = [int(rate[1]) if rate else None for _, link, rate in live if link == layer]
    return len(names), rates, layer


def _common_value(values: Iterable[_T | None]) -> _T | None:
    """Return the value that all share; None where they differ or one is unknown."""
    several = set(values)
    return several.pop() if len(several) == 1 else None


MODES: Final = (
    *("mig", "ecc", "persistence", "compute_mode", "power_limit_w"),
    *("pcie_lanes", "pcie_generation"),
)
"""The settings that are learned here."""

_READINGS: Final = {
    "mig": "mig_enabled",
    "ecc": "ecc_on",
    "pcie_lanes": "pcie_width",
    "pcie_generation": "pcie_gen_max",
}
_PENDING: Final = {"mig": "mig_pending", "ecc": "ecc_pending"}
_EXPECTED_MODES: Final = ("default", "exclusive_process")
"""Compute modes in which a job can start and that an inventory can name."""


def common_modes(base: Expected, facts: Mapping[str, Facts]) -> tuple[Expected, tuple[str, ...]]:
    """Add the settings that can be expected of these nodes.

    Return also one sentence per setting that is not learned although GPUs report it.
    """
    gpus = [gpu for node in facts.values() for gpu in node.gpus or ()]
    common: dict[str, Any] = {}
    left_open = []
    for key in MODES:
        by_node = {
            name: {gpu_value(gpu, key) for gpu in node.gpus or ()} for name, node in facts.items()
        }
        values = set().union(*by_node.values())
        if values <= {None}:
            continue
        if reason := _unread(by_node) or _spread(key, by_node, values) or _warning(key, gpus):
            left_open.append(f"{key} is left open: {reason}")
        else:
            common[key] = max(values)
    return replace(base, **common), tuple(left_open)


def gpu_value(gpu: Gpu, key: str) -> Any:
    """Return one setting of a GPU, by its inventory key; None where unknown."""
    value = reading(gpu, _READINGS.get(key, key))
    return value if isinstance(value, bool) else value or None


def _unread(by_node: Mapping[str, set[Any]]) -> str:
    unread = [name for name, values in by_node.items() if None in values]
    return f"not every GPU of {fold(unread)} tells it" if unread else ""


def _spread(key: str, by_node: Mapping[str, set[Any]], values: set[Any]) -> str:
    """Return which nodes have which value, the most frequent first; "" where all are alike.

    Power limits are alike within the slack.
    """
    slack = SHIPPED("power_limit_slack_w")
    if len(values) == 1 or (key == "power_limit_w" and max(values) - min(values) <= slack):
        return ""
    nodes_by_value = grouped(
        (" and ".join(sorted(set(map(_format_value, of_node)))), name)
        for name, of_node in by_node.items()
        if of_node
    )
    by_size = sorted(nodes_by_value.items(), key=lambda row: -len(row[1]))
    return "; ".join(f"{fold(names)} {words}" for words, names in by_size)


def _warning(key: str, all_gpus: Sequence[Gpu]) -> str:
    """Return why a shared value is not learned: a check would then no longer warn of it."""
    value = gpu_value(all_gpus[0], key)
    for gpu in all_gpus:
        pending = reading(gpu, _PENDING[key]) if key in _PENDING else None
        if pending is not None and pending != value:
            return f"{_format_value(value)} now, {_format_value(pending)} after the next reset"
    if key == "ecc" and not value and not all(is_workstation(gpu.name) for gpu in all_gpus):
        return "off, but these boards are made for on; write false if off is intended"
    if key == "compute_mode" and value not in _EXPECTED_MODES:
        return f"no job can start in {value}; write it if that is intended"
    default = max((reading(gpu, "power_default_w") or 0.0 for gpu in all_gpus), default=0.0)
    if key == "power_limit_w" and value + SHIPPED("power_limit_slack_w") < default:
        return f"{value:g} W, {default:g} W by default; write {value:g} if that is intended"
    lanes = max((reading(gpu, "pcie_width_max") or 0 for gpu in all_gpus), default=0)
    spec = board(all_gpus[0].name)
    generation = (spec.pcie_gen if spec is not None else None) or 0
    possible = {"pcie_lanes": lanes, "pcie_generation": generation}.get(key, 0)
    if possible and value < possible:
        return f"{value}, {possible} is possible; write {value} if that is intended"
    return ""


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g} W" if isinstance(value, float) else str(value)


HARDWARE = ("gpus", "gpu_model", "nvlinks_per_gpu", "nics", "nic_gbits", "nic_link")
"""Keys that are learned of each node, and that separate one kind of node from another."""

LEARNED_KEYS = (*HARDWARE[:3], *MODES, *HARDWARE[3:])
"""Keys that are learned of a group; the operator writes the other expected values."""


class Baseline(Struct, frozen=True):
    """The median that a group reached, and of how many measurements."""

    value: float
    basis: str
    """As in "28 pairs"."""


class LearnedGroup(Struct, frozen=True, kw_only=True):
    """Nodes with the same hardware and the same login."""

    name: str
    hosts: tuple[Host, ...]
    expected: Expected
    baselines: dict[str, Baseline]
    remark: str
    """How it differs from the larger group that it was in; "" for that group."""
    left_open: tuple[str, ...] = ()
    """Settings that are not learned although its GPUs report them, and why."""


def learned_groups(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    sweep: Sweep | None,
    burned: Mapping[str, Burned] | None = None,
) -> tuple[LearnedGroup, ...]:
    """Group nodes that are alike and were in one group; the larger of two groups keeps its name."""
    kinds: list[tuple[Host, Expected, list[Host]]] = []
    for host in hosts:
        has, login = expected_of(facts[host.name]), _login_of(host)
        group = next((nodes for kind, other, nodes in kinds if (kind, other) == (login, has)), None)
        if group is None:
            kinds.append((login, has, [host]))
        else:
            group.append(host)
    kinds.sort(key=lambda row: -len(row[2]))
    by_name: dict[str, Expected] = {}
    groups = []
    for login, has, nodes in kinds:
        model = f"{has.gpu_model or 'gpu'}-x{has.gpus}" if has.gpus else "nodes"
        slug = _slug(login.group if login.group != "all" else model)
        numbered = (f"{slug}-{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([slug], numbered) if name not in by_name)
        remark = "" if name == slug else f"unlike {slug}: {_differences(has, by_name[slug])}"
        by_name[name] = has
        names = {host.name for host in nodes}
        baselines = dict(_load_baselines(burned or {}, facts, names))
        baselines |= dict(_sweep_baselines(sweep, names)) if sweep else {}
        expected, left_open = common_modes(has, {host.name: facts[host.name] for host in nodes})
        groups.append(
            LearnedGroup(
                name=name, hosts=tuple(nodes), expected=expected, baselines=baselines,
                remark=remark, left_open=left_open,
            )
        )  # fmt: skip
    return tuple(groups)


def _login_of(host: Host) -> Host:
    """Return a host without its own values: two hosts with equal results share a login."""
    login = replace(host, name="h", address="h", leaf="", group_rank=None, off={})
    return replace(login, expected=Expected())


def _slug(name: str) -> str:
    """Return a bare key of TOML."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name.removeprefix("NVIDIA ")).strip("-")
    return slug[:60].lower() if name.startswith("NVIDIA ") else slug[:60] or "nodes"


def _differences(has: Expected, usual: Expected) -> str:
    differ = [
        f"{name} {getattr(has, name)}, not {getattr(usual, name)}"
        for name in HARDWARE
        if getattr(has, name) != getattr(usual, name)
    ]
    return "; ".join(differ) or "another login"


def _load_baselines(
    burned: Mapping[str, Burned], facts: Mapping[str, Facts], names: set[str]
) -> Iterator[tuple[str, Baseline]]:
    """Yield what these GPUs reached under load: the median of each part's best value."""
    series = grouped(
        (measure, raw.best)
        for name in sorted(names & burned.keys())
        for raw in series_of_node(name, burned[name], facts.get(name))
        if (measure := baseline_of(raw))
    )
    for name, values in series.items():
        yield name, Baseline(round(median(values), 3), count(len(values), "reading"))


def _sweep_baselines(sweep: Sweep, names: set[str]) -> Iterator[tuple[str, Baseline]]:
    """Yield what NCCL reached among these nodes; gloo measures CPUs, not NICs."""
    pairs = [
        sizes[-1].busbw_gbs
        for pair in sweep.pairs
        if pair.backend == "nccl" and {pair.a, pair.b} <= names and joint_state(pair) == "measured"
        for sizes in (ladder(digests(pair)),)
        if sizes and sizes[-1].size_bytes >= wire_from(pair.backend)
    ]  # fmt: skip
    if pairs:
        yield "rail", Baseline(round(median(pairs), 3), count(len(pairs), "pair"))
    inside = [
        result.sizes[-1].busbw_gbs
        for samples in sweep.inside
        if samples.backend == "nccl" and samples.node in names
        for result in (measure_inside(samples),)
        if result.state == "measured"
    ]
    if inside:
        yield "all_reduce", Baseline(round(median(inside), 3), count(len(inside), "node"))
