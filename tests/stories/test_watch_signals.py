"""A watched launch cannot tell that it is watched: signals, terminal and end are its own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.stories.conftest import clean_environment
from tests.stories.watched import LONGEST_S, NOTING, Watched, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A launch under watch."""
    one = Watched(tmp_path)
    yield one
    one.close()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


def _sent_through(watched: Watched, number: signal.Signals) -> None:
    """Send one more signal to the watch alone, and wait: what came before it has come by then."""
    before = watched.got(number)
    os.kill(watched.started.pid, number)
    until(lambda: watched.got(number) == before + 1)


def test_a_signal_to_the_watch_is_the_launchs(watched: Watched) -> None:
    """Whoever knows the pid of the watch alone reaches the launch, and its exit code is ours."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
        _sent_through(watched, number)
    assert watched.noted()[1:] == ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"]
    assert watched.end() == 5


def test_a_signal_to_everybody_comes_once(watched: Watched) -> None:
    """To the group (kill, timeout) or one by one (Slurm, systemd): the launch gets one, not two."""
    os.killpg(watched.started.pid, signal.SIGTERM)
    until(lambda: watched.got(signal.SIGTERM) == 1)
    _sent_through(watched, signal.SIGUSR1)
    for pid in _group(watched.started.pid):
        os.kill(pid, signal.SIGUSR2)
    _sent_through(watched, signal.SIGUSR1)
    assert watched.noted()[1:] == ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGUSR1"]
    assert watched.end() == 5


def _group(group: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    return [pid for pid in sorted(pids) if _group_of(pid) == group]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_a_stop_stops_both(watched: Watched) -> None:
    """SIGTSTP to the watch alone stops the launch too, and SIGCONT continues it."""
    os.kill(watched.started.pid, signal.SIGTSTP)
    until(lambda: _state(watched.launch) == "T" and _state(watched.started.pid) == "T")
    os.kill(watched.started.pid, signal.SIGCONT)
    until(lambda: watched.got(signal.SIGCONT) == 1)
    assert watched.end() == 5


def test_a_killed_watch_leaves_its_launch(watched: Watched) -> None:
    """A job does not die because its watcher did, and the watch leaves nothing else behind."""
    os.kill(watched.started.pid, signal.SIGKILL)
    watched.started.wait()
    os.kill(watched.launch, signal.SIGUSR1)
    until(lambda: watched.got(signal.SIGUSR1) == 1)
    until(lambda: _group(watched.started.pid) == [watched.launch])
    (watched.folder / "noted.end").touch()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_the_launchs_death_is_ours(tmp_path: Path, number: signal.Signals) -> None:
    """The same wait status, by which schedulers and shells tell a crash from an exit code."""
    ended = subprocess.run(
        [sys.executable, "-m", "preflight", "watch", "--", "sh", "-c", f"kill -{number} $$"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert ended.returncode == -number


def test_at_a_terminal(tmp_path: Path) -> None:
    """It stays one, and what Ctrl-C and its like send comes to the launch once."""
    (tmp_path / "noting.py").write_text(NOTING)
    log = tmp_path / "noted"
    words = [sys.executable, "-m", "preflight", "watch", "--"]
    words += [sys.executable, "noting.py", str(log)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, words, clean_environment())  # noqa: S606  nor is one wanted
    try:
        until(lambda: log.exists() and bool(log.read_text()))
        assert " tty True " in log.read_text()
        os.write(terminal, b"\x03")
        until(lambda: "SIGINT" in log.read_text())
        os.write(terminal, b"\x1c")
        until(lambda: "SIGQUIT" in log.read_text())
        assert log.read_text().splitlines()[1:] == ["SIGINT", "SIGQUIT"]
    finally:
        (tmp_path / "noted.end").touch()
        status = os.waitpid(pid, 0)[1]
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5
