"""Machines of each board: healthy ones have no finding, and each edit for the worse has one."""

from __future__ import annotations

import ctypes
import json
import shutil
from _ctypes import dlclose
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pynvml
import pytest
from msgspec.structs import replace as with_changes
from probe import nvml as nvml_probe
from probe import rdma
from probe.nvml_calls import Nvml

from preflight.facts.model import Driver, Gpu, GpuPair, Nic
from preflight.fleet.model import Expected
from tests.lab import sysfs
from tests.lab.nvml.profiles import EDITS, PROFILES, machine
from tests.lab.nvml.scenario import h100
from tests.unit.checks.test_monotony import (
    CASES,
    CHECKS,
    OF_GPUS,
    OF_PEERS,
    RANK,
    Known,
    eased_by_edits,
    eased_one_by_one,
    rank_of,
    verdicts,
)
from tests.unit.facts.builders import facts

from .node import Remote
from .test_probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preflight.facts.model import Facts
    from tests.lab.nvml.profiles import Profile
    from tests.lab.nvml.scenario import Scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the emulator"),
]

MANY, DAY_S = 10_000, 86_401.0
UNKNOWN = {
    "a link could not recover": ("H100", "A100"),  # counted from NVLink 5 on
}
"""What nobody can tell of some boards."""


def expected_of(profile: Profile, scenario: Scenario) -> Expected:
    """What an inventory would say of it."""
    linked = any(link.up for gpu in scenario.gpus for link in gpu.links)
    return Expected(
        gpus=len(scenario.gpus), gpu_model=profile.name, power_limit_w=profile.watts, ecc=True,
        nvlinks_per_gpu=profile.links if linked else None, nics=len(scenario.nics) or None,
        pcie_lanes=16, pcie_generation=profile.pcie_gen,
        nic_gbits=400 if scenario.nics else None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep what /sys says, which no edit changes."""
    return tmp_path_factory.mktemp("trees")


@pytest.fixture
def read(
    nvml_library: Path, tmp_path: Path, trees: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Scenario], Facts]]:
    """Load the emulator into this process, and let the probe's own readers ask it."""
    library = ctypes.CDLL(str(nvml_library / "libnvidia-ml.so.1"))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setenv("PREFLIGHT_NVML_SCENARIO", str(tmp_path / "scenario"))

    def facts_of(scenario: Scenario) -> Facts:
        (tmp_path / "scenario").write_text(scenario.text())
        root = trees / f"{len(scenario.nics)} NICs"  # all GPUs are in it: it takes a while to write
        if not root.exists():
            sysfs.write(root, replace(h100("h1"), nics=scenario.nics))
        pynvml.nvmlInit()
        nvml, number = Nvml(pynvml), pynvml.nvmlDeviceGetCount()
        handles = {at: nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, at) for at in range(number)}
        handles = {at: handle for at, handle in handles.items() if handle is not None}
        gpus = []
        for at, handle in handles.items():
            nvml.subject = f"GPU {at}"
            gpus.append(nvml_probe.read(nvml, at, handle, str(root)))
        told = {
            "gpus": json.loads(json.dumps([one for one in gpus if one])),
            "gpu_pairs": nvml_probe.read_pairs(nvml, handles),
            "nics": json.loads(json.dumps(rdma.read(str(root)))),
        }
        pynvml.nvmlShutdown()
        driver = Driver(
            "answered", version=scenario.driver, counted=number, init_s=0.1, slowest_s=0.1
        )
        return facts(
            driver=driver, problems=tuple(nvml.problems), topo_text=None, boot_s=1.0, time_s=DAY_S,
            gpus=msgspec.convert(told["gpus"], tuple[Gpu, ...]),
            gpu_pairs=msgspec.convert(told["gpu_pairs"], tuple[GpuPair, ...]),
            nics=msgspec.convert(told["nics"], tuple[Nic, ...]),
        )  # fmt: skip

    yield facts_of
    dlclose(library._handle)


def findings(one: dict[str, str]) -> dict[str, str]:
    """The checks that found something, or could not judge."""
    return {check: outcome for check, outcome in one.items() if RANK[outcome]}


