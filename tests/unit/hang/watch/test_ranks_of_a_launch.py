"""Whose progress counts: the ranks themselves, not what stands before or behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hang.watch import progress
from preflight.hang.watch.progress import rank_in, ranks_of
from tests.lab.strangers_mount import starting_a_program

if TYPE_CHECKING:
    from collections.abc import Iterator

UP = """\
import os, sys, time
if "fork" in sys.argv:
    os.fork()
os.write(1, b"up\\n")
time.sleep(60)
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A command that says that it is up, and stays."""
    (tmp_path / "up.py").write_text(UP)
    return f"{sys.executable} {tmp_path}/up.py"


@contextmanager
def _launch(script: str, ranks: int, **environ: str) -> Iterator[int]:
    """A shell that starts processes, some of which print that they are up."""
    with subprocess.Popen(
        ["sh", "-c", script], env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True,
        process_group=0,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        try:
            for _ in range(ranks):
                assert started.stdout.readline() == "up\n"
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)


@pytest.mark.parametrize("lists", [True, False])
def test_ranks_of_a_launcher(
    python: str,
    lists: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a shell of their own; with the kernel's lists of children and without."""
    if not lists:
        monkeypatch.setattr(progress, "Path", lambda _: Path("/nowhere"))
    with _launch(f"RANK=4 sh -c '{python} & wait' & RANK=5 {python} & wait", 2) as launch:
        found = ranks_of(launch)
        assert {one.rank for one in found} == {4, 5}
        assert {progress.command_of(one.pid) for one in found} == {python}


def test_workers_of_a_rank_are_none(python: str) -> None:
    """A DataLoader's processes have their rank's environment."""
    with _launch(f"RANK=0 {python} fork & wait", 2) as launch:
        (one,) = ranks_of(launch)
        assert progress.parent_of(one.pid) == launch


def test_what_the_launch_itself_was_given_makes_no_rank(python: str) -> None:
    """Under srun torchrun has a task's number, and a pod has a RANK: its ranks have their own."""
    given = {"SLURM_PROCID": "1", "RANK": "1"}
    with _launch(f"sh -c 'LOCAL_RANK=0 {python} & wait' & wait", 1, **given) as launch:
        (one,) = ranks_of(launch)
        assert (one.rank, progress.command_of(one.pid)) == (1, python)


def test_a_launch_that_is_a_rank(python: str) -> None:
    """As in `srun preflight watch -- python train.py`; a launcher without ranks yet is none."""
    given = {"SLURM_PROCID": "3"}
    with _launch(f"{python} & wait", 1, **given) as launch:
        (one,) = ranks_of(launch)
        assert (one.rank, progress.command_of(one.pid)) == (3, python)
    with _launch(f"{python} & wait", 1) as launch:
        assert ranks_of(launch) == []
    with _launch(f"{python} torchrun & wait", 1, **given) as launch:
        assert ranks_of(launch) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_processes_that_never_get_through_execve_do_not_stop_the_watch(python: str) -> None:
    """Reading them hangs for ever, and the launch would get no signal any more."""
    with (
        _launch(f"RANK=0 {python} & wait", 1) as launch,
        starting_a_program(61001, many=7) as stuck,
    ):
        assert {one.rank for one in ranks_of(os.getpid())} == {0}
        found = progress.readings_of([*stuck, launch])
    assert [pid for pid, reading in found.items() if reading] == [launch]


def test_who_has_gone_is_no_trouble() -> None:
    """A process that ends while it is looked at."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert progress.reading_of(ended.pid) is None
    assert (
        progress.environ_of(ended.pid),
        progress.name_of(ended.pid),
        progress.command_of(ended.pid),
    ) == ({}, "", "")
    assert progress.children(ended.pid) == []
    assert progress.parent_of(ended.pid) == 0
    assert progress.pending_signals(ended.pid) == frozenset()
    assert ranks_of(ended.pid) == []


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({"RANK": "7", "SLURM_PROCID": "1"}, 7), ({"PMI_RANK": "0"}, 0), ({"RANK": "-1"}, None),
     ({"RANK": ""}, None), ({"RANK": "²"}, None), ({}, None)],
)  # fmt: skip
def test_ranks_as_launchers_number_them(environ: dict[str, str], rank: int | None) -> None:
    """The number of torch's own first; what is none is none."""
    assert rank_in(environ) == rank


def test_a_reading_of_ourselves() -> None:
    """Every number is there, and grows."""
    first = progress.reading_of(os.getpid())
    assert first is not None
    sum(range(10_000_000))
    with open("/dev/null", "wb", buffering=0) as null:  # noqa: PTH123
        null.write(b"x" * 100_000)
    second = progress.reading_of(os.getpid())
    assert second is not None
    assert second.state == "R"
    assert (second.started, second.cpu_s > first.cpu_s) == (first.started, True)
    assert second.moved - first.moved >= 100_000
    assert second.calls > first.calls
