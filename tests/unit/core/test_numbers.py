"""One mechanism for every number that judges use: shipped, or set by the site, and never silent."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from preflight.core.thresholds import (
    SHIPPED,
    Override,
    Thresholds,
    describe_override,
    shipped,
)

ROOT = Path(__file__).parents[3]

TOLD = {
    "zombie_age_s": Override(600.0, "fleet.toml [group.train]"),
    "nccl.peers_ratio": Override(0.5, "fleet.toml [defaults]"),
}


def test_a_number_that_is_set_stands_in_for_the_shipped_one_and_its_use_is_known() -> None:
    """Only while that subject is judged, and only what the judge asked for is said."""
    of_node = Thresholds(TOLD)
    assert of_node("zombie_age_s") == 600 != SHIPPED("zombie_age_s")
    assert of_node("stuck_s") == SHIPPED("stuck_s")
    assert of_node.used == {"zombie_age_s": TOLD["zombie_age_s"]}
    of_sweep = Thresholds(TOLD)
    assert (
        of_sweep.for_backend("nccl")("peers_ratio")
        == 0.5
        != SHIPPED.for_backend("nccl")("peers_ratio")
    )
    assert of_sweep.for_backend("")("slow_effect") == SHIPPED("nccl.slow_effect")
    assert of_sweep.used == {"nccl.peers_ratio": TOLD["nccl.peers_ratio"]}
    assert describe_override("zombie_age_s", of_node.used["zombie_age_s"]) == (
        "zombie_age_s 600 s by fleet.toml [group.train] (shipped: 300)"
    )


def test_every_shipped_number_has_its_source() -> None:
    """Of every room, by its full name; one that nobody ships is None, or an error of ours."""
    assert {"zombie_age_s", "gloo.peers_ratio"} <= shipped().keys()
    for name, one in shipped().items():
        assert one.unit, name
        assert one.kind, name
        assert len(one.source) > 10, name
        assert one.date.year >= 2026, name
    for name in (name for name in shipped() if "." not in name):
        assert shipped()[name].value > 0, name
        assert shipped()[name].kind in ("documented", "common", "chosen"), name
        assert SHIPPED(name) == shipped()[name].value
    assert SHIPPED.get("nothing.known") is None
    with pytest.raises(KeyError):
        SHIPPED("nothing_known")


@pytest.mark.slow
def test_no_number_is_read_at_import() -> None:
    """A judge that kept a number in a constant would not hear of the one that the site set."""
    for path in [*ROOT.glob("checks/**/*.py"), *ROOT.glob("preflight/**/*.py")]:
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text if re.search(r"\b(SHIPPED|limit)\s*\(", text) else "")
        for statement in module.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
                called = {
                    call.func.id
                    for call in ast.walk(statement)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                }
                assert not called & {"SHIPPED", "limit"}, f"{path}:{statement.lineno}"
