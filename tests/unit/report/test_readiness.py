"""Ready means judged in full: a node that nobody came to judge is not one to launch on."""

from __future__ import annotations

import pytest

from preflight.core.registry import Entry, Ledger
from preflight.report.ready import Ending, Readiness, exit_code, launchable, readiness
from preflight.verdict import Outcome, Verdict, fail, not_run, ok, unknown, warn

NODES = ("h1", "h2", "h3")
STOPPED = not_run("stopped after the facts stage (fail-fast)", stopped=True)


def _on(subject: str, verdict: Verdict) -> Entry:
    return Entry("a", subject, tuple(subject.split("-")), verdict)


def _judged(*entries: Entry, strict: bool = False) -> Readiness:
    everyone = [Entry("base", name, (name,), ok("fine")) for name in NODES]
    return readiness(NODES, [*everyone, *entries], strict=strict)


def _exit(*entries: Entry, need: int | None = None, strangers_failed: bool = False) -> int:
    ending = Ending(need=need, strangers_failed=strangers_failed)
    return exit_code(entries, _judged(*entries), ending)


def _lost(*nodes: str) -> list[Entry]:
    ledger = Ledger()
    ledger.mark_missing([("a", (node,)) for node in nodes], "worker 'gw0' crashed")
    return list(ledger.settle("stopped by -x or --maxfail"))


def test_a_stopped_run_leaves_nobody_ready_whom_it_did_not_judge() -> None:
    """After fail-fast the other nodes are neither condemned nor cleared."""
    judged = _judged(
        _on("h1", fail("bad", advice="-")), _on("h2", ok("fine")), _on("h2-h3", STOPPED)
    )
    assert judged == Readiness(ready=(), not_ready=("h1",), unjudged=("h2", "h3"))
    assert launchable(judged) == ()


@pytest.mark.parametrize("reason", ["no GPUs expected", "blocked: reach.route of h1"])
def test_what_does_not_apply_leaves_a_node_ready(reason: str) -> None:
    """A check that has nothing to judge here is no reason to keep a node back."""
    assert _judged(_on("h1", not_run(reason)), _on("h2", ok("fine"))).ready == NODES


def test_whom_no_verdict_is_about_is_not_judged() -> None:
    """A selection that leaves a node out says nothing of it, least of all that it is ready."""
    assert readiness(NODES, [_on("h1", ok("fine"))], strict=False).unjudged == ("h2", "h3")


def test_a_lost_verdict_outlives_the_stop() -> None:
    """Where -x stops the run because a worker died, that worker's verdict is lost, not stopped."""
    (entry,) = _lost("h2")
    assert (entry.verdict.outcome, entry.verdict.sentence) == (
        Outcome.MISSING,
        "worker 'gw0' crashed",
    )
    assert _exit(entry, _on("h1", ok("fine"))) == 3
    assert _judged(entry).ready == ("h1", "h3")


def test_a_verdict_that_arrived_is_not_lost_afterwards() -> None:
    """A tear-down that fails after the verdict was given does not take it away."""
    ledger = Ledger()
    ledger.record("a", ("h1",), ok("fine"))
    ledger.mark_missing([("a", ("h1",))], "tear-down failed")
    assert [entry.verdict.outcome for entry in ledger.settle()] == [Outcome.OK]


def test_enough_nodes_are_counted_among_those_judged_in_full() -> None:
    """--preflight-need is not met by nodes that the run never came to."""
    bad, stopped = _on("h1", fail("bad", advice="-")), _on("h2", STOPPED)
    assert _exit(bad, _on("h2", ok("fine")), need=2) == 0
    assert _exit(bad, stopped, need=2) == 1
    assert _exit(_on("h1", ok("fine")), stopped, need=3) == 3


def test_a_stop_without_a_finding_is_not_a_pass() -> None:
    """A session that some other plugin stopped half-way has not proven the fleet ready."""
    assert _exit(_on("h1", ok("fine")), _on("h2", STOPPED)) == 3


def test_an_ordinary_test_that_fails_is_never_exit_0() -> None:
    """Tests of the operator's own may run beside the checks, and count."""
    assert _exit(_on("h1", ok("fine")), strangers_failed=True) == 1
    assert _exit(strangers_failed=True) == 1
    assert _exit(_on("h1", fail("bad", advice="-")), need=2, strangers_failed=True) == 1


def test_strict_counts_warnings_and_what_could_not_be_read() -> None:
    """Missing privilege and warnings pass a lenient run and fail a strict one."""
    lenient = [
        _on("h1", warn("odd", advice="-")),
        _on("h2", unknown("unreadable", advice="-", grant="sudo dmesg")),
    ]
    assert _judged(*lenient).ready == NODES
    assert _judged(*lenient, strict=True).not_ready == ("h1", "h2")


def test_a_node_none_of_whose_pairs_was_judged_is_not_judged() -> None:
    """Nothing is known of its network: exit 3, unless enough others were asked for."""
    fine, spared = ok("fast"), not_run("h3 was left out: busy: a run", busy=("h3",))
    entries = [
        *(_on(name, ok("fine")) for name in NODES),
        _on("h1-h2", fine), _on("h1-h3", spared), _on("h2-h3", spared),
    ]  # fmt: skip
    ready = readiness(NODES, entries, strict=False)
    assert (ready.ready, ready.unjudged, ready.idle) == (("h1", "h2"), ("h3",), ("h3",))
    assert exit_code(entries, ready) == 3
    assert exit_code(entries, ready, Ending(need=2)) == 0
    nobody = [*entries[:3], *(_on(pair, spared) for pair in ("h1-h3", "h2-h3"))]
    assert readiness(NODES, nobody, strict=False).unjudged == ("h3",)


def test_pairs_that_were_not_selected_are_not_missed() -> None:
    """Who judges one pair alone is not told that the third node was not measured."""
    entries = [*(_on(name, ok("fine")) for name in NODES), _on("h1-h2", ok("fast"))]
    assert readiness(NODES, entries, strict=False).ready == tuple(NODES)
