"""What the site lays over a verdict: it shows there, and corrupted data cannot be laid over."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from preflight.core.thresholds import Override
from preflight.fleet.model import Waiver
from preflight.run.judgement import waive, with_site_numbers
from preflight.verdict import Outcome, Verdict, fail, flaky, not_run, ok, unknown, warn

DAY = date(2026, 11, 22)
FLEET = ("h1", "h2", "h3")


def _waiver(nodes: tuple[str, ...] = ("h2",), *, days: int = 3, check: str = "a.b") -> Waiver:
    until = DAY + timedelta(days=days)
    return Waiver(check=check, nodes=nodes, until=until, reason="known", origin="fleet.toml")


def _waived(names: tuple[str, ...], verdict: Verdict, *waivers: Waiver) -> Verdict:
    return waive("a.b", names, verdict, waivers, FLEET)


@pytest.mark.parametrize(
    "verdict",
    [
        fail("7 of 8", advice="drain"),
        flaky(1, 9, "spikes", advice="drain"),
        unknown("no answer", advice="look"),
        warn("odd", advice="look"),
    ],
)
def test_a_known_failure_condemns_nobody_and_keeps_its_sentence(verdict: Verdict) -> None:
    """Its outcome is waived; what it was, until when and why stay with it."""
    waived = _waived(("h2",), verdict, _waiver())
    assert waived.outcome is Outcome.WAIVED
    assert not waived.makes_not_ready
    assert waived.sentence == f"{verdict.sentence} (waived until 2026-11-25: known)"
    assert waived.evidence["waived"] == verdict.outcome


def test_a_waiver_covers_no_other_node_or_check() -> None:
    """Another node, another check, and what was no failure stay as they are."""
    bad = fail("7 of 8", advice="drain")
    assert _waived(("h2",), bad, _waiver()).outcome is Outcome.WAIVED
    assert _waived(("h1",), bad, _waiver()) == bad
    assert _waived(("h2",), bad, _waiver(check="a.c")) == bad
    for fine in (ok("8"), not_run("none")):
        assert _waived(("h2",), fine, _waiver()) == fine


def test_a_pair_is_waived_by_whom_it_blames() -> None:
    """A path needs both of its ends waived; a culprit only himself."""
    path = fail("slow", advice="look", blame="pair h1-h2")
    assert _waived(("h1", "h2"), path, _waiver()).outcome is Outcome.FAIL
    assert _waived(("h1", "h2"), path, _waiver(("h1", "h2"))).outcome is Outcome.WAIVED
    assert _waived(("h1", "h2"), path, _waiver(("h1",)), _waiver()).outcome is Outcome.WAIVED
    node = fail("slow", advice="look", blame="h2")
    assert _waived(("h1", "h2"), node, _waiver()).outcome is Outcome.WAIVED
    assert _waived(("h1", "h2"), node, _waiver(("h1",))).outcome is Outcome.FAIL
    either = fail("slow", advice="look", suspects=("h1", "h2"))
    assert _waived(("h1", "h2"), either, _waiver()).outcome is Outcome.FAIL


def test_of_several_culprits_those_who_are_not_waived_stay() -> None:
    """One known node among two does not hide the other, and is not condemned with it."""
    both = fail("drifted", advice="align", culprits=("h2", "h3"))
    left = _waived((), both, _waiver())
    assert (left.outcome, left.culprits) == (Outcome.FAIL, ("h3",))
    assert "(for h2 waived until 2026-11-25: known)" in left.sentence
    whole = fail("no majority", advice="align")
    assert _waived((), whole, _waiver()).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "bad",
    [
        fail("wrong sums", advice="take it out", state="corrupt"),
        fail("wrong sums", advice="take it out", corrupt=True),
    ],
)
def test_corrupted_data_are_never_waived(bad: Verdict) -> None:
    """Wrong sums of a pair, a wrong bit in memory: they stay failures, and say why."""
    kept = _waived(("h2",), bad, _waiver())
    assert kept.outcome is Outcome.FAIL
    assert kept.sentence == "wrong sums; it is waived, but a waiver never hides corrupted data"
    other = waive(
        "burn.integrity", ("h2",), fail("bits", advice="out"),
        [_waiver(check="burn.integrity")], FLEET,
    )  # fmt: skip
    assert other.outcome is Outcome.FAIL


def test_a_verdict_by_the_sites_own_number_says_so() -> None:
    """Passed or not: another threshold is part of the sentence, and data beside it."""
    used = {"zombie_age_s": Override(600.0, "fleet.toml [group.a]")}
    told = with_site_numbers(ok("no zombies"), used)
    assert told.sentence == (
        "no zombies (zombie_age_s 600 s by fleet.toml [group.a] (shipped: 300))"
    )
    assert told.evidence["numbers"] == {
        "zombie_age_s": {"value": 600.0, "by": "fleet.toml [group.a]"}
    }
    assert with_site_numbers(ok("x"), {}) == ok("x")
    assert with_site_numbers(not_run("x"), used) == not_run("x")
