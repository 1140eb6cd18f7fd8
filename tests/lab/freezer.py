"""Processes that stand still as in a paused container: no signal tells them of it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CGROUPS: Final = Path("/sys/fs/cgroup")
_EMPTY_S: Final = 60


class Freezer(NamedTuple):
    """One version of the kernel's freezer: where its groups are, and what stops and starts one."""

    folder: Path
    file: str
    stop: str
    go_on: str

    @property
    def is_here(self) -> bool:
        """Whether this user can make a group in it."""
        return os.access(self.folder / "cgroup.procs", os.W_OK)


V1: Final = Freezer(_CGROUPS / "freezer", "freezer.state", "FROZEN", "THAWED")
V2: Final = Freezer(
    _CGROUPS / "unified" if (_CGROUPS / "unified").is_dir() else _CGROUPS, "cgroup.freeze", "1", "0"
)


@contextmanager
def group(freezer: Freezer, name: str) -> Iterator[Callable[[Iterable[int]], None]]:
    """A group of that name; call what is yielded to stop these processes until the end of it."""
    folder = freezer.folder / f"preflight-test-{os.getpid()}-{name}"
    folder.mkdir()

    def stop(pids: Iterable[int]) -> None:
        _move(pids, folder)
        (folder / freezer.file).write_text(freezer.stop)

    def is_empty() -> bool:
        left = (folder / "cgroup.procs").read_text().split()
        _move(map(int, left), freezer.folder)
        return not left

    try:
        yield stop
    finally:
        (folder / freezer.file).write_text(freezer.go_on)
        until(is_empty, "the group to be empty", _EMPTY_S)
        folder.rmdir()


def _move(pids: Iterable[int], folder: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            (folder / "cgroup.procs").write_text(f"{pid}\n")
