"""How much of a sweep went into timed operations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.fabric.samples import End, PairSamples, Sweep, Timing
from preflight.fabric.sweep_plan import measured_share


def _end(node: str, started_s: float, inside_s: float = 0.5) -> End:
    """Connected for 0.1 s; then for a second: operations, 1 ms of check and of gap after each."""
    each_us = inside_s * 1e5
    gap_us = (1e6 - inside_s * 1e6) / 10 - 1000.0
    timing = Timing(8, (each_us,) * 10, (gap_us,) * 10, check_us=1000.0)
    return End(node, "measured", (timing,), started_s=started_s, setup_ms=100.0)


def _sweep(*pairs: tuple[End, End]) -> Sweep:
    samples = [
        PairSamples(first.node, second.node, 0, number, "gloo", first, second)
        for number, (first, second) in enumerate(pairs)
    ]
    return Sweep((), (), tuple(samples), seconds=60.0)


def test_the_share_is_of_the_time_from_the_first_start_to_the_last_end() -> None:
    """Half a second in operations in each of two rounds, over 3.1 s with what lies between."""
    sweep = _sweep((_end("a", 10.0), _end("b", 10.0)), (_end("a", 12.0), _end("b", 12.0)))
    assert measured_share(sweep) == pytest.approx(1.0 / 3.1)


def test_each_node_counts_by_its_own_clock() -> None:
    """Clocks that are hours apart change nothing; a node of fewer pairs counts for its own time."""
    sweep = _sweep((_end("a", 10.0), _end("b", 9e3)), (_end("a", 12.0), _end("c", 4e4)))
    assert measured_share(sweep) == pytest.approx(2.0 / (3.1 + 1.1 + 1.1))


def test_a_clock_that_was_set_meanwhile_does_not_count() -> None:
    """Set back, the node would have measured for longer than it took; set forth, for hours."""
    for jumped_s in (9.9, 9e3):
        sweep = _sweep(
            (_end("a", 10.0, 0.9), _end("b", 10.0, 0.9)),
            (_end("a", 12.0, 0.9), _end("b", jumped_s, 0.9)),
        )
        assert measured_share(sweep) == pytest.approx(1.8 / 3.1)


def test_retests_and_what_was_not_measured_do_not_count() -> None:
    """Suspects are measured again after a pause in which others rest; a hung pair has no times."""
    hung = End("b", "hung", error="stood still")
    sweep = _sweep((_end("a", 10.0), _end("b", 10.0)), (_end("a", 40.0), hung))
    assert measured_share(replace(sweep, retested=1)) == pytest.approx(0.5 / 1.1)
    assert measured_share(_sweep((hung, hung))) is None
