"""The driver takes a process down that had a context: it is there, with all it holds, for a while.

However it ends: a process that was killed can be reaped only when its context is gone, too. Here
its first thread stops on its way out (PTRACE_EVENT_EXIT) under a process of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal

from .clock import real_sleep

_CONT, _SEIZE, _LISTEN = 7, 0x4206, 0x4208
_OPTION_EXIT, _EVENT_EXIT, _EVENT_STOP = 0x40, 6, 128
_SET_NAME, _SET_PTRACER = 15, 0x59616D61
_ALL = 0x40000000  # wait for what is no child of ours, too


def hold_at_exit(seconds: float) -> None:
    """From now on this process takes so long to end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.prctl(_SET_PTRACER, ctypes.c_long(-1), 0, 0, 0)
    pid, (ready, saying) = os.getpid(), os.pipe()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(saying)
        held = os.read(ready, 1)
        os.close(ready)
        if not held:
            raise RuntimeError("this lab needs ptrace")
        return
    try:
        if not os.fork() and libc.ptrace(_SEIZE, pid, None, _OPTION_EXIT) == 0:
            libc.prctl(_SET_NAME, b"driver", 0, 0, 0)
            os.write(saying, b".")
            os.closerange(0, saying + 1024)
            _hold(libc, pid, seconds)
    finally:
        os._exit(0)


def _hold(libc: ctypes.CDLL, pid: int, seconds: float) -> None:
    """Pass on its signals until it is about to end."""
    while os.WIFSTOPPED(status := os.waitpid(pid, _ALL)[1]):
        event = status >> 16
        if event == _EVENT_EXIT:
            real_sleep(seconds)
            return  # without us it goes on
        number = 0 if event else os.WSTOPSIG(status)
        stopped = event == _EVENT_STOP and os.WSTOPSIG(status) != signal.SIGTRAP
        libc.ptrace(_LISTEN if stopped else _CONT, pid, None, number)
