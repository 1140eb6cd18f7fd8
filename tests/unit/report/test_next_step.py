"""What the last line tells to type."""

from __future__ import annotations

import pytest

from preflight.fleet.model import Fleet, Host
from preflight.report.ready import Readiness
from preflight.report.terminal import next_command

NAMES = tuple(f"h{number}" for number in range(1, 9))


def fleet(names: tuple[str, ...] = NAMES, origin: str = "--preflight-nodes") -> Fleet:
    """Nodes of these names."""
    return Fleet(hosts=tuple(Host(name=name, address=name) for name in names), origin=origin)


def nodes(*failing: str, unjudged: tuple[str, ...] = ()) -> Readiness:
    """Who is ready where these are not."""
    ready = tuple(name for name in NAMES if name not in (*failing, *unjudged))
    return Readiness(ready=ready, not_ready=failing, unjudged=unjudged)


@pytest.mark.parametrize(
    ("found", "by_pairs", "words"),
    [
        (nodes(), False, ""),
        (nodes(), True, ""),
        (nodes("h3"), False, "to check these alone again: add --preflight-nodes='h3'"),
        (
            nodes("h3", "h5"),
            True,
            "to check these beside h[1-2], ready again: add --preflight-nodes='h[1-3,5]'",
        ),
        (nodes(*NAMES[1:]), True, "to check again: the same command"),
        (nodes(*NAMES), False, "to check again: the same command"),
        (
            nodes("h3", unjudged=("h4",)),
            True,
            "to judge the others: add --preflight-exclude='h3', or --preflight-fail-fast=never",
        ),
    ],
)
def test_pairs_need_partners_that_are_ready(
    found: Readiness, *, by_pairs: bool, words: str
) -> None:
    """Two suspects of the sweep alone could not be told apart: they would be one pair."""
    assert next_command(fleet(), found, by_pairs=by_pairs) == words


def test_this_machine_is_told_how_to_judge_a_fleet() -> None:
    """Fit or not, the next step from one machine is the fleet."""
    alone = fleet(("h1",), "this machine")
    assert "preflight check 'gpu[001-064]'" in next_command(alone, nodes("h1"), by_pairs=False)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (nodes("h3"), "to check these alone again: add --preflight-nodes='h3'"),
        (
            nodes("h3", unjudged=("h4",)),
            "to judge the others: add --preflight-exclude='h3', or --preflight-budget=120",
        ),
        (nodes(unjudged=("h4", "h5")), "to judge h[4-5]: --preflight-budget=120"),
    ],
)
def test_who_was_not_judged_for_lack_of_time_needs_more_of_it(found: Readiness, words: str) -> None:
    """Under --preflight-fail-fast=never that option is no advice: a longer budget is."""
    assert next_command(fleet(), found, by_pairs=False, short_of_s=60.0) == words
