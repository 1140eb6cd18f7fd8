"""How a GPU reaches the others: its PCIe link, its NVLinks, the NVSwitch fabric, the topology.

Counters run since the driver was loaded, at most since boot. A captured text shows neither time,
so a total in it is healthy only if it would be healthy within the shortest time that is judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations, on_most
from preflight.checks.gpu.connections import (
    RESEAT,
    asymmetric_links,
    far_rails,
    missing_links,
    odd_cells,
    peers_without_access,
    refusals,
    unusual_codes,
    unusual_numa,
)
from preflight.checks.gpu.readings import (
    NVML,
    Expectation,
    Question,
    Trouble,
    best_on_a_board,
    expected_of_kind,
    gpu_label,
    healths,
    is_model,
    judge_gpus,
    reader,
    uptime_s,
)
from preflight.core.statistics import grouped
from preflight.core.text import count, first_finding
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Group, Node
from preflight.facts.boards import Codes, among, board, gpu_codes, gpu_models, up_links
from preflight.facts.gpu import GpuHealth, LinkErrors
from preflight.facts.model import Gpu, read_once
from preflight.facts.node import decided, most
from preflight.facts.topo_matrix import Topology, TopologyError, parse_topo
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Outcome, Verdict, not_run, ok, unknown

_COUNTED: Final = (*NVML, "gpu.count")
CHECKS = (
    Check("gpu.pcie", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.nvlink", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.fabric", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
    Check("gpu.topology", stage="facts", tier="prolog", requires=_COUNTED, drains=True),
)


_SATURATED: Final = frozenset({2**16 - 1, 2**32 - 1})
"""Where counters of 16 and 32 bits stop counting."""


def excess_errors(link: LinkErrors, uptime: float, limit: Thresholds) -> str:
    """What a link counted beyond the limit since the driver was loaded; "" if nothing."""
    if not (link.recoveries or link.replays or link.crc):
        return ""
    if link.recoveries:
        return f"retrained {link.recoveries} times since its driver was loaded, 0 expected"
    hours = max(1.0, uptime / 3600)
    for number, words, name in _error_counts(link):
        most = limit(name)
        if uptime and number / hours > most:
            return f"{number} {words}, {number / hours:.0f} an hour; at most {most:.0f} is usual"
        if number in _SATURATED:
            return f"{number} {words}, which is all that its counter can hold; 0 expected"
    return ""


def totals_without_start(facts: Facts, limit: Thresholds) -> tuple[str, ...]:
    """Totals that may be too high, but have no start time."""
    if uptime_s(facts):
        return ()
    return tuple(
        f"{gpu_label(gpu)} NVLink {link.link}: {number} {words}"
        for gpu, link in _reported_links(facts)
        for number, words, name in _error_counts(link)
        if number > limit(name)
    )


def _error_counts(link: LinkErrors) -> Iterator[tuple[int, str, str]]:
    """(number, words, name of its limit) of each kind of error that the link counted."""
    if link.replays:
        yield link.replays, "replays", "nvlink_replays_per_hour"
    if link.crc:
        yield link.crc, "packets with a wrong checksum", "nvlink_crc_per_hour"


_RESEAT_GPU: Final = "drain; reseat the GPU or its riser, compare BIOS settings with a healthy node"
_NVLINK: Final = "look for Xid 74 in dmesg; drain, reset the GPU, reseat it if it stays"
_RESTART_MANAGER: Final = "restart nvidia-fabricmanager (its version must be the driver's), recheck"
_RACK_MANAGER: Final = (
    "look at the rack's NVLink manager (NMX-C on its switch trays) and at nvidia-imex; recheck"
)
_MINUTE_S: Final = 60.0


def pcie_troubles(
    expected: Expected, facts: Facts, group: Group, limit: Thresholds
) -> Iterator[Trouble]:
    """Lost lanes, a slow generation while at work, and transfers that had to be repeated."""
    best = best_on_a_board(facts)
    widths = expected_of_kind("pcie_width", facts, group, best, expected.pcie_lanes)
    speeds = expected_of_kind("pcie_gen_max", facts, group, best, expected.pcie_generation)
    usual = decided(group.majority(among(_all_widths, gpu_models(facts))))
    as_built = usual is not None and usual.value == _all_widths(facts)
    source = widths.by if widths is not None else ""
    by_inventory = source == "expectation"
    generations = grouped((gpu.name, health.pcie_gen_max or 0) for gpu, health in healths(facts))
    for gpu, health in healths(facts):
        width, most, spec = health.pcie_width, health.pcie_width_max, board(gpu.name)
        on_baseboard = spec is not None and spec.fabric and spec.pcie_gen
        if widths is not None and width is not None and width < widths.value:
            sentence = f"PCIe x{width}, x{widths.value} {widths.origin}"
            # The slot of a card may be wired so; here only other cards are in wider slots.
            narrow_slot = width == most and widths.by == "siblings" and spec is None
            if not (as_built and width == most):
                yield Trouble(gpu, sentence, _RESEAT_GPU, grave=not narrow_slot)
        elif not by_inventory and width and most and width < most and (spec or source != "group"):
            # A card's slot may be wired so, as other nodes show; that of a baseboard is not.
            sentence = f"PCIe x{width}, x{most} is what board and slot can do"
            yield Trouble(gpu, sentence, _RESEAT_GPU, grave=False)
        elif not by_inventory and width and width < _FULL_WIDTH and on_baseboard:
            sentence = f"PCIe x{width}, x{_FULL_WIDTH} on its board"
            yield Trouble(gpu, sentence, _RESEAT_GPU, grave=False)
        yield from _generation_troubles(gpu, health, speeds, max(generations[gpu.name]))
        yield from _replays(gpu, health, uptime_s(facts), limit)


def _all_widths(facts: Facts) -> tuple[int | None, ...] | None:
    """The lanes of each GPU: most nodes of a group may have one slot that is narrower."""
    return tuple(health.pcie_width for _, health in healths(facts)) or None


_SERVERS_GEN: Final = 3
"""The lowest PCIe generation of slots for GPUs in servers since 2012."""


def _generation_troubles(
    gpu: Gpu, health: GpuHealth, usual: Expectation[Any] | None, fastest: int
) -> Iterator[Trouble]:
    """`fastest`: the highest generation that any GPU of its name here can run."""
    generation, best, spec = health.pcie_gen, health.pcie_gen_max, board(gpu.name)
    least = (spec.pcie_gen if spec is not None else None) or _SERVERS_GEN
    # A machine for cards may have two kinds of slots, but none of so old a kind beside this one.
    witness = fastest >= least
    by_inventory = usual is not None and usual.by == "expectation"
    if usual is not None and best is not None and best < usual.value:
        sentence = f"PCIe generation {best} at most, {usual.value} {usual.origin}"
        yield Trouble(gpu, sentence, _RESEAT_GPU)
    elif best is not None and best < least and not by_inventory and (witness or spec is not None):
        origin = "on its board" if spec is not None else "in any server and on another GPU here"
        sentence = f"PCIe generation {best} at most, {least} or more {origin}"
        by_group = usual is not None and usual.by == "group"
        yield Trouble(gpu, sentence, _RESEAT_GPU, grave=witness and not by_group)
    elif generation is not None and best is not None and generation < best and at_work(health):
        sentence = f"PCIe generation {generation} while at work, {best} is what it can do"
        yield Trouble(gpu, sentence, _RESEAT_GPU)


def at_work(health: GpuHealth) -> bool:
    """Whether it is surely not idle: an idle GPU drops its PCIe generation to save power."""
    reasons = health.clock_reasons
    fast = health.performance_state in ("P0", "P1", "P2")
    return fast and bool(health.utilization_pct) and reasons is not None and "idle" not in reasons


def _replays(gpu: Gpu, health: GpuHealth, uptime: float, limit: Thresholds) -> Iterator[Trouble]:
    replays, most = health.pcie_replays or 0, limit("pcie_replays_per_minute")
    per_minute = replays / max(1.0, uptime / _MINUTE_S)
    if uptime and per_minute > most:
        rate = f"{replays} PCIe replays since boot, {per_minute:.0f} a minute"
        sentence = f"{rate}; at most {most:.0f} a minute is usual"
        yield Trouble(gpu, sentence, _RESEAT_GPU, grave=False)


_FULL_SPEED: Final = 0.9
"""Drivers round: they report an H100's link of 25 GB/s as 26.562."""


