"""A pair condensed: what the network did, and every iteration that stood out, with its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.observed import CUT_MEDIANS, digests
from preflight.fabric.samples import End, PairSamples, Timing


def _pair(first: list[float], second: list[float], gaps: list[float] | None = None) -> PairSamples:
    def end(node: str, times: list[float]) -> End:
        timing = Timing(8, tuple(times), tuple(gaps or [1.0] * len(times)), began_s=2.0)
        return End(node, "measured", (timing,), started_s=1000.0)

    return PairSamples("h1", "h2", 0, 0, "gloo", end("h1", first), end("h2", second))


def test_a_spike_at_both_ends_is_the_networks_and_keeps_its_time() -> None:
    """The shorter of both ends counts, and when it began is known by the first end's clock."""
    times = [100.0] * 50
    times[10] = 9000.0
    (digest,) = digests(_pair(times, times))
    assert (digest.p50_us, digest.most_us, digest.operations) == (100.0, 9000.0, 50)
    (one,) = digest.standouts
    assert (one.operation, one.network_us) == (10, 9000.0)
    assert abs(one.at_s - (1002.0 + (10 * 100 + 11) / 1e6)) < 1e-6


def test_a_late_partner_is_kept_but_is_not_the_networks() -> None:
    """One end waited: the iteration stands out there, and the network's time is the other's."""
    waited = [100.0] * 20
    waited[5] = 10_000.0
    (digest,) = digests(_pair(waited, [100.0] * 20))
    assert digest.most_us == 100.0
    assert [(one.first_us, one.second_us) for one in digest.standouts] == [(10_000.0, 100.0)]


def test_one_end_alone_is_still_a_digest() -> None:
    """A partner that never reported costs its own half only."""
    whole = _pair([10.0, 20.0, 30.0], [1.0])
    (digest,) = digests(PairSamples("h1", "h2", 0, 0, "gloo", whole.first, None))
    assert (digest.p50_us, digest.operations) == (20.0, 3)


_TIMES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60)


@given(_TIMES, _TIMES)
def test_nothing_that_stands_out_is_lost(first: list[float], second: list[float]) -> None:
    """Every iteration over the cut at either end is there; order statistics keep their order."""
    (digest,) = digests(_pair(first, second))
    both = list(zip(first, second, strict=False))
    over = [number for number, ends in enumerate(both) if max(ends) > digest.cut_us]
    assert [one.operation for one in digest.standouts] == over
    assert digest.cut_us == CUT_MEDIANS * digest.p50_us
    assert digest.best_us <= digest.p50_us <= digest.p99_us <= digest.p999_us <= digest.most_us
