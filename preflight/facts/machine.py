"""The machine around the GPUs: limits, memory, file systems, kernel log, software.

Sections of the wire document (`docs/internals/wire.md`). A part that could not be read is None.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Line, Seconds

UNLIMITED: Final = -1
"""A `Ceiling` that the kernel prints as "unlimited"."""

Ceiling = Annotated[int, Meta(ge=UNLIMITED, le=2**62)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Resource limits of one process: locked memory in bytes, open files."""

    memlock: Ceiling
    memlock_hard: Ceiling
    nofile: Ceiling
    nofile_hard: Ceiling


class Launcher(Struct, frozen=True, forbid_unknown_fields=True):
    """A scheduler's daemon that starts jobs here: they inherit its limits, not our login's."""

    name: Line
    pid: Count
    limits: Limits


class Stack(Struct, frozen=True, forbid_unknown_fields=True):
    """A node's hardware and system; "" where not known. The nodes of a group are alike."""

    os: Line = ""
    libc: Line = ""
    architecture: Line = ""
    cpu: Line = ""
    cpus_online: Count = 0
    product: Line = ""
    bios: Line = ""


class Governor(Struct, frozen=True, forbid_unknown_fields=True):
    """A frequency governor, its driver, and how many CPUs it controls."""

    name: Line
    driver: Line
    cpus: Count


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine's own memory, MiB, from /proc/meminfo."""

    total_mib: Count
    available_mib: Count
    swap_used_mib: Count = 0
    shared_mib: Count = 0
    """In tmpfs and shared memory, such as files in /dev/shm."""
    huge_pages_mib: Count = 0
    """Reserved as huge pages, used or not."""
    stalled_percent: Percent | None = None
    """Share of the last 10 s in which something waited for memory; None without kernel PSI."""


class Dimm(Struct, frozen=True, forbid_unknown_fields=True):
    """ECC errors on one DIMM, or on several that the kernel cannot distinguish."""

    name: Line
    """The board's label if known, else "mc0/dimm3"."""
    corrected: Count
    uncorrected: Count
    counted_s: Seconds | None = None
    """For how long it has counted; None where not known."""


class Edac(Struct, frozen=True, forbid_unknown_fields=True):
    """The kernel's counters of memory errors (EDAC)."""

    watched: Count
    """DIMMs whose errors are counted; 0 where no driver counts them."""
    errors: Annotated[tuple[Dimm, ...], Meta(max_length=256)] = ()
    """The DIMMs with errors."""


class Cgroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of our login's control group; None: no limit below the machine's."""

    cpus: Annotated[float, Meta(ge=0)] | None = None
    """CPU time per second, from the quota."""
    memory_mib: Count | None = None
    pids: Count | None = None


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that uses CPU time and does not belong to preflight."""

    pid: Count
    name: Line
    user: Line
    cpus: Annotated[float, Meta(ge=0)]


class Load(Struct, frozen=True, forbid_unknown_fields=True):
    """The CPU load of other processes while preflight is idle."""

    cpus_allowed: Count
    """CPUs on which this login may run."""
    one_minute: Annotated[float, Meta(ge=0)]
    """Load average, which includes processes that this login cannot see."""
    foreign_cpus: Annotated[float, Meta(ge=0)]
    """CPUs that other visible processes used, over some 0.2 s."""
    busiest: Annotated[tuple[Worker, ...], Meta(max_length=8)] = ()


class Container(Struct, frozen=True, forbid_unknown_fields=True):
    """The container around our login, and what it hides."""

    kind: Line = ""
    """"docker", "kubernetes", "apptainer", ...; "" for none known."""
    hidden_by: Line | None = None
    """What hides other users' processes: "process table", "hidepid"; "" for nothing.

    None: not known.
    """


