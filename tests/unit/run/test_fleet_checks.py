"""A check of the whole fleet is judged once, on those who can be, and names whom it condemns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.check import FLEET
from preflight.core.registry import Entry, Ledger, Registry, load_folder, shipped_folder
from preflight.errors import UsageError
from preflight.facts.node import Reach
from preflight.fleet.model import Fleet, Host
from preflight.fleet.nodeset import expand
from preflight.report.findings import findings, suspicions
from preflight.report.ready import Ending, exit_code, readiness
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.verdict import Outcome, Verdict, fail, ok, unknown
from tests.unit.core.site_checks import write_check
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("h1", "h2", "h3", "h4")
DOWN = Reach("paramiko", "route", "nobody answers at h2:22", "look at its power")
HEALTHY = Measured(
    nonce="ab" * 16,
    reach=dict.fromkeys(NAMES, Reach("paramiko")),
    facts={name: facts(name) for name in NAMES},
)
WHO = (
    "conclude(ok(' '.join(fleet.nodes), "
    "groups={name: list(group.facts) for name, group in fleet.groups.items()}))"
)


def _run(folder: Path) -> Run:
    checks = [check for each in (shipped_folder(), folder) for check in load_folder(each)]
    hosts = tuple(Host(name=n, address=n, group=f"g{n[1] > '2':d}") for n in NAMES)
    fleet = Fleet(hosts=hosts, origin="a test")
    return Run(fleet, Registry(checks), Settings(fail_fast="never"))


def _judged(folder: Path, measured: Measured = HEALTHY) -> tuple[Run, Verdict]:
    run = _run(folder)
    run.replay(measured, run.expected(["site.whole"]), lambda *_: None)
    return run, run.judgement.verdict("site.whole", ())


def _without(name: str) -> Measured:
    there = {n: f for n, f in HEALTHY.facts.items() if n != name}
    return replace(HEALTHY, reach={**HEALTHY.reach, name: DOWN}, facts=there)


def test_one_verdict_is_owed_for_the_fleet(tmp_path: Path) -> None:
    """However many nodes there are; its subject is a word that no node can be named."""
    write_check(tmp_path, "site.whole", WHO, subject="fleet")
    run, verdict = _judged(tmp_path)
    assert run.expected(["site.whole"]) == [("site.whole", ())]
    assert verdict.sentence == "h1 h2 h3 h4"
    groups = {"g0": ["h1", "h2"], "g1": ["h3", "h4"]}
    assert verdict.evidence == {"groups": groups, "not_looked_at": {}}
    ledger = Ledger()
    ledger.record("site.whole", (), verdict)
    assert [entry.subject for entry in ledger.settle()] == [FLEET]
    with pytest.raises(UsageError):
        expand(FLEET)


def test_a_node_that_cannot_be_judged_is_named_and_blocks_nobody(tmp_path: Path) -> None:
    """The others are judged without it, and the sentence says that it was not looked at."""
    write_check(tmp_path, "site.whole", WHO, subject="fleet")
    run, verdict = _judged(tmp_path, _without("h2"))
    assert verdict.sentence == "h1 h3 h4; not checked: h2"
    left_out = {"h2": "reach.route of h2: nobody answers at h2:22"}
    assert verdict.evidence["not_looked_at"] == left_out
    assert ("reach.route", ("h2",)) in run.judgement.verdicts()


def test_its_gates_are_those_of_nodes(tmp_path: Path) -> None:
    """A required check that condemns a node keeps that one out of the view, and only there."""
    gate = "conclude(fail('odd', advice='-') if node.name == 'h3' else ok('fine'))"
    write_check(tmp_path, "site.gate", gate)
    write_check(tmp_path, "site.whole", WHO, subject="fleet", requires=("site.gate",))
    run, verdict = _judged(tmp_path)
    assert verdict.sentence == "h1 h2 h4; not checked: h3"
    assert run.judgement.why_excluded("h3", "facts") == ""


def test_a_fleet_of_which_nobody_is_left(tmp_path: Path) -> None:
    """With nobody to look at nothing is judged, and the first reason is given."""
    write_check(tmp_path, "site.whole", WHO, subject="fleet")
    nobody = replace(HEALTHY, facts={}, reach=dict.fromkeys(NAMES, DOWN))
    _, verdict = _judged(tmp_path, nobody)
    assert verdict.outcome is Outcome.NOT_RUN
    assert verdict.sentence.startswith("no node to judge: reach.route of h1")


@pytest.mark.parametrize("culprits", ["['h9']", "'h9'", "['h1', 'h9']", "[7]", "[['h1']]"])
def test_whoever_is_no_node_cannot_be_condemned(tmp_path: Path, culprits: str) -> None:
    """A verdict that names a stranger would leave out nobody: it is broken, which is no pass."""
    body = f"conclude(fail('odd', advice='-', culprits={culprits}))"
    write_check(tmp_path, "site.whole", body, subject="fleet")
    assert _judged(tmp_path)[1].outcome is Outcome.BROKEN


def test_a_check_cannot_change_what_the_next_one_sees(tmp_path: Path) -> None:
    """The view is read-only."""
    write_check(tmp_path, "site.whole", "fleet.nodes['h9'] = 1", subject="fleet")
    assert "TypeError" in _judged(tmp_path)[1].sentence


def test_nobody_waits_for_the_fleet(tmp_path: Path) -> None:
    """A check of the whole fleet is no gate: it has no single node to hold back."""
    write_check(tmp_path, "site.a", requires=("site.whole",))
    write_check(tmp_path, "site.whole", WHO, subject="fleet")
    with pytest.raises(UsageError, match="which judges the whole fleet: require a check of nodes"):
        _run(tmp_path)


def _entries(verdict: Verdict) -> list[Entry]:
    everyone = [Entry("base", name, (name,), ok("fine")) for name in NAMES]
    return [*everyone, Entry("site.whole", FLEET, (), verdict)]


def _exit(verdict: Verdict, need: int | None = None) -> int:
    entries = _entries(verdict)
    ready = readiness(NAMES, entries, strict=False)
    return exit_code(entries, ready, Ending(need=need))


def test_the_named_nodes_are_the_finding() -> None:
    """Two odd nodes are one finding about those two; they alone are not ready."""
    odd = fail("2 of 4 run 5.15", advice="reinstall", culprits=["h2", "h4"])
    (found,) = findings(_entries(odd))
    assert (found.subjects, found.check) == (("h2", "h4"), "site.whole")
    ready = readiness(NAMES, _entries(odd), strict=False)
    assert (ready.ready, ready.not_ready) == (("h1", "h3"), ("h2", "h4"))
    assert (_exit(odd), _exit(odd, need=2)) == (1, 0)


def test_a_fleet_that_names_too_many_is_suspicious() -> None:
    """Three of four condemned for one thing look like one shared cause."""
    odd = fail("odd", advice="-", culprits=NAMES[:3])
    assert "fails on 3 of 4 nodes" in suspicions(_entries(odd), len(NAMES))["site.whole"]


@pytest.mark.parametrize(
    "verdict", [fail("two subnets", advice="-"), unknown("no licence server", advice="-")]
)
def test_a_fleet_that_is_unfit_as_a_whole(verdict: Verdict) -> None:
    """No node is condemned for it, yet it is exit 1, and no number of ready nodes mends it."""
    ready = readiness(NAMES, _entries(verdict), strict=False)
    assert (ready.ready, ready.not_ready) == (NAMES, ())
    assert _exit(verdict) == _exit(verdict, need=1) == 1
    assert findings(_entries(verdict))[0].subjects == (FLEET,)


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.MISSING])
def test_a_fleet_that_was_not_judged_clears_nobody(outcome: Outcome) -> None:
    """Whom the missing verdict would have named nobody knows."""
    missing = Verdict(outcome=outcome, sentence="-")
    assert readiness(NAMES, _entries(missing), strict=False).unjudged == NAMES
    assert _exit(missing) == 3
