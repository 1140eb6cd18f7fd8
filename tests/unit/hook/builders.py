"""Made-up knowledge of the hook, healthy unless a test says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight.hook.hook_values import (
    Assessment,
    BreakerConfig,
    Call,
    Finding,
    HookConfig,
    NodeState,
    Occasion,
)
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from pathlib import Path

NODE = "gpu041"
BAD_ECC = Finding(
    check="gpu.ecc", outcome=Outcome.FAIL, sentence="GPU 3: 2 errors, 0 expected", drains=True
)
HOT = Finding(
    check="gpu.throttle", outcome=Outcome.FAIL, sentence="GPU 3 is hot", drains=True, heals=True
)
STALE = Finding(
    check="proc.stale", outcome=Outcome.FAIL, sentence="2 left-over processes", user=True
)


def call(occasion: Occasion = "prolog", job: str = "81723", partition: str = "gpu") -> Call:
    """Slurm starts us."""
    here = occasion == "prolog"
    return Call(occasion=occasion, job=job * here, partition=partition * here)


def results(*findings: Finding, **rest: Any) -> Assessment:
    """What was found on the node."""
    return Assessment(node=NODE, findings=findings, **rest)


def config(folder: Path | None = None, **rest: Any) -> HookConfig:
    """Enforced, with a breaker."""
    breaker = BreakerConfig(slurm=True) if folder is None else BreakerConfig(directory=folder)
    return HookConfig(**{"enforce": True, "breaker": breaker, **rest})


def state(*words: str, reason: str = "") -> NodeState:
    """Slurm's view of the node."""
    return NodeState(states=frozenset(words or ("IDLE",)), reason=reason, partitions=("gpu",))
