"""Which GPU, link or rail of a node differs from its peers, or from what is expected.

The inventory decides first, then the majority of the node's group, and only where both are silent
the other GPUs of the same node. A machine whose whole group is built unevenly is as it should be.

Where GPUs are joined directly, each link has a GPU at its other end. With 3, 7 or 15 GPUs and as
many dead links as one GPU has, the missing GPU is at the other end of these links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final, TypeVar

from msgspec import Struct

from preflight.core.text import first_of
from preflight.facts.boards import (
    Codes,
    board,
    fewer_links_than_board,
    gpu_codes,
    known_codes,
    link_counts,
    link_ends,
    may_be_off,
    must_be_up,
    nearest_nics,
    nic_distances,
    numa_nodes,
    up_links,
)
from preflight.facts.model import Facts, Gpu, GpuPair
from preflight.facts.node import DISTANCES, Group, Majority, decided, most
from preflight.facts.topo_matrix import Topology
from preflight.verdict import Verdict, fail, warn

LOOK: Final = "look for the missing GPU: lspci, Xid 79 in dmesg; power-cycle the node, recheck"
_USUAL: Final = (4, 8, 16)
PAIRS: Final = "pairs of GPUs:"
"""Begins a line of the probe's problems: what NVML did not report of two GPUs."""


def missing_gpu(gpus: Sequence[Gpu]) -> str:
    """Say that one GPU is missing and which dead links lead to it; "" without a proof."""
    dead = {gpu.index: [link.link for link in gpu.links or () if not link.up] for gpu in gpus}
    torn = {index: links for index, links in dead.items() if links}
    sizes = {len(gpu.links or ()) for gpu in gpus}
    if len(gpus) + 1 not in _USUAL or len(sizes) != 1 or has_switch(gpus):
        return ""
    of_one = sizes.pop()
    lost = sum(len(links) for links in torn.values())
    # Three may be a rented part, with links to others; seven with more dead links lost one, too.
    fits = lost == of_one or (lost > of_one and len(gpus) + 1 > min(_USUAL))
    if not fits or len(torn) < 2 or any(gpu.mig_enabled for gpu in gpus):  # noqa: PLR2004 - one GPU's own fault is no proof
        return ""
    listed = "; ".join(
        f"GPU{index} link {', '.join(str(link) for link in links)}" for index, links in torn.items()
    )
    return (
        f"a GPU is missing: {len(gpus)} are listed, {len(gpus) + 1} expected, and the {lost} dead "
        f"NVLinks of the others ({listed}) are as many as one GPU has"
        f"{f' and {lost - of_one} more' if lost > of_one else ''}"
    )


T = TypeVar("T")

Usual = Majority[tuple[str, ...]] | Majority[int]
"""Their PCI addresses, which also show the missing one; or their number, if machines differ."""

_ENOUGH_PEERS: Final = 3
"""Two alike of three may be a bridged pair beside a single card; three alike are peers."""

RESEAT: Final = "drain; look for NVLink errors in dmesg, reseat or reset the GPU, recheck"
COMPARE_BUILD: Final = "compare slots, BIOS and switch settings (ACS, NPS) with a healthy node"


class Deviation(Struct, frozen=True):
    """One difference from what is expected. `grave`: the node, or its job, fails because of it."""

    sentence: str
    advice: str
    grave: bool = True


def on_most(vote: Majority[Any], group: Group) -> str:
    """As in: on 12 of 13 nodes of group train."""
    return f"on {vote.holders} of group {group.name}"


def usual_gpus(group: Group) -> Usual | None:
    """The GPUs that most nodes of a group have: by PCI address, else by number."""
    return decided(group.majority(_bus_ids)) or group.majority(_count)


def _bus_ids(facts: Facts) -> tuple[str, ...] | None:
    return None if facts.gpus is None else tuple(gpu.bus_id for gpu in facts.gpus)


