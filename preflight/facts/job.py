"""A node's view of a job that may hang: its ranks, their stacks, and what changed meanwhile.

Two looks within seconds; "between the looks" is the difference.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Index, Int64, Line, Seconds, Text
from preflight.facts.machine import KernelLog

Pid = Annotated[int, Meta(ge=0, le=2**31)]
Share = Annotated[float, Meta(ge=0, le=1e6)]
State = Literal["running", "sleeping", "disk", "stopped", "traced", "zombie", "gone"]
"""Of /proc/PID/stat: R S D T t Z X."""


class Frame(Struct, frozen=True, forbid_unknown_fields=True):
    """One call on a stack; never its arguments or locals."""

    function: Line
    file: Line
    """As the interpreter knows it, a full path; empty for a native one."""
    line: Annotated[int, Meta(ge=0, le=2**31)] = 0


class Thread(Struct, frozen=True, forbid_unknown_fields=True):
    """A thread of a rank, and its stack."""

    frames: Annotated[tuple[Frame, ...], Meta(max_length=128)]
    """Innermost first."""
    main: bool = False
    name: Line = ""


class Stacks(Struct, frozen=True, forbid_unknown_fields=True):
    """The stacks of a process."""

    threads: Annotated[tuple[Thread, ...], Meta(max_length=256)]
    by: Line = ""
    """The reader: "py-spy 0.4.3 of this node", or "py-spy 0.4.3 that travelled" (sent there)."""


class Sighting(Struct, frozen=True, forbid_unknown_fields=True):
    """How often the main thread was at one place, in many quick samples between the looks.

    They show which ranks compute and which wait in a job that progresses.
    """

    frames: Annotated[tuple[Frame, ...], Meta(max_length=128)]
    """Innermost first."""
    times: Count


class Connection(Struct, frozen=True, forbid_unknown_fields=True):
    """A TCP connection of a rank, as its kernel sees it."""

    local: Line
    """address:port"""
    peer: Line
    unacked: Count = 0
    """Bytes sent that the other end has not acknowledged, at the second look."""
    resent: Count = 0
    """Segments sent again between the looks."""
    retries: Count = 0
    """Consecutive retransmissions of the oldest segment so far."""
    sent: Count = 0
    """Bytes between the looks that the other end has acknowledged."""
    received: Count = 0
    quiet_s: Seconds | None = None
    """Since data last went either way, retransmissions included; None: not known."""
    served: bool = False
    """Whether its local port still accepts connections. NCCL stops listening once its data
    connections stand (`closeListen` in src/transport/net.cc); its RAS threads do not."""


class Dump(Struct, frozen=True, forbid_unknown_fields=True):
    """A flight recorder's file, unchanged: not trusted, never unpickled on the node."""

    written_s: Seconds
    """Unix time."""
    content: Annotated[str, Meta(max_length=8 << 20)] = ""
    """base64 of zlib; empty where it was too large or could not be read (`why`)."""
    why: Line = ""


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """A Python process that a rank has started: usually a worker of its data loader."""

    pid: Pid
    stacks: Stacks


class RankLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A process that is, or looks like, a rank of a distributed job."""

    pid: Pid
    parent: Pid = 0
    job: Line = ""
    """Its job's id: torchrun's run id, a Slurm step, or MASTER_ADDR:MASTER_PORT."""
    rank: Index | None = None
    local_rank: Index | None = None
    world_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    local_world_size: Index | None = None
    restarts: Count | None = None
    master: Line = ""
    age_s: Seconds = 0.0
    uid: Int64 | None = None
    state: State
    wait_channel: Line = ""
    main_cpu_s: Share = 0.0
    """CPU time that the main thread used between the looks."""
    look_s: Seconds
    """Time between the looks."""
    switches: Count = 0
    """Voluntary context switches between the looks."""
    oom_kills: Count = 0
    """Of its memory cgroup, since that was created."""
    dead_children: Count = 0
    """Children that have ended and were not reaped: a killed data loader worker."""
    gpus: Annotated[tuple[Line, ...], Meta(max_length=64)] = ()
    """UUIDs of the GPUs on which it has memory."""
    visible: Line | None = None
    """CUDA_VISIBLE_DEVICES, as given."""
    connections: Annotated[tuple[Connection, ...], Meta(max_length=512)] = ()
    stacks: Stacks | None = None
    later: Stacks | None = None
    """The same stacks at the end: a rank that progresses has other frames."""
    sightings: Annotated[tuple[Sighting, ...], Meta(max_length=64)] = ()
    """The most frequent first; empty where no samples were taken."""
    native: Stacks | None = None
    """With frames of C and C++; the process was paused for some ms."""
    workers: Annotated[tuple[Worker, ...], Meta(max_length=64)] = ()
    """Some of its children at the second look: a rank may wait for its data loader."""
    no_stacks: Text = ""
    """Why there are no stacks, and what to type; empty where there are."""
    dump: Dump | None = None
    ras: Line = ""
    """Where NCCL's RAS service listens, `localhost:28028`; empty where nothing does."""
    inner_pid: Pid | None = None
    """Its pid in its own PID namespace, by which NCCL reports it; None: not known."""


class Launcher(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A process that started ranks here and waits for them: a torchrun agent, a Slurm step."""

    pid: Pid
    job: Line = ""
    kind: Line = "torchrun"
    children: Annotated[tuple[Pid, ...], Meta(max_length=256)] = ()


class GpuLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A GPU at the second look."""

    index: Index
    uuid: Line
    busy_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    clock_mhz: Count | None = None
    memory_used_mib: Count | None = None
    throttled: Annotated[tuple[Line, ...], Meta(max_length=16)] = ()
    pids: Annotated[tuple[Pid, ...], Meta(max_length=256)] = ()


class PortLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network interface or RDMA port, and its traffic between the looks."""

    name: Line
    """`eth0`, or `mlx5_3/1`."""
    up: bool | None = None
    received: Count = 0
    """Bytes."""
    errors: dict[Annotated[str, Meta(max_length=64)], Count] = {}
    """Error counters that rose between the looks, by the kernel's name."""


class NodeLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node's whole answer; None is what could not be read, for the reasons in `problems`."""

    wire: Int64
    nonce: str
    host: Line
    time_s: Seconds
    boot_s: Seconds
    ranks: Annotated[tuple[RankLook, ...], Meta(max_length=512)] = ()
    launchers: Annotated[tuple[Launcher, ...], Meta(max_length=128)] = ()
    hidden: Count = 0
    """Other users' processes that look like ranks and that this login may not read."""
    gpus: Annotated[tuple[GpuLook, ...], Meta(max_length=64)] | None = None
    ports: Annotated[tuple[PortLook, ...], Meta(max_length=512)] | None = None
    log: KernelLog | None = None
    ras: Line = ""
    """The default address of NCCL's RAS service if anything listens there, whoever's."""
    ras_pid: Int64 = 0
    """A process that this login may not read, if possible of the user who listens there."""
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class RasLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The report of NCCL's RAS service, unchanged: not trusted, never parsed on the node."""

    wire: Int64
    nonce: str
    host: Line
    time_s: Seconds
    boot_s: Seconds
    json: bool = False
    content: Annotated[str, Meta(max_length=12 << 20)] = ""
    """base64 of zlib."""
    why: Text = ""
    """Why there is no report."""
