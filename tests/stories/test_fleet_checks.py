"""A site's check of the whole fleet: one verdict, the odd nodes by name, however it is run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from tests.stories.here import Here

WORKERS = ("-n", "2")
ODD = "conclude(fail(f'{len(preflight_fleet.nodes)} seen, n2 and n3 differ', advice='look', %s))"


def test_the_odd_nodes_are_named_however_it_is_run(here: Here) -> None:
    """Terminal, report, JUnit, -n, group items, -k and a replay: one verdict, two culprits."""
    here.check("site.alike", ODD % "culprits=['n2', 'n3']", subject="preflight_fleet")
    junit = here.folder / "junit.xml"
    told = here.judge(f"--junitxml={junit}")
    assert told.exit == 1, told.out
    assert "FAIL   n[2-3]  site.alike\n       3 seen, n2 and n3 differ\n" in told.out
    assert "quick: 0 per node, 1 of the whole fleet, 1 verdict expected" in told.out
    assert "not ready  n[2-3]  --exclude=n[2-3]" in told.out
    assert told.outcomes() == {("site.alike", "fleet:all", "fail")}
    (row,) = told.report["verdicts"]
    assert row["culprits"] == ["n2", "n3"]
    names = [case.get("name") for case in ET.parse(junit).iter("testcase")]  # noqa: S314  ours
    assert names == ["site.alike[fleet:all]"]
    replay = f"--preflight-replay={told.folder / 'measured.json'}"
    assert told.report["fleet"]["ready"] == ["n1"]
    for options in (WORKERS, ("--preflight-items=group",), ("-k", "fleet:all"), (replay,)):
        again = here.judge(*options)
        assert (again.exit, again.outcomes()) == (1, told.outcomes()), again.out
        assert again.report["fleet"] == told.report["fleet"]


def test_a_fleet_unfit_as_a_whole(here: Here) -> None:
    """Nobody is named: exit 1, the finding says so, the nodes stay ready, and need is not met."""
    here.check("site.a", "conclude(ok('fine'))")
    here.check("site.alike", ODD % "note=1", subject="preflight_fleet")
    told = here.judge("--preflight-need=1")
    assert told.exit == 1
    assert "= the fleet as a whole is not ready =" in told.out
    assert "FAIL   fleet:all  site.alike\n" in told.out
    assert told.report["fleet"]["ready"] == ["n1", "n2", "n3"]


def test_a_node_that_is_down_does_not_hide_the_rest(here: Here) -> None:
    """The fleet is judged without it; it is a finding of its own, and named beside the verdict."""
    here.check("site.alike", "conclude(ok(f'{len(fleet.nodes)} alike'))", subject="fleet")
    broken = re.sub(r"(?<=PF_NODE=n2 )\S+(?=\")", "/nonexistent/python", here.inventory.read_text())
    here.inventory.write_text(broken)
    for options in ((), WORKERS):
        told = here.judge("--preflight-fail-fast=never", *options)
        assert told.exit == 1
        assert told.outcomes() == {
            ("site.alike", "fleet:all", "ok"), ("reach.python", "n2", "fail"),
        }  # fmt: skip
        (row,) = [v for v in told.report["verdicts"] if v["outcome"] == "ok"]
        assert row["sentence"] == "2 alike; not checked: n2"
        assert told.report["fleet"]["ready"] == ["n1", "n3"]


def test_a_worker_that_dies_over_the_fleet(here: Here) -> None:
    """The one verdict is lost, and nobody is called ready."""
    die = "os._exit(7) if 'PYTEST_XDIST_WORKER' in os.environ else None"
    here.check("site.alike", f"{die}\n    conclude(ok('fine'))", subject="fleet")
    told = here.judge(*WORKERS, "--max-worker-restart=0")
    assert told.exit == 3
    assert told.outcomes() == {("site.alike", "fleet:all", "missing")}
    assert told.report["fleet"]["unjudged"] == ["n1", "n2", "n3"]