def _count(facts: Facts) -> int | None:
    return None if facts.gpus is None else len(facts.gpus)


def missing_links(facts: Facts, wanted: int | None, group: Group) -> Iterator[Deviation]:
    """GPUs with fewer live NVLinks than expected, than the group's, or than most of their peers."""
    gpus = facts.gpus or ()
    vote = decided(group.majority(link_counts))
    if vote is None and (missing := missing_gpu(gpus)):
        yield Deviation(missing, LOOK)
        return
    common = usual_links(gpus) if wanted is None and vote is None else None
    by_board = fewer_links_than_board(gpus) if wanted is None else []
    for at, gpu in enumerate(gpus):
        up = up_links(gpu)
        if up is None or gpu.mig_enabled:
            continue
        expected, origin = wanted, "expected"
        if wanted is None and vote is not None:
            expected = vote.value[at] if at < len(vote.value) else None
            origin = f"up {on_most(vote, group)}"
        elif wanted is None:
            expected, origin = common, "up on its peers"
        if expected is not None and up < expected:
            alone = wanted is None and vote is None and up == 0 and not has_switch(gpus)
            unbridged = alone and may_be_off(gpu)
            yield Deviation(
                f"GPU{gpu.index}{_at(gpu)}: {up} NVLinks up, {expected} {origin}{_down(gpu)}",
                "set nvlinks_per_gpu in the inventory" if unbridged else RESEAT,
                grave=not unbridged,
            )
        elif wanted is None and by_board[at]:
            # If all GPUs lack links, peers do not show it.
            sentence = f"GPU{gpu.index}{_at(gpu)}: {up} NVLinks up, {by_board[at]}{_down(gpu)}"
            grave = (up == 0 and must_be_up(gpu, gpus)) or _one_has_all(gpu, gpus)
            yield Deviation(sentence, RESEAT, grave=vote is None and grave)


def usual_links(gpus: Sequence[Gpu]) -> int | None:
    """The live NVLinks of most GPUs, or of those that have all of theirs; None if few report."""
    if any(gpu.refused("links", "mig_enabled") for gpu in gpus):
        return None
    return _most([up_links(gpu) for gpu in gpus]) or _full(gpus)


def asymmetric_links(gpus: Sequence[Gpu]) -> Iterator[Deviation]:
    """Pairs whose NVLinks do not look the same from both ends."""
    linked = [gpu for gpu in gpus if gpu.links is not None and gpu.bus_id]
    if all(link.remote_kind == "switch" for gpu in linked for link in gpu.links or ()):
        return  # through switches all look the same from both ends
    ends = link_ends(gpus)
    for a in linked:
        for b in linked:
            if a.index >= b.index:
                continue
            there, back = ends[a.index].to(ends[b.index]), ends[b.index].to(ends[a.index])
            if there != back:
                sentence = f"GPU{a.index} has {there} live NVLinks to GPU{b.index}, {back} back"
                yield Deviation(sentence, RESEAT)


def refusals(facts: Facts) -> list[str]:
    """Errors of NVML's answers about how the GPUs are joined: "GPU3: links: Timeout"."""
    names = ("links", "mig_enabled", "bus_id")
    return [
        f"GPU{gpu.index}: {error}"
        for gpu in facts.gpus or ()
        for error in (gpu.health.errors if gpu.health else ())
        if error.partition(":")[0] in names
    ] + [line for line in facts.problems if line.startswith(PAIRS)]


