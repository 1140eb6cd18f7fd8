"""What the terminal says of how much of the fabric was looked at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.report.document import CoverageRow
from preflight.report.terminal import coverage_words


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
        (seen(28, 7), "all 28 pairs this run"),
        (
            seen(12, 3),
            (
                "12 of 28 pairs this run (all: --preflight-sweep=exhaustive, or night by night: "
                "--preflight-history=DIR)"
            ),
        ),
        (
            seen(25, 7),
            "25 of 28 pairs this run (all were planned: the others are not run, with the reason)",
        ),
        (
            seen(12, 3, known=20, left=2),
            "12 of 28 pairs this run, 20 with earlier ones; all in 2 more runs like this",
        ),
    ],
)
def test_what_is_left_is_said_with_how_to_come_to_it(coverage: CoverageRow, words: str) -> None:
    """Rounds that were not planned can be asked for; pairs that could not be measured cannot."""
    assert coverage_words(coverage) == words


def test_one_pair_is_no_plural() -> None:
    """Of two nodes there is one pair, and the line says so as a person would."""
    assert coverage_words(replace(seen(1, 1), pairs=1)) == "the only pair this run"