def nvlink_troubles(
    model: str | None, facts: Facts, group: Group, limit: Thresholds
) -> Iterator[Trouble]:
    """NVLinks that run slower than the others, retrain, or resend broken packets."""
    usual = decided(group.majority(among(link_speed, gpu_models(facts))))
    speed, origin = link_speed(facts), "on the other links of this node"
    if usual is not None:
        speed, origin = usual.value, on_most(usual, group)
    speeds = grouped((gpu.name, link.mbps or 0) for gpu, link in _reported_links(facts))
    for gpu, link in _reported_links(facts):
        spec, gbs, part = board(gpu.name), (link.mbps or 0) / 1000, f" NVLink {link.link}:"
        board_gbs = spec.link_gbs if spec is not None else 0.0
        if speed and link.mbps is not None and link.mbps < speed:
            sentence = f"{gbs:.3g} GB/s, {speed / 1000:.3g} GB/s {origin}"
            yield Trouble(gpu, sentence, _NVLINK, part=part)
        elif link.mbps is not None and gbs < _FULL_SPEED * board_gbs:
            sentence = f"{gbs:.3g} GB/s, {board_gbs:g} GB/s on its board"
            # The number is the inventory's if it names the model, not the table's alone.
            by_peer = usual is None and max(speeds[gpu.name]) / 1000 >= _FULL_SPEED * board_gbs
            grave = by_peer or is_model(gpu.name, model)
            yield Trouble(gpu, sentence, _NVLINK, grave=grave, part=part)
        if link.failed_recoveries:
            sentence = f"could not recover {link.failed_recoveries} times, 0 expected"
            yield Trouble(gpu, sentence, _NVLINK, part=part)
        elif excess := excess_errors(link, uptime_s(facts), limit):
            yield Trouble(gpu, excess, _NVLINK, grave=False, part=part)


