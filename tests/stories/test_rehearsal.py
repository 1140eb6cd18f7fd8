"""Each situation of the rehearsal once: four SSH hosts with two GPUs each, all with fake CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.lab.named import named
from tests.lab.rehearsal.scenario import Machine, rehearsed
from tests.lab.rehearsal.situations import SITUATIONS, hosts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.cluster import Lab
    from tests.lab.named import Named
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

BY_NAME = {one.name: one for one in SITUATIONS}
TOGETHER = (("GPU missing", "NVLink fallback", "NIC port down"),
            ("slow exit", "init skew", "host stalls"))  # fmt: skip
"""Situations that do not mix, each on a host of its own, in one run: the machine has two cores."""

ALONE = [(name,) for name in BY_NAME if not any(name in some for some in TOGETHER)]


@pytest.mark.parametrize("names", [*ALONE, *TOGETHER], ids="+".join)
def test_the_culprit_is_named_and_nobody_healthy(
    lab: Lab, preflight: Callable[..., Told], names: tuple[str, ...]
) -> None:
    """NCCL over SSH: what is planted on a host is named, and what is no fault blames nobody."""
    planted = {f"h{number}": BY_NAME[name] for number, name in enumerate(names, 2)}
    with rehearsed(lab, Machine(gpus=2)) as rehearsal:
        for host, situation in planted.items():
            situation.plant(rehearsal, host, 1)
        told = preflight(
            f"--preflight-inventory={rehearsal.inventory()}",
            "--preflight-fail-fast=never",
            "--preflight-budget=240",
        )
    for host, situation in planted.items():
        said = _without(named(told.folder), planted.keys() - {host})
        assert not (off := situation.off(said, host)), f"{off}\n{told.out}"
    assert {pair["backend"] for pair in told.report["pairs"]} == {"nccl"}, told.out


def _without(said: Named, others: set[str]) -> Named:
    """What a run says, but for what it says of these hosts."""
    kept = [
        tuple(name for name in names if others.isdisjoint(hosts_of(name)))
        for names in (said.components, said.open)
    ]
    return replace(said, components=kept[0], open=kept[1], exit=said.exit if any(kept) else 0)
