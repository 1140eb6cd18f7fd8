"""A site's own checks: their faults are theirs, never a node's, and never a pass."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests import warm
from tests.stories.here import UNFIT_N2

if TYPE_CHECKING:
    from tests.stories.here import Here


def test_a_check_that_raises(here: Here) -> None:
    """Broken, exit 3; the screen has a sentence and the report has the traceback."""
    here.check("site.a", "conclude(ok(1 / (node.name != 'n2') and 'fine'))")
    told = here.judge()
    assert told.exit == 3
    assert "BROKE  n2  site.a\n       site.a raised ZeroDivisionError" in told.out
    assert "Traceback" not in told.out
    (broken,) = [v for v in told.report["verdicts"] if v["outcome"] == "broken"]
    assert "Traceback" in broken["evidence"]["traceback"]
    assert told.report["fleet"]["ready"] == ["n1", "n3"]


def test_a_check_file_that_is_only_typed(here: Here) -> None:
    """The ini names no folder: the file is judged by its path."""
    path = here.check("site.a", UNFIT_N2)
    (here.folder / "pytest.ini").write_text("[pytest]\n")
    told = here.judge_all(str(path))
    assert told.exit == 1, told.out
    assert "FAIL   n2  site.a\n       bent" in told.out
    assert {v["check"] for v in told.report["verdicts"] if v["outcome"] == "fail"} == {"site.a"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('boom')", "site.a raised ValueError: boom"),
        ("return", "site.a reached 0 verdicts, expected 1"),
        ("conclude(ok('a')); conclude(ok('b'))", "site.a reached 2 verdicts, expected 1"),
        ("sys.exit(0)", "site.a raised SystemExit: 0"),
    ],
)
def test_a_broken_check_is_exit_3(here: Here, body: str, said: str) -> None:
    """A check that does not conclude exactly once leaves its nodes unjudged, not ready."""
    here.check("site.a", body)
    told = here.judge()
    assert told.exit == 3
    assert said in told.out
    assert told.report["fleet"]["unjudged"] == ["n1", "n2", "n3"]
    assert (told.folder / "ready.hosts").read_text() == ""


def test_a_site_folder_that_cannot_be_used(here: Here) -> None:
    """Each mistake in a check file, or in the ini, is one line and exit 4."""
    path = here.check("site.a", "conclude(ok('fine'))")
    good = path.read_text()
    for text, said in (
        (f"{good}\ndef (", "cannot be loaded: SyntaxError"),
        (good.replace("'site.a'", "'gpu.count'"), "both declare 'gpu.count': rename one"),
        (good.replace("requires=()", "requires=('gpu.cuont',)"), "which no check declares"),
        (good.replace("requires=()", "requires=('site.a',)"), "break the circle"),
    ):
        path.write_text(text)
        told = here.judge_all()
        assert told.exit == 4
        assert said in told.err
        assert "Traceback" not in told.err
        assert len(told.err.strip().splitlines()) == 1
    (here.folder / "pytest.ini").write_text("[pytest]\npreflight_checks = nosuch\n")
    told = here.judge_all()
    assert told.exit == 4
    assert "is not a folder: correct the ini file" in told.err


def test_lenient_strict_and_enough(here: Here) -> None:
    """Warnings pass unless --preflight-strict; --preflight-need counts the nodes that are ready."""
    here.check("site.a", UNFIT_N2.replace("fail(", "warn("))
    assert here.judge().exit == 0
    strict = here.judge("--preflight-strict")
    assert strict.exit == 1
    assert strict.report["fleet"]["not_ready"] == ["n2"]
    assert here.judge("--preflight-strict", "--preflight-exclude=n2").exit == 0
    enough = here.judge("--preflight-strict", "--preflight-need=2")
    assert enough.exit == 0
    assert (enough.folder / "ready.hosts").read_text() == "n1\nn3\n"
    assert here.judge("--preflight-strict", "--preflight-need=3").exit == 1


def test_judging_the_same_measurements_again(here: Here) -> None:
    """--preflight-replay gives the same verdicts and contacts nobody; damage is exit 4."""
    here.check("site.a", UNFIT_N2)
    first = here.judge()
    measured = here.folder / "measured.json"
    measured.write_bytes((first.folder / "measured.json").read_bytes())
    nobody = here.inventory.read_text().replace("env PF_NODE", "/nonexistent PF_NODE")
    here.inventory.write_text(nobody)
    for workers in ((), ("-n", "2")):
        again = here.judge(f"--preflight-replay={measured}", *workers)
        assert again.exit == first.exit == 1
        assert again.report["verdicts"] == first.report["verdicts"] or workers
        assert again.outcomes() == first.outcomes()
    whole = measured.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"[]", json.dumps({"nonce": 1}).encode()):
        measured.write_bytes(damaged)
        told = here.judge(f"--preflight-replay={measured}")
        assert told.exit == 4
        assert "give a run's folder, or its measured.json" in told.err


def test_what_a_selected_check_waits_for(here: Here) -> None:
    """A gate that is shut is reported although only the check behind it was asked for."""
    here.check("site.gate", UNFIT_N2)
    here.check("site.behind", "conclude(ok('fine'))", requires=("site.gate",))
    told = here.judge("-k", "site.behind")
    assert told.exit == 1
    assert told.found() == {("site.gate", "n2")}
    assert told.report["fleet"]["not_ready"] == ["n2"]


def test_the_list_of_checks_has_the_sites_own(here: Here) -> None:
    """`preflight list-checks` in the site's folder lists them; a page is how a file begins."""
    path = here.check("site.a", "os._exit(9)")
    path.write_text('"""No node is bent.\n\n## Fix\nStraighten it.\n"""\n' + path.read_text())
    (here.folder / "conftest.py").write_text("raise SystemExit(9)\n")
    status, out, err = _command(here)
    assert (status, err) == (0, "")
    assert any(line.split()[:4] == ["site.a", "quick", "facts", "No"] for line in out.splitlines())
    assert "gpu.count" in out
    status, out, _ = _command(here, "site.a")
    assert (status, out.splitlines()[0]) == (0, "# site.a")
    assert "No node is bent.\n\n## Fix\nStraighten it.\n" in out
    status, out, err = _command(here, "site.b")
    assert (status, out) == (4, "")
    assert err == "preflight: there is no check 'site.b': did you mean 'site.a'?\n"
    for ini in ("[pytest]\npreflight_checks = nosuch\n", "[pytest\n"):
        (here.folder / "pytest.ini").write_text(ini)
        status, out, err = _command(here)
        assert (status, out, len(err.splitlines())) == (4, "", 1), err
        assert _command(here, "gpu.count")[0] == 0


def _command(here: Here, *arguments: str) -> tuple[int, str, str]:
    """Run `preflight list-checks` in the site's folder."""
    words = ["list-checks", *arguments]
    done = warm.run("preflight", words, cwd=here.folder, env=os.environ, timeout=60)
    return done.returncode, done.stdout, done.stderr
