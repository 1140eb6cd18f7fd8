"""Why a process may not be read, and what to type so that it may be: nobody knows that by heart."""

from __future__ import annotations

import os

from probe.text import attempt

_SYS_PTRACE = 1 << 19
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PRIVATE, _ADMIN_ONLY, _NOBODY = "1", "2", "3"


def why(uid: int | None, user: str) -> str:
    """Say why this login may not read a process of that user; "" where nothing speaks against."""
    capable = may_trace(attempt_status())
    return _why(uid, user, os.geteuid(), capable=capable, scope=attempt(_SCOPE))


def _why(  # noqa: PLR0911 (one line per cause)
    uid: int | None, user: str, own: int, *, capable: bool, scope: str
) -> str:
    if scope == _NOBODY:
        return (
            "the kernel lets nobody read another process (kernel.yama.ptrace_scope is 3): "
            "set it to 1 in /etc/sysctl.d and restart the node"
        )
    if capable:
        return ""
    if own == 0:
        return (
            "this container has no CAP_SYS_PTRACE: run preflight diagnose on the host, or start "
            "it with --cap-add=SYS_PTRACE (Kubernetes: capabilities: add: [SYS_PTRACE])"
        )
    if uid != own:
        who = user if uid == 0 else f"{user} or as root"
        return f"it belongs to {user}: run preflight diagnose as {who}"
    if scope == _ADMIN_ONLY:
        return (
            "only root may read another process here (kernel.yama.ptrace_scope is 2): "
            "run preflight diagnose as root"
        )
    if scope == _PRIVATE:
        return (
            "the kernel lets only a parent read it (kernel.yama.ptrace_scope is 1): "
            "sudo sysctl kernel.yama.ptrace_scope=0, or run preflight diagnose as root"
        )
    return ""


def may_trace(status: str) -> bool:
    """Whether a /proc/PID/status says that the process has CAP_SYS_PTRACE in effect."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return bool(int(value.strip(), 16) & _SYS_PTRACE)
            except ValueError:
                return False
    return False


def attempt_status() -> str:
    """Return our own /proc/self/status; "" without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
