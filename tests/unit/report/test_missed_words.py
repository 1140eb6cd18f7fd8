"""The `missed` line says whose look it speaks of: the dullest one is not the whole fleet's."""

from __future__ import annotations

from preflight.report.document import MissedRow
from preflight.report.missed import missed_words


def test_the_dullest_look_is_named() -> None:
    """The rail and the node stand first, then what would have been caught there."""
    row = MissedRow(
        node="h1",
        rail=0,
        operations=9000,
        loaded_s=2.0,
        pairs=5,
        one_in=4642.0,
        every_s=2.2,
        slower=0.1,
    )
    assert missed_words([row]).startswith(
        "on rail 0 of h1, where the look was dullest, a spike on 1 in 4,600 operations would "
    )


def test_a_look_that_noise_spoilt_ends_in_what_to_do() -> None:
    """Where spikes would have been caught at no rate, the line says how to look better."""
    row = MissedRow(
        node="h1",
        rail=0,
        operations=90,
        loaded_s=2.0,
        pairs=5,
        one_in=None,
        every_s=None,
        slower=0.6,
    )
    assert missed_words([row]).endswith(
        "spikes at no rate: too much noise, or too few operations, on rail 0 of h1; to see rare "
        "spikes run when the nodes have less to do, and longer: --preflight-tier=deep or "
        "--preflight-catch-rate"
    )