class FileSystem(Struct, frozen=True, forbid_unknown_fields=True):
    """One mounted file system that a job needs, and its answer to statvfs."""

    mount: Line
    kind: Line
    """Its type: ext4, nfs4, lustre, fuse.sshfs."""
    source: Line = ""
    paths: Annotated[tuple[Line, ...], Meta(max_length=8)] = ()
    """Those of "/", "/tmp", "/dev/shm" and our login's working directory that lie on it."""
    shared: bool = False
    """Served over the network or by a user's daemon, so it can hang."""
    automounted: bool = False
    """Mounted on demand, so that nodes need not have the same ones."""
    read_only: bool = False
    remounted: bool = False
    """Mounted writable, then made read-only as a whole by the kernel, because of errors."""
    state: Literal["answered", "hung", "error", "hidden"] = "answered"
    error: Line = ""
    seconds: Seconds = 0.0
    size_mib: Count | None = None
    free_mib: Count | None = None
    inodes: Count | None = None
    inodes_free: Count | None = None
    refused: Annotated[tuple[Line, ...], Meta(max_length=8)] = ()
    """Why no unnamed file could be created on one of `paths`: "/tmp: No space left on device"."""


class Machine(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine around the GPUs."""

    limits: Limits | None = None
    """Of our own login (or of the job's process, where preflight runs inside the job)."""
    locks_any: bool | None = None
    """Whether our login may lock memory beyond its limit: root of the machine, CAP_IPC_LOCK."""
    launchers: Annotated[tuple[Launcher, ...], Meta(max_length=8)] | None = None
    stack: Stack | None = None
    serial: Line | None = None
    """The firmware's serial number, or the board's; None where only root may read it, or none."""
    governors: Annotated[tuple[Governor, ...], Meta(max_length=64)] | None = None
    """() where the firmware or hypervisor controls frequencies."""
    memory: Memory | None = None
    edac: Edac | None = None
    cgroup: Cgroup | None = None
    load: Load | None = None
    container: Container | None = None
    file_systems: Annotated[tuple[FileSystem, ...], Meta(max_length=64)] | None = None
    clock_kept: bool | None = None
    """Whether the kernel reports that its clock is synchronized (NTP, PTP)."""


class LogLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line, and how often similar ones came; `at_s` and `last_s` are seconds since boot."""

    text: Line
    """Without its time stamp and a log daemon's prefix."""
    at_s: Seconds | None = None
    last_s: Seconds | None = None
    times: Annotated[int, Meta(ge=1, le=2**53)] = 1


class KernelLog(Struct, frozen=True, forbid_unknown_fields=True):
    """The relevant lines, in order of their first appearance."""

    source: Literal["kmsg", "journal", "dmesg", "text"]
    seen: Count
    """How many lines the log held; a running kernel's log is never empty."""
    begins_s: Seconds | None = None
    """Time of the oldest line that is still there; the kernel drops earlier ones."""
    after_s: Seconds = 0.0
    """Only lines from then on were read: 0 for all since boot."""
    lines: Annotated[tuple[LogLine, ...], Meta(max_length=4096)] = ()
    dropped: Count = 0
    """Further relevant lines, which were only counted."""
    dropped_of: dict[Line, Count] = {}
    """`dropped` by kind of line; "any": records that were not read at all; "later": those of
    them that come after records that were."""


Lines = Annotated[tuple[Line, ...], Meta(max_length=64)]


class Torch(Struct, frozen=True, forbid_unknown_fields=True):
    """The torch that this Python would import."""

    version: Line
    cuda: Line | None = None
    """The CUDA it is built for, "12.4"; None for a build without CUDA."""
    hip: Line | None = None
    """The ROCm it is built for; None for a build without ROCm."""
    archs: Lines | None = None
    """Targets of its kernels, in cuobjdump's words: "sm_90" is code, "compute_90" PTX.

    Read from the library's own table; None where that could not be read."""


class Software(Struct, frozen=True, forbid_unknown_fields=True):
    """Versions by packages and file names; None where neither has one."""

    torch: Torch | None = None
    """None: this Python finds no torch."""
    nccl: Line | None = None
    cudnn: Line | None = None
    cuda_compat: Line | None = None
    """Driver version of the forward-compatibility libraries in cuda*/compat."""
    net_plugins: Lines = ()
    """Paths of NCCL network plugins where the loader looks: libnccl-net*.so."""
