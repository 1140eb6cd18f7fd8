# ruff: noqa: T201  # its output is how the lab follows it
"""Process 1 of a lab host: lays out its world, starts sshd, buries orphans, ends with its owner.

Started by `tests.lab.host` inside fresh namespaces. It says its process id as the outside sees it,
waits for the network card to be pushed in, says "up", and lives for as long as standard input stays
open: when the lab's owner dies, however it dies, the host and all its processes die too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

MS_NOSUID, MS_BIND, MS_REC = 2, 4096, 16384
FITHAW = 0xC0045878
_NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(plan_file: str) -> None:
    """Bring the host up as the plan (JSON from `tests.lab.host`) says, then keep it."""
    print(Path("/proc/self").readlink(), flush=True)
    sys.stdin.readline()
    plan = json.loads(Path(plan_file).read_text())
    world(plan)
    network(plan["name"], plan["address"])
    signal.signal(signal.SIGCHLD, bury)
    os.posix_spawn(plan["sshd"][0], plan["sshd"], {"PATH": plan["path"]})
    print("up", flush=True)
    while os.read(0, 4096):
        pass
    thaw(plan["disk"])


def world(plan: dict[str, Any]) -> None:
    """Give the host its own /proc, /sys, /dev, /run, and the files it has for itself."""
    mount("proc", "/proc", "proc")
    mount("sysfs", plan["kernel"], "sysfs")
    for folder in plan["from_kernel"]:
        source = Path("/sys" if folder == "fs" else plan["kernel"], folder)
        if source.is_dir():
            mount(source, Path(plan["sysfs"], folder), flags=MS_BIND | MS_REC)
    mount(plan["sysfs"], "/sys", flags=MS_BIND | MS_REC)
    # A host is no worse for what the machine below it has: its governors, its DIMMs.
    for folder in ("/sys/devices/system/cpu/cpufreq", "/sys/devices/system/edac"):
        if Path(folder).is_dir():
            mount("tmpfs", folder, "tmpfs")
    for folder in ("/run", "/var/log"):
        mount("tmpfs", folder, "tmpfs")
    for folder in ("/run/sshd", "/run/lock"):
        Path(folder).mkdir()
    devices(plan["gpus"])
    for source, target in plan["binds"]:
        mount(source, target, flags=MS_BIND)


def devices(gpus: int) -> None:
    """Make a small /dev of its own, with device files for the GPUs that can be opened."""
    mount("tmpfs", "/dev", "tmpfs", data="mode=755")
    nodes = {name: (1, minor) for name, minor in _NODES.items()} | {"tty": (5, 0)}
    nodes |= dict.fromkeys([*(f"nvidia{i}" for i in range(gpus)), "nvidiactl"], (1, 3))
    os.umask(0)
    for name, numbers in nodes.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*numbers))
    os.umask(0o022)
    for name, target in {"fd": "/proc/self/fd", "ptmx": "pts/ptmx"}.items():
        Path("/dev", name).symlink_to(target)
    Path("/dev/kmsg").touch()  # a plain file of the host's own comes over it: its kernel log
    for folder in ("pts", "shm"):
        Path("/dev", folder).mkdir()
    mount("devpts", "/dev/pts", "devpts", data="newinstance,ptmxmode=0666,mode=620")
    mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")


def network(name: str, address: str) -> None:
    """Take name and address; eth0 was pushed in by the lab."""
    _LIBC.sethostname(name.encode(), len(name))
    # A host that comes back says so, else its peers' neighbour tables keep it dead for seconds.
    Path("/proc/sys/net/ipv4/conf/eth0/arp_notify").write_text("1")
    lines = ["link set lo up", f"address add {address} dev eth0", "link set eth0 up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def mount(
    source: object, target: object, kind: str = "none", *, flags: int = 0, data: str = ""
) -> None:
    """Mount one thing; OSError says which mount failed."""
    words = (str(source).encode(), str(target).encode(), kind.encode())
    if _LIBC.mount(*words, flags, data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bury(*_signal: object) -> None:
    """Reap every child that ended: orphans of the host become children of process 1."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def thaw(disk: str) -> None:
    """Let processes go that hang on a frozen disk: else they, and so the host, could not end."""
    with suppress(OSError):
        folder = os.open(disk, os.O_RDONLY)
        fcntl.ioctl(folder, FITHAW, 0)


if __name__ == "__main__":
    main(sys.argv[1])
