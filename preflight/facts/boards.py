"""A node's GPU matrix in a form that can be compared with its peers': links, codes, distances.

Each reader is a named function of the facts, so that a group can vote on it
(`Group.majority(nic_distances)`); a node that could not read a part returns None and abstains.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from preflight.facts.pci_distance import DISTANCES, Distance, pci_distance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.model import Facts, Gpu, GpuPair, Nic

Codes = tuple[tuple[int, int, str], ...]
"""(a, b, code) for every pair of GPUs a < b, in nvidia-smi's words."""

_SHORT_BUS_ID: Final = 12


def up_links(gpu: Gpu) -> int | None:
    """How many NVLinks of a GPU are up; None when NVML would not tell."""
    return None if gpu.links is None else sum(link.up for link in gpu.links)


def link_counts(facts: Facts) -> tuple[int, ...] | None:
    """NVLinks that are up, per GPU; None if one of them is not known or MIG switches them off."""
    counts = [None if gpu.mig_enabled else up_links(gpu) for gpu in facts.gpus or ()]
    known = tuple(count for count in counts if count is not None)
    return known if known and len(known) == len(counts) else None


class LinkEnds:
    """Where the live NVLinks of one GPU end, counted once for all its pairs."""

    def __init__(self, gpu: Gpu) -> None:
        live = [link for link in gpu.links or () if link.up]
        self._bus = _short(gpu.bus_id)
        self._switched = sum(link.remote_kind == "switch" for link in live)
        self._direct: Counter[str] = Counter()
        for remote, links in Counter(link.remote for link in live if link.remote).items():
            self._direct[_short(remote)] += links

    def to(self, other: LinkEnds) -> int:
        """Live NVLinks that end at `other`, through a switch or directly (the # of NV#)."""
        return self._direct[other._bus] + min(self._switched, other._switched)


def link_ends(gpus: Iterable[Gpu]) -> dict[int, LinkEnds]:
    """The ends of each GPU's NVLinks, by its index."""
    return {gpu.index: LinkEnds(gpu) for gpu in gpus}


def gpu_codes(facts: Facts) -> Codes | None:
    """NVML's own matrix: NV# where NVLinks join two GPUs, else their PCI distance."""
    ends = link_ends(facts.gpus or ())
    pairs = [pair for pair in facts.gpu_pairs or () if pair.a in ends and pair.b in ends]
    codes = tuple((pair.a, pair.b, _code(ends[pair.a], ends[pair.b], pair)) for pair in pairs)
    return codes if codes and all(code != "unknown" for _, _, code in codes) else None


def nearest_nics(gpu: Gpu, nics: tuple[Nic, ...]) -> tuple[Distance, tuple[str, ...]]:
    """Distance of the NIC nearest to a GPU, and the names of all that are as near."""
    ranked = [(pci_distance(gpu.pci_path, nic.pci_path, gpu.numa, nic.numa), nic) for nic in nics]
    nearest = DISTANCES[
        min((DISTANCES.index(distance) for distance, _ in ranked), default=len(DISTANCES) - 1)
    ]
    names = (nic.name for distance, nic in ranked if distance == nearest)
    return nearest, tuple(sorted(names, key=natural))


def nic_distances(facts: Facts) -> tuple[Distance, ...] | None:
    """Distance of each GPU's nearest NIC; None without NICs or where a path is not known."""
    found = tuple(nearest_nics(gpu, facts.nics or ())[0] for gpu in facts.gpus or ())
    return found if found and "unknown" not in found else None


def numa_nodes(facts: Facts) -> tuple[int | None, ...] | None:
    """NUMA node of each GPU."""
    nodes = tuple(gpu.numa for gpu in facts.gpus or ())
    return nodes if any(node is not None for node in nodes) else None


@lru_cache(maxsize=4096)  # the same few names on every node
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return tuple((int(digits or -1), text) for digits, text in re.findall(r"([0-9]+)|(\D+)", name))


def _code(a: LinkEnds, b: LinkEnds, pair: GpuPair) -> str:
    links = a.to(b)
    return f"NV{links}" if links else pair.ancestor


def _short(bus_id: str) -> str:
    """Bus ids come with four or eight digits of PCI domain and in both cases of letters."""
    return bus_id[-_SHORT_BUS_ID:].lower()