def peers_without_access(facts: Facts, codes: Codes | None) -> Iterator[Deviation]:
    """Pairs that may not reach each other's memory while pairs joined the same way may."""
    if any(line.startswith(PAIRS) for line in facts.problems):
        return
    joined = {(a, b): code for a, b, code in codes or known_codes(facts)}
    if not joined:  # how they are joined is not known: each is every other's peer
        joined = {(pair.a, pair.b): "unknown way" for pair in facts.gpu_pairs or ()}
        answers = {pair.p2p_read for pair in facts.gpu_pairs or ()}
        if answers and not answers & {"ok", "unknown"}:
            why = ", ".join(sorted(answers))
            sentence = f"no GPU may reach another's memory: {why}; ok is expected for a job"
            yield Deviation(sentence, COMPARE_BUILD, grave=False)
    for code in sorted(set(joined.values())):
        pairs = [pair for pair in facts.gpu_pairs or () if joined.get((pair.a, pair.b)) == code]
        here = [pair.p2p_read for pair in pairs]
        # Of pairs that NVLinks join, one with access shows it; by PCIe some may lack it by design.
        must = _most(here) == "ok" or (code.startswith("NV") and "ok" in here)
        if lone := _without_peers(pairs):
            sentence = f"GPU{lone[0]} ({code}): no peer access to any other GPU, {lone[1]}"
            yield Deviation(f"{sentence}; its peers have it", COMPARE_BUILD, grave=must)
        elif must:
            for pair in pairs:
                if pair.p2p_read not in ("ok", "unknown"):
                    sentence = f"GPU{pair.a}-GPU{pair.b} ({code}): no peer access, {pair.p2p_read}"
                    yield Deviation(f"{sentence}; its peers have it", COMPARE_BUILD)


def _without_peers(pairs: Sequence[GpuPair]) -> tuple[int, str] | None:
    """The one GPU that reaches none of several others, which reach each other, and why."""
    refused = [pair for pair in pairs if pair.p2p_read not in ("ok", "unknown")]
    able = {gpu for pair in pairs if pair.p2p_read == "ok" for gpu in (pair.a, pair.b)}
    if len(refused) < 2 or not able or len(refused) != len(able):  # noqa: PLR2004 - one pair is two GPUs
        return None
    lone = set.intersection(*({pair.a, pair.b} for pair in refused)) - able
    return (min(lone), refused[0].p2p_read) if lone else None


def unusual_codes(codes: Codes | None, group: Group) -> Iterator[Deviation]:
    """Pairs that are joined differently on most nodes of the group."""
    vote = decided(group.majority(gpu_codes))
    if vote is None or codes is None or codes == vote.value:
        return
    usual = {(a, b): code for a, b, code in vote.value}
    voters = on_most(vote, group)
    if len(codes) != len(vote.value):
        here, there = (max(b for _, b, _ in all_codes) + 1 for all_codes in (codes, vote.value))
        sentence = f"{here} GPUs here, {there} {voters}"
        yield Deviation(sentence, "look for Xid 79; power-cycle, recheck")
        return
    for a, b, code in codes:
        if usual.get((a, b), code) != code:
            advice = RESEAT if usual[a, b].startswith("NV") else COMPARE_BUILD
            sentence = f"GPU{a}-GPU{b} is joined by {code} here, by {usual[a, b]} {voters}"
            yield Deviation(sentence, advice)


def far_rails(facts: Facts, group: Group) -> Iterator[Deviation]:
    """GPUs whose nearest NIC is farther than the group's, or than every other GPU's here."""
    mine = nic_distances(facts)
    if mine is None:
        return
    vote = decided(group.majority(nic_distances))
    usual, origin = _all_but_one(mine), "for every other GPU here"
    if vote is not None:
        usual = vote.value if len(vote.value) == len(mine) else mine
        origin = on_most(vote, group)
    for gpu, here, there in zip(facts.gpus or (), mine, usual, strict=True):
        if DISTANCES.index(here) > DISTANCES.index(there):
            names = ", ".join(nearest_nics(gpu, facts.nics or ()))
            sentence = f"rail {gpu.index}: the NIC nearest to GPU{gpu.index} ({names}) is at {here}"
            yield Deviation(f"{sentence}, at {there} {origin}", COMPARE_BUILD)


