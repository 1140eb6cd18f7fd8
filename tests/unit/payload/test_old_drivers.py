"""A driver that is older than the binding lacks functions: each costs its own reading, no more."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.facts.gpu import driver_too_old, newer_readings
from preflight.fleet.model import Expected
from tests.lab import sysfs
from tests.lab.nvml.build import build, functions
from tests.lab.nvml.scenario import h100
from tests.unit.checks.gpu_judges import CHECKS, judge

from .node import Remote
from .test_probe import probe

if TYPE_CHECKING:
    from preflight.facts.model import Facts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the emulator"),
]

SINCE_R470 = (
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGspFirmwareVersion",
    "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetNumaNodeId",
)  # fmt: skip
SINCE_R450 = (
    *SINCE_R470, "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetRowRemapperHistogram",
)  # fmt: skip
ESSENTIAL = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
"""Every supported driver (R450 and later) has these."""


def _probe(folder: Path, without: tuple[str, ...], driver: str = "550.90.07") -> Facts:
    """What the probe says of eight H100 whose library lacks these."""
    library, scenario = build(folder / "nvml", without), replace(h100("h1"), driver=driver)
    (folder / "scenario").write_text(scenario.text())
    sysfs.write(folder / "sys", scenario)
    env = {
        "LD_LIBRARY_PATH": str(library.parent),
        "PREFLIGHT_NVML_SCENARIO": str(folder / "scenario"),
    }
    return probe(Remote("probe", env=env), sysfs=str(folder / "sys"))


@pytest.mark.parametrize(
    "without", [(), SINCE_R470, SINCE_R450], ids=["this driver", "R470", "R450"]
)
def test_an_old_driver_is_read_as_far_as_it_goes(tmp_path: Path, without: tuple[str, ...]) -> None:
    """GPUs, memory, links, processes and clocks; what it does not know is not run, not broken."""
    assert set(without) <= set(functions())
    facts = _probe(tmp_path, without)
    assert (facts.driver.state, facts.driver.error, len(facts.gpus or ())) == ("answered", "", 8)
    assert facts.problems == ()
    found = {
        check: judge(check, facts, expected=Expected(gpus=8)) for check in (*CHECKS, "gpu.count")
    }
    assert {
        check: one.sentence for check, one in found.items() if one.outcome not in ("ok", "not_run")
    } == {}
    not_run = {check for check, one in found.items() if one.outcome == "not_run"}
    assert not_run == ({"gpu.fabric"} if without else set())
    assert "no state of the NVSwitch fabric" in found["gpu.fabric"].sentence or not without
    for gpu in facts.gpus or ():
        assert (gpu.processes is None) is (without == SINCE_R450)
        assert gpu.memory_total_mib
        assert gpu.health is not None
        assert gpu.health.clock_reasons == ("idle",)


def test_a_driver_that_lacks_any_function_is_no_broken_reader(tmp_path: Path) -> None:
    """Twelve at a time, so that all of them are missed once."""
    rest = [name for name in functions() if name not in ESSENTIAL]
    for at in range(0, len(rest), 12):
        told = _probe(tmp_path / str(at), tuple(rest[at : at + 12]), "450.80.02")
        assert (told.driver.state, told.driver.error) == ("answered", ""), rest[at : at + 12]
        assert len(told.gpus or ()) == 8
        said = [judge(check, told, expected=Expected(gpus=8)) for check in CHECKS]
        assert [one.sentence for one in said if one.outcome == "fail"] == []


_FABRIC = "driver 450.80.02 has no state of the NVSwitch fabric; R525 or newer has"
_ENDS = "driver 450.80.02 has no kind of the NVLinks' far ends; R470 or newer has"


@pytest.mark.parametrize(
    ("check", "sentence"),
    [("gpu.fabric", _FABRIC), ("gpu.sxid", f"{_ENDS}, no SXid in its kernel log")],
)
def test_what_the_driver_is_too_old_for_names_the_driver_that_has_it(
    tmp_path: Path, check: str, sentence: str
) -> None:
    """A reading is missing since the driver has no such function: not run, with the branch."""
    told = _probe(tmp_path, SINCE_R450, "450.80.02")
    said = judge(check, told, expected=Expected(gpus=8))
    assert (said.outcome, said.sentence) == ("not_run", sentence)
    newer = _probe(tmp_path / "newer", SINCE_R450, "550.90.07")
    assert "or newer has" not in judge(check, newer, expected=Expected(gpus=8)).sentence


def test_every_function_that_came_later_is_in_the_table_or_has_an_older_form() -> None:
    """What R450 lacks, by the table of readings; the docs have the same table."""
    older_form = {
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetGpuFabricInfoV",
    }  # fmt: skip
    table = newer_readings()
    assert set(SINCE_R450) - older_form <= {one.function for one in table.values()}
    assert all(one.branch > 450 for one in table.values())
    page = (Path(__file__).parents[3] / "docs" / "internals" / "wire.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| `\w+` \| R(\d+) \|$", page, re.MULTILINE))
    assert listed == {name: str(one.branch) for name, one in table.items()}
    assert (
        driver_too_old("", ("fabric_state",), "x")
        == driver_too_old("N/A", ("fabric_state",), "x")
        == ""
    )
