"""Who is slow: held against its node, the other nodes, its own start and floors, in that spirit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.burn.comparison import judge_burn
from preflight.burn.units import Population
from preflight.core.thresholds import SHIPPED, Override
from preflight.fleet.model import Expected, Host
from tests.unit.burn.builders import H100, UNKNOWN, burned, judged
from tests.unit.facts.builders import facts, gpu
from tests.unit.facts.gpu_readings import health

if TYPE_CHECKING:
    from preflight.facts.burn import Burn, Burned, Measure, Reading


def odd(burn: Burn, *measures: Measure) -> list[tuple[str, str, str]]:
    """Whatever is not fine."""
    units = burn.of(*measures) if measures else burn.units
    return [(one.measure, one.name, one.held) for one in units if one.held != "ok"]


def test_a_healthy_node_is_held_by_its_own_gpus() -> None:
    """Eight equal GPUs need neither other nodes nor any constant."""
    (burn,) = judged(burned())
    device_measures: tuple[Measure, ...] = ("gemm_tflops", "memory_gbs", "p2p_gbs", "h2d_gbs")
    assert odd(burn, *device_measures) == []
    assert "of the median of 7 others here" in burn.of("gemm_tflops")[0].limit_origin


@pytest.mark.parametrize("measure", ["gemm_tflops", "memory_gbs", "sustained_tflops"])
def test_the_slow_gpu_of_eight_stands_out(measure: Measure) -> None:
    """On a single node, with no number from anywhere else."""
    (burn,) = judged(burned({(measure, 5): 0.6}))
    assert odd(burn, measure) == [(measure, "GPU 5", "slow")]


def test_a_late_gpu_stands_out() -> None:
    """Of a latency less is better."""
    (burn,) = judged(burned({("launch_us", 2): 2.5}))
    assert odd(burn, "launch_us") == [("launch_us", "GPU 2", "slow")]


def test_a_node_all_of_whose_gpus_are_slow_shows_beside_other_nodes() -> None:
    """Its own GPUs agree with each other; those of the other node do not."""
    slow, fine = judged(burned({("gemm_tflops", n): 0.7 for n in range(8)}), burned())
    assert [name for _, name, _ in odd(slow, "gemm_tflops")] == [f"GPU {n}" for n in range(8)]
    assert odd(fine, "gemm_tflops") == []
    assert "8 others on another node" in slow.of("gemm_tflops")[0].limit_origin


def test_a_fast_gpu_makes_no_other_slow() -> None:
    """Of two others the slower counts: three GPUs, one of them twice as fast."""
    (burn,) = judged(burned({("gemm_tflops", 0): 2.0}, gpus=3), expectation=Expected(gpus=3))
    assert odd(burn, "gemm_tflops") == []


def test_without_peers_and_floors_nothing_is_known() -> None:
    """Two GPUs of an unknown model on the only node: neither can be called the slow one."""
    node = burned({("gemm_tflops", 1): 0.5}, gpus=2, model=UNKNOWN)
    (burn,) = judged(node, expectation=Expected(gpus=2))
    assert {held for _, _, held in odd(burn, "gemm_tflops")} == {"unheld"}


def test_a_gpu_alone_has_the_floor_of_the_model_that_its_driver_names() -> None:
    """No inventory: an H100 is compared with what H100 reach, if its power limit is the default."""
    alone = burned({("gemm_tflops", 0): 0.5}, gpus=1)
    (burn,) = judged(alone, expectation=Expected())
    assert odd(burn, "gemm_tflops", "memory_gbs") == [("gemm_tflops", "GPU 0", "slow")]
    assert f"a {H100} by its driver" in burn.of("gemm_tflops")[0].limit_origin
    capped = replace(gpu(0), health=health(power_limit_w=400.0, power_default_w=700.0))
    host = Host(name="h1", address="h1", expected=Expected())
    found = judge_burn({"h1": alone}, [host], {"h1": facts("h1", gpus=(capped,))})["h1"]
    assert {one.held for one in found.of("gemm_tflops")} == {"unheld"}


def test_a_promised_model_has_a_floor() -> None:
    """Two H100 are held against what H100 reach, and the sentence says so."""
    expectation = Expected(gpus=2, gpu_model="H100 SXM", origin="fleet.toml [group.train]")
    (burn,) = judged(burned({("gemm_tflops", 1): 0.5}, gpus=2), expectation=expectation)
    assert odd(burn, "gemm_tflops") == [("gemm_tflops", "GPU 1", "slow")]
    assert "floor for H100 SXM" in burn.of("gemm_tflops")[1].limit_origin


def test_a_site_may_set_another_number() -> None:
    """What the inventory sets is in force for its group, and is named."""
    told = Override(0.5, "fleet.toml [group.train]")
    expectation = Expected(gpus=8, limits={"cuda.gemm_tflops": told})
    (burn,) = judged(burned({("gemm_tflops", 5): 0.6}), expectation=expectation)
    assert odd(burn, "gemm_tflops") == []
    assert "cuda.gemm_tflops 0.5" in burn.of("gemm_tflops")[0].limit_origin


def test_what_comes_and_goes_is_flaky() -> None:
    """A third of one GPU's samples is slow, the best are fine: no peer has that."""
    healthy = burned()
    (burn,) = judged(_with_samples(healthy, "memory_gbs", 4, (2900.0, 2890.0, 1500.0) * 3))
    assert odd(burn, "memory_gbs") == [("memory_gbs", "GPU 4", "flaky")]
    assert next(one for one in burn.of("memory_gbs") if one.name == "GPU 4").bad == 3


