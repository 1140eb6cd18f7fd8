"""The typed, frozen document that a node sends about itself, and its decoder.

These types *are* the wire document (`docs/internals/wire.md`): the payload on the node writes JSON
of this shape and this module decodes it. A section that could not be read is `None`, never an empty
value: missing is unknown, not healthy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from preflight.errors import WireError
from preflight.facts.basics import Count, Device, Index, Int64, Line, Seconds, Text, wire_errors
from preflight.facts.gpu import GpuHealth
from preflight.facts.job import NodeLook, RasLook
from preflight.facts.machine import KernelLog, Machine, Software
from preflight.facts.node_network import (
    ConfFile,
    Counters,
    Gid,
    GpuDirect,
    Interface,
    Network,
    PcieLink,
    Switch,
)

T = TypeVar("T")

WIRE = 1
"""Version of the document: raise it with a change that an older reader would misread."""


DRIVER_S = 10.0
"""A driver that does not answer for this long counts as hung (other tools wait 5 to 10 s)."""


class Python(Struct, frozen=True, forbid_unknown_fields=True):
    """The Python that ran the probe: the job's own, as the inventory names it."""

    version: Line
    executable: Line


class Driver(Struct, frozen=True, forbid_unknown_fields=True):
    """How the NVIDIA driver answered NVML, called from a disposable child process.

    `absent`: no driver library on this node. `error`: NVML failed (see `error`). `unknown`: only
    from captured texts that do not mention a driver; no node sends it.
    `hung`: no answer within the deadline; `survivor` is the child if even SIGKILL did not end it.
    `seconds` and the durations of calls are the time in which our child waited for the driver,
    without the time in which it was stopped or had no CPU.
    """

    state: Literal["answered", "absent", "error", "hung", "unknown"]
    version: Line = ""
    error: Text = ""
    seconds: Seconds = 0.0
    paused_s: Seconds = 0.0
    """If a hung driver had less than its time: how long our child did not wait for it (no CPU,
    SIGSTOP, a freezer, a migration). Such a driver may be fine."""
    survivor: Process | None = None
    counted: Index | None = None
    """GPUs that NVML counts, including those that it cannot open; not those of other jobs."""
    init_s: Seconds | None = None
    """How long it took to open the driver: seconds without persistence mode."""
    slowest_s: Seconds | None = None
    slowest_call: Line = ""
    """The slowest single call: "nvmlDeviceGetPciInfo of GPU 3"."""


