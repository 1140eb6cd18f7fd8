"""The waves' reports as one: every node once, findings by cause over all waves, one exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from preflight.commands.nightly.state import NightlyRun, WaveState
from preflight.commands.nightly.united import unite
from preflight.report.document import Report, encode
from preflight.verdict import Outcome, Verdict, fail, not_run, ok, unknown
from tests.unit.commands.reports import on, pair, report

if TYPE_CHECKING:
    from preflight.report.findings import Finding

NODES = tuple(f"h{number}" for number in range(1, 13))


MISSING = Verdict(outcome=Outcome.MISSING, sentence="wave 2: killed")


def _united(*reports: Any, **changes: Any) -> tuple[Report, tuple[Finding, ...]]:
    around: dict[str, Any] = {"missing": {}, "interrupted": False, "former": ()}
    around |= {name: changes.pop(name) for name in around.keys() & changes.keys()}
    values: dict[str, Any] = {
        "sweep": "s", "preflight": "0", "started_s": 1795309200.0, "spent_s": 9.0, "words": (),
        "cwd": "/", "tier": "deep", "usual_s": 60.0, "most": 16, "nodes": NODES[:4],
        "origin": "fleet.toml",
    }  # fmt: skip
    nightly = NightlyRun(**{**values, **changes})
    return unite(nightly, dict(enumerate(reports, 1)), **around)


def test_every_node_is_judged_once() -> None:
    """Ready, not ready, left out: in the order of the fleet, each in one list; exit 1."""
    bent = on("gpu.count", "h3", verdict=fail("7 of 8 GPUs", advice="drain"))
    out = {"h2": "in use (mixed)"}
    united, found = _united(report(["h4", "h1"]), report(["h3"], [bent]), left_out=out)
    fleet = united.fleet
    assert (fleet.ready, fleet.not_ready, fleet.unjudged) == (("h1", "h4"), ("h3",), ("h2",))
    assert (fleet.exclude, fleet.left_out) == ("h3", {"h2": "in use (mixed)"})
    assert (united.exit, united.expected, united.missing) == (1, 4, 0)
    assert [(one.subjects, one.check) for one in found] == [(("h3",), "gpu.count")]
    assert encode(united)


def test_one_cause_over_all_waves_is_one_finding() -> None:
    """The same words in two waves are shown once; a shared cause joins two checks."""
    cap = fail("cap 600 W, 700 expected", advice="raise it")
    stale = fail("a dead job holds it", advice="kill 7", cause="pid 7")
    first = report(["h1", "h2"], [on("gpu.power", "h1", verdict=cap)])
    second = report(["h3", "h4"], [on("gpu.power", "h3", verdict=cap),
                                   on("host.stale_processes", "h4", verdict=stale),
                                   on("net.ports", "h4", verdict=stale)])  # fmt: skip
    _, found = _united(first, second)
    assert [(one.subjects, one.check, one.also) for one in found] == [
        (("h1", "h3"), "gpu.power", ()),
        (("h4",), "host.stale_processes", ("net.ports",)),
    ]


def test_a_fault_of_over_a_quarter_of_the_fleet_is_said() -> None:
    """One or two of each wave, four of twelve in all: it looks like one shared cause."""
    bad = fail("driver 550, 560 expected", advice="update it")
    waves = [NODES[0:3], NODES[3:6], NODES[6:9], NODES[9:12]]
    parts = [report(wave, [on("gpu.software", wave[0], verdict=bad)]) for wave in waves]
    united, (found,) = _united(*parts, nodes=NODES)
    assert "gpu.software fails on 4 of 12 nodes" in united.suspicions[0]
    assert found.advice.startswith("find what these nodes share")


def test_what_looked_shared_to_one_wave_is_kept_with_its_number() -> None:
    """A note of a wave is not the fleet's, and not a missing verdict either."""
    noted = report(["h1", "h2"], suspicions=("gpu.count fails on 2 of 2 nodes: ...",))
    united, _ = _united(report(["h3"]), noted)
    assert united.suspicions == ("wave 2, of 2 nodes: gpu.count fails on 2 of 2 nodes: ...",)


