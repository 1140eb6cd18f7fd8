"""Every check of GPU readings behind one call, as the frame sees them: node, promise and group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from preflight.core.registry import load_folder
from preflight.core.thresholds import SHIPPED
from preflight.fleet.model import Promise
from tests.unit.facts.builders import group

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

_OTHERS = {"gpu.count", "gpu.sxid", "gpu.topology", "gpu.xid"}
_CHECKS = {one.check.id: one for one in load_folder(Path(__file__).parents[3] / "checks" / "gpu")}
CHECKS = sorted(_CHECKS.keys() - _OTHERS)


def judge(check: str, facts: Facts, *peers: Facts, promised: Promise | None = None) -> Verdict:
    """What the check says of a node whose group is itself and these peers."""
    promise = promised or Promise(gpus=8)
    node = SimpleNamespace(promised=promise, facts=facts, group=group(facts, *peers), limit=SHIPPED)
    return _CHECKS[check].conclude(node)
