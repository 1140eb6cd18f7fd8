"""Root writes below a folder whose owner exchanges what is in it as fast as he can."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from preflight.core.files import link_atomically, open_new, remove, write_atomically, write_typed
from preflight.report.outputs import remove_old_runs
from tests.cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

STRANGER = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")

EXCHANGE = f"""
import contextlib, ctypes, os, sys
os.setgid({STRANGER})
os.setuid({STRANGER})
libc = ctypes.CDLL(None, use_errno=True)
one, other = map(os.fsencode, sys.argv[1:])
def exchange():
    # renameat2(AT_FDCWD, ..., AT_FDCWD, ..., RENAME_EXCHANGE)
    if hasattr(libc, "renameat2") and not libc.renameat2(-100, one, -100, other, 2):
        return
    for old, new in ((one, b"was"), (other, one), (b"was", other)):
        with contextlib.suppress(OSError):
            os.rename(old, new)
exchange()
print("ready", flush=True)
while True:
    exchange()
"""


def write_new(path: Path) -> None:
    """Begin a file that grows, and end it."""
    os.close(open_new(path))


WRITERS: dict[str, Callable[[Path], object]] = {
    "write_atomically": lambda run: write_atomically(run / "report.json", b"x"),
    "write_typed": lambda run: write_typed(run / "report.json", b"x"),
    "open_new": lambda run: write_new(run / "report.json"),
    "remove": lambda run: remove(run / "report.json"),
    "link_atomically": lambda run: link_atomically(run / "latest", "x"),
    "make": lambda run: write_atomically(run / "new" / "report.json", b"x"),
}


@pytest.fixture
def his(tmp_path: Path) -> Path:
    """A stranger's folder with a folder of his and a link of his, which leads to root's."""
    folder = tmp_path / "his"
    (folder / "run").mkdir(parents=True)
    roots = tmp_path / "roots"
    roots.mkdir()
    (roots / "report.json").write_bytes(b"precious")
    (roots / "latest").symlink_to("precious")
    (folder / "trap").symlink_to(roots)
    for path in (folder, folder / "run", folder / "trap"):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return folder


@contextmanager
def exchanging(folder: Path, one: str, other: str) -> Iterator[None]:
    """Have the folder's owner exchange two things in it as long as this lasts."""
    argv = [sys.executable, "-I", "-c", EXCHANGE, one, other]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        try:
            assert stranger.stdout.readline() == b"ready\n"
            yield
            assert stranger.poll() is None, "the stranger gave up"
        finally:
            stranger.kill()


@contextmanager
def two_runs(run: Path) -> Iterator[None]:
    """Have two more processes write into one folder, as the workers of `pytest -n 2` may."""
    children = []
    for content in (b"a" * 5000, b"b" * 5000):
        if not (child := os.fork()):
            for _ in range(CASES):
                for write in WRITERS.values():
                    with suppress(OSError):
                        write(run)
                with suppress(OSError):
                    write_atomically(run / "whole.json", content)
            os._exit(0)
        children.append(child)
    try:
        yield
    finally:
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ends == [0, 0]


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies in a folder, by name: which file, and when it was changed."""
    return {one.name: (one.lstat().st_ino, one.lstat().st_mtime_ns) for one in folder.iterdir()}


@root_only
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_reaches_roots_folder_through_a_link_that_comes_and_goes(
    tmp_path: Path, his: Path, writer: str
) -> None:
    """Whatever moment the link is there: not one file behind it is made, changed or removed."""
    before = state(tmp_path / "roots")
    with exchanging(his, "run", "trap"):
        for _ in range(CASES):
            with suppress(OSError):
                WRITERS[writer](his / "run")
    assert state(tmp_path / "roots") == before


@root_only
def test_two_runs_in_a_folder_that_is_exchanged_reach_no_folder_of_roots(
    tmp_path: Path, his: Path
) -> None:
    """One opens what the other has just made, and the link comes in between."""
    before = state(tmp_path / "roots")
    with exchanging(his, "run", "trap"), two_runs(his / "run"):
        for _ in range(CASES):
            with suppress(OSError):
                write_atomically(his / "run" / "whole.json", b"c" * 5000)
    assert state(tmp_path / "roots") == before


@root_only
def test_two_runs_in_one_folder_leave_whole_files(tmp_path: Path) -> None:
    """Whichever wrote last: no mixture, no part, and none of their drafts."""
    run = tmp_path / "run"
    run.mkdir()
    with two_runs(run):
        for _ in range(CASES):
            content = (run / "whole.json").read_bytes() if (run / "whole.json").exists() else b""
            assert content in (b"", b"a" * 5000, b"b" * 5000)
    assert {one.name for one in run.iterdir()} <= {"whole.json", "report.json", "latest", "new"}
    assert [one.name for one in (run / "new").iterdir()] == ["report.json"]


@root_only
def test_of_roots_folders_only_runs_are_emptied(tmp_path: Path) -> None:
    """Among old runs somebody exchanges one for another folder of root's."""
    old, now = tmp_path / "20260101-000000", tmp_path / "20270101-000000"
    old.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    os.chown(tmp_path, STRANGER, STRANGER)
    with exchanging(tmp_path, old.name, "other"):
        for _ in range(CASES):
            remove_old_runs(now, 1)
            with suppress(OSError):
                write_atomically(old / "report.json", b"x")
    assert "precious" in [one.name for one in tmp_path.rglob("*")]
