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
