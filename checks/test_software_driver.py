"""The driver is new enough for the CUDA that the job's torch is built for."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.software import drivers, torch_or_why, version, without_cuda
from preflight.facts.software_model import Software
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
    "software.driver",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(facts: Facts) -> Verdict:
    """Hold the driver against the oldest one of that CUDA's major version."""
    torch = torch_or_why(facts)
    if facts.driver.state == "absent":
        return not_run("no GPU driver here")
    if isinstance(torch, Verdict):
        return torch
    if torch.cuda is None:
        return not_run(without_cuda(torch))
    needed = drivers().get(torch.cuda.split(".")[0])
    if needed is None:
        return not_run(f"which driver CUDA {torch.cuda} needs is not known to this preflight")
    return _held(facts.driver.version, torch.cuda, needed.driver, facts.software)


def _held(driver: str, cuda: str, needed: str, software: Software | None) -> Verdict:
    here, compat = version(driver), software.cuda_compat if software else None
    said = f"driver {driver}, CUDA {cuda} of torch needs {needed} or later"
    if not here:
        return unknown("the driver does not tell its version", advice="run nvidia-smi there")
    if here >= version(needed):
        return ok(said, driver=driver, cuda=cuda, needed=needed)
    if compat is not None and version(compat) >= version(needed):
        return warn(
            f"{said}; its compatibility libraries ({compat}) may stand in",
            advice="see that the job's LD_LIBRARY_PATH begins with cuda/compat, or update it",
            driver=driver,
        )
    advice = f"install driver {needed} or later, or a torch for an older CUDA"
    return fail(said, advice=advice, driver=driver, cuda=cuda, needed=needed)


def test_software_driver(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
