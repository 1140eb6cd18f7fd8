"""GPUs, NVLinks and rails are joined as promised, and as on the other nodes of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.checks.gpu.deviations import (
    RESEAT,
    Oddity,
    far_rails,
    lopsided_links,
    odd_cells,
    refused_peers,
    strange_codes,
    strange_numa,
    torn_links,
)
from preflight.facts import Facts, Group, Node
from preflight.facts.boards import gpu_codes, up_links
from preflight.facts.topology import Topology, TopologyError, parse_topo
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Iterator


ADVICE = "check that nvidia-smi and the driver library have one version (nvidia-smi --version)"


def read_matrix(facts: Facts) -> tuple[Topology | None, str]:
    """nvidia-smi's matrix, or why there is none to compare with."""
    if facts.topo_text is None:
        return None, "no nvidia-smi here"
    try:
        return parse_topo(facts.topo_text), ""
    except TopologyError as error:
        return None, f"nvidia-smi's matrix is not readable: {error}"


def disagreements(facts: Facts, printed: Topology) -> Iterator[Oddity]:
    """Pairs of GPUs that nvidia-smi joins otherwise than NVML, or otherwise there than back."""
    for at, a in enumerate(printed.gpus):
        for b in printed.gpus[at + 1 :]:
            there, back = printed.link(a, b), printed.link(b, a)
            if there != back:
                sentence = f"nvidia-smi joins {a} to {b} by {there}, but {b} to {a} by {back}"
                yield Oddity(sentence, "reload the driver or reboot, then recheck")
    codes = gpu_codes(facts)
    if codes is None:
        for cell in odd_cells(printed):
            if printed.link(cell.b, cell.a) == cell.code:
                yield Oddity(cell.sentence, RESEAT)
        return
    if len(printed.gpus) != len(facts.gpus or ()):
        sentence = f"nvidia-smi prints {len(printed.gpus)} GPUs, NVML has {len(facts.gpus or ())}"
        yield Oddity(sentence, ADVICE, grave=False)
        return
    for index_a, index_b, code in codes:
        said = printed.link(printed.gpus[index_a], printed.gpus[index_b])
        if said != code:
            sentence = f"GPU{index_a}-GPU{index_b}: nvidia-smi says {said}, NVML says {code}"
            yield Oddity(sentence, ADVICE, grave=False)


CHECK = Check(
    "gpu.topology",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung", "gpu.count"),
    drains=True,
)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Hold the matrix against the promise, the group and itself, the surest witness first."""
    if not facts.gpus:
        if promised.gpus or promised.nvlinks_per_gpu:
            return unknown("no GPU matrix: NVML did not answer", advice="load the driver, recheck")
        return not_run("no GPUs promised, none here")
    printed, note = read_matrix(facts)
    odd = oddities(promised, facts, group)
    if printed is not None and not odd:
        odd = list(disagreements(facts, printed))
    if not odd:
        return _sound(promised, facts, note)
    odd.sort(key=lambda oddity: not oddity.grave)
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    conclude = fail if odd[0].grave else warn
    findings = [oddity.sentence for oddity in odd]
    return conclude(odd[0].sentence + more, advice=odd[0].advice, findings=findings, note=note)


def oddities(promised: Promise, facts: Facts, group: Group) -> list[Oddity]:
    """Everything unlike its peers. Lost links explain strange codes, so these come only without."""
    links = [
        *torn_links(facts, promised.nvlinks_per_gpu, group),
        *lopsided_links(facts.gpus or ()),
    ]
    codes = [] if links else [*refused_peers(facts), *strange_codes(facts, group)]
    return [*links, *codes, *far_rails(facts, group), *strange_numa(facts, group)]


def _sound(promised: Promise, facts: Facts, note: str) -> Verdict:
    gpus = facts.gpus or ()
    if promised.nvlinks_per_gpu and any(up_links(gpu) is None for gpu in gpus):
        return unknown("NVML would not tell the state of the NVLinks", advice="update the driver")
    matrix = [f"GPU{a}-GPU{b} {code}" for a, b, code in gpu_codes(facts) or ()]
    kinds = sorted({line.split()[-1] for line in matrix})
    joined = f" joined by {', '.join(kinds)}" if kinds else ""
    nics = "" if facts.nics is None else f", {count(len(facts.nics), 'NIC')}"
    return ok(f"{count(len(gpus), 'GPU')}{joined}{nics}", matrix=matrix, note=note)


def test_gpu_topology(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
