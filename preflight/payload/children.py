"""Starts and ends our processes on a node by their pids, so that none is left behind.

No process outlives its parent: the kernel kills it, and frees its GPU, ports and pipes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Callable, Collection


def end(pid: int) -> None:
    """Kill a process that we started, and its descendants; some may be gone already."""
    if os.environ.get("PREFLIGHT_TEST_UNKILLABLE") == "1":
        return  # for tests: imitates a process in D state, which SIGKILL does not reach
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def end_all() -> None:
    """Kill every descendant of this process, without waiting for any of them."""
    for pid in children_of(os.getpid()):
        end(pid)


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants, parents before their children."""
    pids: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for parent in generation for child in children_of(parent)]
        pids += generation
    return pids


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children += map(int, file.read().split())
    return children


_REAP_S = 1.0
EXIT_S = 30.0
"""Time limit for a process to exit. With CUDA it takes 1 to 8 s, longer with much pinned memory:
the driver frees all of it, also after SIGKILL."""

UP_S = 5.0  # a fork takes milliseconds, with hundreds of processes on the machine a second
_TRIES = 3
_STREAMS = 3  # standard input, output and error


def fork(name: str, work: Callable[[], object]) -> int:
    """Run `work` in a child that ends with this process; return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(parent, name)
        work()
        status = 0
    finally:
        os._exit(status)  # skip the destructors of torch, gloo and CUDA, which may hang


def fork_surely(name: str, work: Callable[[], object], suffix: str = "") -> int:
    """Fork like `fork`, without standard streams and signal handlers; OSError if no child starts.

    A fork copies the locks that other threads hold, and nothing releases the copies. A child that
    waits for one would hang, and its node or GPU would be blamed: such a child is replaced.
    `suffix` names the child in the error.
    """
    for _ in range(_TRIES):
        ready, ready_end = os.pipe()

        def begin(ready_end: int = ready_end) -> None:
            default_signals()
            redirect_streams()
            os.write(ready_end, b".")
            os.close(ready_end)
            work()

        pid = fork(name, begin)
        os.close(ready_end)
        is_up = select.select([ready], [], [], UP_S)[0] and os.read(ready, 1)
        os.close(ready)
        if is_up:
            return pid
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid, UP_S)
    raise OSError(f"none of {_TRIES} processes{suffix} came up")


def die_with_parent(parent: int, name: str) -> None:
    """Have the kernel SIGKILL this process when `parent` (a pid) ends; exit if it has ended.

    `name` is what ps shows, at most 15 characters.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    set_name(name)
    if os.getppid() != parent:  # it ended between our fork and the lines above
        os._exit(0)


def set_name(name: str) -> None:
    """Set the process name that ps shows."""
    _prctl(_PR_SET_NAME, name[:15].encode("ascii"))


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that we can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes  # most probes do not need it

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def leave(status: int = 0) -> None:
    """End this process and its descendants, without zombies; do not wait for one in D state."""
    end_all()
    deadline = time.monotonic() + _REAP_S
    try:
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
                end_all()  # we have adopted those that were orphaned meanwhile
    except ChildProcessError:
        pass  # all reaped
    os._exit(status)


def wait_for_exit(pid: int, within_s: float) -> int | None:
    """Wait for the end of a child; return its wait status, or None if it still runs."""
    deadline = time.monotonic() + within_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def redirect_streams() -> None:
    """Redirect the standard streams to /dev/null: an open one would keep the login open."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STREAMS):
        os.dup2(null, stream)
    os.close(null)


def close_all_but(keep: Collection[int]) -> None:
    """Close inherited descriptors, except the standard streams, `keep` and the payload's zip.

    They become /dev/null, so that their numbers are not reused: in a process that hosts a TCPStore,
    libuv closes two descriptors by number at each fork (unix/signal.c, uv__signal_global_reinit).
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number < _STREAMS or number in keep or number == null:
            continue
        try:
            if not os.readlink("/proc/self/fd/" + name).startswith("/memfd:"):
                os.dup2(null, number, inheritable=False)
        except OSError:
            continue  # the listing's own descriptor, gone by now
    os.close(null)


def default_signals() -> None:
    """Reset inherited signal handlers: those of the agent and torchrun are not for children."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def describe_exit(status: int) -> str:
    """Describe how a process ended, by its wait status: "was killed by SIGKILL"."""
    if not os.WIFSIGNALED(status):
        return f"ended by itself with status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {number}"
