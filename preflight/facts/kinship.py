"""Who a process is and whether its launcher still lives, told from commands and parents."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from preflight.facts.model import Process

_DAEMONS: Final = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nv-hostengine",
    "nvsm_core",
    "dcgm-exporter",
    "dcgmi",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-device-plugin",
    "nvidia-smi",
    "nvtop",
    "nvitop",
    "gpustat",
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "gnome-session-binary",
    "kwin_x11",
    "kwin_wayland",
    "plasmashell",
    "compiz",
    "sddm-greeter",
)
"""Drivers' own servers, monitors and desktops: they hold a GPU by design."""

_REAPERS: Final = re.compile(
    r"init|systemd|tini|dumb-init|docker-init|catatonit|s6-svscan|pause|conmon|sshd"
    r"|containerd-shim.*|slurmstepd|slurmd|apptainer|starter|singularity|enroot"
)
"""What orphans are handed to. A shell is none: it may be a rank's own wrapper script."""

_LAUNCHER: Final = re.compile(
    r"torchrun|torch[./]distributed|torchelastic|accelerate|deepspeed|python|pypy|ray\b"
)
_CUT_AT: Final = (9, 15)
"""lsof and the kernel cut names to this many letters."""


def program(command: str) -> str:
    """Name of the program in a command line: "python3" of "/usr/bin/python3 train.py"."""
    first = command.strip("[]").split(maxsplit=1)[0] if command.strip("[] ") else ""
    return PurePath(first.rstrip(":")).name


def is_daemon(one: Process) -> bool:
    """Whether it is a GPU's server, monitor or desktop, which belongs to no job."""
    name = program(one.command)
    return any(
        name == known or (len(name) in _CUT_AT and known.startswith(name)) for known in _DAEMONS
    )


def is_orphan(one: Process, alive: Collection[Process]) -> bool:
    """Whether the launcher that started it is gone. `alive`: the other processes we know of.

    A child of a rank (a data loader, a wrapper) is as much alive as that rank.
    """
    if _LAUNCHER.search(one.parent_command):
        return False
    if any(other.pid == one.ppid and other.rank is not None for other in alive):
        return False
    return one.ppid <= 1 or bool(_REAPERS.fullmatch(program(one.parent_command)))


def holds_memory(one: Process) -> bool:
    """Whether it is known to have GPU memory of its own."""
    return bool(one.gpu_mib)