def _reported_links(facts: Facts) -> list[tuple[Gpu, LinkErrors]]:
    return [(gpu, link) for gpu, health in healths(facts) for link in health.link_errors or ()]


@read_once
def link_speed(facts: Facts) -> int | None:
    """The speed that most live NVLinks of a node run at, Mb/s as NVML counts."""
    if any(gpu.refused("link_errors") for gpu in facts.gpus or ()):
        return None
    return most(link.mbps for _, link in _reported_links(facts) if link.mbps)


def fabric_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """GPUs that have not joined the NVSwitch fabric, or another part of it than all others.

    CUDA will not start on the first (error 802), and reaches the others by no NVLink. Nodes of one
    group may be in several racks, so that only one that is alone is odd.
    """
    domains = Counter(health.fabric_domain for _, health in healths(facts) if health.fabric_domain)
    common, number = next(iter(domains.most_common(1)), ("", 0))
    origin = f"on {number} of {domains.total()} GPUs of this node"
    vote = decided(group.majority(reader("fabric_domain")))
    if vote is not None and vote.votes == vote.of - 1:
        common, origin = vote.value, on_most(vote, group)
    for gpu, health in healths(facts):
        state, status = health.fabric_state, health.fabric_status
        manager = _RACK_MANAGER if re.search(r"\bGB\d00\b", gpu.name) else _RESTART_MANAGER
        if state is None:
            continue
        if state != "completed":
            sentence = f"its registration with the NVSwitch fabric is {state}"
            yield Trouble(gpu, f"{sentence}, completed expected", manager)
        elif status not in (None, "Success"):
            sentence = f"it joined the NVSwitch fabric with {status}, not Success"
            yield Trouble(gpu, sentence, manager)
        elif health.fabric_domain not in (None, common):
            sentence = f"NVLink clique {health.fabric_domain}, {common} {origin}"
            yield Trouble(gpu, sentence, manager, grave=False)
        elif health.fabric_trouble:
            troubles = ", ".join(health.fabric_trouble)
            advice = "look at the fabric manager's log and the NVSwitches; drain if it stays"
            yield Trouble(gpu, f"the NVSwitch fabric reports: {troubles}", advice)


