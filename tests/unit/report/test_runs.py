"""A folder of runs: whose are compared with, whose are removed, and whose are left alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.report.events import NAME, Ended
from preflight.report.outputs import past_runs, remove_old_runs, set_latest
from preflight.report.since import RunSummary

if TYPE_CHECKING:
    from pathlib import Path


def a_run(runs: Path, name: str, *more: str, report: bool = True) -> Path:
    """A run that ended at that time, with whatever else lies in its folder."""
    folder = runs / name
    folder.mkdir(parents=True)
    night = RunSummary(
        run=name, started="", seconds=1.0, tier="quick", exit=0, nodes=1, ready=1,
        not_ready=(), missing=0, bad=(),
    )  # fmt: skip
    (folder / NAME).write_bytes(msgspec.json.encode(Ended(night=night)) + b"\n")
    for file in (*more, *(("report.json",) if report else ())):
        (folder / file).write_text("{}")
    return folder


def names(runs: Path) -> list[str]:
    """What is left."""
    return sorted(one.name for one in runs.iterdir())


def test_the_oldest_runs_go_and_the_latest_stay(tmp_path: Path) -> None:
    """Three are kept, this one counted; a second run of one second is the later one."""
    left = f".report.json.{'a' * 16}"
    for name in ("20261120-020000", "20261121-020000", "20261121-020000-10", "20261121-020000-2"):
        a_run(tmp_path, name, "ready.hosts", "measured.json", "report.html", left)
    now = a_run(tmp_path, "20261122-020000")
    remove_old_runs(now, 3)
    assert names(tmp_path) == ["20261121-020000-10", "20261121-020000-2", "20261122-020000"]


def test_zero_keeps_all(tmp_path: Path) -> None:
    """As whoever archives them by himself wants."""
    a_run(tmp_path, "20261120-020000")
    remove_old_runs(a_run(tmp_path, "20261122-020000"), 0)
    assert names(tmp_path) == ["20261120-020000", "20261122-020000"]


def test_what_is_no_run_of_ours_is_never_removed(tmp_path: Path) -> None:
    """A stranger's file in it, another name, a link, a run that goes on, a folder within."""
    now = a_run(tmp_path, "20261122-020000")
    a_run(tmp_path, "20261101-020000", "notes.txt")
    a_run(tmp_path, "keep-this", "ready.hosts")
    a_run(tmp_path, "20261103-020000", report=False)
    (a_run(tmp_path, "20261104-020000") / "measured.json").mkdir()
    elsewhere = a_run(tmp_path / "elsewhere", "20261105-020000")
    (tmp_path / "20261105-020000").symlink_to(elsewhere)
    (a_run(tmp_path, "20261106-020000") / "ready.hosts").symlink_to(elsewhere / "report.json")
    (tmp_path / "20261107-020000").write_text("a file")
    before = names(tmp_path)
    remove_old_runs(now, 1)
    assert names(tmp_path) == before
    assert (elsewhere / "report.json").exists()


def test_a_folder_that_the_operator_named_has_no_neighbours(tmp_path: Path) -> None:
    """--preflight-report=/tmp/x: nothing beside it is read, linked or removed."""
    a_run(tmp_path, "20261120-020000")
    mine = a_run(tmp_path, "mine")
    assert past_runs(mine) == ()
    remove_old_runs(mine, 1)
    set_latest(mine)
    assert names(tmp_path) == ["20261120-020000", "mine"]


def test_latest_leads_to_the_run_that_ended_last(tmp_path: Path) -> None:
    """It is replaced in one step; what else bears that name is left alone."""
    for name in ("20261120-020000", "20261121-020000"):
        set_latest(a_run(tmp_path, name))
    assert (tmp_path / "latest").readlink().name == "20261121-020000"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").write_text("mine")
    with pytest.raises(FileExistsError):
        set_latest(tmp_path / "20261121-020000")
    assert (tmp_path / "latest").read_text() == "mine"
    assert not any(name.startswith(".") for name in names(tmp_path))


def test_earlier_runs_are_read_in_order_and_damaged_ones_left_out(tmp_path: Path) -> None:
    """Half a line, no file, a pipe, a link, garbage: the next one is asked."""
    for name in ("20261118-020000", "20261119-020000", "20261120-020000-2", "20261123-020000"):
        a_run(tmp_path, name)
    (a_run(tmp_path, "20261116-020000") / NAME).write_bytes(b'{"event":"ended","nig')
    (a_run(tmp_path, "20261117-020000") / NAME).unlink()
    os.mkfifo(tmp_path / "20261117-020000" / NAME)
    secret = a_run(tmp_path / "elsewhere", "x") / NAME
    (a_run(tmp_path, "20261115-020000") / NAME).unlink()
    (tmp_path / "20261115-020000" / NAME).symlink_to(secret)
    (a_run(tmp_path, "20261114-020000") / NAME).write_bytes(b"\xff\x00" * 99)
    now = a_run(tmp_path, "20261122-020000")
    found = [night.run for night in past_runs(now)]
    assert found == ["20261118-020000", "20261119-020000", "20261120-020000-2"]
    assert [night.run for night in past_runs(now, most=1)] == ["20261120-020000-2"]
