"""pytest's own options mean what they always mean, in one process and in several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.stories.here import UNFIT_N2

if TYPE_CHECKING:
    from tests.stories.conftest import Told
    from tests.stories.here import Here

HOSTILE = r"bad \x1b[31m\x07 <b>&]]>\x00 \ud800 \u202e\nsecond line \x85 [red]x[/red] $(reboot)"
WORKERS = ("-n", "2")
ALONE = "--preflight-nodes=n1"
"""For what one node shows as well as three."""


def _counts(told: Told) -> str:
    """The trust line without the time it took."""
    (line,) = re.findall(
        r"^verdicts +(\d+ ok, [^;]*); [\d.]+ s,\s+exit (\d)$", told.out, re.MULTILINE
    )
    return " exit ".join(line)


def _sentences(told: Told) -> dict[tuple[str, str], tuple[str, str]]:
    rows = told.report["verdicts"]
    return {(row["check"], row["subject"]): (row["outcome"], row["sentence"]) for row in rows}


def test_selecting_by_node_and_by_check(here: Here) -> None:
    """-k takes a node's name or a check's id; the rest is neither judged nor missed."""
    here.check("site.a", UNFIT_N2)
    here.check("site.b", "conclude(ok('fine'))")
    told = here.judge("-k", "n3")
    assert told.exit == 0, told.out
    assert told.outcomes() == {("site.a", "n3", "ok"), ("site.b", "n3", "ok")}
    told = here.judge("-k", "site.a")
    assert told.exit == 1
    assert told.outcomes("fail") == {("site.a", "n2", "fail")}
    assert told.report["expected"] == 3


def test_selecting_nothing(here: Here) -> None:
    """A selection that matches nothing says so, exit 5, and points to no report."""
    here.check("site.a", "conclude(ok('fine'))")
    told = here.judge("-k", "nosuch", *WORKERS)
    assert told.exit == 5
    assert "= nothing to check =" in told.out
    assert "report.json" not in told.out
    assert not (told.folder / "report.json").exists()


def test_selecting_by_stage(here: Here) -> None:
    """-m preflight_reach judges the way in and nothing else, with several workers too."""
    for workers in ((), WORKERS):
        told = here.judge_all("-m", "preflight_reach", *workers)
        assert told.exit == 0, told.out
        assert {check.split(".")[0] for check, _, _ in told.outcomes()} == {"reach"}
        assert told.report["missing"] == 0


def test_collecting_lists_stable_ids(here: Here) -> None:
    """--co -q prints one id per check and subject, or per check and group, and runs nothing."""
    here.check("site.a", "os._exit(9)")
    told = here.judge("--co", "-q")
    assert told.exit == 0
    assert [line for line in told.out.splitlines() if "::" in line] == [
        f"site/test_site_a.py::site.a[n{i}]" for i in (1, 2, 3)
    ]
    told = here.judge("--co", "-q", "--preflight-items=group")
    assert "site/test_site_a.py::site.a[train]\n" in told.out
    assert not told.folder.exists()


@pytest.mark.parametrize(("option", "workers"), [("-x", ()), ("--maxfail=1", ()), ("-x", WORKERS)])
def test_stopping_at_the_first_failure(here: Here, option: str, workers: tuple[str, ...]) -> None:
    """Exit 1; what pytest did not come to is not run, with the reason, and never lost."""
    here.check("site.a", UNFIT_N2)
    here.check("site.b", "conclude(ok('fine'))")
    told = here.judge(option, *workers)
    assert told.exit == 1, told.out
    assert told.found() == {("site.a", "n2")}
    assert told.report["missing"] == 0
    assert ", 0 missing" in told.out
    rest = {v["sentence"] for v in told.report["verdicts"] if v["outcome"] == "not_run"}
    assert rest <= {"stopped by -x or --maxfail"}
    assert rest or workers
    assert "n2" not in (told.folder / "ready.hosts").read_text()


def test_the_last_failures_alone(here: Here) -> None:
    """--lf judges again only what failed; once it is mended everything is judged again."""
    here.check("site.a", UNFIT_N2)
    cached = ("-p", "cacheprovider")
    assert here.judge(*cached).report["expected"] == 3
    again = here.judge(*cached, "--lf")
    assert (again.exit, again.outcomes()) == (1, {("site.a", "n2", "fail")})
    here.check("site.a", "conclude(ok('straight'))")
    mended = here.judge(*cached, "--lf", *WORKERS)
    assert (mended.exit, mended.outcomes()) == (0, {("site.a", "n2", "ok")})
    assert len(here.judge(*cached, "--lf").outcomes()) == 3


def test_junitxml_survives_hostile_words(here: Here) -> None:
    """Whatever a check says, the file is well-formed and carries outcome and sentence."""
    here.check("site.a", f'conclude(fail("{HOSTILE}", advice="{HOSTILE}", note="{HOSTILE}"))')
    path = here.folder / "junit.xml"
    told = here.judge(f"--junitxml={path}")
    assert told.exit == 1
    cases = ET.parse(path).findall(".//testcase")  # noqa: S314  we wrote it a moment ago
    assert [case.get("name") for case in cases] == [f"site.a[n{i}]" for i in (1, 2, 3)]
    for case in cases:
        properties = {p.get("name"): p.get("value", "") for p in case.findall(".//property")}
        assert properties["preflight_outcome"] == "fail"
        assert properties["preflight_sentence"].startswith("bad ")
        failure = case.find("failure")
        assert failure is not None
        assert "do: bad " in (failure.text or "")
    shown = (told.out, told.err, path.read_text(), (told.folder / "report.json").read_text())
    for text in shown:
        assert not set("\x1b\x07\x00\u202e\x85") & set(text)


def test_screens_of_any_kind(here: Here) -> None:
    """Quiet, verbose, coloured, in C: 80 columns, no escape codes unless colour was asked for."""
    here.check("site.a", f"conclude(warn('{'word ' * 60}', advice='{'look ' * 40}'))")
    long = (ALONE, "-m", "preflight_facts")
    quiet, plain, verbose = here.judge("-q", *long), here.judge(*long), here.judge("-v", *long)
    colour = here.judge("--color=yes", *long)
    for told in (quiet, plain, verbose, colour):
        assert told.exit == 0
        assert "warned" in told.out
    for told in (quiet, plain, verbose):
        assert "\x1b" not in told.out
        for line in told.out.splitlines():
            is_ours = not line.startswith(("platform ", "plugins: ", "hypothesis profile "))
            assert len(line) <= 80 or max(map(len, line.split())) > 50 or not is_ours, line
    assert "\x1b[" in colour.out
    assert "test session starts" not in quiet.out
    assert "site.a[n1] WARN" in verbose.out
    assert "\x1b" not in here.judge(*long, env={"NO_COLOR": "1", "LC_ALL": "C"}).out


def test_without_a_terminal_plugin(here: Here) -> None:
    """-p no:terminal prints nothing; report and exit code are the same."""
    here.check("site.a", UNFIT_N2)
    told = here.judge("-p", "no:terminal")
    assert (told.exit, told.out) == (1, "")
    assert told.found() == {("site.a", "n2")}


def test_two_workers_say_what_one_process_says(here: Here) -> None:
    """The same verdicts, counts and exit code with -n 2, whatever is wrong and wherever."""
    here.check("site.a", UNFIT_N2)
    here.check("site.b", "conclude(ok(1 / (node.name != 'n3') and 'fine'))")
    here.check("site.c", "conclude(ok('fine'))", requires=("site.a",))
    for options in ((), ("--preflight-fail-fast=first",), ("--preflight-items=group",)):
        one, two = here.judge(*options), here.judge(*options, *WORKERS)
        assert one.exit == two.exit == 1
        assert _sentences(one) == _sentences(two)
        assert _counts(one) == _counts(two)
        assert one.report["fleet"] == two.report["fleet"]


@pytest.mark.parametrize("options", [("-x",), ("--max-worker-restart=0",)])
def test_a_worker_that_dies(here: Here, options: tuple[str, ...]) -> None:
    """The verdict it owed is lost, and named; that is never exit 0, whatever stops the run."""
    here.check(
        "site.a",
        "if node.name == 'n2' and 'PYTEST_XDIST_WORKER' in os.environ:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    conclude(ok('fine'))",
    )
    told = here.judge(*WORKERS, *options)
    assert told.exit == 3, told.out
    assert ("site.a", "n2", "missing") in told.outcomes()
    assert "MISSING n2  site.a" in told.out
    assert "crashed while running" in told.out
    assert "n2" in told.report["fleet"]["unjudged"]
    assert "n2" not in (told.folder / "ready.hosts").read_text()


def test_a_dead_worker_does_not_hide_a_finding(here: Here) -> None:
    """Condemned is stronger than lost: exit 1."""
    here.check("site.a", UNFIT_N2)
    here.check(
        "site.b",
        "os._exit(7) if node.name == 'n3' and 'PYTEST_XDIST_WORKER' in os.environ else None\n"
        "    conclude(ok('fine'))",
    )
    told = here.judge(*WORKERS)
    assert told.exit == 1
    assert told.outcomes("fail", "missing") == {
        ("site.a", "n2", "fail"),
        ("site.b", "n3", "missing"),
    }


def test_an_ordinary_test_beside_the_checks(here: Here) -> None:
    """Tests of the operator's own run too, and a failure of theirs is not exit 0."""
    here.check("site.a", "conclude(ok('fine'))")
    ordinary = here.folder / "test_ordinary.py"
    ordinary.write_text("def test_it():\n    assert 1 == 2\n")
    told = here.judge(ALONE, "site", str(ordinary))
    assert told.exit == 1
    assert told.found() == set()
    ordinary.write_text("def test_it():\n    pass\n")
    assert here.judge(ALONE, "site", str(ordinary)).exit == 0
    ordinary.write_text("def (:\n")
    for workers in ((), WORKERS):
        assert here.judge(ALONE, "site", str(ordinary), *workers).exit not in (0, 1)


def test_group_items_carry_every_verdict(here: Here) -> None:
    """One item per check and group; each node's verdict is in the report all the same."""
    here.check("site.a", UNFIT_N2)
    told = here.judge("--preflight-items=group", "-v")
    assert told.exit == 1
    assert "site.a[train] FAIL" in told.out
    assert told.outcomes() == {
        ("site.a", "n1", "ok"), ("site.a", "n2", "fail"), ("site.a", "n3", "ok"),
    }  # fmt: skip


def test_a_conftest_that_skips_every_item(here: Here) -> None:
    """A mark that skips leaves the verdicts open: they are missing, which is no pass."""
    here.check("site.a", "conclude(ok('fine'))")
    (here.folder / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.skip(reason='slow'))\n"
    )
    for workers in ((), WORKERS):
        told = here.judge(*workers)
        assert "INTERNALERROR" not in told.out + told.err
        assert told.exit == 3, told.out
        assert told.outcomes() == {("site.a", f"n{i}", "missing") for i in (1, 2, 3)}
