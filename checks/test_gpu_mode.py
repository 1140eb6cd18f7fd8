"""MIG, ECC, persistence and compute mode are as promised, or as on the group."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_peers import reading
from preflight.facts.gpu_settings import mode_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.mode",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Compare the modes with the promise, the group, then the siblings."""
    return conclude_gpus(
        promised.gpus,
        facts,
        what="modes",
        needs=("persistence", "compute_mode", "ecc_on", "mig_enabled"),
        troubles=mode_troubles(promised, facts, group),
        fine=_fine(facts),
    )


def _fine(facts: Facts) -> str:
    """All modes in one line: where nobody decides, a person may."""
    said = {"MIG": "mig_enabled", "ECC": "ecc_on", "persistence": "persistence"}
    words = []
    for name, field in said.items():
        values = {reading(gpu, field) for gpu in facts.gpus or ()} - {None}
        words += [f"{name} {' and '.join('on' if on else 'off' for on in sorted(values))}"] * bool(
            values
        )
    modes = {reading(gpu, "compute_mode") for gpu in facts.gpus or ()} - {None}
    return ", ".join([*words, *(f"compute mode {mode}" for mode in sorted(modes))])


def test_gpu_mode(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
