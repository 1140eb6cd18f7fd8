"""Whether nvidia-smi's printed matrix tells the same story as NVML's: one driver, two readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.odd_cells import odd_cells
from preflight.facts.odd_gpus import RESEAT, Oddity
from preflight.facts.topology import Topology, TopologyError, parse_topo
from preflight.facts.wiring import gpu_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.model import Facts

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
