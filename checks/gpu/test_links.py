"""How a GPU reaches the others: its PCIe link, its NVLinks, and the NVSwitch fabric behind them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from preflight.facts.gpu_errors import uptime_s
from preflight.facts.gpu_peers import Wanted, wanted_of_kind
from preflight.facts.gpu_verdict import Trouble, healths, named
from preflight.facts.limits import limit
from preflight.facts.nvlink_counts import noise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.gpu_model import GpuHealth
    from preflight.facts.model import Facts, Gpu
    from preflight.facts.node import Group

_RESEAT: Final = "drain; reseat the GPU or its riser, compare BIOS settings with a healthy node"
_NVLINK: Final = "look for Xid 74 in dmesg; drain, reset the GPU, reseat it if that stays"
_RESTART: Final = "restart nvidia-fabricmanager (its version must be the driver's), recheck"
_MINUTE_S: Final = 60.0


def pcie_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """Lost lanes, a slow generation while at work, and transfers that had to be repeated."""
    widths = wanted_of_kind("pcie_width", facts, group)
    speeds = wanted_of_kind("pcie_gen_max", facts, group)
    for gpu, health in healths(facts):
        width, most = health.pcie_width, health.pcie_width_max
        if widths is not None and width is not None and width < widths.value:
            sentence = f"{named(gpu)}: PCIe x{width}, x{widths.value} {widths.origin}"
            yield Trouble(gpu, sentence, _RESEAT)
        elif width and most and width < most and (widths is None or widths.by != "group"):
            # A slot may be wired so, or a virtual machine show it so: only other nodes can tell.
            sentence = f"{named(gpu)}: PCIe x{width}, x{most} is what board and slot can do"
            yield Trouble(gpu, sentence, _RESEAT, grave=False)
        yield from _generation(gpu, health, speeds)
        yield from _replays(gpu, health, uptime_s(facts))


def _generation(gpu: Gpu, health: GpuHealth, usual: Wanted[Any] | None) -> Iterator[Trouble]:
    now, most = health.pcie_gen, health.pcie_gen_max
    if usual is not None and most is not None and most < usual.value:
        sentence = f"{named(gpu)}: PCIe generation {most} at most, {usual.value} {usual.origin}"
        yield Trouble(gpu, sentence, _RESEAT)
    elif now is not None and most is not None and now < most and at_work(health):
        sentence = f"{named(gpu)}: PCIe generation {now} while at work, {most} is what it can do"
        yield Trouble(gpu, sentence, _RESEAT)


def at_work(health: GpuHealth) -> bool:
    """Whether it is surely not idle: an idle GPU drops its PCIe generation to save power."""
    reasons = health.clock_reasons
    fast = health.performance_state in ("P0", "P1", "P2")
    return fast and bool(health.utilization_pct) and reasons is not None and "idle" not in reasons


def _replays(gpu: Gpu, health: GpuHealth, uptime: float) -> Iterator[Trouble]:
    replays, most = health.pcie_replays or 0, limit("pcie_replays_per_minute")
    per_minute = replays / max(1.0, uptime / _MINUTE_S)
    if uptime and per_minute > most:
        rate = f"{replays} PCIe replays since boot, {per_minute:.0f} a minute"
        sentence = f"{named(gpu)}: {rate}; at most {most:.0f} a minute is usual"
        yield Trouble(gpu, sentence, _RESEAT, grave=False)


def nvlink_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """NVLinks that run slower than the others, retrain, or send again what came broken."""
    usual = group.majority(link_speed)
    speed, origin = _most_speed(facts), "on the other links of this node"
    if usual is not None and usual.decides:
        speed, origin = usual.value, f"on {usual.votes} of {usual.of} nodes of group {group.name}"
    for gpu, health in healths(facts):
        for link in health.link_errors or ():
            where = f"{named(gpu)} NVLink {link.link}"
            if speed and link.mbps is not None and link.mbps < speed:
                gbs, should = link.mbps / 1000, speed / 1000
                sentence = f"{where}: {gbs:.3g} GB/s, {should:.3g} GB/s {origin}"
                yield Trouble(gpu, sentence, _NVLINK)
            if link.failed_recoveries:
                sentence = f"{where}: could not recover {link.failed_recoveries} times, 0 expected"
                yield Trouble(gpu, sentence, _NVLINK)
            elif noisy := noise(link, uptime_s(facts)):
                yield Trouble(gpu, f"{where}: {noisy}", _NVLINK, grave=False)


def link_speed(facts: Facts) -> int | None:
    """The speed that most live NVLinks of a node run at, Mb/s as NVML counts."""
    return _most_speed(facts)


def _most_speed(facts: Facts) -> int | None:
    speeds = Counter(
        link.mbps for _, health in healths(facts) for link in health.link_errors or () if link.mbps
    )
    speed, votes = speeds.most_common(1)[0] if speeds else (None, 0)
    return speed if 2 * votes > speeds.total() else None


def fabric_troubles(facts: Facts) -> Iterator[Trouble]:
    """GPUs that have not joined the NVSwitch fabric: CUDA will not start on them (error 802)."""
    for gpu, health in healths(facts):
        state, status = health.fabric_state, health.fabric_status
        if state is None:
            continue
        if state != "completed":
            sentence = f"{named(gpu)}: its registration with the NVSwitch fabric is {state}"
            yield Trouble(gpu, f"{sentence}, completed expected", _RESTART)
        elif status not in (None, "Success"):
            sentence = f"{named(gpu)}: it joined the NVSwitch fabric with {status}, not Success"
            yield Trouble(gpu, sentence, _RESTART)
        elif health.fabric_trouble:
            listed = ", ".join(health.fabric_trouble)
            advice = "look at the fabric manager's log and the NVSwitches; drain if it stays"
            yield Trouble(gpu, f"{named(gpu)}: the NVSwitch fabric says: {listed}", advice)
