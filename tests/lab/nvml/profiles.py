# ruff: noqa: E501  tables
"""Machines of other boards than the H100, whole and as clouds rent parts of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from tests.lab.nvml.machine import Link
from tests.lab.nvml.scenario import Scenario, h100

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Profile:
    """One board: what its driver prints, and how many of it a machine has."""

    name: str
    memory_mib: int
    watts: int
    pcie_gen: int
    whole: int = 8
    parts: tuple[int, ...] = (1, 2, 4)
    """How many of them clouds rent together."""
    links: int = 0
    mbps: int = 0
    """Of one link, as drivers print it."""
    generation: int = 4
    fabric: Literal["none", "node", "rack"] = "none"
    """Whether GPUs register with NVSwitches, and whether those join a rack."""
    mig: bool = True


PROFILES: Final = {
    "H100": Profile("NVIDIA H100 80GB HBM3", 81559, 700, 5, links=18, mbps=26562, fabric="node"),
    "A100": Profile("NVIDIA A100-SXM4-80GB", 81920, 400, 4, links=12, mbps=25000),
    "B200": Profile("NVIDIA B200", 183359, 1000, 5, links=18, mbps=53125, generation=5, fabric="node"),
    "GB200": Profile("NVIDIA GB200", 189471, 1200, 5, 4, (1, 2), 18, 53125, 5, "rack"),
    "GB300": Profile("NVIDIA GB300", 284208, 1400, 6, 4, (1, 2), 18, 53125, 5, "rack"),
    "L40S": Profile("NVIDIA L40S", 46068, 350, 4, mig=False),
    "T4": Profile("Tesla T4", 15360, 70, 3, mig=False),
}  # fmt: skip
"""By data sheet: preflight/facts/board_links.toml has links, speed and memory with their sources."""

Edit = tuple[str, "Callable[[Scenario, int, Profile], Scenario]"]


def machine(profile: Profile, number: int = 0) -> Scenario:
    """A healthy one, whole or with so many GPUs; a GPU that is rented alone has no peer to reach."""
    number = number or profile.whole
    scenario = h100("h1")
    links = tuple(
        Link(f"00000000:{5 + at % 4:02X}:00.0", up=number > 1 or profile.fabric == "rack")
        for at in range(profile.links)
    )
    gpus = tuple(replace(gpu, links=links) for gpu in scenario.gpus[:number])
    scenario = replace(
        scenario, gpus=gpus, nics=scenario.nics[:number] if profile.links else (), driver="580.95.05",
        name=profile.name, memory_mib=profile.memory_mib,
    )  # fmt: skip
    for at in range(number):
        for name, value in _numbers(profile):
            scenario = scenario.counted(at, name, value)
        if profile.fabric == "none":
            scenario = scenario.refused(at, "fabric_state")
        if not profile.mig:
            scenario = scenario.refused(at, "mig_pending")
    return scenario if profile.links else scenario.without_links()


def _numbers(profile: Profile) -> list[tuple[str, int]]:
    milliwatts = profile.watts * 1000
    told = [("power_limit_mw", milliwatts), ("power_default_mw", milliwatts)]
    told += [("pcie_gen", profile.pcie_gen), ("pcie_gen_max", profile.pcie_gen)]
    told += [("nvlink_generation", profile.generation)]
    told += [(f"nvlink{link}_mbps", profile.mbps) for link in range(profile.links)]
    return told + [("fabric_cluster", 7), ("fabric_clique", 3)] * (profile.fabric == "rack")


def _all(change: Callable[[Scenario, int, Profile], Scenario]) -> Callable[[Scenario, int, Profile], Scenario]:  # fmt: skip
    def edit(scenario: Scenario, _: int, profile: Profile) -> Scenario:
        for at in range(len(scenario.gpus)):
            scenario = change(scenario, at, profile)
        return scenario

    return edit


def _down(first: int, last: int) -> Callable[[Scenario, int, Profile], Scenario]:
    def edit(scenario: Scenario, at: int, profile: Profile) -> Scenario:
        for link in range(first, min(last, profile.links)):
            scenario = scenario.link_down(at, link)
        return scenario

    return edit


def _slower(scenario: Scenario, at: int, profile: Profile) -> Scenario:
    for link in range(profile.links):
        scenario = scenario.counted(at, f"nvlink{link}_mbps", profile.mbps // 2)
    return scenario


def _counts(name: str, value: int) -> Callable[[Scenario, int, Profile], Scenario]:
    return lambda scenario, at, _: scenario.counted(at, name, value)


def _halved(scenario: Scenario, at: int, profile: Profile) -> Scenario:
    return scenario.counted(at, "power_limit_mw", profile.watts * 500)


EDITS: Final[tuple[Edit, ...]] = (
    ("a link down", _down(3, 4)),
    ("four links down on all", _all(_down(0, 4))),
    ("all links down", _down(0, 18)),
    ("links of one at half speed", _slower),
    ("all links at half speed", _all(_slower)),
    ("a link could not recover", lambda s, at, _: s.counted(at, "nvlink1_recovery_failed", 3)),
    ("a link recovers", lambda s, at, _: s.counted(at, "nvlink1_dl_recovery", 10**6).counted(at, "nvlink1_recovery", 10**6)),
    ("capped", _halved),
    ("all capped", _all(_halved)),
    ("a GPU gone", lambda s, at, _: s.without_gpu(at)),
    ("a GPU lost", lambda s, at, _: s.gpu_lost(at)),
    ("uncorrectable errors", _counts("ecc_uncorrected", 3)),
    ("a remap is pending", _counts("remap_pending", 1)),
    ("a remap failed", _counts("remap_failed", 1)),
    ("SRAM fails", _counts("sram_threshold", 1)),
    ("a reset is asked for", _counts("recovery_action", 1)),
    ("half of the lanes", _counts("pcie_width", 8)),
    ("half of the lanes of all", _all(_counts("pcie_width", 8))),
    ("PCIe replays", _counts("pcie_replay", 10**9)),
    ("hot", lambda s, at, _: s.counted(at, "margin_c", 2**64 - 4).counted(at, "temperature_c", 95)),
    ("a thermal slowdown", _counts("reasons", 0x40)),
    ("persistence off", _counts("persistence", 0)),
    ("prohibited", _counts("compute_mode", 2)),
    ("ECC off", lambda s, at, _: s.counted(at, "ecc_on", 0)),
    ("half of the memory", lambda s, _, profile: replace(s, memory_mib=profile.memory_mib // 2)),
    ("InfoROM", lambda s, at, _: s.refused(at, "inforom_valid", 14)),
    ("a reading fails", lambda s, at, _: s.refused(at, "temperature_c", 999)),
    ("not yet registered", _counts("fabric_state", 2)),
    ("another clique", _counts("fabric_clique", 9)),
    ("no peer access", lambda s, at, _: s.p2p(at, (at + 1) % len(s.gpus), 1) if len(s.gpus) > 1 else s),
)  # fmt: skip
"""Each makes a machine worse: (what, scenario, GPU, board) to the worse scenario."""
