"""The `missed` line says whose look it speaks of: the dullest one is not the whole fleet's."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.fabric.decoding.sensitivity import SensitivityRow
from preflight.report.terminal import missed_words


def test_the_dullest_look_is_named() -> None:
    """The rail and the node stand first, then what would have been caught there."""
    row = SensitivityRow(
        node="h1",
        rail=0,
        operations=9000,
        loaded_s=2.0,
        pairs=5,
        one_in=4642.0,
        every_s=2.2,
        slower=0.1,
    )
    assert missed_words([row]) == (
        "on rail 0 of h1, the least tested, a spike on 1 in 4,600 operations, and a loss of 10 % "
        "of bandwidth would have been seen (99 % sure); an event rarer than one in 2.2 s of load "
        "would not: to see more, measure longer: --preflight-tier=deep or "
        "--preflight-catch-rate=RATE"
    )


def test_a_look_that_would_have_named_no_spikes_says_why_and_what_to_do() -> None:
    """Noise of the others, or too short a time: each with what helps against it."""
    row = SensitivityRow(
        node="h1",
        rail=0,
        operations=90,
        loaded_s=0.25,
        pairs=5,
        one_in=None,
        every_s=None,
        slower=0.6,
    )
    caught = "on rail 0 of h1, the least tested, a loss of 60 % of bandwidth would have been seen "
    caught += "(99 % sure), "
    assert missed_words([row]) == (
        f"{caught}spikes not: the others had too many; run when the nodes are less busy"
    )
    assert missed_words([replace(row, events=7)]) == (
        f"{caught}spikes not: 7 spikes needed, too many for 0.25 s of load; to see more, measure "
        "longer: --preflight-tier=deep or --preflight-catch-rate=RATE"
    )