def test_checks_of_a_whole_fleet_are_one_verdict() -> None:
    """The worst of the waves, and of which; all its culprits; no sentence twice."""
    late = fail("h2 is 3 s late", advice="see chrony", culprits=("h2",))
    others = report(["h3", "h4"], [on("host.clock", verdict=ok("within 2 ms"))])
    united, (found,) = _united(report(["h1", "h2"], [on("host.clock", verdict=late)]), others)
    (row,) = [row for row in united.verdicts if row.check == "host.clock"]
    assert (row.sentence, row.culprits) == ("wave 1: h2 is 3 s late", ("h2",))
    assert (found.subjects, united.fleet.not_ready) == (("h2",), ("h2",))
    fine = report(["h1", "h2"], [on("host.clock", verdict=ok("within 2 ms"))])
    united, _ = _united(fine, others)
    (row,) = [row for row in united.verdicts if row.check == "host.clock"]
    assert row.sentence == "within 2 ms"


@pytest.mark.parametrize(
    ("changes", "codes", "expected"),
    [
        ({}, [0, 0], 0),
        ({"left_out": {"h2": "in use (mixed)"}}, [0], 0),
        ({"left_out": dict.fromkeys(NODES[:4], "in use")}, [], 5),
        ({"interrupted": True}, [1], 2),
        ({"missing": {"h4": not_run("before its wave the time was up", stopped=True)}}, [0], 3),
        ({"missing": {"h4": MISSING}}, [0], 3),
        ({"missing": {"h4": MISSING}}, [1], 1),
        ({}, [0, 3], 3),
        ({}, [5, 5], 5),
    ],
)
def test_exit_codes_are_those_of_a_run(
    changes: dict[str, Any], codes: list[int], expected: int
) -> None:
    """0 all checked are ready; 1 not ready; 2 interrupted; 3 not all was judged; 5 nothing."""
    reports = (report([f"h{at}"], exit=code) for at, code in enumerate(codes, 1))
    assert _united(*reports, **changes)[0].exit == expected


def test_what_lacks_a_privilege_condemns_nobody() -> None:
    """An unknown with a grant comes through the report as such: exit 0, unless strict."""
    deaf = unknown("dmesg is closed", advice="grant it", grant="sudo -n dmesg")
    one = report(["h1"], [on("gpu.xid", "h1", verdict=deaf)])
    assert _united(one)[0].exit == 0
    assert _united(one, strict=True)[0].exit == 1


def test_nodes_without_a_report_are_missing() -> None:
    """Lost and stopped ones are counted, and named as not judged."""
    missing = {
        "h3": MISSING,
        "h4": not_run("before its wave the time was up", stopped=True),
    }
    united, _ = _united(report(["h1", "h2"]), missing=missing)
    assert united.fleet.unjudged == ("h3", "h4")
    assert (united.missing, united.counts[str(Outcome.NOT_RUN)]) == (1, 1)


def test_rounds_are_counted_on_and_coverage_adds_up() -> None:
    """Pairs of two waves never share a round; former nights count as known."""
    one = report(["h1", "h2"], pairs=[pair("h1", "h2")])
    two = report(["h3", "h4"], pairs=[pair("h3", "h4")])
    leaves = {"h1": "L1", "h2": "L1", "h3": "L2", "h4": "L2"}
    waves = tuple(
        WaveState(nodes=nodes, stand="done", whole=nodes != ("h1", "h4"))
        for nodes in (("h1", "h3"), ("h2", "gone"), ("h1", "h4"))
    )
    united, _ = _united(one, two, leaves=leaves, former=[waves])
    seen = united.coverage
    assert seen is not None
    assert (seen.pairs, seen.pairs_run, seen.pairs_known, seen.runs_left) == (6, 2, 3, 2)
    assert (seen.leaf_pairs, seen.leaf_pairs_run, seen.leaf_pairs_known) == (1, 0, 1)
    assert [(row.a, row.round) for row in united.pairs] == [("h1", 0), ("h3", 1)]


def test_names_with_dashes_are_told_from_pairs() -> None:
    """A pair of rack-1 and rack-2 is two nodes; rack-1 is one."""
    slow = fail("slow", advice="look", blame="rack-2")
    part = report(["rack-1", "rack-2"], [on("fabric.allreduce", "rack-1", "rack-2", verdict=slow)])
    united, (found,) = _united(part, nodes=("rack-1", "rack-2"))
    assert (found.subjects, united.fleet.not_ready) == (("rack-2",), ("rack-2",))