class NvLink(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One NVLink of a GPU. `remote` is the bus id at its far end, if NVML reports it."""

    link: Index
    up: bool
    remote: Line = ""
    remote_kind: Literal["gpu", "switch", "other", "unknown"] = "unknown"


class Mig(Struct, frozen=True, forbid_unknown_fields=True):
    """One MIG instance of a GPU, in NVML's order."""

    uuid: Line


class GpuProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """A process with memory on a GPU, by NVML; `used_mib` is None where hidden."""

    pid: Count
    used_mib: Count | None = None


class Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU in NVML (PCI bus) order."""

    index: Index
    uuid: Line
    name: Line
    bus_id: Line
    memory_total_mib: Count | None = None
    memory_used_mib: Count | None = None
    """Without the driver's own reserve (by NVML memory info v2 where available)."""
    mig_enabled: bool | None = None
    mig: tuple[Mig, ...] = ()
    links: tuple[NvLink, ...] | None = None
    """One entry per NVLink of the GPU; () when it has none; None when NVML did not answer."""
    processes: tuple[GpuProcess, ...] | None = None
    pci_path: tuple[Line, ...] | None = None
    """From PCI root complex to device, as in sysfs: ("pci0000:00", "0000:00:01.0", ...)."""
    numa: Int64 | None = None
    health: GpuHealth | None = None
    """Its readings; None where they were not requested, or a captured text has none."""
    compute: Line | None = None
    """CUDA compute capability, "9.0"."""
    minor: Index | None = None
    """Minor number of its device file, which schedulers use as index (/dev/nvidia3)."""

    def refused(self, *names: str) -> bool:
        """Whether NVML failed to read any of these fields of the GPU or its health."""
        return self.health is not None and self.health.refused(*names)


class GpuPair(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Two GPUs a < b in NVML: their distance in nvidia-smi's words, and peer access."""

    a: Index
    b: Index
    ancestor: Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]
    p2p_read: Line = "unknown"
    p2p_nvlink: Line = "unknown"
    """"ok", or NVML's status in words ("chipset not supported", "disabled by regkey", ...)."""


class Nic(Struct, frozen=True, forbid_unknown_fields=True):
    """One RDMA device under /sys/class/infiniband."""

    name: Device
    pci_path: tuple[Line, ...] | None = None
    numa: Int64 | None = None
    ports: tuple[NicPort, ...] = ()
    netdevs: tuple[Device, ...] = ()
    firmware: Line = ""
    board: Line = ""
    """The vendor's board id (PSID): "MT_0000000838"."""
    hca_type: Line = ""
    relaxed_ordering: bool | None = None
    """Whether its PCIe writes may be reordered; None where only root may read it."""
    pcie: PcieLink | None = None
    """Its PCIe link; None where that could not be read."""

    @property
    def kind(self) -> str:
        """What identifies its peers; its own name, so that it has no peers, where not known."""
        return self.board or self.hca_type or self.name


class NicPort(Struct, frozen=True, forbid_unknown_fields=True):
    """State and rate of one RDMA port, in sysfs's words."""

    port: Index
    state: Line = ""
    phys_state: Line = ""
    rate: Line = ""
    link_layer: Line = ""
    netdev: Device = ""
    """The network interface over the same port; "" where it has none."""
    counters: Counters | None = None
    """Its error counters; None where none could be read."""
    gids: tuple[Gid, ...] | None = None
    """The first entries of its GID table that are in use."""


class Rank(Struct, frozen=True, forbid_unknown_fields=True):
    """Which distributed job a process is a rank of, from its environment."""

    master_port: Line = ""
    elastic_run_id: Line = ""
    """TORCHELASTIC_RUN_ID, set by torchrun: a rank that outlived its agent still has it."""


class Process(Struct, frozen=True, forbid_unknown_fields=True):
    """One process, as far as this login may read it; other users' arguments are cut off."""

    pid: Count
    ppid: Count
    state: Line
    """One letter of /proc/PID/stat: R S D Z T ..."""
    user: Line
    command: Text
    age_s: Seconds
    wchan: Line = ""
    parent_command: Text = ""
    stuck_s: Seconds | None = None
    """In D state in two samples this far apart; 0: in the only sample; else None."""
    rank: Rank | None = None
    job: Line = ""
    """The scheduler's job id, from the cgroup path or environment; empty if none."""
    job_alive: bool | None = None
    """Whether that job's step daemon still runs here; None without a scheduler."""
    gpu_mib: Count | None = None
    """GPU memory that NVML charges to it, on all GPUs; None if it has none."""
    holds_gpu: bool = False
    """It has a /dev/nvidia* device open (or NVML lists it)."""
    listens: tuple[Index, ...] = ()
    """TCP ports on which it listens, if this login may see them."""
    ours: bool = False
    """It belongs to this preflight run (or is an ancestor of the probe)."""
    threads: Count = 0
    """Threads other than the leader: a zombie leader with live threads still holds its GPU."""


class Processes(Struct, frozen=True, forbid_unknown_fields=True):
    """The notable processes: zombies, D state, ranks, and holders of GPUs."""

    seen: Count
    """How many processes were examined."""
    unreadable: Count
    """How many of them this login could not read fully (other users' environment, files)."""
    notable: tuple[Process, ...]
    scheduler: Literal["slurm", "none"] = "none"


class Extra(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a site's own probe section on this node, or why there is none."""

    data: Any = None
    """As its `collect` returned it: plain JSON, at most 60 KiB."""
    error: Text = ""
    """Why there is no data (unknown): it raised, hung, sent too much, or was not requested."""
    seconds: Seconds = 0.0


class Facts(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One node's whole answer to the probe."""

    wire: Int64
    nonce: Line
    host: Line
    """The node's own name (`uname -n`)."""
    time_s: Seconds
    boot_s: Seconds
    seconds: Seconds
    """How long the probe took on the node."""
    user: Line
    root: bool
    kernel: Line
    python: Python
    driver: Driver
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=64)] | None = None
    """NVIDIA's driver takes 32: NV_MAX_DEVICES of its nvlimits.h."""
    gpu_pairs: Annotated[tuple[GpuPair, ...], Meta(max_length=64 * 64)] | None = None
    nics: Annotated[tuple[Nic, ...], Meta(max_length=1024)] | None = None
    network: Network | None = None
    gpudirect: GpuDirect | None = None
    topo_text: Annotated[str, Meta(max_length=131072)] | None = None
    """`nvidia-smi topo -m` as printed; None where there is no nvidia-smi or it did not answer."""
    processes: Processes | None = None
    kernel_log: KernelLog | None = None
    software: Software | None = None
    """None: could not be read, for example from a hung shared file system."""
    machine: Machine | None = None
    nccl_conf: Annotated[tuple[ConfFile, ...], Meta(max_length=2)] | None = None
    """The files of NCCL settings that exist, the user's first; () where there is none."""
    switches: Annotated[tuple[Switch, ...], Meta(max_length=64)] | None = None
    """Only from captured texts: nodes do not query their switches."""
    problems: tuple[Text, ...] = ()
    """Sections that could not be read, and why: "processes: Permission denied"."""
    extra: Annotated[dict[Line, Extra], Meta(max_length=64)] = {}
    """Results of the site's own probe sections, by section id; see `section`."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The node's network interfaces; also empty where they could not be read."""
        return (self.network.interfaces if self.network else None) or ()

    def section(self, section_id: str) -> Extra:
        """The result of a site's section; an `Extra` with an `error` if it did not run.

        A section runs when `pytest_preflight_probe_sections` names it.
        """
        absent = f"no probe section {section_id} in this run: name it in a conftest.py"
        return self.extra.get(section_id) or Extra(error=absent)


def bare_facts() -> Facts:
    """Facts of a node without any section."""
    return Facts(
        wire=WIRE,
        nonce="",
        host="",
        time_s=0.0,
        boot_s=0.0,
        seconds=0.0,
        user="",
        root=False,
        kernel="",
        python=Python("", ""),
        driver=Driver("unknown"),
    )


def read_once(read: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Let a reader work on each node's facts once; the many checks that call it share its value."""
    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def cached(facts: Facts) -> T:
        values = facts.__dict__
        if name not in values:
            values[name] = read(facts)
        value: T = values[name]
        return value

    return cached


Connected = Literal["ok", "refused", "timeout", "unreachable", "reset", "wrong_answer", "error"]
"""`wrong_answer`: another program than this run's listener accepted."""


class Attempt(Struct, frozen=True, forbid_unknown_fields=True):
    """One connection that this node tried to this run's listener on another node."""

    target: Line
    """Name of the node that listens."""
    port: Index
    kind: Literal["master", "data"]
    result: Connected
    error: Text = ""
    ms: Seconds = 0.0


class MasterPort(Struct, frozen=True, forbid_unknown_fields=True):
    """The master port, tested on the master: really bound, without SO_REUSEADDR."""

    port: Index
    bound: bool
    error: Text = ""
    holder: Process | None = None
    """The process that holds it; a hidden pid is 0, but `user` is known by the socket's uid."""
    lingering: Count = 0
    """Connections of the port in TIME_WAIT or other closing states."""
    free_again: bool | None = None
    """Whether the port could be bound again after our listener closed. None if never bound."""


class Ports(Struct, frozen=True, forbid_unknown_fields=True):
    """One node's whole answer to the port stage."""

    wire: Int64
    nonce: Line
    host: Line
    seconds: Seconds
    master: MasterPort | None = None
    """Only from the master."""
    attempts: tuple[Attempt, ...] = ()


Document = TypeVar("Document", Facts, Ports, NodeLook, RasLook)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}
_DECODERS_LOCK = threading.Lock()


def decode_document(kind: type[Document], content: bytes, nonce: str) -> Document:
    """Decode a node's document of that kind; WireError if invalid, or if it is of another run."""
    # Made when needed: a prolog reads one of the four. Threads that make decoders of structs with
    # parts in common at the same time crash msgspec 0.22, which fills those parts in place.
    with _DECODERS_LOCK:
        if kind not in _DECODERS:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
    with wire_errors("its answer is not a preflight document"):
        document: Document = _DECODERS[kind].decode(content)
    if document.wire != WIRE:
        raise WireError(f"its answer is version {document.wire}, this preflight reads {WIRE}")
    if document.nonce != nonce:
        raise WireError("its answer belongs to another run")
    return document
