"""What a node shows of a job that may hang: its ranks, where they stand, and what moved meanwhile.

Taken twice within seconds: what is called moved is the difference of the two looks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Index, Line, Seconds, Text, Whole
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
    """A thread of a rank."""

    frames: Annotated[tuple[Frame, ...], Meta(max_length=128)]
    """Innermost first."""
    main: bool = False
    name: Line = ""
    idle: bool | None = None
    holds_gil: bool | None = None


class Stacks(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a process stands."""

    threads: Annotated[tuple[Thread, ...], Meta(max_length=256)]
    native: bool = False
    """Of C and C++ too; the process was paused for some ms."""
    by: Line = ""
    """What read them: "py-spy 0.4.3 of this node", "py-spy 0.4.3 that travelled"."""


class Sighting(Struct, frozen=True, forbid_unknown_fields=True):
    """How often the main thread was seen in one place, of many quick looks between the two.

    They tell who computes and who waits in a job that progresses.
    """

    frames: Annotated[tuple[Frame, ...], Meta(max_length=128)]
    """Innermost first."""
    times: Count


class Connection(Struct, frozen=True, forbid_unknown_fields=True):
    """A TCP connection of a rank, as its kernel sees it."""

    local: Line
    """address:port"""
    peer: Line
    state: Line = "established"
    unacked: Count = 0
    """Bytes sent that the other end has not acknowledged, at the second look."""
    waiting: Count = 0
    """Bytes the other end has sent that this rank has not read."""
    resent: Count = 0
    """Segments sent again between the looks."""
    retries: Count = 0
    """How often in a row the oldest segment has been sent again by now."""
    probes: Count = 0
    """How often in a row a peer that takes no more has been asked whether it does by now."""
    sent: Count = 0
    """Bytes between the looks, those that the other end has acknowledged."""
    received: Count = 0
    quiet_s: Seconds | None = None
    """Since data last went either way, sent again or not; None: the kernel does not tell."""


class Dump(Struct, frozen=True, forbid_unknown_fields=True):
    """A flight recorder's file, as it is: not trusted, not unpickled on the node."""

    path: Line
    written_s: Seconds
    """Unix time."""
    size: Count
    content: Annotated[str, Meta(max_length=8 << 20)] = ""
    """base64 of zlib; empty where it was too large or could not be read (`why`)."""
    why: Line = ""


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """A Python process that a rank has started for itself: of its data loader, as a rule."""

    pid: Pid
    stacks: Stacks


class RankLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A process that is a rank of a distributed job, or has the looks of one."""

    pid: Pid
    parent: Pid = 0
    job: Line = ""
    """What its ranks share: torchrun's run id, a Slurm step, or MASTER_ADDR:MASTER_PORT."""
    rank: Index | None = None
    local_rank: Index | None = None
    world_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    local_world_size: Index | None = None
    restarts: Count | None = None
    master: Line = ""
    age_s: Seconds = 0.0
    user: Line = ""
    program: Line = ""
    """Executable and script, no arguments."""
    state: State
    wait_channel: Line = ""
    cpu_s: Share = 0.0
    """CPU time used between the looks, all threads."""
    main_cpu_s: Share = 0.0
    """Of the main thread alone."""
    look_s: Seconds
    """Between the looks."""
    switches: Count = 0
    """Times it gave up the CPU by itself between the looks."""
    read_bytes: Count | None = None
    """By read calls between the looks, files and pipes and sockets alike; None: not allowed."""
    written_bytes: Count | None = None
    memory_mib: Count = 0
    oom_kills: Count = 0
    """Of its memory cgroup, since that began."""
    children: Count = 0
    dead_children: Count = 0
    """Of these, such as have ended and nobody waits for: a data loader's worker that was killed."""
    gpus: Annotated[tuple[Line, ...], Meta(max_length=64)] = ()
    """UUIDs of the GPUs that it has memory on."""
    visible: Line | None = None
    """CUDA_VISIBLE_DEVICES, as given."""
    connections: Annotated[tuple[Connection, ...], Meta(max_length=512)] = ()
    stacks: Stacks | None = None
    later: Stacks | None = None
    """A second look at the same stacks, at the end: a rank that moves stands elsewhere."""
    sightings: Annotated[tuple[Sighting, ...], Meta(max_length=64)] = ()
    """The most frequent first; none where nobody sampled."""
    native: Stacks | None = None
    workers: Annotated[tuple[Worker, ...], Meta(max_length=64)] = ()
    """Some of its children, at the second look: what a rank waits for in its data loader."""
    no_stacks: Text = ""
    """Why there are none, and what to type; empty where there are."""
    dump: Dump | None = None


class Launcher(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What started ranks on this node and waits for them: a torchrun agent, srun's step."""

    pid: Pid
    job: Line = ""
    kind: Line = "torchrun"
    ranks: Index | None = None
    """How many processes it was told to start here."""
    children: Annotated[tuple[Pid, ...], Meta(max_length=256)] = ()
    stacks: Stacks | None = None


class GpuLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A GPU at the second look."""

    index: Index
    uuid: Line
    busy_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    power_w: Share | None = None
    clock_mhz: Count | None = None
    clock_max_mhz: Count | None = None
    memory_used_mib: Count | None = None
    memory_mib: Count | None = None
    throttled: Annotated[tuple[Line, ...], Meta(max_length=16)] = ()
    pids: Annotated[tuple[Pid, ...], Meta(max_length=256)] = ()


class PortLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network interface or RDMA port, and what it moved between the looks."""

    name: Line
    """`eth0`, or `mlx5_3/1`."""
    up: bool | None = None
    sent: Count = 0
    """Bytes."""
    received: Count = 0
    errors: dict[Annotated[str, Meta(max_length=64)], Count] = {}
    """Counters of trouble that moved between the looks, by the kernel's name."""
    lost_link: Count | None = None
    """Times the link went down since it was loaded (carrier_down_count, link_downed)."""


class NodeLook(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole answer of a node; what is None could not be read, and `problems` says why."""

    wire: Whole
    nonce: str
    host: Line
    time_s: Seconds
    boot_s: Seconds
    cores: Index = 1
    load: Share = 0.0
    ranks: Annotated[tuple[RankLook, ...], Meta(max_length=512)] = ()
    launchers: Annotated[tuple[Launcher, ...], Meta(max_length=128)] = ()
    hidden: Count = 0
    """Processes of others that look like ranks and that we may not read."""
    gpus: Annotated[tuple[GpuLook, ...], Meta(max_length=64)] | None = None
    ports: Annotated[tuple[PortLook, ...], Meta(max_length=512)] | None = None
    log: KernelLog | None = None
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    seconds: Seconds = 0.0
