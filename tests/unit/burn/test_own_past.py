"""Slower than it used to be: the last yardstick, and only where there is no other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.burn.comparison import judge_burn
from preflight.burn.units import conditions, history_key, series_of_node
from preflight.core.statistics import FEWEST_NIGHTS, usual_speed
from preflight.fleet.model import Expected, Host
from tests.unit.burn.builders import UNKNOWN, USUAL, burned
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.burn import Burn, Burned, Measure

ALONE = burned(gpus=1)
DEVICES: tuple[Measure, ...] = ("gemm_tflops", "memory_gbs", "sustained_tflops", "h2d_gbs")


def nights(of: Burned, *shares: float) -> dict[str, tuple[float, ...]]:
    """What each of its units reached on earlier nights, as shares of tonight's healthy value."""
    return {
        history_key(raw, of, facts("h1")): tuple(raw.best * share for share in shares)
        for raw in series_of_node("h1", of, facts("h1"))
    }


def judge(
    tonight: Burned, past: Mapping[str, Sequence[float]], expectation: Expected | None = None
) -> Burn:
    """The only node there is, held against its past."""
    host = Host(name="h1", address="h1", expected=expectation or Expected())
    return judge_burn({"h1": tonight}, [host], {"h1": facts("h1")}, past)["h1"]


STEADY = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0)


def test_a_gpu_alone_is_held_against_its_own_nights() -> None:
    """A third of its speed is gone since last night, and it has no peers."""
    slow = judge(burned({("gemm_tflops", 0): 0.66}, gpus=1), nights(ALONE, *STEADY))
    (gemm,) = slow.of("gemm_tflops")
    assert gemm.held == "slow"
    assert gemm.limit_origin == "0.88 of its median in 6 earlier runs, no peers"
    assert gemm.limit == pytest.approx(0.88 * USUAL["gemm_tflops"], rel=0.01)
    assert [one.held for one in slow.of("memory_gbs", "sustained_tflops")] == ["ok", "ok"]


def test_as_it_always_was_is_fine() -> None:
    """Also where the nights scatter by a few per cent, and where it was always slow."""
    assert {one.held for one in judge(ALONE, nights(ALONE, *STEADY)).of(*DEVICES)} == {"ok"}
    always = burned({("gemm_tflops", 0): 0.5}, gpus=1, model=UNKNOWN)
    assert judge(always, nights(always, *STEADY)).of("gemm_tflops")[0].held == "ok"


def test_too_few_nights_say_nothing() -> None:
    """Four are no past; neither are those of another torch."""
    slow = burned({("gemm_tflops", 0): 0.5}, gpus=1, model=UNKNOWN)
    few = nights(ALONE, *STEADY[: FEWEST_NIGHTS - 1])
    assert judge(slow, few).of("gemm_tflops")[0].held == "unheld"
    other = {key.replace("torch 2.9.0", "torch 2.8.0"): own for key, own in
             nights(ALONE, *STEADY).items()}  # fmt: skip
    assert judge(slow, other).of("gemm_tflops")[0].held == "unheld"
    assert conditions(ALONE, facts("h1")).startswith("cuda, torch 2.9.0, driver ")


def test_peers_and_floors_come_first() -> None:
    """Eight equal GPUs that were all faster last year: their peers say that they are fine."""
    whole = burned()
    faster = nights(whole, *(2 * share for share in STEADY))
    burn = judge(whole, faster, Expected(gpus=8))
    assert {one.held for one in burn.of("gemm_tflops")} == {"ok"}
    expected = Expected(gpus=1, gpu_model="H100 SXM", origin="fleet.toml")
    (gemm,) = judge(ALONE, nights(ALONE, *(2 * s for s in STEADY)), expected).of("gemm_tflops")
    assert gemm.held == "ok"
    assert "floor for H100 SXM" in gemm.limit_origin


@given(st.integers(0, 2**32), st.sampled_from([0.002, 0.01, 0.03]))
def test_a_healthy_gpu_is_not_blamed_for_its_past(seed: int, noise: float) -> None:
    """Thirty nights of log-normal noise: the thirty-first of the same kind is like them."""
    dice = random.Random(seed)  # noqa: S311  noise
    past = [dice.lognormvariate(0, noise) for _ in range(30)]
    found = usual_speed(past, effect=0.12, scatter=0.01)
    assert found is not None
    assert dice.lognormvariate(0, noise) >= found.least
    assert found.least <= 0.88 * found.middle


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
def test_any_numbers_give_a_yardstick_or_none(values: list[float]) -> None:
    """What is no speed does not count, and the limit is below the middle."""
    found = usual_speed(values, effect=0.05, scatter=0.01)
    if found is not None:
        assert 0 <= found.least <= found.middle
        assert found.nights >= FEWEST_NIGHTS
