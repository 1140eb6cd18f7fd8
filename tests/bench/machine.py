"""Where it was measured: a ratio from another machine, or with another torch, may differ."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from msgspec import Struct

_DISTRIBUTIONS = (
    "pytest-preflight",
    "pytest",
    "pytest-xdist",
    "pytest-testinfra",
    "paramiko",
    "msgspec",
    "torch",
)


class Machine(Struct, frozen=True, kw_only=True):
    """One machine and the versions of what was compared."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    openssh: str
    versions: dict[str, str]


def machine() -> Machine:
    """Read this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    openssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        openssh=openssh.split(",")[0].strip(),
        versions={name: _version(name) for name in _DISTRIBUTIONS},
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
