"""Findings are one per cause, node lists are exact, and the exit code follows from them."""

from __future__ import annotations

import pytest

from preflight.core.registry import Entry, Ledger
from preflight.report.findings import findings, suspicions
from preflight.report.ready import Ending, Readiness, exit_code, launchable, readiness
from preflight.verdict import Outcome, Verdict, fail, not_run, ok, unknown, warn

BROKEN = Verdict(outcome=Outcome.BROKEN, sentence="raised")


def _on(subject: str, check: str, verdict: Verdict) -> Entry:
    return Entry(check, subject, tuple(subject.split("-")), verdict)


def _ready(*entries: Entry, strict: bool = False) -> Readiness:
    everyone = [_on(name, "base", ok("fine")) for name in ("h1", "h2", "h3")]
    return readiness(["h1", "h2", "h3"], [*everyone, *entries], strict=strict)


def _exit(*entries: Entry, strict: bool = False, need: int | None = None) -> int:
    ready = _ready(*entries, strict=strict)
    return exit_code(entries, ready, Ending(strict=strict, need=need))


def test_verdicts_of_one_cause_are_one_finding() -> None:
    """A stale rank that also holds the master port is one culprit, not two."""
    stale = fail("rank 3 of a dead job", advice="kill 42", cause="pid 42")
    port = fail("port 29500 is held by pid 42", advice="kill 42", cause="pid 42")
    (found,) = findings([_on("h1", "host.stale_processes", stale), _on("h1", "net.ports", port)])
    assert (found.check, found.also) == ("host.stale_processes", ("net.ports",))


def test_a_blamed_node_gathers_its_pairs() -> None:
    """Three slow pairs that all blame h3 are one finding about h3."""
    slow = fail("slow", advice="look at h3", blame="h3")
    entries = [_on(pair, "fabric.allreduce", slow) for pair in ("h1-h3", "h2-h3", "h3-h4")]
    (found,) = findings(entries)
    assert (found.subjects, found.verdicts) == (("h3",), 3)


def test_a_pair_of_two_culprits_is_no_third_finding() -> None:
    """h1-h3 is bad for both; where h1 has no other pair, both are all that can be said."""
    slow, lost = fail("slow", advice="a", blame="h3"), fail("lost", advice="b", blame="h1")
    both = _on("h1-h3", "fabric.allreduce", fail("slow; lost", advice="a; b", blame="h1 and h3"))
    own = [_on("h2-h3", "fabric.allreduce", slow), _on("h1-h2", "fabric.allreduce", lost)]
    assert {one.subjects: one.verdicts for one in findings([both, *own])} == {
        ("h1",): 2,
        ("h3",): 1,
    }
    assert {one.subjects for one in findings([both, own[0]])} == {("h1 and h3",), ("h3",)}


def test_the_same_words_on_many_nodes_are_shown_once() -> None:
    """Identical findings are merged over their nodes."""
    capped = warn("cap 600 W, 700 expected", advice="raise it")
    (found,) = findings([_on("h1", "gpu.power", capped), _on("h2", "gpu.power", capped)])
    assert found.subjects == ("h1", "h2")


def test_what_is_fine_or_not_run_is_no_finding() -> None:
    """Only what wants a person's eye is shown."""
    assert findings([_on("h1", "a", ok("8 GPUs")), _on("h2", "a", not_run("local"))]) == ()


def test_the_blamed_node_is_not_ready_and_its_partners_are() -> None:
    """A pair's verdict condemns whom it blames, never the healthy end."""
    slow = fail("slow", advice="-", blame="h3")
    ready = _ready(_on("h1-h3", "f", slow), _on("h1-h2", "f", ok("fast")))
    assert (ready.ready, ready.not_ready) == (("h1", "h2"), ("h3",))


def test_a_bad_path_keeps_its_cleared_ends_apart() -> None:
    """With both ends cleared nobody is unfit, but a launch takes only one of them."""
    path = fail("slow", advice="-", blame="pair h1-h2")
    ready = _ready(_on("h1-h2", "f", path), _on("h1-h3", "f", ok("fast")))
    assert ready.not_ready == ()
    assert launchable(ready) == ("h1", "h3")


def test_an_undecided_pair_condemns_both_ends() -> None:
    """Where the side is not determined, neither end is proven fit."""
    either = fail("slow", advice="-")
    ready = _ready(_on("h1-h2", "f", either))
    assert ready.not_ready == ("h1", "h2")


