"""A lab host's /dev/kmsg: a plain file of the kernel's records, healthy until told otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BOOT = (
    (0.0, "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org)"),
    (2.1, "mlx5_core 0000:1a:00.0: firmware version: 28.39.1002"),
    (2.4, "mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged"),
    (3.2, "nvidia-nvlink: Nvlink Core is being initialized, major device number 235"),
    (3.9, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07"),
)


def write(path: Path) -> None:
    """Begin the log anew, in place: it is bound over the host's /dev/kmsg."""
    path.write_text("".join(map(record, range(len(_BOOT)), *zip(*_BOOT, strict=True))))


def say(path: Path, *lines: str, ago_s: float) -> None:
    """Append lines, as said so many seconds ago: since the boot of the machine."""
    at_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
    assert at_s >= 0, "no kernel says anything before it boots"
    number = path.read_text().count("\n") // 2
    with path.open("a") as log:
        log.writelines(record(number + n, at_s + n / 1e3, line) for n, line in enumerate(lines))


def record(number: int, at_s: float, line: str) -> str:
    """One record as /dev/kmsg gives it, with a property line as many have."""
    escaped = line.replace("\n", "\\x0a")
    return f"4,{number},{at_s * 1e6:.0f},-;{escaped}\n SUBSYSTEM=pci\n"