_FULL_WIDTH: Final = 16


_WIDTH: Final = Question(
    "PCIe link width",
    ("pcie_width",),
    also=(
        *("pcie_width_max", "pcie_gen", "pcie_gen_max", "pcie_replays", "name"),
        *("clock_reasons", "performance_state", "utilization_pct"),
    ),
)
_COUNTERS: Final = Question("NVLink counters", ("link_errors",))
_FABRIC: Final = Question(
    "state of the NVSwitch fabric", ("fabric_state",), also=("fabric_domain", "name")
)


def judge_pcie(node: Node) -> Verdict:
    """Report lost lanes, a low generation where the GPU is not idle, and replays."""
    facts, group = node.facts, node.group
    fine = f"PCIe {_widths(facts)}, as expected"
    verdict = judge_gpus(node, _WIDTH, pcie_troubles(node.expected, facts, group, node.limit), fine)
    if verdict.outcome is Outcome.OK and not _width_is_known(node.expected, facts, group):
        return not_run(f"PCIe {_widths(facts)}: how many lanes board and slot have is not reported")
    return verdict


def _widths(facts: Facts) -> str:
    links = {health.pcie_width for _, health in healths(facts) if health.pcie_width}
    return " and ".join(f"x{width}" for width in sorted(links, reverse=True))


def _width_is_known(expected: Expected, facts: Facts, group: Group) -> bool:
    """Whether the expected width of every GPU is known, from itself or its peers."""
    if expected_of_kind("pcie_width", facts, group, expectation=expected.pcie_lanes) is not None:
        return True
    widths = [(health.pcie_width, health.pcie_width_max) for _, health in healths(facts)]
    return all(most or width == _FULL_WIDTH for width, most in widths if width)


def test_gpu_pcie(node: Node, conclude: Conclude) -> None:
    """Every GPU has all its PCIe lanes, at full speed while at work, without replays."""
    conclude(judge_pcie(node))


def judge_nvlink(node: Node) -> Verdict:
    """Report slow links, links that retrain, and links that resend too often."""
    facts, limit, model = node.facts, node.limit, node.expected.gpu_model
    fine = "every NVLink that is up runs at full speed, without recoveries"
    verdict = judge_gpus(node, _COUNTERS, nvlink_troubles(model, facts, node.group, limit), fine)
    if verdict.outcome is not Outcome.OK:
        return verdict
    if totals := totals_without_start(facts, limit):
        return unknown(
            f"{first_finding(totals)}: a total without a start time",
            advice="take a second reading after a known time, or check the live node",
            totals=list(totals),
        )
    if not _reported_links(facts) and not any(
        link.up for gpu in facts.gpus or () for link in gpu.links or ()
    ):
        return not_run("no NVLink is up: gpu.topology checks whether one should be")
    return verdict


def test_gpu_nvlink(node: Node, conclude: Conclude) -> None:
    """NVLinks that are up run at full speed and without errors; links down are gpu.topology's."""
    conclude(judge_nvlink(node))


def test_gpu_fabric(node: Node, conclude: Conclude) -> None:
    """Every GPU has joined the NVSwitch fabric: without it CUDA does not start (error 802)."""
    fine = "every GPU has joined the NVSwitch fabric"
    conclude(judge_gpus(node, _FABRIC, fabric_troubles(node.facts, node.group), fine))


_SAME_VERSION = (
    "check that nvidia-smi and the driver library have one version (nvidia-smi --version)"
)


