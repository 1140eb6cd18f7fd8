"""A program that may never answer is given a time, and left alone after it: the job waits."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.hook.lifeline import leash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_REAP_S: Final = 0.2
LARGEST: Final = 4 << 20
"""Bytes of an answer: sinfo says some 200 of a node, and half of an answer is none."""

_SHOWN: Final = 4096
_RUNNING: Final[list[subprocess.Popen[bytes]]] = []


class Answer(Struct, frozen=True, kw_only=True):
    """What a program said, and how it ended."""

    code: int
    out: str
    err: str


def answer_of(
    words: Sequence[str | Path], environ: Mapping[str, str], until_s: float
) -> Answer | None:
    """Run a program until then (monotonic clock); None where it was not done by that time.

    OSError where it cannot be started, or says more than is read. What outlives SIGKILL, since it
    waits in the kernel, holds no descriptor of ours and is not waited for.
    """
    if until_s <= time.monotonic():
        return None
    process = subprocess.Popen(
        words,
        env=environ,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=leash(),  # noqa: PLW1509  it imports nothing and takes no lock
    )
    _RUNNING.append(process)
    try:
        told = _heard(process, until_s)
        if told is None:
            return None
        process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _RUNNING.remove(process)
        _leave(process)
    shown = " ".join(told[1].decode(errors="replace").split())
    return Answer(code=process.returncode, out=told[0].decode(errors="replace"), err=shown[:200])


def end_what_runs() -> None:
    """End what is asked at this moment: nobody would hear its answer."""
    for process in _RUNNING:
        _leave(process)


def _heard(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes] | None:
    """Read both of its pipes to their ends; None where one was still open when the time was up."""
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as pipes:
        for pipe, said in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                pipes.register(pipe, selectors.EVENT_READ, said)
        while pipes.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            for key, _ in pipes.select(left_s):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    pipes.unregister(key.fileobj)
                elif key.data is err:
                    err += part[: _SHOWN - len(err)]
                else:
                    out += part
            if len(out) > LARGEST:
                raise OSError(errno.EFBIG, f"it says more than {LARGEST >> 20} MiB")
    return bytes(out), bytes(err)


def _leave(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_REAP_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it, and a wrapper's children too: until it is waited for, its session has its number."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
