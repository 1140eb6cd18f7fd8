"""Shipped numbers are possible, have a source, and come after what the site says by itself."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.core.thresholds import Override
from preflight.fabric.pair_summary import wire_from
from preflight.fleet.baselines import (
    LINKS,
    TIMES,
    UNITS,
    baselines,
    gpu_floor,
    gpu_platform,
    rail_floor,
)
from preflight.fleet.model import Expected

FULL = {"gpus": 8, "nvlinks_per_gpu": 18}
GPU_NUMBERS = [
    pytest.param(one, id=f"{one.gpu} {one.measure} {one.algorithm}".rstrip())
    for one in baselines().gpu
]


@pytest.mark.parametrize("one", GPU_NUMBERS)
def test_each_number_of_a_gpu_is_within_half_and_all_of_its_ceiling(one: Any) -> None:
    """A wrong unit or decimal point would pass or fail every GPU of its kind."""
    if one.measure in TIMES:
        assert 0.5 <= one.ceiling / one.value <= 1
        assert one.value < one.least < 10 * one.ceiling
    else:
        assert 0.5 <= one.value / one.ceiling <= 1
        assert 0.5 <= one.least / one.ceiling <= one.value / one.ceiling
    assert one.unit == UNITS[one.measure]
    assert min(len(one.source), len(one.least_source), len(one.ceiling_source)) > 14
    assert one.date.year >= 2026
    if one.measure in ("p2p", "all_reduce"):
        assert (one.fabric, one.transport) == ("nvswitch", "nvlink")
    if one.measure == "all_reduce":
        assert one.algorithm
        assert one.from_mib


def test_each_number_is_there_once_and_for_every_platform() -> None:
    """GPU, fabric, transport and algorithm name one number; none of the four GPUs lacks any."""
    keys = [
        (one.gpu, one.measure, one.fabric, one.transport, one.algorithm) for one in baselines().gpu
    ]
    assert len(keys) == len(set(keys))
    platforms = {f"{family} SXM" for family in ("A100", "H100", "H200", "B200")}
    assert {key[0] for key in keys} == platforms
    for platform in platforms:
        assert {key[1] for key in keys if key[0] == platform} == set(UNITS) - {"rail"}


@pytest.mark.parametrize(("name", "one"), baselines().rail.items())
def test_each_floor_of_a_rail_is_within_half_and_all_of_its_line_rate(name: str, one: Any) -> None:
    """Its ceiling is what the wire carries, and at most nine tenths of that are asked for."""
    link, rate = name.split("-")
    assert link in LINKS
    assert one.ceiling == int(rate) / 8
    assert 0.5 <= one.value / one.ceiling < 0.9
    assert len(one.source) > 20
    assert one.unit == "GB/s busbw"
    assert wire_from("nccl") < 64 << 20


@pytest.mark.parametrize(
    ("expected", "platform"),
    [
        ({"gpu_model": "H100", **FULL}, "H100 SXM"),
        ({"gpu_model": "NVIDIA H100 80GB HBM3"}, "H100 SXM"),
        ({"gpu_model": "NVIDIA A100-SXM4-80GB"}, "A100 SXM"),
        ({"gpu_model": "A100", "gpus": 8, "nvlinks_per_gpu": 12}, "A100 SXM"),
        ({"gpu_model": "NVIDIA H200"}, "H200 SXM"),
        ({"gpu_model": "b200"}, "B200 SXM"),
        ({"gpu_model": "H100"}, None),
        ({"gpu_model": "H100", "gpus": 2, "nvlinks_per_gpu": 12}, None),
        ({"gpu_model": "NVIDIA H100 PCIe", **FULL}, None),
        ({"gpu_model": "NVIDIA H100 NVL"}, None),
        ({"gpu_model": "NVIDIA H200 NVL"}, None),
        ({"gpu_model": "NVIDIA GH200 480GB"}, None),
        ({"gpu_model": "NVIDIA GB200"}, None),
        ({"gpu_model": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, None),
        ({"gpu_model": "NVIDIA L40S"}, None),
        ({}, None),
    ],
)
def test_a_platform_is_chosen_by_what_is_promised(
    expected: dict[str, Any], platform: str | None
) -> None:
    """A GPU model that may mean a slower board gets no floor, rather than one that fails it."""
    assert gpu_platform(Expected(**expected)) == platform


def test_the_floor_says_which_number_it_is() -> None:
    """By a limit of the site, else by its baseline, else by the shipped number; none is guessed."""
    shipped = Expected(gpu_model="NVIDIA H200", origin="fleet.toml [group.train]")
    floor = gpu_floor(shipped, "gemm_bf16")
    assert floor is not None
    assert (floor.value, floor.unit) == (556, "TFLOP/s")
    assert floor.origin == (
        "floor for H200 SXM, as expected by fleet.toml [group.train]; "
        "healthy ones reach 794.5 (measured)"
    )
    learned = Override(700.0, "fleet.toml [group.train]", "2026-11-22, 8 GPUs of h1")
    site = gpu_floor(Expected(gpu_model="H200", baselines={"gemm_bf16": learned}), "gemm_bf16")
    assert site is not None
    assert site.value == pytest.approx(595)
    assert site.origin == (
        "0.85 of the baseline 700 of fleet.toml [group.train], learned 2026-11-22, 8 GPUs of h1"
    )
    both = Expected(
        baselines={"gemm_bf16": learned}, limits={"gemm_bf16": Override(650.0, "fleet.toml")}
    )
    limit = gpu_floor(both, "gemm_bf16")
    assert limit is not None
    assert (limit.value, limit.origin) == (650, "limit gemm_bf16 of fleet.toml")
    assert gpu_floor(Expected(gpu_model="NVIDIA L40S"), "gemm_bf16") is None


def test_times_are_held_from_above_and_small_messages_not_at_all() -> None:
    """A launch may take at most so long; busbw counts from the size on at which it was known."""
    expectation = Expected(gpu_model="NVIDIA B200")
    launch, reduce = gpu_floor(expectation, "launch"), gpu_floor(expectation, "all_reduce")
    assert launch is not None
    assert 10 < launch.value < 60
    assert reduce is not None
    assert reduce.from_bytes == 4 << 30
    h100 = Expected(gpu_model="H100 SXM")
    either, nvls = gpu_floor(h100, "all_reduce"), gpu_floor(h100, "all_reduce", algorithm="nvls")
    assert either is not None
    assert nvls is not None
    assert either.value < nvls.value
    slow = gpu_floor(Expected(baselines={"launch": Override(8.0, "fleet.toml")}), "launch")
    assert slow is not None
    assert slow.value == pytest.approx(12)


def test_a_rail_of_the_site_comes_before_the_promised_nic() -> None:
    """46 GB/s learned on these very rails say more than 400 Gb/s of their data sheet."""
    learned = Override(46.0, "fleet.toml [group.train]", "2026-11-22, 28 pairs")
    floor = rail_floor(Expected(nic_gbits=400, baselines={"rail": learned}))
    assert floor is not None
    assert floor.value == pytest.approx(39.1)
    assert "0.85 of the baseline 46 of fleet.toml" in floor.origin
