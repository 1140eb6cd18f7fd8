"""The machine around the GPUs: limits, memory, file systems, kernel log, software.

One section of the wire document (`docs/wire.md`). A part that could not be read is None.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Line, Seconds

UNLIMITED: Final = -1
"""Of a `Ceiling`: the kernel says "unlimited"."""

Ceiling = Annotated[int, Meta(ge=UNLIMITED, le=2**62)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Resource limits of one process: locked memory in bytes, open files."""

    memlock: Ceiling
    memlock_hard: Ceiling
    nofile: Ceiling
    nofile_hard: Ceiling


class Launcher(Struct, frozen=True, forbid_unknown_fields=True):
    """A daemon of a scheduler that starts jobs here: they inherit its limits, not our login's."""

    name: Line
    pid: Count
    limits: Limits


class Stack(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is made of and runs; "" where it does not tell. Nodes of a group are alike."""

    os: Line = ""
    libc: Line = ""
    architecture: Line = ""
    cpu: Line = ""
    cpus_online: Count = 0
    product: Line = ""
    bios: Line = ""


class Governor(Struct, frozen=True, forbid_unknown_fields=True):
    """How many CPUs a frequency governor steers, by which driver."""

    name: Line
    driver: Line
    cpus: Count


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine's own memory, MiB, from /proc/meminfo."""

    total_mib: Count
    available_mib: Count
    swap_used_mib: Count = 0
    shared_mib: Count = 0
    """In tmpfs and shared memory: what files in /dev/shm take."""
    huge_pages_mib: Count = 0
    """Reserved as huge pages, used or not."""
    stalled_percent: Percent | None = None
    """Share of the last 10 s in which something waited for memory; None without kernel PSI."""


class Dimm(Struct, frozen=True, forbid_unknown_fields=True):
    """ECC errors on one DIMM, or on what the kernel cannot tell apart."""

    name: Line
    """The board's label where it is known, else "mc0/dimm3"."""
    corrected: Count
    uncorrected: Count
    counted_s: Seconds | None = None
    """For how long it has counted; None where it does not say."""


class Edac(Struct, frozen=True, forbid_unknown_fields=True):
    """The kernel's counters of memory errors (EDAC)."""

    watched: Count
    """DIMMs whose errors are counted; 0 where no driver does it."""
    errors: Annotated[tuple[Dimm, ...], Meta(max_length=256)] = ()
    """Those on which any was."""


class Cgroup(Struct, frozen=True, forbid_unknown_fields=True):
    """What the control group of our login grants; None: no limit below the machine's."""

    cpus: Annotated[float, Meta(ge=0)] | None = None
    """CPU time per second, from the quota."""
    memory_mib: Count | None = None
    pids: Count | None = None


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that is none of ours and computes."""

    pid: Count
    name: Line
    user: Line
    cpus: Annotated[float, Meta(ge=0)]


class Load(Struct, frozen=True, forbid_unknown_fields=True):
    """Who computes here while nothing of ours does."""

    cpus_allowed: Count
    """CPUs this login may run on."""
    one_minute: Annotated[float, Meta(ge=0)]
    """Load average: also of processes that this login cannot see."""
    foreign_cpus: Annotated[float, Meta(ge=0)]
    """CPUs that visible processes of others used, over `looked_s`."""
    looked_s: Seconds
    busiest: Annotated[tuple[Worker, ...], Meta(max_length=8)] = ()


class Container(Struct, frozen=True, forbid_unknown_fields=True):
    """What stands between us and the whole machine."""

    kind: Line = ""
    """"docker", "kubernetes", "apptainer", ...; "" for none that is known."""
    hidden_by: Line | None = None
    """What keeps others' processes from us: "process table", "hidepid"; "" for nothing.

    None: it cannot be told.
    """


class FileSystem(Struct, frozen=True, forbid_unknown_fields=True):
    """One mounted file system that a job needs, and how it answered a look at its size."""

    mount: Line
    kind: Line
    """Its type: ext4, nfs4, lustre, fuse.sshfs."""
    source: Line = ""
    paths: Annotated[tuple[Line, ...], Meta(max_length=8)] = ()
    """Of "/", "/tmp", "/dev/shm" and the folder our login starts in: those that lie on it."""
    shared: bool = False
    """Served by the network or a user's daemon, so it can hang."""
    automounted: bool = False
    """It comes and goes with its use, so that nodes need not have the same ones."""
    read_only: bool = False
    remounted: bool = False
    """Mounted to be written, then made read-only as a whole: the kernel met errors on it."""
    state: Literal["answered", "hung", "error", "hidden"] = "answered"
    error: Line = ""
    seconds: Seconds = 0.0
    size_mib: Count | None = None
    free_mib: Count | None = None
    inodes: Count | None = None
    inodes_free: Count | None = None
    refused: Annotated[tuple[Line, ...], Meta(max_length=8)] = ()
    """Why one of `paths` took no new nameless file: "/tmp: No space left on device"."""


class Machine(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine around the GPUs."""

    limits: Limits | None = None
    """Of our own login (or of the job's own process, where that is the way in)."""
    locks_any: bool | None = None
    """It may lock memory beyond its limit: root of the machine, CAP_IPC_LOCK."""
    launchers: Annotated[tuple[Launcher, ...], Meta(max_length=8)] | None = None
    stack: Stack | None = None
    serial: Line | None = None
    """By its firmware, or its board's; None where only root may look, or it tells none."""
    governors: Annotated[tuple[Governor, ...], Meta(max_length=64)] | None = None
    """() where the machine leaves frequencies to its firmware or hypervisor."""
    memory: Memory | None = None
    edac: Edac | None = None
    cgroup: Cgroup | None = None
    load: Load | None = None
    container: Container | None = None
    file_systems: Annotated[tuple[FileSystem, ...], Meta(max_length=64)] | None = None
    clock_kept: bool | None = None
    """Whether the kernel says that somebody keeps its clock in step (NTP, PTP)."""


_Text = Annotated[str, Meta(max_length=512)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class LogLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line, and how often its like came; `at_s` and `last_s` are seconds since boot."""

    text: _Text
    """Without its time stamp and what a log daemon put before it."""
    at_s: _Seconds | None = None
    last_s: _Seconds | None = None
    times: Annotated[int, Meta(ge=1, le=2**53)] = 1


class KernelLog(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines that matter, in the order in which each came first."""

    source: Literal["kmsg", "journal", "dmesg", "text"]
    seen: _Count
    """How many lines the log held; a running kernel has never said nothing."""
    begins_s: _Seconds | None = None
    """When the oldest line that is still there was said; the kernel forgets what was before."""
    after_s: _Seconds = 0.0
    """Only lines from then on were looked at: 0 for all since boot."""
    lines: Annotated[tuple[LogLine, ...], Meta(max_length=4096)] = ()
    dropped: _Count = 0
    """Further lines that matter, of which only the number is known."""
    dropped_of: dict[_Text, _Count] = {}
    """The same by the node's kind of line; "any": records that were not read at all; "later":
    those of them that stand behind others that were."""


Lines = Annotated[tuple[Line, ...], Meta(max_length=64)]


class Torch(Struct, frozen=True, forbid_unknown_fields=True):
    """The torch that this Python would import."""

    version: Line
    cuda: Line | None = None
    """The CUDA it is built for, "12.4"; None for a build without."""
    hip: Line | None = None
    """The same for ROCm."""
    archs: Lines | None = None
    """What its kernels are compiled for, in cuobjdump's words: "sm_90" is code, "compute_90" PTX.

    Read from the library's own table; None where that could not be read."""


class Software(Struct, frozen=True, forbid_unknown_fields=True):
    """Versions as packages and file names tell them; None where neither does."""

    torch: Torch | None = None
    """None: this Python finds no torch."""
    nccl: Line | None = None
    cudnn: Line | None = None
    cuda_compat: Line | None = None
    """Driver version of the forward-compatibility libraries in cuda*/compat."""
    net_plugins: Lines = ()
    """Paths of NCCL network plugins where the loader looks: libnccl-net*.so."""
