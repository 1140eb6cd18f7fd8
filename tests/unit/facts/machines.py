"""The machine around a made-up node's GPUs: healthy, so that a test states what is not."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.facts.machine import (
    UNLIMITED,
    Cgroup,
    Container,
    Edac,
    FileSystem,
    Governor,
    Limits,
    Load,
    Machine,
    Memory,
    Stack,
)

TIB_MIB = 1 << 20


def machine(**changes: object) -> Machine:
    """A healthy server of 192 CPUs and 1 TiB, reached by a login without privileges."""
    one = Machine(
        limits=limits(),
        locks_any=False,
        launchers=(),
        stack=stack(),
        governors=(Governor("performance", "intel_pstate", 192),),
        memory=memory(),
        edac=Edac(watched=32),
        cgroup=Cgroup(),
        load=load(),
        container=Container(hidden_by=""),
        file_systems=(file_system(), shm()),
        clock_kept=True,
    )
    return replace(one, **changes)


def limits(memlock: int = UNLIMITED, nofile: int = 1048576, hard: int = 0) -> Limits:
    """Soft limits; the hard ones are the same unless given."""
    return Limits(memlock, hard or memlock, nofile, hard or nofile)


def stack(**changes: object) -> Stack:
    """What a healthy node runs."""
    one = Stack(
        os="Ubuntu 22.04.4 LTS",
        libc="glibc 2.35",
        architecture="x86_64",
        cpu="Intel(R) Xeon(R) Platinum 8480C",
        cpus_online=192,
        product="DGXH100",
        bios="1.6.7",
    )
    return replace(one, **changes)


def memory(**changes: object) -> Memory:
    """1 TiB, nearly all of it available."""
    return replace(Memory(TIB_MIB, TIB_MIB - 30_000, stalled_percent=0.0), **changes)


def load(**changes: object) -> Load:
    """An idle node."""
    return replace(Load(192, 0.4, 0.1), **changes)


def file_system(**changes: object) -> FileSystem:
    """The root disk, with /tmp on it."""
    one = FileSystem(
        mount="/",
        kind="ext4",
        paths=("/", "/tmp", "/home/alice"),
        size_mib=1_800_000,
        free_mib=1_500_000,
        inodes=100_000_000,
        inodes_free=99_000_000,
    )
    return replace(one, **changes)


def shm(**changes: object) -> FileSystem:
    """/dev/shm as a machine has it: half of its memory."""
    one = FileSystem(
        mount="/dev/shm",
        kind="tmpfs",
        paths=("/dev/shm",),
        size_mib=TIB_MIB // 2,
        free_mib=TIB_MIB // 2,
    )
    return replace(one, **changes)


def nfs(mount: str = "/data", **changes: object) -> FileSystem:
    """A shared file system."""
    one = FileSystem(mount=mount, kind="nfs4", source="nas1:/export/data", shared=True)
    return replace(replace(one, size_mib=TIB_MIB, free_mib=TIB_MIB), **changes)
