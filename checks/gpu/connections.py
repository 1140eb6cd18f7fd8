"""Which GPU, link or rail of a node differs from its peers, or from what is expected.

The inventory decides first, then the majority of the node's group, and only where both are silent
the other GPUs of the same node. A machine whose whole group is built unevenly is as it should be.

Where GPUs are joined directly, each link has a GPU at its other end. With 3, 7 or 15 GPUs and as
many dead links as one GPU has, the missing GPU is at the other end of these links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeVar

from preflight.checks.deviations import Deviation, on_most
from preflight.facts.boards import (
    Codes,
    among,
    board,
    fewer_links_than_board,
    gpu_codes,
    gpu_models,
    has_switch,
    link_counts,
    link_ends,
    links_may_be_off,
    links_must_be_up,
    nearest_nics,
    nic_distances,
    numa_nodes,
    reported_codes,
    up_links,
)
from preflight.facts.model import Facts, Gpu, GpuPair
from preflight.facts.node import DISTANCES, Group, Majority, decided, most
from preflight.facts.topo_matrix import Topology

_FIND_GPU: Final = "look for the missing GPU: lspci, Xid 79 in dmesg; power-cycle the node, recheck"
_MACHINE_SIZES: Final = (4, 8, 16)
PAIRS: Final = "pairs of GPUs:"
"""Begins a line of the probe's problems: what NVML did not report of two GPUs."""


def missing_gpu(gpus: Sequence[Gpu]) -> str:
    """Say that one GPU is missing and which dead links lead to it; "" without a proof."""
    expected, numbers_of_links = len(gpus) + 1, {len(gpu.links or ()) for gpu in gpus}
    if expected not in _MACHINE_SIZES or len(numbers_of_links) != 1 or has_switch(gpus):
        return ""
    if any(gpu.mig_enabled for gpu in gpus):
        return ""
    links_per_gpu = numbers_of_links.pop()
    dead_links = {gpu.index: dead for gpu in gpus if (dead := _dead_links(gpu))}
    surplus = sum(len(dead) for dead in dead_links.values()) - links_per_gpu
    # Three GPUs may be a rented part, with links to others; of more, one is missing all the same.
    if surplus < 0 or (surplus > 0 and expected == min(_MACHINE_SIZES)):
        return ""
    if len(dead_links) <= 1:  # that GPU itself may be at fault
        return ""
    names = "; ".join(f"GPU{index} link {', '.join(dead)}" for index, dead in dead_links.items())
    return (
        f"a GPU is missing: {len(gpus)} are listed, {expected} expected, and the "
        f"{links_per_gpu + surplus} dead NVLinks of the others ({names}) are "
        f"as many as one GPU has{f' and {surplus} more' if surplus else ''}"
    )


T = TypeVar("T")

Usual = Majority[tuple[str, ...]] | Majority[int]
"""Their PCI addresses, which also show the missing one; or their number, if machines differ."""

_MIN_PEERS: Final = 3
"""Two alike of three may be a bridged pair beside a single card; three alike are peers."""

RESEAT: Final = "drain; look for NVLink errors in dmesg, reseat or reset the GPU, recheck"
COMPARE_BUILD: Final = "compare slots, BIOS and switch settings (ACS, NPS) with a healthy node"


def usual_gpus(group: Group, models: frozenset[str] = frozenset()) -> Usual | None:
    """The GPUs that most nodes of a group have: by PCI address, else by number.

    `models`: only nodes with these GPUs are peers.
    """
    by_address = decided(group.majority(among(_bus_ids, models)))
    return by_address or group.majority(among(_count, models))


def _vote(read: Callable[[Facts], T | None], facts: Facts, group: Group) -> Majority[T] | None:
    """What most nodes of the group with the same GPUs have; None where nothing decides."""
    return decided(group.majority(among(read, gpu_models(facts))))


def _bus_ids(facts: Facts) -> tuple[str, ...] | None:
    return None if facts.gpus is None else tuple(gpu.bus_id for gpu in facts.gpus)


def _count(facts: Facts) -> int | None:
    return None if facts.gpus is None else len(facts.gpus)


