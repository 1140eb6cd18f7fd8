"""What tools on a lab host see of its GPUs and NICs; the real pynvml is one of those tools."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.inside import until
from tests.lab.nvml.scenario import DRIVER_NOT_LOADED
from tests.lab.processes import frozen_disk

if TYPE_CHECKING:
    from tests.lab.cluster import Lab
    from tests.lab.host import Host

pytestmark = pytest.mark.lab

_ASK = """
import json, sys, pynvml as n
n.nvmlInit()
print(json.dumps(eval(sys.argv[1], {"n": n, "gpu": n.nvmlDeviceGetHandleByIndex})))
"""


# CPUs 48-95,144-191 as three words of 64 bits
_HIGH_16, _LOW_32, _HIGH_48 = 2**64 - 2**48, 2**32 - 1, 2**64 - 2**16


def nvml(host: Host, question: str) -> Any:
    """Evaluate an expression over pynvml (`n`) and its handles (`gpu(0)`) on a host."""
    done = host.run([sys.executable, "-c", _ASK, question], check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_pynvml_sees_eight_h100(lab: Lab) -> None:
    """Every host has the healthy machine, with ids of its own."""
    seen = set()
    for host in lab.hosts.values():
        names = nvml(host, "[n.nvmlDeviceGetName(gpu(i)) for i in range(n.nvmlDeviceGetCount())]")
        assert names == ["NVIDIA H100 80GB HBM3"] * 8
        seen.update(nvml(host, "[n.nvmlDeviceGetUUID(gpu(i)) for i in range(8)]"))
    assert len(seen) == 8 * len(lab.hosts)


def test_every_answer_of_a_healthy_gpu(lab: Lab) -> None:
    """The calls the probe makes all work, with the real binding's own structures."""
    host = lab.hosts["h1"]
    questions = {
        "n.nvmlSystemGetDriverVersion()": "550.90.07",
        "n.nvmlDeviceGetPciInfo(gpu(1)).busId": "00000000:43:00.0",
        "n.nvmlDeviceGetMemoryInfo(gpu(0)).total >> 20": 81559,
        "n.nvmlDeviceGetMemoryInfo(gpu(0), n.nvmlMemory_v2).used": 0,
        "[n.nvmlDeviceGetNvLinkState(gpu(0), i) for i in range(18)]": [1] * 18,
        "n.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), 0)": 2,
        "n.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 17).busId": "00000000:08:00.0",
        "n.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(3))": 40,
        "n.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(4))": 50,
        "n.nvmlDeviceGetP2PStatus(gpu(0), gpu(7), n.NVML_P2P_CAPS_INDEX_NVLINK)": 0,
        "n.nvmlDeviceGetComputeRunningProcesses(gpu(0))": [],
        "n.nvmlDeviceGetGraphicsRunningProcesses(gpu(0))": [],
        "n.nvmlDeviceGetMigMode(gpu(0))": [0, 0],
        "list(n.nvmlDeviceGetCpuAffinity(gpu(4), 3))": [_HIGH_16, _LOW_32, _HIGH_48],
        "n.nvmlDeviceGetMinorNumber(gpu(7))": 7,
        "n.nvmlDeviceGetTemperature(gpu(0), n.NVML_TEMPERATURE_GPU)": 31,
    }
    answers = nvml(host, f"[{', '.join(questions)}]")
    assert dict(zip(questions, answers, strict=True)) == questions


def test_a_missing_gpu_moves_the_others_up(lab: Lab) -> None:
    """NVML counts seven, nvidia-smi prints seven, and /sys has no such device."""
    host = lab.hosts["h2"]
    lost = host.scenario.gpus[3].path[-1]
    host.set_scenario(host.scenario.without_gpu(3))
    assert nvml(host, "n.nvmlDeviceGetCount()") == 7
    assert nvml(host, "n.nvmlDeviceGetPciInfo(gpu(3)).busId") == "00000000:9D:00.0"
    assert host.run(["nvidia-smi", "-L"]).stdout.count("H100") == 7
    assert host.run(["ls", f"/sys/bus/pci/devices/{lost}"], check=False).returncode


def test_each_illness_of_a_gpu_is_told(lab: Lab) -> None:
    """Lost, link down, odd ancestor, no peer access, memory held, MIG: pynvml sees each."""
    host = lab.hosts["h1"]
    ill = host.scenario.link_down(0, 5).ancestor(0, 1, 50).p2p(2, 3, 4).process(4, 4711, 1000)
    host.set_scenario(ill.mig(6, 2).gpu_lost(7))
    assert nvml(host, "n.nvmlDeviceGetNvLinkState(gpu(0), 5)") == 0
    assert nvml(host, "n.nvmlDeviceGetTopologyCommonAncestor(gpu(1), gpu(0))") == 50
    assert nvml(host, "n.nvmlDeviceGetP2PStatus(gpu(3), gpu(2), 1)") == 4
    held = (
        "[(p.pid, p.usedGpuMemory >> 20) for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(4))]"
    )
    assert nvml(host, held) == [[4711, 1000]]
    assert nvml(host, "n.nvmlDeviceGetMemoryInfo(gpu(4), n.nvmlMemory_v2).used >> 20") == 1000
    mig = "[n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(6), i)) for i in (0, 1)]"
    assert nvml(host, mig) == list(host.scenario.gpus[6].mig)
    assert nvml(host, "n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(6), 2)").endswith("Not Found")
    assert nvml(host, "gpu(7)").endswith("GPU is lost")


