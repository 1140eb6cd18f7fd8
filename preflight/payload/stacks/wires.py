"""The connections of the ranks, each looked up where it lives: a container has its own network."""

from __future__ import annotations

import contextlib
import os

from probe import procfs
from probe.text import words

from . import inet_diag, interfaces, proc_tcp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_NEW_NET = 0x40000000
"""CLONE_NEWNET: which kind of namespace is meant."""

MOST, MOST_IN_ALL = 512, 8192
"""Connections of a rank, and of all together."""


def look(pids: Iterable[int]) -> dict[str, Any]:
    """Return `wires` by pid (as text), `ports` by name, and `problems`; in a child only.

    It enters the network namespace of the ranks where they have another and it may; from there
    the kernel tells most. Where not, their /proc/PID/net says the least.
    """
    pids = list(pids)
    most = min(MOST, max(16, MOST_IN_ALL // max(1, len(pids))))
    told: dict[str, Any] = {"wires": {}, "ports": {}, "problems": []}
    own = _namespace(os.getpid())
    for space, members in _by_namespace(pids).items():
        inside = space in ("", own) or _enter(members[0])
        with contextlib.suppress(OSError):
            told["ports"] = {**interfaces.look(), **told["ports"]} if inside else told["ports"]
        found = _connections(members[0], told["problems"], inside=inside)
        for pid in members:
            opened = procfs.opened(pid)
            its = opened.sockets if opened else set()
            told["wires"][str(pid)] = [found[inode] for inode in sorted(its) if inode in found][
                :most
            ]
    if not told["ports"]:
        with contextlib.suppress(OSError):
            told["ports"] = interfaces.look()
    return told


def _connections(pid: int, problems: list[str], *, inside: bool) -> dict[str, dict[str, Any]]:
    """Return what the kernel says of each connection, by its inode as text."""
    try:
        found = inet_diag.connections() if inside else proc_tcp.connections(pid)
    except OSError as error:
        try:
            found = proc_tcp.connections(pid)
        except OSError:
            problems.append(f"connections of process {pid}: {words(error)}")
            return {}
    return {str(one["inode"]): one for one in found}


def _by_namespace(pids: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for pid in pids:
        found.setdefault(_namespace(pid), []).append(pid)
    return found


def _namespace(pid: int) -> str:
    """Return what names its network namespace; "" where that may not be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _enter(pid: int) -> bool:
    """Move this process into the network namespace of another; needs CAP_SYS_ADMIN."""
    try:
        handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    except OSError:
        return False
    try:
        import ctypes  # only where there is another namespace

        return int(ctypes.CDLL(None).setns(handle, _NEW_NET)) == 0
    except (ImportError, OSError, AttributeError):
        return False
    finally:
        os.close(handle)


def moved(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a `Connection` of the document for each that is there at the second look."""
    first = {one["inode"]: one for one in before}
    return [_moved(first.get(one["inode"], {}), one) for one in after]


def _moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    told = {name: after[name] for name in ("local", "peer", "state", "unacked", "waiting")}
    told.update(retries=after["retries"], probes=after["probes"])
    for name in ("sent", "received", "resent"):
        if name in after:
            told[name] = max(0, after[name] - before.get(name, 0 if not before else after[name]))
    if "quiet_ms" in after:
        told["quiet_s"] = round(after["quiet_ms"] / 1000, 3)
    return told
