"""Healthy noise: that of recorded sweeps drawn in blocks, and figures of published fabrics."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.fabric.samples import Sweep
from tests.simulate.condense import observed
from tests.simulate.iterations import sweep
from tests.simulate.noise import drawn
from tests.simulate.rdma import Rdma
from tests.simulate.recorded import BLOCK, load, record
from tests.simulate.stream import Rung
from tests.unit.simulate.builders import fabric, recorded, scene

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fabric.samples import PairSamples


def test_takes_are_blocks_of_recorded_rounds_at_the_same_place_of_each_pair() -> None:
    """So a burst that hit several pairs at once does so again."""
    noise = recorded()
    rounds = noise.recording.rounds
    for lanes in (noise.take(drawn(seed)) for seed in range(5)):
        assert len(lanes) == noise.lanes == 4
        gaps = [tuple(map(int, lane[0].first_gap[:BLOCK])) for lane in lanes]
        places = [
            (number, at)
            for number, around in enumerate(rounds)
            for at in range(len(around[0][0].gap) - BLOCK + 1)
            if all(around[lane][0].gap[at : at + BLOCK] == gaps[lane] for lane in range(4))
        ]
        assert len(places) == 1


def test_a_recording_is_made_of_whole_sweeps_and_read_again() -> None:
    """Every iteration of both ends survives, to the microsecond."""
    simulated = sweep(scene(fabric(4, rails=1), noise=recorded()))
    kept = record([simulated], "a test")
    assert len(kept.rounds) == 3
    assert [len(around) for around in kept.rounds] == [2, 2, 2]
    first = simulated.pairs[0].first
    assert first is not None
    assert kept.rounds[0][0][0].first == tuple(map(round, first.timings[0].times_us))
    with pytest.raises(ValueError, match="measured in full"):
        record([Sweep(simulated.ladder, simulated.rounds, (_halved(simulated),))], "a test")


def _halved(simulated: Sweep) -> PairSamples:
    from msgspec.structs import replace

    return replace(simulated.pairs[0], second=None)


def test_what_is_no_recording_says_how_to_make_one(tmp_path: Path) -> None:
    """A file that is missing, or holds something else, ends with what to do."""
    for content in (None, b"[]"):
        file = tmp_path / "noise.json"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UsageError, match=r"tests\.bench\.record"):
            load(file)


def test_the_synthetic_noise_has_the_published_figures() -> None:
    """19 us at 8 B, 47 GB/s per rail, p99 below twice p50 (sources in its docstring)."""
    noise = Rdma((Rung(8, 2000), Rung(64 << 20, 200, "soak")))
    seen = observed(scene(fabric(8, rails=1), noise=noise))
    small = [one for one in seen.digests if one.size_bytes == 8]
    large = [one for one in seen.digests if one.size_bytes == 64 << 20]
    assert 18 < median(one.p50_us for one in small) < 22
    assert median(one.p99_us / one.p50_us for one in small) < 2
    speeds = [(64 << 20) / one.p50_us / 1e3 for one in large]
    assert 45 < median(speeds) < 48
    spread = median(abs(one - median(speeds)) for one in speeds) / median(speeds)
    assert 0.002 < spread < 0.015


def test_power_figures_of_a_noise_are_those_of_its_samples() -> None:
    """Tails and spreads that truth is declared with come from the recording itself."""
    noise = recorded()
    for size in noise.recording.sizes:
        assert 0 < noise.tail(size, 1e5) <= noise.tail(size, 1e4) <= noise.tail(size, 0) == 1
        assert 0.01 < noise.log_sd(size) < 2
    assert noise.dispersion(1e4) >= 1
    assert noise.wire_us(4 << 20) == noise.typical_us(4 << 20)
