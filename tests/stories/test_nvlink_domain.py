"""NVLink between the nodes of a rack, rehearsed: four SSH hosts with two GPUs in one domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.fabric.stored import read_stored
from tests.lab.rehearsal.scenario import Fault, Machine, rehearsed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.lab.cluster import Lab
    from tests.lab.rehearsal.scenario import Rehearsal
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

RACK = Machine(gpus=2, nvlink_domain="rack 7")
CHECK = "fabric.nvlink_domain"


def run(rehearsal: Rehearsal, preflight: Callable[..., Told]) -> tuple[Told, dict[str, Any]]:
    """Run the sweep; what it says, and the domain's verdict of each node."""
    told = preflight(
        f"--preflight-inventory={rehearsal.inventory()}",
        "--preflight-fail-fast=never",
        "--preflight-budget=240",
        "--preflight-sweep=1",
    )
    found = [one for one in told.report["verdicts"] if one["check"] == CHECK]
    return told, {one["subject"]: one for one in found}


@pytest.mark.proves("fabric.nvlink_domain", passes="four nodes of one NVLink domain")
def test_a_domain_is_measured_over_nvlink_and_pairs_over_their_nics(
    lab: Lab, preflight: Callable[..., Told]
) -> None:
    """Every node reaches its neighbours over NVLink; the pairs of the rounds use InfiniBand."""
    with rehearsed(lab, RACK) as rehearsal:
        told, verdicts = run(rehearsal, preflight)
    assert {one["outcome"] for one in verdicts.values()} == {"ok"}, told.out
    assert all("over P2P MNNVL; 4 nodes" in one["sentence"] for one in verdicts.values()), verdicts
    assert told.exit == 0, told.out
    sweep = read_stored(told.folder).sweep
    assert sweep is not None
    ways = {end.net for pair in sweep.pairs for end in (pair.first, pair.second) if end}
    assert all(way.startswith("NET/IB mlx5_") for way in ways), ways


@pytest.mark.proves("fabric.nvlink_domain", finds="a GPU that is slow over NVLink")
def test_the_node_whose_nvlink_is_bad_is_named(lab: Lab, preflight: Callable[..., Told]) -> None:
    """Its neighbours are fine with others, so it is the one; no pair over NICs is blamed."""
    with rehearsed(lab, RACK) as rehearsal:
        rehearsal.plant("h2", Fault("slow rail", slot=1, factor=0.3, where="domain"))
        told, verdicts = run(rehearsal, preflight)
    bad = {name: one["sentence"] for name, one in verdicts.items() if one["outcome"] == "fail"}
    assert list(bad) == ["h2"], told.out
    assert "on GPU 1 with h1 and h3, over P2P MNNVL; the median of the others is" in bad["h2"]
    assert told.report["fleet"]["not_ready"] == ["h2"]
