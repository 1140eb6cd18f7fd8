"""Machines that are unfit although their GPUs are well: small limits, full disks, bad memory.

Each is planted in a lab host's own view of the machine and taken away again.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import hung_mount, sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.host import Host
    from tests.lab.inside import Inside

SMALL_LIMITS = (
    "prlimit --memlock=65536:65536 --nofile=300:300 "
    f"setpriv --bounding-set=-ipc_lock {sys.executable}"
)
"""For the inventory: the same Python under small limits, and root may not exceed them."""


@contextmanager
def full(host: Host, folder: str | Path) -> Iterator[None]:
    """A memory file system over a folder, and not one byte free on it."""
    fill = 'mount -t tmpfs -o size=100m tmpfs "$1" && head -c 200M /dev/zero >"$1/left" || true'
    host.run(["sh", "-c", fill, "sh", folder])
    try:
        yield
    finally:
        host.run(["umount", folder])


@contextmanager
def little_memory(host: Host) -> Iterator[None]:
    """A tenth of the memory is there, and nothing of it available."""
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    told["MemTotal"] = f" {int(told['MemTotal'].split()[0]) // 10} kB"
    told["MemAvailable"] = " 2048 kB"
    file = host.folder / "meminfo"
    file.write_text("".join(f"{name}:{value}\n" for name, value in told.items()))
    with _bound(host, file, "/proc/meminfo"):
        yield


@contextmanager
def bad_dimm(host: Host) -> Iterator[None]:
    """64 CPUs under powersave, and a DIMM that has lost data."""
    root = host.folder / "system"
    files = {
        "cpu/online": "0-63",
        "cpu/cpufreq/policy0/scaling_governor": "powersave",
        "cpu/cpufreq/policy0/scaling_driver": "intel_pstate",
        "cpu/cpufreq/policy0/affected_cpus": " ".join(map(str, range(64))),
        "edac/mc/mc0/ce_count": "12",
        "edac/mc/mc0/ue_count": "1",
        "edac/mc/mc0/dimm0/dimm_label": "CPU0_DIMM_A1",
        "edac/mc/mc0/dimm0/dimm_ce_count": "12",
        "edac/mc/mc0/dimm0/dimm_ue_count": "1",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    with _bound(host, root, "/sys/devices/system"):
        yield


@contextmanager
def hung_server(host: Host, folder: Path) -> Iterator[None]:
    """A shared file system whose server has gone away."""
    server = host.spawn([sys.executable, hung_mount.__file__, folder])
    server.wait_for_word("mounted")
    try:
        yield
    finally:
        server.kill()
        host.run(["umount", "-l", folder])


@contextmanager
def small_frames(host: Host) -> Iterator[None]:
    """An MTU that somebody forgot when they set the others'."""
    host.run(["ip", "link", "set", "eth0", "mtu", "1400"])
    try:
        yield
    finally:
        host.run(["ip", "link", "set", "eth0", "mtu", "1500"])


@contextmanager
def loose_nic(host: Host) -> Iterator[None]:
    """The fourth NIC of a host has lost half of its PCIe lanes."""
    bus_id = host.scenario.nics[3].path[-1]
    sysfs.narrow(host.folder / "sys", bus_id, 8)
    try:
        yield
    finally:
        sysfs.narrow(host.folder / "sys", bus_id, 16)


@contextmanager
def hog(host: Host) -> Iterator[Inside]:
    """Somebody's forgotten process that never rests."""
    process = host.spawn([sys.executable, "-c", "print('busy', flush=True)\nwhile True: pass"])
    process.wait_for_word()
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def _bound(host: Host, source: Path, target: str) -> Iterator[None]:
    host.run(["mount", "--bind", source, target])
    try:
        yield
    finally:
        host.run(["umount", target])
