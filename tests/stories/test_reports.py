"""What a run leaves for the morning after, and what `preflight report` makes of it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests import warm
from tests.stories.conftest import clean_environment
from tests.stories.here import UNFIT_N2

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.stories.here import Here

KILLED_AT_N3 = (
    "import os\n    conclude(ok('fine')) if node.name != 'n3' else os.kill(os.getpid(), 9)"
)


def again(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `preflight report ...`."""
    environ = {**clean_environment(), "COLUMNS": "100"}
    return warm.run("preflight", ["report", *arguments], cwd=cwd, env=environ, timeout=120)


def test_nights_in_one_folder_know_each_other(here: Here) -> None:
    """The second page says what is new, `latest` leads to it, and the numbers are written."""
    check = here.check("site.a", "conclude(ok('fine'))")
    prom = here.folder / "preflight.prom"
    _night(here)
    check.unlink()
    here.check("site.a", UNFIT_N2)
    told = _night(here, f"--preflight-prometheus={prom}", "--junitxml=junit.xml")
    runs = here.folder / "preflight-runs"
    first, second = sorted(one for one in runs.iterdir() if not one.is_symlink())
    assert (runs / "latest").resolve() == second
    assert "What changed" not in (first / "report.html").read_text()
    page = (second / "report.html").read_text()
    assert "1 of 3 nodes not ready" in page
    assert '<b>n2</b> <span class="check">site.a</span>' in page
    assert 'preflight_node_ready{node="n2"} 0.0' in prom.read_text()
    cases = ET.parse(here.folder / "junit.xml").iter("testcase")  # noqa: S314  pytest's own
    assert {(case.get("classname"), case.get("name")) for case in cases} == {
        ("preflight.site.a", f"site.a[n{n}]") for n in (1, 2, 3)
    }
    assert f"page       preflight-runs/{second.name}/report.html" in told
    _rebuilt(here, second)


def _rebuilt(here: Here, folder: Path) -> None:
    """Every report of it again, the same; and one that names nobody."""
    page = here.folder / "again.html"
    told = again(str(folder), "--html", str(page), "--json", cwd=here.folder)
    assert told.returncode == 0, told.stderr
    assert told.stdout == (folder / "report.json").read_text()
    assert page.read_text() == (folder / "report.html").read_text()
    judged_again = "--preflight-replay=preflight-runs/latest/measured.json"
    for _ in range(2):  # a replay is not the latest run: it holds no measurements
        assert "FAIL" in _night(here, judged_again)
    summary = again("preflight-runs/latest", cwd=here.folder)
    assert "FAIL   n2  site.a\n       bent\n       do: drain\n" in summary.stdout
    hidden = again("preflight-runs/latest", "--public", "--html", str(page), cwd=here.folder)
    assert hidden.returncode == 0, hidden.stderr
    assert "node-2" in page.read_text()
    assert "n2<" not in page.read_text()
    assert str(here.folder) not in page.read_text()


def _night(here: Here, *arguments: str) -> str:
    """A run into the folder of runs."""
    words = ["-p", "no:cacheprovider", "--preflight", "--preflight-inventory=fleet.toml"]
    done = warm.run(
        "pytest",
        [*words, "--preflight-checks=site.a", *arguments],
        cwd=here.folder,
        env=clean_environment(),
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_a_killed_run_leaves_what_it_knew(here: Here) -> None:
    """SIGKILL in the middle of judging: valid lines, and a report that says what is missing."""
    here.check("site.a", KILLED_AT_N3)
    told = here.judge()
    assert told.exit == -9
    assert not (told.folder / "report.json").exists()
    lines = (told.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line).get("subject") for line in lines[-2:]] == ["n1", "n2"]
    rebuilt = again(str(told.folder), cwd=here.folder)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert " interrupted " in rebuilt.stdout
    assert "not judged n3  1 of 3" in rebuilt.stdout
    assert "1 x the run ended before it was judged" in rebuilt.stdout
    page = again(str(told.folder), "--html", "-", cwd=here.folder)
    assert page.stdout.lower().startswith("<!doctype html>")
    assert not (here.folder / "-").exists()


def test_what_is_no_run_is_refused_in_one_line(here: Here) -> None:
    """A folder without a report, no folder at all, a damaged report: exit 4 and what to give."""
    (here.folder / "odd").mkdir()
    (here.folder / "odd" / "report.json").write_text("{}")
    newer = {"schema": 3, "preflight": "9.1", "started": "", "seconds": 1.0, "tier": "quick"}
    (here.folder / "newer").mkdir()
    (here.folder / "newer" / "report.json").write_text(json.dumps(newer))
    (here.folder / "night" / "wave-001").mkdir(parents=True)
    (here.folder / "night" / "wave-001" / "report.json").write_text("{}")
    for folder, said in (
        ("night", "preflight nightly --resume goes on with it, and its waves have reports"),
        ("site", "holds no report.json"),
        ("nowhere", "is not a folder"),
        ("odd", "is not a report of this preflight"),
        ("newer", "is of schema 3, this preflight reads 2: use the one that wrote it (9.1)"),
    ):
        told = again(folder, cwd=here.folder)
        assert told.returncode == 4
        assert said in told.stderr
        assert told.stderr.count("\n") == 1
