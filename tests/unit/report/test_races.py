"""Root writes below a folder whose owner exchanges what is in it as fast as he can."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from preflight.report.files import link_atomically, open_new, remove, write_atomically, write_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STRANGER = 65534
TRIES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")

EXCHANGE = f"""
import ctypes, os
os.setgid({STRANGER})
os.setuid({STRANGER})
libc = ctypes.CDLL(None, use_errno=True)
def exchange():
    # renameat2(AT_FDCWD, "run", AT_FDCWD, "trap", RENAME_EXCHANGE)
    if not hasattr(libc, "renameat2") or libc.renameat2(-100, b"run", -100, b"trap", 2):
        for old, new in (("run", "was"), ("trap", "run"), ("was", "trap")):
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


@pytest.fixture
def racing(his: Path) -> Iterator[None]:
    """Run the stranger, who exchanges the two from now on."""
    argv = [sys.executable, "-I", "-c", EXCHANGE]
    with subprocess.Popen(argv, cwd=his, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        try:
            assert stranger.stdout.readline() == b"ready\n"
            yield
            assert stranger.poll() is None, "the stranger gave up"
        finally:
            stranger.kill()


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies in a folder, by name: which file, and when it was changed."""
    return {one.name: (one.lstat().st_ino, one.lstat().st_mtime_ns) for one in folder.iterdir()}


@root_only
@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_reaches_roots_folder_through_a_link_that_comes_and_goes(
    tmp_path: Path, his: Path, writer: str
) -> None:
    """Whatever moment the link is there: not one file behind it is made, changed or removed."""
    before = state(tmp_path / "roots")
    for _ in range(TRIES):
        with suppress(OSError):
            WRITERS[writer](his / "run")
    assert state(tmp_path / "roots") == before