@pytest.mark.parametrize("board", PROFILES)
def test_a_healthy_machine_of_each_board_has_no_finding(
    board: str, nvml_library: Path, tmp_path: Path
) -> None:
    """Through the probe, against the emulator; with an inventory and without."""
    scenario = machine(PROFILES[board])
    (tmp_path / "scenario").write_text(scenario.text())
    sysfs.write(tmp_path / "sys", scenario)
    env = {
        "LD_LIBRARY_PATH": str(nvml_library),
        "PREFLIGHT_NVML_SCENARIO": str(tmp_path / "scenario"),
    }
    told = probe(Remote("probe", env=env), sysfs=str(tmp_path / "sys"))
    assert len(told.gpus or ()) == PROFILES[board].whole
    for expected in (Expected(), expected_of(PROFILES[board], scenario)):
        said = findings(verdicts(told, expected))
        assert {check: o for check, o in said.items() if check.startswith(("gpu.", "ib."))} == {}


@pytest.mark.parametrize("board", PROFILES)
def test_a_rented_part_of_a_machine_has_no_finding(
    board: str, read: Callable[[Scenario], Facts]
) -> None:
    """One, two or four GPUs of each board, with an inventory and without."""
    for number in PROFILES[board].parts:
        scenario = machine(PROFILES[board], number)
        for expected in (Expected(), expected_of(PROFILES[board], scenario)):
            assert findings(verdicts(read(scenario), expected)) == {}, number


@pytest.mark.parametrize("board", PROFILES)
def test_an_edit_for_the_worse_is_a_finding_on_each_board(
    board: str, read: Callable[[Scenario], Facts]
) -> None:
    """Where the driver tells of it; no check says better than of the whole machine.

    Each edit on one board here, on all of them where PREFLIGHT_CASES asks for many.
    """
    profile, every = PROFILES[board], CASES > MANY
    whole, missed = machine(profile), []
    expected = expected_of(profile, whole)
    healthy = read(whole)
    before = verdicts(healthy, expected)
    for at, (what, change) in enumerate(EDITS):
        if not every and at % len(PROFILES) != list(PROFILES).index(board):
            continue
        told = with_changes(read(change(whole, 2, profile)), nics=healthy.nics)
        if told == healthy or board in UNKNOWN.get(what, ()):
            continue
        after = verdicts(told, expected)
        better = [check for check in before if RANK[after[check]] < RANK[before[check]]]
        assert better == [], (board, what)
        missed += [] if findings(after) else [what]
    assert missed == []


@pytest.mark.parametrize("board", PROFILES)
def test_no_edits_one_after_another_ease_the_verdict_on_a_board(
    board: str, read: Callable[[Scenario], Facts]
) -> None:
    """Random ones of the facts that the emulated driver told, with its inventory."""
    profile, at = PROFILES[board], list(PROFILES).index(board)
    scenario = machine(profile)
    told, expected = read(scenario), expected_of(profile, scenario)
    assert eased_by_edits(told, expected, range(at, CASES, len(PROFILES))) == []


@pytest.mark.parametrize("board", PROFILES)
def test_one_gpu_more_that_gets_worse_eases_no_verdict_on_a_board(
    board: str, read: Callable[[Scenario], Facts]
) -> None:
    """With its inventory and without; half of the cards in slots of 8 lanes are a usual machine."""
    profile, order = PROFILES[board], list(CHECKS)
    scenario = machine(profile)
    told, of_board = read(scenario), bool(profile.links)
    for expected in (Expected(), expected_of(profile, scenario)):
        by_slot = not of_board and not expected.gpus
        edits = [name for name in OF_GPUS if name != "half the lanes" or not by_slot]

        def rank(one: Facts, expected: Expected = expected) -> int:
            return rank_of(one, expected, order)

        by_table: Known = "by board" if of_board else "by peers"
        known = "by inventory" if expected.gpus else by_table
        assert eased_one_by_one(told, rank, edits, known) == []
        assert eased_one_by_one(told, rank, OF_PEERS, "by peers") == []