@pytest.mark.parametrize(
    ("verdict", "plain", "strict"),
    [
        (ok("fine"), 0, 0),
        (warn("hm", advice="-"), 0, 1),
        (not_run("local"), 5, 5),
        (fail("bad", advice="-"), 1, 1),
        (unknown("no answer", advice="-"), 1, 1),
        (unknown("hidden", advice="-", grant="sudo"), 0, 1),
        (BROKEN, 3, 3),
        (Verdict(outcome=Outcome.MISSING, sentence="-"), 3, 3),
    ],
)
def test_exit_codes(verdict: Verdict, plain: int, strict: int) -> None:
    """Each outcome alone gives the exit code that the manual expectations."""
    assert _exit(_on("h1", "a", verdict)) == plain
    assert _exit(_on("h1", "a", verdict), strict=True) == strict


def test_a_condemned_node_beats_our_own_fault() -> None:
    """A broken check beside a proven fault is still exit 1: the fleet is not ready."""
    assert _exit(_on("h1", "a", BROKEN), _on("h2", "b", fail("bad", advice="-"))) == 1


def test_enough_ready_nodes_are_enough() -> None:
    """With --preflight-need the job may start on the rest."""
    bad = _on("h3", "a", fail("bad", advice="-"))
    assert _exit(bad, need=2) == 0
    assert _exit(bad, need=3) == 1
    assert _exit(_on("h1", "a", ok("fine")), need=4) == 1


def test_nothing_to_check_is_not_a_pass() -> None:
    """No verdict at all is exit 5."""
    assert _exit() == 5


def test_what_never_arrived_is_lost() -> None:
    """The ledger knows what is owed; a missing verdict is named and fails the run."""
    ledger = Ledger()
    ledger.expect([("a", ("h1",)), ("a", ("h2",))])
    ledger.record("a", ("h1",), ok("fine"))
    entries = ledger.settle()
    assert [entry.verdict.outcome for entry in entries] == [Outcome.OK, Outcome.MISSING]
    assert _exit(*entries) == 3


def test_what_the_operator_stopped_is_not_lost() -> None:
    """After -x the rest is not run, with the reason."""
    ledger = Ledger()
    ledger.expect([("a", ("h1",))])
    (entry,) = ledger.settle("stopped by -x")
    assert (entry.verdict.outcome, entry.verdict.sentence) == (Outcome.NOT_RUN, "stopped by -x")


def test_a_check_that_condemns_most_nodes_is_suspected_itself() -> None:
    """Three of four nodes failing one check is one shared cause, not three faults."""
    bad = fail("bad", advice="-")
    assert suspicions([_on(h, "a", bad) for h in ("h1", "h2", "h3")], 4)
    assert not suspicions([_on(h, "a", bad) for h in ("h1", "h2")], 4)


def _own_name(name: str, address: str = "127.0.1.1") -> Verdict:
    return warn(f"its own name {name} leads to {address}", advice=f"correct /etc/hosts of {name}")


def test_findings_that_differ_in_the_nodes_own_name_are_one() -> None:
    """The words are those of the first node, and say so; every node's own words are kept."""
    names = [f"gpu{number:03}" for number in range(1, 65)]
    (found,) = findings([_on(name, "net.interface", _own_name(name)) for name in names])
    assert found.subjects == tuple(names)
    assert found.sentence == "e.g. gpu001: its own name gpu001 leads to 127.0.1.1"
    assert found.advice == "e.g. on gpu001: correct /etc/hosts of gpu001"
    assert found.alike[63].sentence == "its own name gpu064 leads to 127.0.1.1"
    assert found.verdicts == 64


@pytest.mark.parametrize(
    ("one", "other", "third"),
    [
        ("1 of 8 GPUs answers", "7 of 8 GPUs answer", "6 of 8 GPUs answer"),
        ("missing: 0000:61:00.0", "missing: 0000:a1:00.0", "missing: 0000:43:00.0"),
        ("leads to 10.0.0.1", "leads to 10.0.0.2", "leads to 10.0.0.3"),
        ("1 error in 2.5 s", "300 errors in 4 s", "2 errors in 1 s"),
    ],
)
def test_three_findings_that_differ_in_numbers_are_one(one: str, other: str, third: str) -> None:
    """Of two, both are shown whole: they fit, and no number is hidden."""
    bad = [_on(f"h{n}", "a", fail(text, advice="-")) for n, text in enumerate((one, other, third))]
    (found,) = findings(bad)
    assert (found.subjects, found.sentence) == (("h0", "h1", "h2"), f"e.g. h0: {one}")
    assert [each.sentence for each in findings(bad[:2])] == [one, other]


def test_names_of_parts_and_of_other_nodes_are_not_numbers() -> None:
    """Which port is down, and who the partner is, distinguishes findings."""
    texts = ("mlx5_0 is down", "mlx5_1 is down", "slow with h4", "slow with h5")
    bad = [_on(f"h{n}", "a", fail(text, advice="-")) for n, text in enumerate(texts)]
    assert len(findings(bad)) == len(texts)
