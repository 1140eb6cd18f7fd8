"""What `nvidia-smi` prints on a lab host, laid out as the real one does it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tests.lab.nvml.machine import Gpu

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.nvml.machine import Nic
    from tests.lab.nvml.scenario import Scenario

LEVELS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's nvmlGpuTopologyLevel_t in nvidia-smi's words."""

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

"""  # noqa: E501  # word for word as the tool prints it

_SCRIPT = """#!/bin/sh
# Like the real one it asks the driver first, so it hangs or fails where the driver does.
host={scenarios}/$(uname -n)
case "$(sed -n 's/^init //p' "$host")" in
hangs | blocks*) trap '' HUP INT TERM; while :; do sleep 3600; done ;;
error*)
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit 9 ;;
esac
case "$*" in
"topo -m") exec cat "$host.topo" ;;
-L) exec cat "$host.list" ;;
esac
echo "this lab's nvidia-smi knows only: topo -m, -L" >&2
exit 2
"""


def script(scenarios: Path) -> str:
    """Return the program: one for all hosts, told apart by `uname -n`."""
    return _SCRIPT.format(scenarios=shlex.quote(str(scenarios)))


def list_text(scenario: Scenario) -> str:
    """`nvidia-smi -L`."""
    lines = []
    for index, gpu in enumerate(scenario.gpus):
        lines.append(f"GPU {index}: {scenario.name} (UUID: {gpu.uuid})")
        lines += [
            f"  MIG 1g.10gb     Device  {i}: (UUID: {name})" for i, name in enumerate(gpu.mig)
        ]
    return "\n".join(lines) + "\n"


def topo_text(scenario: Scenario) -> str:
    """`nvidia-smi topo -m`: the header underlined, cells parted by tabs, legends below."""
    names = [f"GPU{i}" for i in range(len(scenario.gpus))]
    names += [f"NIC{i}" for i in range(len(scenario.nics))]
    parts: list[Gpu | Nic] = [*scenario.gpus, *scenario.nics]
    header = "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\t\x1b[4m{header}\x1b[0m"]
    for name, row in zip(names, parts, strict=True):
        cells = [" X " if row is column else _code(scenario, row, column) for column in parts]
        tail = f"\t{row.cpus}\t{row.numa}\t\tN/A" if isinstance(row, Gpu) else "\t\t\t\t"
        lines.append("\t".join([name, *cells]) + tail)
    legend = "".join(f"  NIC{i}: {nic.name}\n" for i, nic in enumerate(scenario.nics))
    return "\n".join(lines) + "\n" + _LEGEND + legend + "\n"


def _code(scenario: Scenario, a: Gpu | Nic, b: Gpu | Nic) -> str:
    if isinstance(a, Gpu) and isinstance(b, Gpu):
        links = min(sum(k.up for k in a.links), sum(k.up for k in b.links))
        return f"NV{links}" if links else LEVELS[scenario.level(a, b)]
    if a.slot == b.slot:
        return "PIX"
    return "NODE" if a.numa == b.numa else "SYS"
