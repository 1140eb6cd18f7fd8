"""Commands on this machine end as a group."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
import uuid

import pytest

from preflight.fleet.model import Host
from preflight.transport.ways import LocalTransport
from tests.unit.transport.sshd import PATIENCE_S, processes_with, wait_until


def test_killing_ends_the_children_too() -> None:
    """Nothing that a command started in its group outlives our interest in it."""
    token = uuid.uuid4().hex
    program = (
        "import subprocess, sys, time\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]]\n"
        "subprocess.Popen(child)\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    connection = LocalTransport().connect(Host(name="here", address="here"), PATIENCE_S)
    remote = connection.start([sys.executable, "-c", program, token], timeout_s=PATIENCE_S)
    assert remote.read_line(PATIENCE_S) == b"begun"
    wait_until(lambda: len(processes_with(token)) == 3, "timeout, the command and its child run")
    remote.kill()
    wait_until(lambda: not processes_with(token), "the whole group is gone")


def test_an_answer_that_has_arrived_is_read_after_its_time() -> None:
    """Our machine stood still until the deadline had passed: the node had answered in time."""
    connection = LocalTransport().connect(Host(name="here", address="here"), PATIENCE_S)
    remote = connection.start(["sh", "-c", "echo here; exec sleep 60"], timeout_s=PATIENCE_S)
    readable, _, _ = select.select([remote._stdout], [], [], PATIENCE_S)
    assert readable
    assert remote.read_line(0.0) == b"here"
    with pytest.raises(TimeoutError):
        remote.read_line(0.0)
    remote.kill()


def test_an_ended_command_leaves_no_zombie() -> None:
    """Even where orphans are not reaped, as in many containers, killing leaves nothing behind."""
    program = (
        "import ctypes, os, sys\nfrom pathlib import Path\n"
        "ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come to us, unreaped\n"
        "from preflight.fleet.model import Host\n"
        "from preflight.transport.ways import LocalConnection\n"
        "remote = LocalConnection().start(['sh', '-c', 'echo up; exec sleep 60'], timeout_s=60)\n"
        "remote.read_line(20)\nremote.kill()\n"
        "print(Path(f'/proc/self/task/{os.getpid()}/children').read_text().split())"
    )
    argv = [sys.executable, "-c", program]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_an_interrupted_run_leaves_no_command_behind() -> None:
    """Our end is theirs too: a session of its own hears no Ctrl-C and would outlive us."""
    token = uuid.uuid4().hex
    program = (
        "import sys, threading\n"
        "from preflight.transport.ways import LocalConnection\n"
        "argv = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)']\n"
        "remote = LocalConnection().start([*argv, sys.argv[1]], timeout_s=600)\n"
        "assert remote.read_line(60) == b'1'\n"
        "threading.Thread(target=remote.wait, args=(600,), daemon=True).start()\n"
        "raise KeyboardInterrupt"
    )
    argv = [sys.executable, "-c", program, token]
    subprocess.run(argv, capture_output=True, timeout=PATIENCE_S * 4, check=False)
    assert not processes_with(token)


def test_another_thread_may_end_a_command_that_is_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after Ctrl-C: the reader, however slow its machine, sees an end and nothing else."""
    read = os.read
    wrong: list[BaseException] = []

    def slow(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        if not data and threading.current_thread().name == "reader":
            time.sleep(0.5)
        return data

    def listen() -> None:
        try:
            while remote.read_line(PATIENCE_S) is not None:
                pass
        except BaseException as error:  # noqa: BLE001  # whatever a thread would die of
            wrong.append(error)

    monkeypatch.setattr("preflight.core.remote_command.os.read", slow)
    here = LocalTransport().connect(Host(name="here", address="here"), PATIENCE_S)
    remote = here.start(["sh", "-c", "echo up; exec sleep 60"], timeout_s=60)
    reader = threading.Thread(target=listen, name="reader")
    reader.start()
    time.sleep(0.2)
    remote.kill()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert wrong == []