def test_a_load_that_does_not_last_needs_no_peers() -> None:
    """A single GPU that loses 40 % of its speed while it warms up is slow by its own start."""
    droops = tuple(700.0 * (1 - 0.4 * n / 39) for n in range(40))
    one = _with_samples(burned(gpus=1), "sustained_tflops", 0, droops)
    (burn,) = judged(one, expectation=Expected(gpus=1))
    assert odd(burn, "sustained_tflops") == [("sustained_tflops", "GPU 0", "slow")]
    assert "own first quarter" in burn.of("sustained_tflops")[0].limit_origin


def test_a_cpu_that_was_taken_is_no_broken_device() -> None:
    """Slow, but ready to run without a CPU for most of the time: starved, not slow."""
    healthy = [burned(kind="cpu", gpus=4) for _ in range(2)]
    taken = burned({("gemm_tflops", 1): 0.1}, kind="cpu", gpus=4, waited=0.8)
    calm = burned({("gemm_tflops", 1): 0.1}, kind="cpu", gpus=4)
    assert odd(judged(*healthy, taken, expectation=Expected())[2], "gemm_tflops") == [
        ("gemm_tflops", "slot 1", "starved")
    ]
    assert odd(judged(*healthy, calm, expectation=Expected())[2], "gemm_tflops") == [
        ("gemm_tflops", "slot 1", "slow")
    ]


def test_a_way_between_two_gpus_is_named() -> None:
    """The copies of one GPU to all others are slow: the ways are named, GPU first."""
    (burn,) = judged(burned({("p2p_gbs", 6): 0.5}))
    named = [name for _, name, _ in odd(burn, "p2p_gbs")]
    assert named == [f"GPU 6 to {n}" for n in (0, 1, 2, 3, 4, 5, 7)]


def test_far_sides_are_held_against_far_sides() -> None:
    """Copies from the other socket may be slower, as long as they are for all."""
    node = burned()
    readings = tuple(
        replace(one, samples=tuple(0.6 * value for value in one.samples))
        if one.measure == "h2d_gbs" and one.side != (one.device or 0) // 4
        else one
        for one in node.readings
    )
    assert odd(judged(replace(node, readings=readings))[0], "h2d_gbs") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_healthy_noise_counts_against_no_unit(seed: int) -> None:
    """GPUs that differ by up to 3 % are all fine, whatever the draw."""
    noise = random.Random(seed)  # noqa: S311 - no secret
    fleet = [_shaken(noise) for _ in range(1 + seed % 4)]
    for burn in judged(*fleet):
        assert not [one for one in odd(burn) if one[2] in ("slow", "flaky")]


@given(st.lists(st.floats(0.001, 1e9), max_size=20), st.floats(0, 0.9), st.floats(0, 1))
def test_a_limit_lies_below_its_peers(others: list[float], effect: float, scatter: float) -> None:
    """Whatever they are: never above their median, and nothing where they are too few."""
    population = Population({"b1": [1.0, *others]}, effect=effect, scatter=scatter)
    bound = population.limit_by_same_node("b1", 0)
    assert (bound is None) == (len(others) < 2)
    if bound is not None:
        assert 0 <= bound.speed <= max(others)


def test_every_measure_has_an_effect() -> None:
    """No measure of a GPU is judged by a number that is not in the table."""
    (burn,) = judged(burned())
    for one in burn.units:
        assert 0 < SHIPPED(f"cuda.{one.measure}") < 1


def _with_samples(
    node: Burned, measure: Measure, device: int, samples: tuple[float, ...]
) -> Burned:
    def changed(one: Reading) -> Reading:
        hit = (one.measure, one.device, one.to) == (measure, device, None)
        return replace(one, samples=samples) if hit else one

    return replace(node, readings=tuple(map(changed, node.readings)))


def _shaken(noise: random.Random) -> Burned:
    node = burned()
    return replace(
        node,
        readings=tuple(
            replace(one, samples=tuple(v * noise.uniform(0.97, 1.0) for v in one.samples))
            for one in node.readings
        ),
    )
