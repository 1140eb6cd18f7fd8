"""How GPUs are set is learned where a whole group agrees; else it is left to a person."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.commands.learn import inventory_text
from preflight.commands.learned_groups import common_modes, expected_of, learned_groups
from preflight.fleet.inventory import inventory_of
from preflight.fleet.model import Expected, Host
from preflight.verdict import Outcome
from tests.unit.checks.gpu_judges import CHECKS, judge
from tests.unit.facts.builders import facts, with_gpu
from tests.unit.facts.gpu_builders import node

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.fleet.inventory import Inventory

DAY = date(2026, 11, 22)


def _learn(*fleet: Facts) -> tuple[str, Inventory]:
    """The text for nodes n1, n2, ..., and what a run reads in it."""
    names = [f"n{number}" for number in range(1, len(fleet) + 1)]
    hosts = [Host(name=name, address=name, group="train") for name in names]
    known = dict(zip(names, fleet, strict=True))
    text = inventory_text(learned_groups(hosts, known, None), {}, "a test", DAY)
    return text, inventory_of(Path("x.toml"), text)


def test_what_all_gpus_of_a_group_share_becomes_its_promise() -> None:
    """MIG, ECC, persistence, compute mode, power limit, PCIe, with the day of learning."""
    text, inventory = _learn(node(), node())
    for line in (
        "mig = false",
        "ecc = true",
        "persistence = true",
        'compute_mode = "default"',
        "power_limit_w = 700",
        "pcie_lanes = 16",
        "pcie_generation = 5",
    ):
        assert f"\n{line}\n" in text
    expected = inventory.host("n2").expected
    assert (expected.mig, expected.ecc, expected.power_limit_w) == (False, True, 700.0)
    assert expected.origin == "x.toml [group.train], learned 2026-11-22"
    assert "left open" not in text


@pytest.mark.parametrize(
    ("change", "check", "sentence"),
    [
        ({"mig_enabled": True, "mig_pending": True}, "gpu.mode", "MIG is on, off expected"),
        ({"ecc_on": False, "ecc_pending": False}, "gpu.mode", "ECC is off, on expected"),
        ({"persistence": False}, "gpu.mode", "persistence mode is off, on expected"),
        ({"compute_mode": "exclusive_process"}, "gpu.mode", "is exclusive_process, default exp"),
        ({"power_limit_w": 500.0}, "gpu.power", "power limit 500 W, 700 W expected"),
        ({"pcie_width": 8}, "gpu.pcie", "PCIe x8, x16 expected"),
        ({"pcie_gen_max": 3}, "gpu.pcie", "PCIe generation 3 at most, 5 expected"),
    ],
)
def test_the_fleet_is_all_right_by_what_was_learned_of_it_until_one_node_is_changed(
    change: dict[str, Any], check: str, sentence: str
) -> None:
    """Even with no peer to compare: the expectation that was learned finds the changed mode."""
    _, inventory = _learn(node(), node())
    expected = inventory.host("n1").expected
    outcomes = {name: judge(name, node(), node(), expected=expected).outcome for name in CHECKS}
    assert set(outcomes.values()) == {Outcome.OK}, outcomes
    verdict = judge(check, node(odd=3, **change), expected=expected)
    assert verdict.outcome in (Outcome.FAIL, Outcome.WARN)
    assert sentence in verdict.sentence
    assert "GPU3" in verdict.sentence


def test_nodes_that_differ_in_a_mode_stay_one_group_and_the_mode_is_left_open() -> None:
    """Which of them is right is for a person to say; the group's majority still finds the odd."""
    odd = node(persistence=False)
    text, inventory = _learn(node(), node(), odd, node(odd=3, persistence=False))
    assert text.count("[group.") == 1
    assert "# persistence is left open: n[1-2] on; n3 off; n4 off and on\n" in text
    expected = inventory.host("n3").expected
    assert (expected.persistence, expected.ecc) == (None, True)
    assert judge("gpu.mode", odd, node(), node(), expected=expected).outcome is Outcome.WARN


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"ecc_on": False, "ecc_pending": False}, "ecc is left open: off, but these boards"),
        ({"ecc_pending": False}, "ecc is left open: on now, off after the next reset"),
        ({"mig_pending": True}, "mig is left open: off now, on after the next reset"),
        ({"compute_mode": "prohibited"}, "compute_mode is left open: no job can start in"),
        ({"compute_mode": "exclusive_thread"}, "compute_mode is left open: no job can start"),
        ({"power_limit_w": 500.0}, "power_limit_w is left open: 500 W, 700 W by default"),
        ({"pcie_width": 8}, "pcie_lanes is left open: 8, 16 is possible"),
        ({"pcie_gen_max": 2}, "pcie_generation is left open: 2, 4 is possible"),
    ],
)
def test_what_is_warned_of_without_a_promise_does_not_become_one(
    changes: dict[str, Any], remark: str
) -> None:
    """Learning must not silence a finding: the file says what to write if it is meant."""
    text, inventory = _learn(node(**changes))
    assert f"\n# {remark}" in text
    key = remark.partition(" ")[0]
    assert getattr(inventory.host("n1").expected, key) is None


def test_a_mode_that_a_gpu_does_not_tell_is_open_and_one_that_none_tells_is_not_spoken_of() -> None:
    """A board without MIG has no such line; a GPU that keeps silent among others is named."""
    text, _ = _learn(node(odd=2, persistence=None), node())
    assert "# persistence is left open: not every GPU of n1 tells it\n" in text
    text, _ = _learn(node(mig_enabled=None, mig_pending=None))
    assert "mig" not in text
    assert common_modes(Expected(), {"n1": replace(facts(), gpus=None)}) == common_modes(
        Expected(), {}
    )


def test_boards_that_are_sold_without_ecc_are_promised_so_and_a_watt_of_slack_is_none() -> None:
    """An RTX has ECC off by its maker; limits reported as 699.6 and 700 W are one limit."""
    modest = node(name="NVIDIA RTX A6000", ecc_on=False, ecc_pending=False)
    assert common_modes(Expected(), {"n1": modest})[0].ecc is False
    near = with_gpu(1, health=replace(node().gpus[0].health, power_limit_w=699.6))  # type: ignore[index,type-var]
    has, left_open = common_modes(expected_of(near), {"n1": near})
    assert has.power_limit_w == 700.0
    assert left_open == ()
