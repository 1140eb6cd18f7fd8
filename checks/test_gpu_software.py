"""Driver, VBIOS, InfoROM and GSP firmware are those of the group: drift makes odd faults."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_settings import software_troubles
from preflight.facts.gpu_verdict import conclude_gpus, healths
from preflight.verdict import Conclude, Outcome, Verdict, unknown

CHECK = Check(
    "gpu.software",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(promised: int | None, facts: Facts, group: Group) -> Verdict:
    """Compare versions with most nodes of the group, else with the node's other GPUs."""
    said = conclude_gpus(
        promised,
        facts,
        what="firmware versions",
        needs=("vbios", "inforom", "gsp_version"),
        troubles=software_troubles(facts, group),
        fine=_fine(facts),
    )
    if said.outcome is Outcome.OK and not facts.driver.version:
        return unknown("its driver's version is not told", advice="run nvidia-smi, then recheck")
    return said


def _fine(facts: Facts) -> str:
    versions = {health.vbios for _, health in healths(facts) if health.vbios}
    return f"driver {facts.driver.version}, VBIOS {' and '.join(sorted(versions)) or 'not told'}"


def test_gpu_software(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts, node.group))
