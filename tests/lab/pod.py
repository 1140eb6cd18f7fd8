"""Becomes the process of a container: its own root, name and user, then the container's command.

Run inside a lab host, in fresh mount and UTS namespaces: `python -m tests.lab.pod plan.json`. The
host's network stays, as a pod's containers share the pod's.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.lab.init import MS_BIND, MS_REC, mount

MS_RDONLY, MS_REMOUNT = 1, 32
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(plan_file: str) -> None:
    """Lay out the container as the plan says, give up all rights, and run its command."""
    plan = json.loads(Path(plan_file).read_text())
    socket.sethostname(plan["hostname"])
    root = Path(plan["root"])
    mount("tmpfs", root, "tmpfs", data="mode=755")
    for name, target in plan["links"].items():
        Path(f"{root}{name}").symlink_to(target)
    for volume in sorted(plan["volumes"], key=lambda volume: str(volume["target"])):
        bind(root, volume)
    mount("none", root, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir(plan["working"])
    become(plan["user"], plan["group"])
    os.execve(plan["argv"][0], plan["argv"], plan["environ"])  # noqa: S606  # becomes it


def bind(root: Path, volume: dict[str, Any]) -> None:
    """Mount a file or folder of the host at its place, perhaps for reading only."""
    source, place = Path(volume["source"]), Path(f"{root}{volume['target']}")
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, place, flags=MS_BIND | MS_REC)
    if volume["read_only"]:
        mount("none", place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def become(user: int, group: int) -> None:
    """Give up root for good, and end when whoever started this ends."""
    os.setgroups([group])
    os.setgid(group)
    os.setuid(user)
    _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # after setuid, which would clear it


if __name__ == "__main__":
    main(sys.argv[1])
