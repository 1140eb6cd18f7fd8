"""What a run leaves for the next: its rounds and its suspects, or a line on why it could not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fabric.planner import plan
from preflight.fleet.model import Fleet
from preflight.history.coverage_file import NAME, read_coverage
from preflight.history.past import Done, Past
from preflight.nightly import Nightly, open_history
from preflight.registry import Registry, load_folder, shipped_folder
from preflight.run import Run, Settings
from preflight.stages.measured import Measured
from preflight.stages.progress import Silent
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = hosts(6)
NAMES = tuple(host.name for host in HOSTS)


def _swept_run() -> Run:
    """All pairs of six nodes; between h1 and h4 nothing came through."""
    planned = plan(NAMES, {}, extent="exhaustive", seed=1, past=Past(), budget_s=60.0, tier="quick")
    fleet = Fleet(hosts=tuple(HOSTS), origin="a test")
    run = Run(fleet, Registry(load_folder(shipped_folder())), Settings(), Silent(), planned)
    run.judgement.advance(
        Measured(
            nonce="ab" * 16,
            facts={name: facts(name) for name in NAMES},
            planned=planned,
            sweep=sweep(HOSTS, lambda a, b: "no_connect" if {a, b} == {"h1", "h4"} else 1.0),
        )
    )
    return run


def test_a_run_is_remembered_with_its_suspects(tmp_path: Path) -> None:
    """All five rounds are done; the pair that failed is looked at first the next night."""
    folder = tmp_path / "nights" / "train"
    history = open_history(folder, NAMES, {})
    assert history.past == Past()
    assert history.remember(_swept_run()) == ""
    past = open_history(folder, NAMES[::-1], {}).past
    assert past == history.past
    assert past.suspects == (("h1", "h4"),)
    assert past.done == dict.fromkeys(range(5), Done(1, 3))
    assert (folder / NAME).stat().st_mode & 0o777 == 0o640


def test_a_run_that_swept_nothing_leaves_nothing(tmp_path: Path) -> None:
    """It stopped before the sweep: no night was spent."""
    run = _swept_run()
    run.judgement.advance(replace(run.judgement.measured, sweep=None))
    assert open_history(tmp_path, NAMES, {}).remember(run) == ""
    assert not (tmp_path / NAME).exists()


def test_a_history_that_goes_bad_during_the_run_costs_a_line(tmp_path: Path) -> None:
    """Somebody damaged or replaced it: it is said, and what lies there is left as it is."""
    history = open_history(tmp_path, NAMES, {})
    (tmp_path / NAME).write_text("gone")
    assert "move it away to begin anew" in history.remember(_swept_run())
    assert (tmp_path / NAME).read_text() == "gone"
    (tmp_path / NAME).unlink()
    there = Nightly(tmp_path / "file" / "below", NAMES, {}, Past())
    (tmp_path / "file").write_text("in the way")
    assert there.remember(_swept_run()).endswith("; this run is not remembered")
    assert history.remember(_swept_run()) == ""
    assert read_coverage(tmp_path).past(NAMES, {}).runs == 1


def test_a_folder_that_others_may_change_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    """Everybody may write there: what is in it could be anybody's."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match=r"--preflight-history .*: give a folder of your own"):
        open_history(tmp_path / "open", NAMES, {})
