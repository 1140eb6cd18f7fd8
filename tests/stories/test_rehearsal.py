"""Each situation of the rehearsal once: four SSH hosts with two GPUs each, all with fake CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.named import named
from tests.lab.rehearsal.scenario import Machine, rehearsed
from tests.lab.rehearsal.situations import SITUATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.cluster import Lab
    from tests.lab.rehearsal.situations import Situation
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name.replace(" ", "-"))
def test_the_culprit_is_named_and_nobody_healthy(
    lab: Lab, preflight: Callable[..., Told], situation: Situation
) -> None:
    """NCCL over SSH: what is planted on h2 is named, and what is no fault blames nobody."""
    with rehearsed(lab, Machine(gpus=2)) as rehearsal:
        situation.plant(rehearsal, "h2", 1)
        told = preflight(
            f"--preflight-inventory={rehearsal.inventory()}",
            "--preflight-fail-fast=never",
            "--preflight-budget=240",
        )
    assert not (off := situation.off(named(told.folder), "h2")), f"{off}\n{told.out}"
    backends = {pair["backend"] for pair in told.report["pairs"]}
    assert backends == {"nccl"}, told.out