def read_matrix(facts: Facts) -> tuple[Topology | None, str]:
    """nvidia-smi's matrix, or why there is none to compare with."""
    if facts.topo_text is None:
        return None, "no nvidia-smi here"
    try:
        return parse_topo(facts.topo_text), ""
    except TopologyError as error:
        return None, f"nvidia-smi's matrix is not readable: {error}"


def disagreements(facts: Facts, printed: Topology, codes: Codes | None) -> Iterator[Deviation]:
    """Pairs of GPUs that nvidia-smi and NVML, or the matrix's two halves, join differently."""
    for a, b, forward, back in printed.one_sided:
        sentence = f"nvidia-smi joins {a} to {b} by {forward}, but {b} to {a} by {back}"
        yield Deviation(sentence, "reload the driver or reboot, then recheck")
    if codes is None:
        for a, b, code, sentence in odd_cells(printed):
            if printed.link(b, a) == code:
                yield Deviation(sentence, RESEAT)
        return
    if len(printed.gpus) != len(facts.gpus or ()):
        sentence = f"nvidia-smi prints {len(printed.gpus)} GPUs, NVML has {len(facts.gpus or ())}"
        yield Deviation(sentence, _SAME_VERSION, grave=False)
        return
    for index_a, index_b, code in codes:
        printed_code = printed.link(printed.gpus[index_a], printed.gpus[index_b])
        if printed_code != code:
            says = f"nvidia-smi says {printed_code}, NVML says {code}"
            yield Deviation(f"GPU{index_a}-GPU{index_b}: {says}", _SAME_VERSION, grave=False)


def judge_topology(expected: Expected, facts: Facts, group: Group) -> Verdict:
    """Compare the matrix with inventory, group and itself, the most reliable source first."""
    if not facts.gpus:
        if expected.gpus or expected.nvlinks_per_gpu:
            return unknown("no GPU matrix: NVML did not answer", advice="load the driver, recheck")
        return not_run("no GPUs here")
    printed, note = read_matrix(facts)
    codes, nvml_errors = gpu_codes(facts), refusals(facts)
    findings = deviations(expected, facts, group, codes)
    if printed is not None and not findings and not nvml_errors:
        findings = list(disagreements(facts, printed, codes))
    verdict = conclude_deviations(findings, note=note) or _topology_ok(expected, facts, note, codes)
    if verdict.makes_not_ready or not nvml_errors:
        return verdict
    others = [verdict.sentence] if findings else []
    return unknown("; besides: ".join([nvml_errors[0], *others]), advice="recheck", findings=others)


def deviations(
    expected: Expected, facts: Facts, group: Group, codes: Codes | None
) -> list[Deviation]:
    """All deviations. Missing links explain unusual codes, so codes count only without them."""
    links = [
        *missing_links(facts, expected.nvlinks_per_gpu, group),
        *asymmetric_links(facts.gpus or ()),
    ]
    pairs = [] if links else [*peers_without_access(facts, codes), *unusual_codes(facts, group)]
    return [*links, *pairs, *far_rails(facts, group), *unusual_numa(facts, group)]


def _topology_ok(expected: Expected, facts: Facts, note: str, codes: Codes | None) -> Verdict:
    gpus = facts.gpus or ()
    if expected.nvlinks_per_gpu and any(up_links(gpu) is None for gpu in gpus):
        return unknown("NVML did not report the state of the NVLinks", advice="update the driver")
    matrix = [f"GPU{a}-GPU{b} {code}" for a, b, code in codes or ()]
    kinds = sorted({line.split()[-1] for line in matrix})
    words = f" joined by {', '.join(kinds)}" if kinds else ""
    nics = "" if facts.nics is None else f", {count(len(facts.nics), 'NIC')}"
    return ok(f"{count(len(gpus), 'GPU')}{words}{nics}", matrix=matrix, note=note)


def test_gpu_topology(node: Node, conclude: Conclude) -> None:
    """GPUs, NVLinks and rails are joined as expected, and as on the other nodes of the group."""
    conclude(judge_topology(node.expected, node.facts, node.group))
