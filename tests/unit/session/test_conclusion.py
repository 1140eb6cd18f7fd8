"""What a file that could not be written costs: a report its yes, a picture nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import Ledger, Registry, load_folder, shipped_folder
from preflight.report.outputs import Outputs
from preflight.report.ready import Ending
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.session.verdict_collector import Conclusion, conclude
from preflight.verdict import ok
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.run.test_interface import fleet

if TYPE_CHECKING:
    from pathlib import Path


def concluded(folder: Path) -> Conclusion:
    """A healthy sweep of four nodes, told of in that folder."""
    run = Run(fleet(None), Registry(load_folder(shipped_folder())), Settings())
    keys = run.expected(["fabric.allreduce"])
    ledger = Ledger()
    ledger.expect(keys)
    run.replay(
        Measured(nonce="ab" * 16, sweep=sweep(hosts(4), lambda _a, _b: 1.0)), [], lambda *_: None
    )
    for key in keys:
        ledger.record(*key, ok("fine"))
    return conclude(run, ledger.settle(""), Outputs(folder), Ending(), began_s=0.0)


@pytest.mark.parametrize(
    ("name", "code"), [("report.html", 0), ("report.json", 3), ("ready.hosts", 3)]
)
def test_only_files_that_somebody_relies_on_change_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """A folder in a file's place cannot be replaced: the summary says so, whichever it is."""
    folder, elsewhere = tmp_path / "report", tmp_path / "elsewhere"
    (folder / name).mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    told = concluded(folder)
    assert told.report.exit == code
    assert told.outputs.unsaved is (code == 3)
    said = " ".join(" ".join(told.lines(4000)).split())
    assert f"cannot write {folder / name}: it is a folder; {name} kept in {elsewhere}" in said
    assert (folder / "ready.hosts").is_file() is (name != "ready.hosts")
