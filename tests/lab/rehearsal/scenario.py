"""The rehearsal: hosts of the lab whose Python has a torch with GPUs and NCCL, all simulated.

    with rehearsed(lab, Machine(gpus=2)) as rehearsal:
        rehearsal.plant("h2", Fault("slow rail", slot=1, factor=0.5))
        ... preflight with rehearsal.inventory() ...

The hosts get an environment (a symlink to this Python, a pyvenv.cfg) in which `fake_cuda` waits for
torch. GPUs and NICs are those that the host's emulated NVML and /sys show, so that one host shows
one consistent machine. What is written here is what `fake_cuda` reads.
"""

from __future__ import annotations

import json
import site
import sys
import zlib
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.lab.rehearsal import torch_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.lab.inventory import Tables
    from tests.lab.nvml.scenario import Scenario

NOISES = ("quiet", "heavy", "contended")
UNSEEN_NOISES = ("drift", "bursts")
"""Generators that nobody looks at while limits are chosen."""

Kind = Literal[
    "slow rail",
    "slow node",
    "spikes",
    "latency",
    "hang",
    "wrong sum",
    "slow gpu",
    "slow p2p",
    "wrong product",
    "spinning kernel",
    "connect error",
    "network error",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One GPU host. Rates in GB/s (1e9), times in the unit that each name says."""

    gpus: int = 8
    torch: str = "2.13.0"
    cuda: str = "12.8"
    nccl: str = "2.28.9"
    # the host's own costs
    enqueue_us: float = 8.0
    event_us: float = 2.0
    synchronise_us: float = 10.0
    stalls_per_s: float = 0.0
    stall_ms: float = 3.0
    # processes
    init_s: float = 0.2
    exit_s: float = 0.0
    init_error: str = ""
    exclusive: bool = False
    free_mib: int = 80_000
    # the GPU
    memory_gbs: float = 3000.0
    pcie_gbs: float = 50.0
    p2p_gbs: float = 370.0
    tflops: float = 700.0
    # what connects them
    noise: str = "quiet"
    seed: int = 1
    leaf: str = "leaf1"
    nvlink_domain: str | None = None
    imex: bool = True
    """Whether GPUs may map the memory of other nodes of the NVLink domain."""
    p2p: Literal["nvlink", "none"] = "nvlink"
    roce: bool = False
    """Its NICs are on Ethernet."""
    ib_plugin: bool = True
    gdr: bool = True
    rail_gbs: float = 46.0
    latency_us: float = 18.0
    nvlink_gbs: float = 360.0
    nvlink_fill_us: float = 120.0
    shm_gbs: float = 9.0
    socket_gbs: float = 3.0
    kept_elements: int = 4096
    """Of a vector on a GPU so many elements exist, of a matrix their root in rows and columns."""


_GROUPS = {
    "host": ("enqueue_us", "event_us", "synchronise_us", "stalls_per_s", "stall_ms"),
    "process": ("init_s", "exit_s", "init_error", "exclusive", "free_mib"),
    "gpu": ("memory_gbs", "pcie_gbs", "p2p_gbs", "tflops"),
    "fabric": (
        "noise", "leaf", "nvlink_domain", "imex", "p2p", "ib_plugin", "gdr", "rail_gbs",
        "latency_us", "nvlink_gbs", "nvlink_fill_us", "shm_gbs", "socket_gbs",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault of a host; `slot` None: of all its GPUs."""

    kind: Kind
    slot: int | None = None
    factor: float = 1.0
    """Of bandwidth that is left."""
    latency_us: float = 0.0
    rate: float = 0.0
    """Per operation: of spikes, of wrong sums, of wrong products."""
    ms: float = 10.0
    """Of a spike."""
    from_bytes: int = 0
    where: Literal["network", "inside", "domain"] = "network"
    """`domain`: NVLink between nodes."""
    once: bool = False
    after: int = 0
    """Of a hang or an error: how many operations of its communicator go well before."""
    to: str | None = None
    """Only on the way to that host."""
    last_error: str = ""
    """What NCCL warns of; of a network error a completion with an error, by default."""


@dataclass
class Rehearsal:
    """The lab with GPUs."""

    lab: Lab
    folder: Path
    machines: dict[str, Machine]
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    trace: Path | None = None
    """Where processes write which lines of the payload they run; None: they do not."""

    @property
    def python(self) -> Path:
        """The Python of the job on these hosts."""
        return self.folder / "bin" / "python3"

    def change(self, name: str, **changes: Any) -> None:
        """Change one host's machine."""
        self.machines[name] = replace(self.machines[name], **changes)
        host = self.lab.hosts[name]
        host.set_scenario(with_mode(host.scenario, self.machines[name]))
        self.write(host)

    def plant(self, name: str, *faults: Fault) -> None:
        """Plant faults on a host."""
        self.faults.setdefault(name, []).extend(faults)
        self.write(self.lab.hosts[name])

    def heal(self) -> None:
        """Take every fault away, and the marks of what happens once."""
        self.faults.clear()
        for mark in (self.folder / "scenarios").glob("*.once"):
            mark.unlink()
        for host in self.lab.hosts.values():
            self.write(host)

    def environs(self, name: str) -> list[dict[str, str]]:
        """What NCCL found in the environment of each process of a host that measured."""
        lines = (self.folder / "scenarios" / f"{name}.environ").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def write(self, host: Host) -> None:
        """Write what one host has, from its NVML scenario and its machine."""
        document = described(self.machines[host.name], host.scenario)
        document["faults"] = [asdict(fault) for fault in self.faults.get(host.name, ())]
        document["trace"] = str(self.trace) if self.trace else None
        torch_files.write(self.folder / "files" / host.name, self.machines[host.name])
        put(self.folder, host.name, document)

    def inventory(self, name: str = "inventory.toml", **changes: Tables) -> Path:
        """The fleet as the lab writes it, with this Python and what an H100 machine has."""
        gpus = max(machine.gpus for machine in self.machines.values())
        link = "roce" if any(machine.roce for machine in self.machines.values()) else "ib"
        tables: dict[str, Any] = {
            "defaults": {"python": str(self.python)},
            "group": {"lab": {"gpus": gpus, "nics": gpus, "nic_gbits": 400, "nic_link": link}},
        }
        for key, table in changes.items():
            tables[key] = {**tables.get(key, {}), **table}
        return self.lab.inventory(name, **tables)


def described(machine: Machine, hardware: Scenario) -> dict[str, Any]:
    """What `fake_cuda` reads of one host, without faults."""
    values = asdict(machine)
    document: dict[str, Any] = {
        key: {name: values[name] for name in names} for key, names in _GROUPS.items()
    }
    document |= {key: values[key] for key in ("torch", "cuda", "nccl", "seed", "kept_elements")}
    document["gpu"]["sm_mhz"] = 1980
    document["gpus"] = [
        {
            "slot": gpu.slot,
            "bus_id": gpu.bus_id,
            "uuid": gpu.uuid,
            "name": hardware.name,
            "memory_mib": hardware.memory_mib,
        }
        for gpu in hardware.gpus
        if not gpu.error
    ]
    document["nics"] = [
        {
            "name": nic.name,
            "slot": nic.slot,
            "active": "ACTIVE" in nic.state,
            "layer": "IB" if nic.link_layer == "InfiniBand" else "RoCE",
        }
        for nic in hardware.nics
    ]
    return {**document, "faults": [], "trace": None}


def put(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Give one host what it has, whole: it may be read at any moment."""
    path = folder / "scenarios" / f"{name}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document))
    fresh.replace(path)


def with_mode(hardware: Scenario, machine: Machine) -> Scenario:
    """NVML tells the compute mode that CUDA keeps to."""
    for index in range(len(hardware.gpus)):
        hardware = hardware.counted(index, "compute_mode", 3 if machine.exclusive else 0)
    return hardware


@contextmanager
def rehearsed(
    lab: Lab, machine: Machine | None = None, trace: Path | None = None
) -> Iterator[Rehearsal]:
    """Give every host of the lab this machine; afterwards the hosts are as before."""
    machine = machine or Machine()
    before = {name: host.scenario for name, host in lab.hosts.items()}
    machines = dict.fromkeys(lab.hosts, machine)
    one = Rehearsal(lab, environment(lab.folder / "cuda"), machines, trace=trace)
    for number, host in enumerate(lab.hosts.values(), 1):
        scenario = host.scenario.roce(number) if machine.roce else host.scenario
        slots = range(machine.gpus)
        scenario = replace(
            scenario,
            gpus=tuple(gpu for gpu in scenario.gpus if gpu.slot in slots),
            nics=tuple(nic for nic in scenario.nics if nic.slot in slots),
        )
        if machine.nvlink_domain:
            cluster = 1 + zlib.crc32(machine.nvlink_domain.encode()) % 255
            for index in range(len(scenario.gpus)):
                scenario = scenario.counted(index, "fabric_cluster", cluster)
        host.set_scenario(with_mode(scenario, machine))
        one.write(host)
    try:
        yield one
    finally:
        for scenario_file in (one.folder / "scenarios").iterdir():
            scenario_file.unlink()
        for name, scenario in before.items():
            lab.hosts[name].set_scenario(scenario)


def environment(folder: Path) -> Path:
    """A Python that has this one's packages, and waits for torch."""
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for path in (packages, folder / "bin", folder / "scenarios"):
        path.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python3"
    if not python.exists():
        python.symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    lines = [*site.getsitepackages(), str(Path(__file__).parent)]
    boot = "import fake_cuda; fake_cuda.watch_for_torch()"
    (packages / "rehearsal.pth").write_text("\n".join([*lines, boot]) + "\n")
    return folder
