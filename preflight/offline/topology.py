"""`nvidia-smi topo -m` as somebody pasted it: which GPUs NVLink joins, and whether both ends agree.

How far the NICs are is not judged from it: the matrix has no PCI paths to compare with peers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.facts.basics import device_name
from preflight.facts.model import Driver, Gpu, GpuPair, Nic, NvLink
from preflight.facts.odd_cells import odd_cells
from preflight.facts.topo_text import readable_lines
from preflight.facts.topology import TopologyError, parse_topo
from preflight.offline.captured import Captured, bare_facts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from preflight.facts.topology import Topology

    Ancestor = Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]

KIND: Final = "nvidia-smi topo -m"
_CHECKS: Final = ("gpu.topology",)
_MATRIX: Final = re.compile(
    r"^(?>.*?\bGPU0\b).*\b(?:GPU1|NIC0|mlx\w+|CPU Affinity)\b|nvidia-smi topo -m"
)
_ANCESTORS: Final[Mapping[str, Ancestor]] = {
    "PIX": "PIX",
    "PXB": "PXB",
    "PHB": "PHB",
    "NODE": "NODE",
    "SYS": "SYS",
}
_FEWEST_ON_A_SWITCH: Final = 3
"""Two GPUs are joined directly."""


def read(text: str) -> Captured | None:
    """Take a matrix for the GPUs of a node; None where there is nothing like one."""
    if not any(_MATRIX.search(" ".join(line.words)) for line in readable_lines(text)):
        return None
    try:
        printed = parse_topo(text)
        codes = {
            (a, b): printed.link(printed.gpus[a], printed.gpus[b])
            for a in range(len(printed.gpus))
            for b in range(a + 1, len(printed.gpus))
        }
    except TopologyError as error:
        return Captured(kind=KIND, facts=bare_facts(), checks=_CHECKS, damaged=str(error))
    facts = replace(
        bare_facts(),
        driver=Driver("answered"),
        gpus=_gpus(printed, codes),
        gpu_pairs=tuple(
            GpuPair(a=a, b=b, ancestor=_ANCESTORS.get(code, "unknown"))
            for (a, b), code in codes.items()
        ),
        nics=tuple(Nic(device_name(printed.nic_device(name) or name)) for name in printed.nics),
        topo_text=text,
    )
    return Captured(kind=KIND, facts=facts, checks=_CHECKS)


def _gpus(printed: Topology, codes: Mapping[tuple[int, int], str]) -> tuple[Gpu, ...]:
    """Give every GPU the NVLinks that its row tells, to a switch where the counts fit one."""
    links = {pair: _nvlinks(code) for pair, code in codes.items()}
    count = len(printed.gpus)
    most = [max((n for pair, n in links.items() if at in pair), default=0) for at in range(count)]
    switched = count >= _FEWEST_ON_A_SWITCH and all(
        n == min(most[a], most[b]) for (a, b), n in links.items()
    )
    # A cell that no number of links explains is damage: sums over the cells would blame a GPU.
    damaged = not switched and bool(odd_cells(printed))
    gpus = []
    for at, name in enumerate(printed.gpus):
        if switched:
            ends = [("", "switch")] * most[at]
        else:
            ends = [
                (printed.gpus[a + b - at], "gpu")
                for (a, b), n in links.items()
                if at in (a, b)
                for _ in range(n)
            ]
        known = None if damaged else _links(ends)
        gpus.append(Gpu(index=at, uuid="", name="", bus_id=name, links=known))
    return tuple(gpus)


def _links(ends: list[tuple[str, str]]) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(link=at, up=True, remote=remote, remote_kind="switch" if kind == "switch" else "gpu")
        for at, (remote, kind) in enumerate(ends)
    )


def _nvlinks(code: str) -> int:
    """Count the links of "NV18"; 0 for every other way."""
    return int(code[2:]) if re.fullmatch(r"NV[0-9]{1,3}", code) else 0