def test_topo_m_follows_the_scenario(lab: Lab) -> None:
    """nvidia-smi counts the links that are up, and falls back to PCI words without any."""
    host = lab.hosts["h1"]
    host.set_scenario(host.scenario.link_down(0, 5))
    rows = host.run(["nvidia-smi", "topo", "-m"]).stdout.splitlines()
    assert rows[1].split("\t")[:3] == ["GPU0", " X ", "NV17"]
    assert rows[2].split("\t")[9:11] == ["NODE", "PIX"]
    host.set_scenario(host.scenario.without_links())
    rows = host.run(["nvidia-smi", "topo", "-m"]).stdout.splitlines()
    assert rows[1].split("\t")[1:6] == [" X ", "NODE", "NODE", "NODE", "SYS"]


def test_a_driver_that_refuses_refuses_everybody(lab: Lab) -> None:
    """Both pynvml and nvidia-smi fail when the driver is not loaded."""
    host = lab.hosts["h1"]
    host.set_scenario(host.scenario.init_error(DRIVER_NOT_LOADED))
    assert nvml(host, "0").endswith("Driver Not Loaded")
    assert host.run(["nvidia-smi", "-L"], check=False).returncode == 9


def test_a_host_may_have_no_driver_at_all(lab: Lab) -> None:
    """The library is not found, nor is nvidia-smi; afterwards both are back."""
    host = lab.hosts["h1"]
    with host.without_driver():
        assert nvml(host, "0").endswith("NVML Shared Library Not Found")
        assert host.run(["sh", "-c", "command -v nvidia-smi"], check=False).returncode
    assert nvml(host, "n.nvmlDeviceGetCount()") == 8


def test_a_hanging_driver_ends_only_by_kill(lab: Lab) -> None:
    """Asking never comes back, and TERM does not help."""
    host = lab.hosts["h1"]
    host.set_scenario(host.scenario.hanging())
    asker = host.spawn([sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"])
    blocked = ["grep", "-q", "SigBlk:.*[^0].*ff$", f"/proc/{asker.pid}/status"]
    until(lambda: host.run(blocked, check=False).returncode == 0, "the driver to hang")
    asker.signal("TERM")
    assert asker.state == "S"
    asker.kill()
    assert asker.state == ""


def test_a_driver_on_a_frozen_disk_survives_even_kill(lab: Lab) -> None:
    """The process is in D state and stays, killed or not, until the disk thaws."""
    host = lab.hosts["h1"]
    with frozen_disk(host) as path:
        host.set_scenario(host.scenario.blocking(str(path)))
        asker = host.spawn([sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"])
        asker.wait_for("D")
        asker.signal("KILL")
        host.run(["sleep", "0.3"])
        assert asker.state == "D"
    asker.wait_for("")


def test_gpu_and_nic_of_a_rail_share_a_switch(lab: Lab) -> None:
    """The paths in /sys agree with what nvidia-smi prints as PIX, and end at real folders."""
    host = lab.hosts["h4"]
    for gpu, nic in zip(host.scenario.gpus, host.scenario.nics, strict=True):
        device = f"/sys/bus/pci/devices/{gpu.path[-1]}"
        paths = host.run(["readlink", "-f", device, f"/sys/class/infiniband/{nic.name}/device"])
        one, two = (path.split("/")[3:] for path in paths.stdout.split())
        assert one[:3] == two[:3]
        assert one[3] != two[3]
        assert host.run(["cat", f"{device}/numa_node"]).stdout == f"{gpu.numa}\n"


def test_a_nic_says_what_the_scenario_says(lab: Lab) -> None:
    """A port that is down is down in the words of the kernel's own files."""
    host = lab.hosts["h1"]
    host.set_scenario(host.scenario.nic(3, state="1: DOWN", phys_state="2: Polling"))
    port = "/sys/class/infiniband/mlx5_3/ports/1"
    words = host.run(
        ["cat", *(f"{port}/{f}" for f in ("state", "phys_state", "rate", "link_layer"))]
    )
    assert words.stdout.splitlines() == [
        "1: DOWN",
        "2: Polling",
        "400 Gb/sec (4X NDR)",
        "InfiniBand",
    ]
