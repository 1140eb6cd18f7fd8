"""A driver that is older than the binding lacks functions: each costs its own reading, no more."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Promise
from tests.lab import sysfs
from tests.lab.nvml.build import build, functions
from tests.lab.nvml.scenario import h100
from tests.unit.checks.gpu_judges import CHECKS, judge

from .node import Remote
from .test_probe import probe

if TYPE_CHECKING:
    from pathlib import Path

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


def _probe(folder: Path, without: tuple[str, ...]) -> Facts:
    """What the probe says of eight H100 whose library lacks these."""
    library, scenario = build(folder / "nvml", without), h100("h1")
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
        check: judge(check, facts, promised=Promise(gpus=8)) for check in (*CHECKS, "gpu.count")
    }
    assert {
        check: one.sentence for check, one in found.items() if one.outcome not in ("ok", "not_run")
    } == {}
    not_run = {check for check, one in found.items() if one.outcome == "not_run"}
    assert not_run == ({"gpu.fabric"} if without else set())
    for gpu in facts.gpus or ():
        assert (gpu.processes is None) is (without == SINCE_R450)
        assert gpu.memory_total_mib
        assert gpu.health is not None
        assert gpu.health.clock_reasons == ("idle",)


def test_a_driver_that_lacks_any_function_is_no_broken_reader(tmp_path: Path) -> None:
    """Four at a time, so that all of them are missed once."""
    rest = [name for name in functions() if name not in ESSENTIAL]
    for at in range(0, len(rest), 4):
        facts = _probe(tmp_path / str(at), tuple(rest[at : at + 4]))
        assert (facts.driver.state, facts.driver.error) == ("answered", ""), rest[at : at + 4]
        assert len(facts.gpus or ()) == 8
