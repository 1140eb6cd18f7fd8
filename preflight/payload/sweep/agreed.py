"""Two ends that follow different plans must not meet: they would hang, or call good sums wrong.

Each end says what both must agree upon, as one digest, before they connect, and again with its
account: the controller, who made the plan, sees which of the two is wrong.
"""

from __future__ import annotations

import hashlib
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import plan

COMMON = (
    "run", "nodes", "rails", "backend", "seed", "meet_s", "op_s", "box_s", "pair_s", "soak_s",
    "barrier_s",
)  # fmt: skip


def digest(go: plan.Go, turn: plan.Turn) -> str:
    """The same at both ends of a pair, and at the controller (docs/wire.md says how it is made)."""
    numbers = (go.index, turn.partner)
    common: dict[str, Any] = {name: getattr(go, name) for name in COMMON}
    common.update(
        missing=sorted(go.missing),
        ladder=[_rung(rung) for rung in go.ladder],
        soak=None if go.soak is None else _rung(go.soak),
        round=turn.round,
        ends=[turn.a, turn.b],
        numbers=numbers[::-1] if turn.rank else numbers,
    )
    text = json.dumps(common, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _rung(rung: plan.Rung) -> list[int]:
    return [rung.size_bytes, rung.warmup, rung.iterations]
