"""The burn-in of GPUs under the rehearsal: two SSH hosts with two GPUs each, all with fake CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.rehearsal.scenario import Fault, Machine, rehearsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

STAGE = ("--preflight-tier=standard", "-m", "preflight_local", "--preflight-fail-fast=never")
PARTS = ("device", "gemm", "memory", "integrity", "launch", "sustained", "pcie", "p2p")
"""Not `nic`, for which perftest is missing here, nor `host`: two nodes are no peers in that."""


def test_healthy_gpus_are_burned_in_and_a_slow_one_is_named(
    lab: Lab, preflight: Callable[..., Told]
) -> None:
    """Every part that a GPU has a burn-in for runs and passes; a GPU at half speed is named."""
    with rehearsed(lab, Machine(gpus=2)) as rehearsal:
        options = (
            f"--preflight-inventory={rehearsal.inventory()}",
            "--preflight-nodes=h[1-2]",
            "--preflight-budget=240",
            *STAGE,
        )
        healthy = _outcomes(told := preflight(*options))
        assert healthy == {
            **{("h1", f"burn.{part}"): "ok" for part in PARTS},
            **{("h2", f"burn.{part}"): "ok" for part in PARTS},
        }, told.out
        rehearsal.plant("h2", Fault("slow gpu", slot=1, factor=0.5))
        slow = _outcomes(told := preflight(*options))
    changed = {key for key, outcome in slow.items() if outcome != "ok"}
    assert {node for node, _ in changed} == {"h2"}, told.out
    assert {slow["h2", f"burn.{part}"] for part in ("gemm", "memory")} == {"fail"}, told.out
    assert {slow["h2", f"burn.{part}"] for part in ("pcie", "p2p")} == {"ok"}, told.out
    verdicts = {(one["subject"], one["check"]): one for one in told.report["verdicts"]}
    assert verdicts["h2", "burn.gemm"]["sentence"].startswith("GPU 1: "), told.out


def _outcomes(told: Told) -> dict[tuple[str, str], str]:
    """By node and part, of those parts that GPUs have."""
    return {
        (subject, check): outcome
        for check, subject, outcome in told.outcomes()
        if check.removeprefix("burn.") in PARTS
    }
