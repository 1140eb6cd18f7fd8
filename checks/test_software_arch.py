"""The job's torch has kernels for the GPUs that are there."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.software import runs_on, torch_or_why, without_cuda
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

# Not asked in quick runs: a head node's or a login's torch may well be without CUDA. From
# `standard` on GPUs are loaded through it.
CHECK = Check(
    "software.arch",
    stage="facts",
    tier="standard",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(facts: Facts) -> Verdict:
    """Compare what its kernels are compiled for with the GPUs' compute capability."""
    if not facts.gpus:
        return not_run("no GPUs here")
    torch = torch_or_why(facts)
    if isinstance(torch, Verdict):
        return torch
    if why := without_cuda(torch):
        gpus = count(len(facts.gpus), "GPU")
        return fail(f"{why}, and {gpus} of NVIDIA are here", advice="install torch with CUDA")
    computes = [gpu.compute for gpu in facts.gpus if gpu.compute]
    if torch.archs is None or len(computes) < len(facts.gpus):
        what = "for which GPUs torch is built" if torch.archs is None else "what kind its GPUs are"
        return unknown(
            f"its files and driver do not tell {what}",
            advice="compare torch.cuda.get_arch_list() with torch.cuda.get_device_capability()",
        )
    built = f"torch {torch.version} is built for {', '.join(torch.archs)}"
    foreign = [compute for compute in computes if not runs_on(torch.archs, compute)]
    if not foreign:
        return ok(built, archs=torch.archs)
    kind = f"sm_{foreign[0].replace('.', '')}"
    return fail(
        f"{built}; {len(foreign)} of {len(computes)} GPUs are {kind}: no kernel runs on them",
        advice=f"install a torch that is built for {kind}",
        archs=torch.archs,
    )


def test_software_arch(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
