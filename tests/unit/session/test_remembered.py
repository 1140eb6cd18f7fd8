"""What is kept of a run: findings by the component they are about, who is cleared, few numbers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.burn.units import conditions
from preflight.core.registry import Entry, Registry
from preflight.fleet.model import Fleet, Host
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.session.stored_run import (
    fine_subjects,
    night_of,
    numbers_of,
    report_findings,
    serial_of,
)
from preflight.verdict import Verdict, fail, flaky, not_run, ok, unknown, warn
from tests.unit.burn.builders import burned
from tests.unit.facts.builders import facts, gpus
from tests.unit.facts.machines import machine

KNOWN = frozenset({"h1", "h2", "h3"})


def _pair(a: str, b: str, verdict: Verdict) -> Entry:
    return Entry("fabric.allreduce", f"{a}-{b}", (a, b), verdict)


def _fleet(verdict: Verdict) -> Entry:
    return Entry("software.drift", "fleet:all", (), verdict)


def _bad(sentence: str, blame: str = "", suspects: tuple[str, ...] = ()) -> Verdict:
    return fail(sentence, advice="exclude it", blame=blame, suspects=suspects)


def test_pairs_of_one_culprit_are_one_finding() -> None:
    """Told once, in the words of the worst."""
    entries = [
        _pair("h1", "h2", flaky(1, 3, "h1 is late at times", advice="x", blame="h1")),
        _pair("h1", "h3", _bad("h1 is slow: 1 GB/s, 40 expected", blame="h1")),
        _pair("h2", "h3", ok("40 GB/s")),
    ]
    (one,) = report_findings(entries, KNOWN)
    assert (one.check, one.about, one.outcome) == ("fabric.allreduce", "h1", "fail")
    assert (one.sentence, one.nodes, one.is_node_or_pair) == (
        "h1 is slow: 1 GB/s, 40 expected",
        ("h1",),
        True,
    )
    assert fine_subjects(entries, KNOWN) == {"fabric.allreduce": {"h2", "h3", "pair h2-h3"}}


@pytest.mark.parametrize(
    ("verdict", "about", "nodes", "own"),
    [
        (_bad("x", blame="pair h1-h2"), "pair h1-h2", ("h1", "h2"), True),
        (_bad("x"), "pair h1-h2", ("h1", "h2"), True),
        (_bad("x", blame="h1 or h3", suspects=("h1", "h3")), "h1 or h3",
         ("h1", "h3"), False),
        (_bad("x", blame="uplinks of leaf s1"), "uplinks of leaf s1", ("h1", "h2"), False),
        (unknown("x", advice="y", grant="sudo"), "pair h1-h2", ("h1", "h2"), True),
    ],
)  # fmt: skip
def test_a_path_or_a_switch_is_a_component_too(
    verdict: Verdict, about: str, nodes: tuple[str, ...], *, own: bool
) -> None:
    """What is no node and no pair is kept for this fleet alone."""
    (one,) = report_findings([_pair("h1", "h2", verdict)], KNOWN)
    assert (one.about, one.nodes, one.is_node_or_pair) == (about, nodes, own)


def test_a_verdict_on_the_fleet_names_some_and_clears_the_others() -> None:
    """But nobody whom it did not look at, and nobody at all where it names none."""
    odd = warn("h2 has another kernel", advice="x", culprits=("h2",), not_looked_at={"h3": "down"})
    (one,) = report_findings([_fleet(odd)], KNOWN)
    assert (one.about, one.nodes) == ("h2", ("h2",))
    assert fine_subjects([_fleet(odd)], KNOWN) == {"software.drift": {"h1"}}
    assert fine_subjects([_fleet(ok("alike"))], KNOWN) == {"software.drift": {*KNOWN, "fleet:all"}}
    assert fine_subjects([_fleet(_bad("all differ"))], KNOWN) == {}
    assert list(report_findings([_fleet(not_run("no driver"))], KNOWN)) == []


@pytest.mark.parametrize(
    ("serial", "known"),
    [
        ("J1234X9", "J1234X9"),
        (" 21D0-77 ", "21D0-77"),
        *((word, "") for word in ("", None, "None", "To Be Filled By O.E.M.", "0000000000")),
        *((word, "") for word in ("Default string", "..........", "0123456789", "X")),
    ],
)
def test_a_placeholder_is_no_serial_number(serial: str | None, known: str) -> None:
    """A thousand boards bear it."""
    assert serial_of(facts(machine=machine(serial=serial))) == known
    assert serial_of(facts(machine=None)) == serial_of(None) == ""


def _run(**changes: object) -> Run:
    fleet = Fleet(hosts=(Host(name="h1", address="h1"), Host(name="h2", address="h2")), origin="x")
    run = Run(fleet, Registry([]), Settings())
    by_node = {
        name: facts(name, gpus=gpus(), machine=machine(serial="SN7")) for name in ("h1", "h2")
    }
    run.judgement.advance(replace(Measured(nonce="ab" * 16, facts=by_node), **changes))
    return run


def test_of_a_burn_in_each_gpu_is_a_number_per_measure() -> None:
    """The near side of the host, and of the ways to other GPUs the slowest."""
    slow = burned({("p2p_gbs", 3): 0.5})
    numbers = {one.measure: one for one in numbers_of(_run(burned={"h1": slow}))}
    assert numbers["gemm_tflops"].units == tuple(f"GPU {n}" for n in range(8))
    assert numbers["gemm_tflops"].under == conditions(slow, facts("h1"))
    assert numbers["h2d_gbs"].units == tuple(f"GPU {n} with NUMA node {n // 4}" for n in range(8))
    ways = dict(zip(numbers["p2p_gbs"].units, numbers["p2p_gbs"].values, strict=True))
    assert set(ways) == {f"GPU {n}" for n in range(8)}
    assert min(ways, key=lambda name: ways[name] or 0.0) == "GPU 3"
    assert len(numbers["host_copy_gbs"].units) == 2


def test_nodes_are_what_the_verdicts_make_of_them() -> None:
    """Only k of n tries against it: flaky. Nothing was judged of it: unjudged."""
    entries = [
        Entry("a.b", "h1", ("h1",), flaky(1, 9, "late", advice="x")),
        Entry("a.b", "h2", ("h2",), not_run("stopped", stopped=True)),
    ]
    night = night_of(_run(), entries, 1.0)
    states = {one.name: one.state for one in night.machines}
    assert states == {"h1": "flaky", "h2": "unjudged"}
    firm = [*entries, Entry("c.d", "h1", ("h1",), fail("gone", advice="x"))]
    assert night_of(_run(), firm, 1.0).machines[0].state == "not_ready"
    assert [len(one.gpus or ()) for one in night.machines] == [8, 8]
