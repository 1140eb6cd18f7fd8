"""Every check of GPU readings behind one call, as a run calls it: node, expected and group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from preflight.core.registry import load_folder
from preflight.core.thresholds import SHIPPED
from preflight.fleet.model import Expected
from tests.unit.facts.builders import group

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

_OTHERS = {"gpu.count", "gpu.sxid", "gpu.topology", "gpu.xid"}
_CHECKS = {one.check.id: one for one in load_folder(Path(__file__).parents[3] / "checks" / "gpu")}
CHECKS = sorted(_CHECKS.keys() - _OTHERS)


def judge(check: str, facts: Facts, *peers: Facts, expected: Expected | None = None) -> Verdict:
    """What the check says of a node whose group is itself and these peers."""
    expectation = expected or Expected(gpus=8)
    node = SimpleNamespace(
        expected=expectation, facts=facts, group=group(facts, *peers), limit=SHIPPED
    )
    return _CHECKS[check].conclude(node)