def unusual_numa(facts: Facts, group: Group) -> Iterator[Deviation]:
    """GPUs that are at another NUMA node than on most nodes of the group."""
    vote, mine = decided(group.majority(numa_nodes)), numa_nodes(facts)
    if vote is None or mine is None or len(mine) != len(vote.value):
        return
    for gpu, here, there in zip(facts.gpus or (), mine, vote.value, strict=True):
        if here is not None and here != there:
            voters = on_most(vote, group)
            sentence = f"GPU{gpu.index} is at NUMA node {here} here, at {there} {voters}"
            yield Deviation(sentence, COMPARE_BUILD, grave=False)


def _most(values: Iterable[T | None]) -> T | None:
    """The value that more than half of the known ones, and at least three, share."""
    return most((value for value in values if value is not None), _ENOUGH_PEERS)


def _full(gpus: Sequence[Gpu]) -> int | None:
    """The link count of at least three GPUs without a dead link, where there is no majority."""
    whole = [len(gpu.links) for gpu in gpus if gpu.links and all(link.up for link in gpu.links)]
    return whole[0] if len(whole) >= _ENOUGH_PEERS and len(set(whole)) == 1 else None


def _all_but_one(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values with a single odd one replaced by that of the others."""
    usual = _most(values)
    if usual is None or values.count(usual) != len(values) - 1:
        return values
    return (usual,) * len(values)


def _one_has_all(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Whether another GPU behind the same switches has every link of their board."""
    known = board(gpu.name)
    if known is None or not has_switch([gpu]):
        return False
    alike = [one for one in gpus if one.name == gpu.name and not one.mig_enabled]
    return any((up_links(one) or 0) >= known.links and has_switch([one]) for one in alike)


def has_switch(gpus: Iterable[Gpu]) -> bool:
    """Whether any NVLink of these GPUs leads to an NVSwitch."""
    return any(link.remote_kind == "switch" for gpu in gpus for link in gpu.links or ())


def _at(gpu: Gpu) -> str:
    return f" ({gpu.bus_id})" if gpu.bus_id not in ("", f"GPU{gpu.index}") else ""


def _down(gpu: Gpu) -> str:
    down = [str(link.link) for link in gpu.links or () if not link.up]
    return f" (down: link {', '.join(down)})" if down and up_links(gpu) else ""


def conclude_deviations(found: Iterable[Deviation], **evidence: Any) -> Verdict | None:
    """A failure if one deviation is grave, else a warning; None where there is none."""
    odd = sorted(found, key=lambda one: not one.grave)
    if not odd:
        return None
    conclude = fail if odd[0].grave else warn
    findings = [one.sentence for one in odd]
    return conclude(first_of(findings), advice=odd[0].advice, findings=findings, **evidence)


_MOST_SHARE: Final = 0.75
"""With a smaller share alike, the machine is built unevenly, such as a mesh of eight."""


class OddCell(Struct, frozen=True):
    """A pair that is joined by `code`, while `usual` joins `alike` of all `of` pairs."""

    a: str
    b: str
    code: str
    usual: str
    alike: int
    of: int

    @property
    def sentence(self) -> str:
        """GPU0-GPU1 is joined by NV17, 27 of 28 pairs by NV18."""
        most = f"{self.alike} of {self.of} pairs by {self.usual}"
        return f"{self.a}-{self.b} is joined by {self.code}, {most}"


def odd_cells(printed: Topology) -> tuple[OddCell, ...]:
    """Pairs of a machine whose other pairs are nearly all joined by the same number of NVLinks."""
    codes = {(a, b): printed.link(a, b) for a, b in combinations(printed.gpus, 2)}
    if not codes:
        return ()
    usual, alike = Counter(codes.values()).most_common(1)[0]
    if not usual.startswith("NV") or alike < _MOST_SHARE * len(codes):
        return ()
    return tuple(
        OddCell(a, b, code, usual, alike, len(codes))
        for (a, b), code in codes.items()
        if code != usual
    )
