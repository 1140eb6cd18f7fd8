"""Nothing of the hook outlives it: nobody would log what an orphan tells the scheduler.

Standard library only. Without ctypes the kernel is not asked, and only `orphaned` tells.

Standard library only: it must be able to say that the rest cannot even be imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h"""

_PARENT: Final[list[int]] = []
"""The process that says what we did; empty where this one says it itself."""


def bind(parent: int) -> None:
    """Be sent SIGTERM by the kernel when `parent`, a pid, ends; end at once if it has."""
    _PARENT[:] = [parent]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if (ask := _asking(signal.SIGTERM)) is not None:
        ask()
    if orphaned():  # it ended between our fork and the lines above
        os._exit(0)


def orphaned() -> bool:
    """Whether the process that would say what we do has ended."""
    return bool(_PARENT) and os.getppid() != _PARENT[0]


def leash() -> Callable[[], None] | None:
    """Return what a program is to run before it begins, so that SIGKILL ends it when we end.

    Nothing is imported or looked up in there: it runs between fork and exec.
    """
    ask, parent = _asking(signal.SIGKILL), os.getpid()
    if ask is None:
        return None

    def begin() -> None:
        ask()
        if os.getppid() != parent:
            os._exit(1)

    return begin


def _asking(number: signal.Signals) -> Callable[[], object] | None:
    """Return what asks the kernel for that signal at our parent's end; None without ctypes."""
    try:
        import ctypes

        prctl, value = ctypes.CDLL(None).prctl, int(number)
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, value, 0, 0, 0)


PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""A prolog is started without any."""

PAYLOAD: Final = Path(__file__).resolve().parent.parent / "payload"
_STARTER: Final = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); os.write(1, b'@preflight booted\\n'); "
    "import start, probe.main; start.main('probe')"
)
"""Runs the payload where it is installed; its modules are loaded while its request is made."""

LONGEST_S: Final = 600
"""The longest budget there is; its request, which comes later, tells the probe its own time."""

_PROBE: Final[list[subprocess.Popen[bytes]]] = []
"""What reads this node, begun before it is known what to ask it."""


def begin_probe() -> None:
    """Start it: it loads its modules while we load ours. OSError if it cannot be started."""
    os.environ.setdefault("PATH", PATH)
    pipe, python = subprocess.PIPE, [sys.executable, "-I", "-B"]
    argv = ["timeout", "-k", "2", str(LONGEST_S), *python, "-c", _STARTER, str(PAYLOAD)]
    _PROBE.append(
        subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
    )


def probe() -> subprocess.Popen[bytes]:
    """Return the one that was begun, for one request, or another one. OSError."""
    if not _PROBE:
        begin_probe()
    return _PROBE.pop()


def end_probe() -> None:
    """End one that was begun and never asked."""
    for process in _PROBE:
        os.killpg(process.pid, signal.SIGTERM)


HEALTHY, UNHEALTHY, UNJUDGED = 0, 1, 2


SHARE_S: Final = 0.5
"""What is kept of the budget to end the child and to say so."""


class Ended(NamedTuple):
    """What came of the work: how to exit, what to print, and what to log ("" keeps silent)."""

    code: int
    out: str = ""
    log: str = ""
    level: Level = "warning"


SYSLOG: Final = "/dev/log"
LONGEST: Final = 900
"""Characters of a line: what RFC 3164 lets every relay of syslog carry, less its head."""

WAIT_S: Final = 0.5
"""A log daemon that stands still must not keep a job waiting."""

Level = Literal["info", "warning", "error"]

_DAEMON: Final = 3 << 3
_SEVERITIES: Final[dict[Level, int]] = {"error": 3, "warning": 4, "info": 6}
"""Facility and severities of RFC 3164."""


def say(text: str, level: Level = "warning", to: str = "syslog", device: str = SYSLOG) -> None:
    """Write one line to syslog, or to standard error where there is none. Never raises."""
    line = one_line(text)
    if to == "syslog" and _syslog(line, level, device):
        return
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"preflight: {line}\n".encode("ascii", "replace"))


def one_line(text: str) -> str:
    """Make it one line of printable ASCII, of bounded length: a node may be hostile."""
    kept = text[: 4 * LONGEST].encode("ascii", "replace").decode()
    kept = " ".join("".join(char if char.isprintable() else " " for char in kept).split())
    return kept if len(kept) <= LONGEST else f"{kept[: LONGEST - 3]}..."


def _syslog(line: str, level: Level, device: str) -> bool:
    """Whether the system's log took the line.

    logging's own handler connects anew where sending took too long, and then waits without end.
    """
    head = f"<{_DAEMON | _SEVERITIES[level]}>preflight[{os.getpid()}]: "
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(WAIT_S)
            out.connect(device)
            out.send((head + line).encode("ascii", "replace"))
    except OSError:
        return False
    return True
