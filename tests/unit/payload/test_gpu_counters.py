"""Where a GPU sits and what it counts, asked of the emulated driver in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.nvml.build import build_cuda
from tests.lab.nvml.scenario import NOT_SUPPORTED, h100

from .conftest import _PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Machine

    Ask = Callable[..., Any]

pytestmark = pytest.mark.slow

HEALTHY = h100("h1")
BUS_IDS = [gpu.path[-1] for gpu in HEALTHY.gpus]
COUNTERS = """
import ctypes, json
from sweep import counters as gpu_counters
calls = ctypes.CDLL(gpu_counters.nvml_calls.LIBRARY).emulator_calls
gpus, spent = gpu_counters.Gpus(), []
for _ in range(3):
    before = calls()
    found, throttled = gpus.read({bus_id!r})
    spent.append(calls() - before)
print(json.dumps([found, throttled, spent]))
"""
PLACE = """
import json
from types import SimpleNamespace
from sweep import transports as rail_nic
known = SimpleNamespace(**{known!r})
torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda gpu: known))
print(json.dumps(rail_nic.bus_id(torch, {gpu})))
"""


GAUGE = """
import json
from types import SimpleNamespace
from burn.device import Bench, gpu_of, read_clocks
known = SimpleNamespace(**{known!r})
torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda gpu: known))
torch.device = lambda kind, index: SimpleNamespace(index=index)
gpu = gpu_of(Bench(torch, "cuda", 1))
print(json.dumps(read_clocks(gpu) if gpu else None))
"""


@pytest.fixture
def ask(machine: Machine) -> Ask:
    """Return what a piece of Python prints on a machine, as JSON."""

    def asking(script: str, scenario: Any = HEALTHY, **env: str) -> Any:
        driver = machine(scenario)
        folders = [env.pop("cuda", ""), driver["LD_LIBRARY_PATH"]]
        where = {**os.environ, **driver, **env, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}
        where["PYTHONPATH"] = _PAYLOAD
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=where, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return asking


def test_a_reading_of_a_gpu_is_two_calls(ask: Ask) -> None:
    """All counters of 18 links, PCIe and memory come in one, what holds the clocks in another."""
    ill = HEALTHY.counted(3, "nvlink17_crc_flit", 4).counted(3, "reasons", 0x40)
    found, throttled, spent = ask(COUNTERS.format(bus_id=BUS_IDS[3]), ill.counted(5, "reasons", 8))
    assert len(found) == 3 * 18 + 3
    assert (found["GPU 3 nvlink17_crc"], found["GPU 3 pcie_replay"]) == (4, 0)
    assert throttled == ["GPU 3 throttle hw_thermal"]
    assert spent[0] < 10
    assert spent[1:] == [2, 2]


def test_all_gpus_are_read_where_the_rails_own_is_unknown(ask: Ask) -> None:
    """Two calls each, and one to count them."""
    found, _, spent = ask(COUNTERS.format(bus_id=None))
    assert {name.split()[1] for name in found} == set("01234567")
    assert spent[1:] == [17, 17]


def test_nvlink_5_counts_by_numbers_of_its_own(ask: Ask) -> None:
    """Its links do not support those of NVLink 4, nor their sums."""
    scenario = HEALTHY.counted(0, "nvlink_generation", 5).counted(0, "nvlink2_rcv_errors", 6)
    found, _, spent = ask(COUNTERS.format(bus_id=BUS_IDS[0]), scenario)
    assert found["GPU 0 nvlink2_rcv_errors"] == 6
    kinds = {name.split("_", 1)[1] for name in found if "nvlink" in name}
    assert kinds == {"rcv_errors", "recovery", "recovery_failed"}
    assert spent[1:] == [2, 2]


def test_a_driver_without_fields_of_single_links_sums_them_up(ask: Ask) -> None:
    """An old one knows the sums; what is refused by itself hides nothing else."""
    old = HEALTHY.refused(0, "link_errors").refused(0, "ecc_corrected", NOT_SUPPORTED)
    found, _, spent = ask(
        COUNTERS.format(bus_id=BUS_IDS[0]), old.counted(0, "nvlink9_dl_replay", 2)
    )
    assert {name for name in found if "nvlink" in name} == {
        f"GPU 0 nvlink_{kind}" for kind in ("crc_flit", "crc_data", "dl_replay", "dl_recovery")
    }
    assert found["GPU 0 nvlink_dl_replay"] == 2
    assert {"GPU 0 pcie_replay", "GPU 0 ecc_uncorrected"} <= found.keys()
    assert "GPU 0 ecc_corrected" not in found
    assert spent[1:] == [2, 2]


def test_a_gpu_that_is_lost_hides_no_other(ask: Ask) -> None:
    """Its counters are absent, as where there is no NVLink those of links are."""
    found, _, _ = ask(COUNTERS.format(bus_id=None), HEALTHY.without_links().gpu_lost(2))
    assert {name.split()[1] for name in found} == set("0134567")
    assert not any("nvlink" in name for name in found)


def test_torch_tells_where_its_gpu_sits(ask: Ask) -> None:
    """From 2.8 on; older ones are not asked."""
    known = {"pci_domain_id": 1, "pci_bus_id": 0x1B, "pci_device_id": 0}
    assert ask(PLACE.format(known=known, gpu=0)) == "0001:1b:00.0"


@pytest.mark.parametrize(
    ("visible", "gpu", "slot"),
    [
        (None, 5, 5),
        ("6,2", 1, 2),
        (f"{HEALTHY.gpus[4].uuid},{HEALTHY.gpus[1].uuid[:12]}", 1, 1),
        ("3", 1, None),
    ],
)
def test_older_torch_leaves_it_to_cudas_driver(
    ask: Ask, tmp_path: Path, visible: str | None, gpu: int, slot: int | None
) -> None:
    """It counts as torch does, after CUDA_VISIBLE_DEVICES by index or UUID."""
    env = {"cuda": str(build_cuda(tmp_path / "cuda").parent)}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    expected = None if slot is None else BUS_IDS[slot]
    assert ask(PLACE.format(known={}, gpu=gpu), **env) == expected


def test_a_burn_in_looks_at_the_clocks_of_the_same_gpu(ask: Ask, tmp_path: Path) -> None:
    """It finds it as a sweep does; without an address there are no looks."""
    cuda = str(build_cuda(tmp_path / "cuda").parent)
    hot = HEALTHY.counted(2, "reasons", 0x40)
    look = ask(GAUGE.format(known={}), hot, cuda=cuda, CUDA_VISIBLE_DEVICES="7,2")
    assert look["reasons"] == ["hw_thermal"]
    assert ask(GAUGE.format(known={}), hot, cuda=cuda, CUDA_VISIBLE_DEVICES="7") is None
