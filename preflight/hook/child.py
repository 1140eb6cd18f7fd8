"""The hook's child processes and its log line, and the options and result that processes pass on.

No child outlives the hook, which logs what they do. Without ctypes the kernel cannot end a child
with its parent, and only `orphaned` shows it.
Standard library only: it must be able to log that the rest cannot be imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from preflight.hook.hook_values import Occasion

_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h"""

_PARENT: Final[list[int]] = []
"""Pid of the process that logs what this one does; empty where this one logs it itself."""


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM when `parent`, a pid, ends; exit now if it has ended."""
    _PARENT[:] = [parent]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if (ask := request_at_parents_end(signal.SIGTERM)) is not None:
        ask()
    if orphaned():  # it ended between our fork and the lines above
        os._exit(0)


def orphaned() -> bool:
    """Whether the process that would log what this one does has ended."""
    return bool(_PARENT) and os.getppid() != _PARENT[0]


def kill_with_parent() -> Callable[[], None] | None:
    """Return a preexec function: the kernel kills that program when this process ends.

    The function imports and looks up nothing: it runs between fork and exec.
    """
    ask, parent = request_at_parents_end(signal.SIGKILL), os.getpid()
    if ask is None:
        return None

    def begin() -> None:
        ask()
        if os.getppid() != parent:
            os._exit(1)

    return begin


def request_at_parents_end(number: signal.Signals) -> Callable[[], object] | None:
    """Return a call that requests this signal at the parent's end; None without ctypes."""
    try:
        import ctypes

        prctl, value = ctypes.CDLL(None).prctl, int(number)
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, value, 0, 0, 0)


PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Slurm starts a prolog without PATH."""

PAYLOAD: Final = Path(__file__).resolve().parent.parent / "payload"
_STARTER: Final = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); os.write(1, b'@preflight booted\\n'); "
    "import start, probe.main; start.main('probe')"
)
"""Runs the installed payload; it loads its modules while the hook prepares the request."""

LONGEST_S: Final = 600
"""The longest possible budget; the request, which comes later, holds the probe's deadline."""

_PROBE: Final[list[subprocess.Popen[bytes]]] = []
"""The process that reads this node, started before its request is known."""


def begin_probe() -> None:
    """Start the probe, which loads its modules while the hook does. OSError if it cannot start."""
    os.environ.setdefault("PATH", PATH)
    pipe, python = subprocess.PIPE, [sys.executable, "-I", "-B"]
    argv = ["timeout", "-k", "2", str(LONGEST_S), *python, "-c", _STARTER, str(PAYLOAD)]
    _PROBE.append(
        subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
    )


def probe() -> subprocess.Popen[bytes]:
    """Return the started probe, for one request, or start another one. Raises OSError."""
    if not _PROBE:
        begin_probe()
    return _PROBE.pop()


def end_probe() -> None:
    """End a probe that was started but got no request."""
    for process in _PROBE:
        os.killpg(process.pid, signal.SIGTERM)


HEALTHY, UNHEALTHY, UNJUDGED = 0, 1, 2


RESERVE_S: Final = 0.5
"""Part of the budget reserved to end the child and to log that."""


class Options(NamedTuple):
    """The options of `preflight prolog` or `preflight healthcheck` that were typed."""

    occasion: Occasion
    config: Path | None
    node: str
    plain: bool
    json: bool
    periodic: bool = False
    fail_closed: bool = False
    limit_s: float | None = None
    """The caller ends the hook after this many seconds; None for no limit."""


class HookResult(NamedTuple):
    """The hook's result: its exit code, what to print, and what to log ("" for nothing)."""

    code: int
    out: str = ""
    log: str = ""
    level: Level = "warning"


SYSLOG: Final = "/dev/log"
LONGEST: Final = 900
"""Characters of a line: what RFC 3164 lets every syslog relay carry, less the header."""

WAIT_S: Final = 0.5
"""A log daemon that hangs must not delay a job."""

Level = Literal["info", "warning", "error"]

_DAEMON: Final = 3 << 3
_SEVERITIES: Final[dict[Level, int]] = {"error": 3, "warning": 4, "info": 6}
"""Facility and severities of RFC 3164."""


def say(text: str, level: Level = "warning", log: str = "syslog", device: str = SYSLOG) -> None:
    """Write one line to syslog, or to standard error where there is none. Never raises."""
    line = one_line(text)
    if log == "syslog" and _syslog(line, level, device):
        return
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"preflight: {line}\n".encode("ascii", "replace"))


def one_line(text: str) -> str:
    """Return the text as one line of printable ASCII, of bounded length: a node may be hostile."""
    line = printable_ascii(text[: 4 * LONGEST])
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def printable_ascii(text: str) -> str:
    """Replace all other characters, and fold blanks."""
    ascii_only = text.encode("ascii", "replace").decode()
    return " ".join("".join(char if char.isprintable() else " " for char in ascii_only).split())


def _syslog(line: str, level: Level, device: str) -> bool:
    """Send the line to syslog; whether it was accepted.

    logging.SysLogHandler reconnects where sending timed out, and then waits without a limit.
    """
    head = f"<{_DAEMON | _SEVERITIES[level]}>preflight[{os.getpid()}]: "
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(device)
            connection.send((head + line).encode("ascii", "replace"))
    except OSError:
        return False
    return True
