"""Two modes and drifts of a sweep are shown where they were planted, and healthy noise is quiet."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.judge import judge_sweep
from preflight.fabric.observed import observe
from preflight.fabric.shapes import shapes
from preflight.fleet.model import Host
from preflight.report.sensitivity import shape_rows, shape_words
from tests.simulate.iterations import sweep
from tests.simulate.rdma import Rdma
from tests.simulate.stream import Rung
from tests.unit.report.fabrics import picture_of
from tests.unit.simulate.builders import fabric, recorded, scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.samples import End, PairSamples, Sweep, Timing
    from preflight.fabric.shapes import Shape
    from tests.simulate.noise import Noise

    Change = Callable[[int, int], float]

RDMA = Rdma((Rung(8, 300), Rung(64 << 20, 150, "soak")))
"""As much as is enough to show a shape."""


def _sweep(noise: Noise, nodes: int, rails: int = 1, seed: int = 1) -> Sweep:
    return sweep(scene(fabric(nodes, rails=rails), noise=noise, seed=seed))


def _found(one: Sweep) -> tuple[Shape, ...]:
    return shapes(one, observe(one))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_healthy_noise_shows_nothing(nodes: int) -> None:
    """Recorded noise of shared cores does have two modes, but all pairs have them."""
    count = 100 if nodes < 4 else 40
    shown = [seed for seed in range(count) if _found(_sweep(recorded(), nodes, seed=seed))]
    assert len(shown) * 100 <= count


def test_healthy_rails_show_nothing() -> None:
    """Nor does the synthetic noise of InfiniBand rails."""
    assert not [seed for seed in range(10) if _found(_sweep(RDMA, 8, rails=2, seed=seed))]


def _planted(
    one: Sweep, wanted: Callable[[PairSamples], bool], size_bytes: int, change: Change
) -> Sweep:
    """Multiply the times of both ends at one size by what `change` says of each operation."""

    def slower(timing: Timing) -> Timing:
        if timing.size_bytes != size_bytes:
            return timing
        count = len(timing.times_us)
        times = tuple(time * change(at, count) for at, time in enumerate(timing.times_us))
        return replace(timing, times_us=times)

    def bent(end: End | None) -> End | None:
        return end and replace(end, timings=tuple(map(slower, end.timings)))

    pairs = (
        replace(pair, first=bent(pair.first), second=bent(pair.second)) if wanted(pair) else pair
        for pair in one.pairs
    )
    return replace(one, pairs=tuple(pairs))


@pytest.mark.parametrize(("nodes", "rails"), [(2, 1), (4, 1), (8, 2)])
def test_two_modes_of_an_endpoint_are_shown(nodes: int, rails: int) -> None:
    """A third of its small operations take three times as long: all its pairs are listed."""
    noise = random.Random(4)  # noqa: S311  which operations, no secret
    slow = [3.0 if noise.random() < 1 / 3 else 1.0 for _ in range(300)]
    healthy = _sweep(RDMA, nodes, rails)
    names = list(dict.fromkeys(name for around in healthy.rounds for p in around for name in p))
    bad = names[1]
    planted = _planted(
        healthy, lambda p: bad in (p.a, p.b) and p.rail == 0, 8, lambda at, _count: slow[at]
    )
    found = _found(planted)
    assert len(found) == nodes - 1
    for one in found:
        assert (one.kind, one.size_bytes, one.rail) == ("two_modes", 8, 0)
        assert bad in (one.a, one.b)
        assert one.share == pytest.approx(1 / 3, abs=0.06)
        assert one.ratio == pytest.approx(3, rel=0.1)
    words = shape_words(shape_rows(found))
    assert words.startswith("shown, not judged: two modes at 8 B, ")
    assert words.endswith(f"; {nodes - 2} more, all with {bad}") == (nodes > 3)


def test_a_drift_is_shown_and_condemns_nobody() -> None:
    """One pair gets slower by 80 % while it is loaded; one that all pairs share is not listed."""
    healthy = _sweep(RDMA, 4)
    a, b = healthy.pairs[2].a, healthy.pairs[2].b
    soak = 64 << 20

    def creep(at: int, count: int) -> float:
        return 1 + 0.8 * at / count

    (one,) = _found(_planted(healthy, lambda p: (p.a, p.b) == (a, b), soak, creep))
    assert (one.kind, one.a, one.b, one.phase, one.share) == ("drift", a, b, "soak", None)
    assert one.ratio == pytest.approx(1.75, rel=0.1)
    words = shape_words(shape_rows([one]))
    assert words.startswith("shown, not judged: a drift at 64 MiB under load, 1.")
    assert f" ms between {a} and {b} on rail 0, round " in words
    faster = replace(one, from_us=one.to_us, to_us=one.from_us)
    assert shape_words(shape_rows([faster])) == "", "warming up is no news"
    warm = _planted(healthy, lambda _pair: True, soak, creep)
    assert _found(warm) == ()


def test_the_page_draws_every_operation_and_the_terminal_only_what_is_strong() -> None:
    """A third more time is in the picture, and worth no line."""
    healthy = _sweep(RDMA, 8)
    a, b = healthy.pairs[0].a, healthy.pairs[0].b
    planted = _planted(
        healthy, lambda p: (p.a, p.b) == (a, b), 64 << 20, lambda at, _count: 1 + 0.33 * (at % 2)
    )
    found = _found(planted)
    assert [(one.kind, one.share) for one in found] == [("two_modes", 0.5)]
    assert shape_words(shape_rows(found)) == ""
    names = dict.fromkeys(name for around in planted.rounds for pair in around for name in pair)
    decoded = judge_sweep(planted, [Host(name=name, address=name) for name in names])
    page = picture_of(planted, decoded.blames)
    assert page.count("h0M") == 149
    assert "two modes at 64 MiB under load" in page
    assert not decoded.blames
