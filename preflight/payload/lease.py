"""A node works only while its controller says that it is there: a line can die without a sound.

A cut cable or a firewall that drops ends no connection, so silence itself must end us. The clock is
CLOCK_MONOTONIC of this node: nobody's idea of the date matters. And no process outlives its parent:
the kernel kills it, and its GPU, its ports and its pipes are given back.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

import children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any


if TYPE_CHECKING:
    Message = dict[str, Any]

BEATS = 5
"""So often per lease an agent says that it is alive."""

_LOOK_S = 0.5
"""How often a lapse is looked for while nothing comes."""

_HELD_UP_S = 3.0
"""Between two looks, half a second apart; more than any scheduler's delay."""

CLOSED, LINE = "closed", "line"


class Lease:
    """The sources whose renewals this process needs, all of them, and when each came last."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        """None: it never lapses."""
        self._renewed = {LINE: time.monotonic()}
        self._looked = time.monotonic()
        self._spared = False

    def renew(self, source: str) -> None:
        """Note that a source is there; from its first time on, it must stay."""
        self._renewed[source] = time.monotonic()
        self._spared = False

    def lapsed(self) -> str:
        """Name a source that has been silent for too long, or nothing; to be asked often.

        Who was held up itself (stopped, or by a loader that keeps the interpreter) has heard
        nothing of what came meanwhile: it gets half a lease more, once, to take it in.
        """
        if self.seconds is None:
            return ""
        now = time.monotonic()
        held_up_s, self._looked = now - self._looked, now
        renewed = dict(self._renewed)  # another thread may add to it
        silent = [name for name, at in renewed.items() if now - at > self.seconds]
        if silent and held_up_s > _HELD_UP_S and not self._spared:
            self._spared = True
            self._renewed.update(dict.fromkeys(silent, now - self.seconds / 2))
            return ""
        return silent[0] if silent else ""


def attend(
    lines: Callable[[float], Message | None], lease: Lease, take: Callable[[Message], None]
) -> str:
    """Give the controller's messages to `take` while the lease holds; return what ended it.

    Any message renews the line. "closed" if the controller hung up, else the source that lapsed.
    """
    while True:
        try:
            message = lines(_LOOK_S)
        except TimeoutError:
            pass
        else:
            if message is None:
                return CLOSED
            lease.renew(LINE)
            take(message)
        ended = lease.lapsed()
        if ended:
            return ended


# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_REAP_S = 1.0
EXIT_S = 30.0
"""For a process to exit. One with CUDA needs 1 to 8 s, with much pinned memory longer: the driver
gives all of it back, also after SIGKILL."""

_STREAMS = 3  # standard input, output and error


def die_with_parent(parent: int, name: str) -> None:
    """Have the kernel SIGKILL this process when `parent` (a pid) ends; at once if it has.

    `name` is what ps shows, at most 15 characters.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(_PR_SET_NAME, name.encode("ascii"), 0, 0, 0)
    if os.getppid() != parent:  # it ended between our fork and the lines above
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of measuring processes whose rank has ended, so that we can reap them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave(status: int = 0) -> None:
    """End this process and all below it, and leave no zombie; one in D state keeps nobody."""
    children.end_all()
    deadline = time.monotonic() + _REAP_S
    try:
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
                children.end_all()  # those that were orphaned meanwhile are ours now
    except ChildProcessError:
        pass  # all reaped
    os._exit(status)


def reaped(pid: int, within_s: float) -> int | None:
    """Wait for the end of a child; return its wait status, or None if it is still there."""
    deadline = time.monotonic() + within_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def let_go_of_the_wire() -> None:
    """Point standard streams at /dev/null: a held descriptor would keep the login open."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STREAMS):
        os.dup2(null, stream)
    os.close(null)


def close_all_but(keep: Collection[int]) -> None:
    """Let go of inherited descriptors, except standard streams, `keep` and the payload's own zip.

    Their numbers stay taken: in a process that hosts a TCPStore, libuv closes two of them by number
    at each fork (unix/signal.c, uv__signal_global_reinit), whatever they are by then.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number < _STREAMS or number in keep or number == null:
            continue
        try:
            if not os.readlink("/proc/self/fd/" + name).startswith("/memfd:"):
                os.dup2(null, number)
        except OSError:
            continue  # the listing's own descriptor, gone by now
    os.close(null)


def default_signals() -> None:
    """Forget handlers inherited over fork: the agent's and torchrun's are not for children."""
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
    ):
        signal.signal(number, signal.SIG_DFL)
