"""What a run leaves for the next: its rounds and its findings, or a line on why it could not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.core.registry import Entry, Registry, load_folder, shipped_folder
from preflight.errors import UsageError
from preflight.fabric.planner import plan
from preflight.facts.node import Reach
from preflight.fleet.model import Fleet
from preflight.history import reading
from preflight.history.place import NAME, parse_place
from preflight.history.run_record import Cost, Past, RoundRecord
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.session.stored_run import HistorySession, open_history
from preflight.verdict import fail, ok
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.history.run_record import Night

COST = Cost(round_s=2.0, other_s=25.0)
HOSTS = hosts(6)
NAMES = tuple(host.name for host in HOSTS)
FLEET = Fleet(hosts=tuple(HOSTS), origin="a test")
REGISTRY = Registry(load_folder(shipped_folder()))
BEGAN_S = 1_700_000_000.0
ENTRIES = (
    Entry("gpu.count", "h1", ("h1",), fail("7 of 8 GPUs answer", advice="drain it")),
    *(Entry("gpu.count", name, (name,), ok("8 GPUs")) for name in NAMES[1:]),
)


def _swept_run() -> Run:
    """All pairs of six nodes; between h1 and h4 nothing came through."""
    planned = plan(NAMES, {}, extent="exhaustive", seed=1, past=Past(), budget_s=60.0, cost=COST)
    run = Run(FLEET, REGISTRY, Settings(), planned)
    told = {name: facts(name) for name in NAMES}
    run.judgement.advance(
        Measured(
            nonce="ab" * 16,
            reach={name: Reach("ssh") for name in NAMES},
            facts=told,
            planned=planned,
            sweep=sweep(HOSTS, lambda a, b: "no_connect" if {a, b} == {"h1", "h4"} else 1.0),
        )
    )
    return run


def _open(folder: Path, fleet: Fleet = FLEET) -> HistorySession:
    return open_history(str(folder), folder, fleet, "quick")


def test_a_run_is_remembered_with_its_suspects(tmp_path: Path) -> None:
    """All five rounds are done; the pair that failed is looked at first the next night."""
    folder = tmp_path / "nights" / "train"
    history = _open(folder)
    assert history.past == Past()
    assert history.remember(_swept_run(), ENTRIES, BEGAN_S) == ""
    turned = Fleet(hosts=FLEET.hosts[::-1], origin="a test")
    past = _open(folder, turned).past
    assert past == history.past
    assert past is not None
    assert past.suspects == (("h1", "h4"),)
    assert past.done == dict.fromkeys(range(5), RoundRecord(1, 3))
    assert (folder / NAME).stat().st_mode & 0o777 == 0o640
    with reading(history.place) as told:
        ran = told.last_run()
        changes = told.changes(ran)
        one = told.node("h1")
        other = told.node("h2")
    assert ran is not None
    assert ran.covered is not None
    assert (ran.fleet, ran.not_ready, ran.covered.pairs_known) == ("h[1-6]", 1, 15)
    assert [(new.check, new.about, new.sentence) for new in changes.new] == [
        ("gpu.count", "h1", "7 of 8 GPUs answer")
    ]
    assert one is not None
    assert (one.standing.bad, one.standing.serial, len(one.seats)) == (1, "", 0)
    assert other is not None
    bandwidth = next(each for each in other.trends if each.measure == "allreduce_gbs")
    assert [point.value for point in bandwidth.points] == [1.0]


def test_a_run_that_swept_nothing_is_remembered_without_rounds(tmp_path: Path) -> None:
    """It stopped before the sweep: what it found counts, and no night of pairs was spent."""
    run = _swept_run()
    run.judgement.advance(replace(run.judgement.measured, sweep=None))
    history = _open(tmp_path)
    assert history.remember(run, ENTRIES, BEGAN_S) == ""
    assert history.past == Past()
    with reading(history.place) as told:
        ran = told.last_run()
    assert ran is not None
    assert ran.covered is None


def test_a_run_that_reached_nobody_leaves_nothing(tmp_path: Path) -> None:
    """There was no run."""
    run = _swept_run()
    run.judgement.advance(Measured(nonce="ab" * 16))
    assert _open(tmp_path).remember(run, ENTRIES, BEGAN_S) == ""
    assert not (tmp_path / NAME).exists()


def test_a_damaged_history_costs_a_line(tmp_path: Path) -> None:
    """It is said at the start and at the end; nothing of it is touched, and the run goes on."""
    (tmp_path / NAME).write_text("gone" * 500)
    history = _open(tmp_path)
    assert history.past is None
    assert f"cannot use the history {tmp_path / NAME}: " in history.trouble
    assert "move it away to start a new one" in history.trouble
    said = history.remember(_swept_run(), ENTRIES, BEGAN_S)
    assert said.endswith("; this run is not remembered")
    assert history.past is None
    assert (tmp_path / NAME).read_text() == "gone" * 500


def test_a_fault_of_ours_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is written after it, and is worth more."""
    history = _open(tmp_path)
    known: dict[str, Night] = {}
    monkeypatch.setattr("preflight.session.stored_run.night_of", lambda *_: known["nothing"])
    said = history.remember(_swept_run(), ENTRIES, BEGAN_S)
    assert said == (
        "preflight's own fault (KeyError: 'nothing'): report it; this run is not remembered"
    )


def test_ctrl_c_while_it_is_written_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything was measured by then; a second one leaves at once."""

    def impatient(*_: object) -> Night:
        raise KeyboardInterrupt

    history = _open(tmp_path)
    monkeypatch.setattr("preflight.session.stored_run.night_of", impatient)
    said = history.remember(_swept_run(), ENTRIES, BEGAN_S)
    assert said == "interrupted while it was written; this run is not remembered"
    monkeypatch.undo()
    assert history.remember(_swept_run(), ENTRIES, BEGAN_S) == ""


def test_a_history_that_cannot_be_made_costs_a_line(tmp_path: Path) -> None:
    """A file is in its folder's place."""
    history = _open(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("in the way")
    said = history.remember(_swept_run(), ENTRIES, BEGAN_S)
    assert said.endswith("; this run is not remembered")


def test_a_folder_that_others_may_change_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    """Everybody may write there: what is in it could be anybody's."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match=r"--preflight-history=.*; give a folder of your own"):
        _open(tmp_path / "open")


def test_a_file_of_sqlite_may_be_named(tmp_path: Path) -> None:
    """Then the history is this file."""
    place = parse_place(f"sqlite:///{tmp_path}/nights.db", tmp_path)
    history = open_history(f"sqlite:///{tmp_path}/nights.db", tmp_path, FLEET, "quick")
    assert history.remember(_swept_run(), ENTRIES, BEGAN_S) == ""
    assert place.file == tmp_path / "nights.db"
    assert place.file.is_file()