def missing_links(facts: Facts, by_inventory: int | None, group: Group) -> Iterator[Deviation]:
    """GPUs with fewer live NVLinks than expected, than the group's, or than most of their peers."""
    gpus = facts.gpus or ()
    vote = _vote(link_counts, facts, group)
    if vote is None and (missing := missing_gpu(gpus)):
        yield Deviation(missing, _FIND_GPU)
        return
    common = usual_links(gpus) if by_inventory is None and vote is None else None
    by_board = fewer_links_than_board(gpus) if by_inventory is None else []
    for position, gpu in enumerate(gpus):
        up = up_links(gpu)
        if up is None or gpu.mig_enabled:
            continue
        expected, origin = by_inventory, "expected"
        if by_inventory is None and vote is not None:
            expected = vote.value[position] if position < len(vote.value) else None
            origin = f"up {on_most(vote, group)}"
        elif by_inventory is None:
            expected, origin = common, "up on its peers"
        if expected is not None and up < expected:
            only_peers_decide = by_inventory is None and vote is None
            without_bridge = up == 0 and not has_switch(gpus) and links_may_be_off(gpu)
            by_design = only_peers_decide and without_bridge
            sentence = f"{_label(gpu)}: {up} NVLinks up, {expected} {origin}{_down_links(gpu)}"
            advice = "set nvlinks_per_gpu in the inventory" if by_design else RESEAT
            yield Deviation(sentence, advice, grave=not by_design)
        elif by_inventory is None and by_board[position]:
            # If all GPUs lack links, peers do not show it.
            sentence = f"{_label(gpu)}: {up} NVLinks up, {by_board[position]}{_down_links(gpu)}"
            must_have_all = (up == 0 and links_must_be_up(gpu, gpus)) or _peer_has_all(gpu, gpus)
            yield Deviation(sentence, RESEAT, grave=vote is None and must_have_all)


def usual_links(gpus: Sequence[Gpu]) -> int | None:
    """The live NVLinks of most GPUs, or of those that have all of theirs; None if few report."""
    if any(gpu.refused("links", "mig_enabled") for gpu in gpus):
        return None
    return _most([up_links(gpu) for gpu in gpus]) or _full_link_count(gpus)


def asymmetric_links(gpus: Sequence[Gpu]) -> Iterator[Deviation]:
    """Pairs whose NVLinks do not look the same from both ends."""
    with_links = [gpu for gpu in gpus if gpu.links is not None and gpu.bus_id]
    if {link.remote_kind for gpu in with_links for link in gpu.links or ()} <= {"switch"}:
        return  # through switches all look the same from both ends
    ends = link_ends(gpus)
    for a, b in combinations(sorted(with_links, key=lambda gpu: gpu.index), 2):
        forward, back = ends[a.index].links_to(ends[b.index]), ends[b.index].links_to(ends[a.index])
        if forward != back:
            sentence = f"GPU{a.index} has {forward} live NVLinks to GPU{b.index}, {back} back"
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
    pair_codes = {(a, b): code for a, b, code in codes or reported_codes(facts)}
    if not pair_codes:  # how they are joined is not known: each is every other's peer
        pair_codes = {(pair.a, pair.b): "unknown way" for pair in facts.gpu_pairs or ()}
        answers = {pair.p2p_read for pair in facts.gpu_pairs or ()}
        if answers and not answers & {"ok", "unknown"}:
            why = ", ".join(sorted(answers))
            sentence = f"no GPU may reach another's memory: {why}; ok is expected for a job"
            yield Deviation(sentence, COMPARE_BUILD, grave=False)
    for code in sorted(set(pair_codes.values())):
        pairs = [pair for pair in facts.gpu_pairs or () if pair_codes.get((pair.a, pair.b)) == code]
        reads = [pair.p2p_read for pair in pairs]
        # Of pairs that NVLinks join, one with access shows it; by PCIe some may lack it by design.
        access_expected = _most(reads) == "ok" or (code.startswith("NV") and "ok" in reads)
        if isolated := _without_peers(pairs):
            sentence = f"GPU{isolated[0]} ({code}): no peer access to any other GPU, {isolated[1]}"
            yield Deviation(f"{sentence}; its peers have it", COMPARE_BUILD, grave=access_expected)
        elif access_expected:
            for pair in pairs:
                if pair.p2p_read not in ("ok", "unknown"):
                    sentence = f"GPU{pair.a}-GPU{pair.b} ({code}): no peer access, {pair.p2p_read}"
                    yield Deviation(f"{sentence}; its peers have it", COMPARE_BUILD)


def _without_peers(pairs: Sequence[GpuPair]) -> tuple[int, str] | None:
    """The one GPU that reaches none of several others, which reach each other, and why."""
    pairs_without = [pair for pair in pairs if pair.p2p_read not in ("ok", "unknown")]
    with_access = {gpu for pair in pairs if pair.p2p_read == "ok" for gpu in (pair.a, pair.b)}
    # Of a single pair either GPU may be the lone one. It forms a pair with each GPU that is able.
    if len(pairs_without) <= 1 or len(pairs_without) != len(with_access):
        return None
    isolated = set.intersection(*({pair.a, pair.b} for pair in pairs_without)) - with_access
    return (min(isolated), pairs_without[0].p2p_read) if isolated else None


