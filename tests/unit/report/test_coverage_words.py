"""What the terminal says of how much of the fabric was looked at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.report.document import CoverageRow
from preflight.report.terminal import coverage_words
from preflight.verdict import Outcome, fail, not_run, ok
from tests.unit.report.nights import report


def seen(
    run: int, rounds: int, *, known: int | None = None, left: int | None = None
) -> CoverageRow:
    """Eight nodes, 28 pairs in 7 rounds; so much of it was measured."""
    return CoverageRow(
        rounds=rounds,
        rounds_total=7,
        seed=1,
        pairs=28,
        pairs_run=run,
        pairs_known=known,
        runs_left=left,
        topology="",
        leaf_pairs=0,
        leaf_pairs_run=0,
        leaf_pairs_known=None,
    )


@pytest.mark.parametrize(
    ("coverage", "words"),
    [
        (seen(28, 7), "all 28 pairs of nodes measured"),
        (
            seen(12, 3),
            (
                "12 of 28 pairs of nodes measured (to measure all: --preflight-sweep=exhaustive, "
                "or a part each night: --preflight-history=DIR)"
            ),
        ),
        (
            seen(25, 7),
            (
                "25 of 28 pairs of nodes measured (all were planned: the others are not run, "
                "with the reason)"
            ),
        ),
        (
            seen(12, 3, known=20, left=2),
            "12 of 28 pairs of nodes measured, 20 with earlier runs; all in 2 more runs like this",
        ),
    ],
)
def test_what_is_left_is_said_with_how_to_come_to_it(coverage: CoverageRow, words: str) -> None:
    """Rounds that were not planned can be asked for; pairs that could not be measured cannot."""
    whole = replace(report(["h1", "h2"], checks=["host.nofile"]), coverage=coverage)
    assert coverage_words(whole) == f"2 nodes checked; {words}"


def test_one_pair_is_no_plural() -> None:
    """Of two nodes there is one pair, and the line says so as a person would."""
    whole = replace(report(["h1", "h2"], checks=["a"]), coverage=replace(seen(1, 1), pairs=1))
    assert coverage_words(whole) == "2 nodes checked; the only pair of nodes measured"


def test_the_gpus_that_answered_are_counted() -> None:
    """And how to load them, if nothing did; nodes that were not judged do not count."""
    given = {("gpu.count", name): ok("2 GPUs", bus_ids=["a", "b"]) for name in ("h1", "h2")}
    given["gpu.count", "h3"] = not_run("not reached")
    whole = report(["h1", "h2", "h3"], given, checks=["gpu.count"])
    seen = "2 of 3 nodes with 4 GPUs checked"
    assert coverage_words(whole) == f"{seen} without load (--preflight-tier=standard loads them)"
    loaded = replace(whole.verdicts[0], check="burn.gemm", evidence={})
    assert coverage_words(replace(whole, verdicts=(*whole.verdicts, loaded))) == seen


def test_a_node_that_does_not_answer_was_not_checked() -> None:
    """Only its failed login was judged: nothing of it was seen."""
    given = {("reach.answer", "h1"): fail("no answer", advice="start it")}
    whole = report(["h1", "h2"], given, checks=["reach.answer"])
    assert coverage_words(whole) == "1 of 2 nodes checked"


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.UNKNOWN, Outcome.WAIVED])
def test_a_node_that_was_not_reached_was_not_checked(outcome: Outcome) -> None:
    """Its name resolves, but its port refuses: no check ran there, also if that is waived."""
    refused = replace(fail("port 22 refuses connections", advice="start sshd"), outcome=outcome)
    steps = ["reach.name", "reach.route"]
    whole = report(["h1"], {("reach.route", "h1"): refused}, checks=steps)
    assert coverage_words(whole) == "0 of 1 node checked"
    assert coverage_words(report(["h1"], checks=steps)) == "1 node checked"
