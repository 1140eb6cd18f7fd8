"""No retest until green: a second look clears only where it would have seen what the first saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.core.thresholds import SHIPPED
from preflight.fabric.decoding.culprit import Component, Culprit
from preflight.fabric.decoding.find import RetestComparison, find
from preflight.fabric.decoding.parts import read_meetings
from preflight.fabric.observed import EndResult
from preflight.fabric.samples import Moved
from tests.unit.fabric.fabrics import Made

if TYPE_CHECKING:
    from preflight.fabric.observed import Observed

N2, N5 = (Component("node", (name,)) for name in ("n2", "n5"))
SEEN = Culprit(among=(N2, N5), symptom="spikes", confidence=0.3, events=5, operations=42_000)
"""Of the one pair that both were in: five events among the operations of seven partners."""


def looked_again(times: int) -> Observed:
    """One bad pair; then both of its ends with others, so many rounds, without an event."""
    return Made(
        nodes=8,
        spiky=lambda a, b, _: (a, b) == ("n2", "n5"),
        again=(("n1", "n2"), ("n3", "n5")) * times,
    ).observed()


def second_look(observed: Observed) -> Culprit | None:
    """What is left of the finding after it."""
    least_us = SHIPPED.for_backend(observed.backend)("spike_us")
    return RetestComparison(observed, read_meetings(observed), least_us).remaining(SEEN)


def test_a_long_clean_retest_clears() -> None:
    """Seven times what one round measured: at the rate first seen five events were due."""
    assert second_look(looked_again(7)) is None


@pytest.mark.parametrize("times", [1, 2, 6])
def test_a_short_clean_look_leaves_it_flaky(times: int) -> None:
    """Less than 4.6 events were due, so that none is no proof; all samples are counted."""
    kept = second_look(looked_again(times))
    assert kept is not None
    assert kept.second_look == "too_short"
    assert (kept.events, kept.operations) == (5, 42_000 + times * 6_000)


def test_a_counter_that_moved_meanwhile_is_no_clean_look() -> None:
    """The cable confesses, if only to its port; what moves on healthy hosts does not count.

    Nor does a NIC that may be another rail's, as in a VM that shows no PCI tree.
    """
    seen = looked_again(7)
    for moved, doubt in (
        (Moved("mlx5_0/1 symbol_error", 3), "counter_moved"),
        (Moved("mlx5_0/1 symbol_error", 3, assigned=False), None),
        (Moved("tcp retransmits", 3), None),
    ):
        tried = tuple(
            replace(one, second=EndResult(moved=(moved,))) if one.round >= seen.retested else one
            for one in seen.tried
        )
        kept = second_look(replace(seen, tried=tried))
        assert (kept.second_look if kept is not None else None) == doubt


def test_who_was_not_looked_at_again_is_not_cleared_nor_named_for_that() -> None:
    """The other end was cleared; the set stays as it was."""
    seen = looked_again(7)
    only = tuple(one for one in seen.tried if one.round < seen.retested or "n5" in (one.a, one.b))
    met = {(one.a, one.b, one.round) for one in only}
    digests = tuple(one for one in seen.digests if (one.a, one.b, one.round) in met)
    kept = second_look(replace(seen, tried=only, digests=digests))
    assert kept is not None
    assert (kept.among, kept.second_look) == (SEEN.among, "none")


def test_clean_retests_do_not_dilute_what_was_proven() -> None:
    """With as many samples again it is cleared; where a counter moved in them, it stays."""
    made = Made(nodes=12, spikes=5, spiky=lambda a, b, _: "n4" in (a, b))
    seen = made.observed()
    tried = tuple(one for one in seen.tried if one.round < 4)
    digests = tuple(
        one if one.round < 2 else replace(one, standouts=())
        for one in seen.digests
        if one.round < 4
    )
    again = replace(seen, tried=tried, digests=digests, retested=2)
    assert find(again).culprits == ()
    moved = (Moved("mlx5_0/1 symbol_error", 2),)
    end = EndResult(moved=moved)
    retested = tuple(
        replace(one, first=end, second=end) if one.round >= 2 else one for one in tried
    )
    (found,) = find(replace(again, tried=retested)).culprits
    assert (found.among[0].name, found.events, found.second_look) == ("n4", 10, "counter_moved")