def unusual_codes(facts: Facts, group: Group) -> Iterator[Deviation]:
    """Pairs that are joined differently on most nodes of the group."""
    vote, codes = _vote(gpu_codes, facts, group), gpu_codes(facts)
    if vote is None or codes is None or codes == vote.value:
        return
    usual = {(a, b): code for a, b, code in vote.value}
    voters = on_most(vote, group)
    if len(codes) != len(vote.value):
        number, usual_number = (max(b for _, b, _ in pairs) + 1 for pairs in (codes, vote.value))
        sentence = f"{number} GPUs here, {usual_number} {voters}"
        yield Deviation(sentence, "look for Xid 79; power-cycle, recheck")
        return
    for a, b, code in codes:
        if usual.get((a, b), code) != code:
            advice = RESEAT if usual[a, b].startswith("NV") else COMPARE_BUILD
            sentence = f"GPU{a}-GPU{b} is joined by {code} here, by {usual[a, b]} {voters}"
            yield Deviation(sentence, advice)


def far_rails(facts: Facts, group: Group) -> Iterator[Deviation]:
    """GPUs whose nearest NIC is farther than the group's, or than every other GPU's here."""
    distances = nic_distances(facts)
    if distances is None:
        return
    vote = _vote(nic_distances, facts, group)
    usual, origin = _all_but_one(distances), "for every other GPU here"
    if vote is not None:
        # With another number of GPUs, no rail has a counterpart in the group: none deviates.
        usual = vote.value if len(vote.value) == len(distances) else distances
        origin = on_most(vote, group)
    for gpu, distance, usual_distance in zip(facts.gpus or (), distances, usual, strict=True):
        if DISTANCES.index(distance) > DISTANCES.index(usual_distance):
            names = ", ".join(nearest_nics(gpu, facts.nics or ()))
            nearest = f"rail {gpu.index}: the NIC nearest to GPU{gpu.index} ({names})"
            sentence = f"{nearest} is at {distance}, at {usual_distance} {origin}"
            yield Deviation(sentence, COMPARE_BUILD)


def unusual_numa(facts: Facts, group: Group) -> Iterator[Deviation]:
    """GPUs that are at another NUMA node than on most nodes of the group."""
    vote, numas = _vote(numa_nodes, facts, group), numa_nodes(facts)
    if vote is None or numas is None or len(numas) != len(vote.value):
        return
    for gpu, numa, usual_numa in zip(facts.gpus or (), numas, vote.value, strict=True):
        if numa is not None and numa != usual_numa:
            voters = on_most(vote, group)
            sentence = f"GPU{gpu.index} is at NUMA node {numa} here, at {usual_numa} {voters}"
            yield Deviation(sentence, COMPARE_BUILD, grave=False)


def _most(values: Iterable[T | None]) -> T | None:
    """The value that more than half of the known ones, and at least three, share."""
    return most((value for value in values if value is not None), _MIN_PEERS)


def _full_link_count(gpus: Sequence[Gpu]) -> int | None:
    """The link count of at least three GPUs without a dead link, where there is no majority."""
    counts = [len(gpu.links) for gpu in gpus if gpu.links and all(link.up for link in gpu.links)]
    return counts[0] if len(counts) >= _MIN_PEERS and len(set(counts)) == 1 else None


def _all_but_one(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values with a single odd one replaced by that of the others."""
    usual = _most(values)
    if usual is None or values.count(usual) != len(values) - 1:
        return values
    return (usual,) * len(values)


def _peer_has_all(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Whether another GPU behind the same switches has every link of their board."""
    spec = board(gpu.name)
    if spec is None or not has_switch([gpu]):
        return False
    peers = [peer for peer in gpus if peer.name == gpu.name and not peer.mig_enabled]
    return any((up_links(peer) or 0) >= spec.links and has_switch([peer]) for peer in peers)


def _label(gpu: Gpu) -> str:
    name = f"GPU{gpu.index}"
    return name if gpu.bus_id in ("", name) else f"{name} ({gpu.bus_id})"


def _dead_links(gpu: Gpu) -> list[str]:
    return [str(link.link) for link in gpu.links or () if not link.up]


def _down_links(gpu: Gpu) -> str:
    dead = _dead_links(gpu)
    return f" (down: link {', '.join(dead)})" if dead and up_links(gpu) else ""


_MIN_SHARE: Final = 0.75
"""With a smaller share alike, the machine is built unevenly, such as a mesh of eight."""


def odd_cells(printed: Topology) -> Iterator[tuple[str, str, str, str]]:
    """Pairs of a machine whose other pairs are nearly all joined by the same number of NVLinks.

    (a, b, code, sentence), as in "GPU0-GPU1 is joined by NV17, 27 of 28 pairs by NV18".
    """
    codes = {(a, b): printed.link(a, b) for a, b in combinations(printed.gpus, 2)}
    usual, number = next(iter(Counter(codes.values()).most_common(1)), ("", 0))
    if not usual.startswith("NV") or number < _MIN_SHARE * len(codes):
        return
    for (a, b), code in codes.items():
        if code != usual:
            most = f"{number} of {len(codes)} pairs by {usual}"
            yield a, b, code, f"{a}-{b} is joined by {code}, {most}"
