"""Firmware, GIDs and switches of the RDMA fabric."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations, on_most
from preflight.checks.net.selected import hca_of, nccl_ports
from preflight.checks.rdma.ports import Port, chip, firmwares, most_common
from preflight.core.statistics import grouped
from preflight.core.text import count, first_finding, whole
from preflight.facts import Facts, Group, Node
from preflight.facts.model import Nic
from preflight.facts.node import decided
from preflight.facts.node_network import Gid, Switch, SwitchPart
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("ib.firmware", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("ib.gid", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("ib.switch", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def judge_firmware(facts: Facts, group: Group) -> Verdict:
    """Compare each device's firmware with the group's, or else with its own peers'."""
    if not facts.nics:
        return not_run("no RDMA devices here")
    if verdict := conclude_deviations(_unusual_firmwares(facts.nics, group)):
        return verdict
    if unreported := [nic.name for nic in facts.nics if not nic.firmware]:
        sentence = f"{', '.join(unreported)} did not report its firmware"
        return unknown(sentence, advice="look at fw_ver in /sys/class/infiniband")
    kinds = sorted({nic.firmware for nic in facts.nics})
    return ok(f"{len(facts.nics)} RDMA devices on {', '.join(kinds)}", firmwares=kinds)


def _unusual_firmwares(nics: Sequence[Nic], group: Group) -> Iterator[Deviation]:
    by_group = decided(group.majority(firmwares))
    by_chip = grouped((chip(nic), nic.firmware) for nic in nics)
    for nic in nics:
        if by_group is None:
            expected, origin = most_common(filter(None, by_chip[chip(nic)])), "on its peers"
        else:
            # Nodes may have several versions for one chip: each of these is right.
            versions = [firmware for kind, firmware in by_group.value if kind == chip(nic)]
            expected = None if nic.firmware in versions else next(iter(versions), None)
            origin = on_most(by_group, group)
        if nic.firmware and expected is not None and nic.firmware != expected:
            sentence = f"{nic.name} has firmware {nic.firmware}, {expected} {origin}"
            advice = "update it to the others' firmware (mlxfwmanager, flint), then reboot"
            yield Deviation(sentence, advice, grave=False)


def test_ib_firmware(node: Node, conclude: Conclude) -> None:
    """RDMA devices of one kind run one firmware."""
    conclude(judge_firmware(node.facts, node.group))


_NCCL_ERROR: Final = 'NCCL ends with "ibv_modify_qp failed: Invalid argument"'
REPORTED_GIDS: Final = 32
"""A node reports the first entries of a GID table, at most so many (payload/probe/rdma.py)."""

_MAPPED_IPV4: Final = "0000:0000:0000:0000:0000:ffff:"
"""Begins a GID that is an IPv4 address of its interface."""


def wrong_gids(ports: Sequence[Port], index: int | None) -> Iterator[Deviation]:
    """RoCE ports without a usable entry at the index, or at any if NCCL chooses (None)."""
    for port in ports:
        gids = port.port.gids
        if gids is None:
            continue
        has = ", ".join(f"{gid.index} ({_kind(gid)})" for gid in gids) or "none"
        if index is None:
            routable = [gid for gid in gids if is_v2(gid) and not gid.gid.startswith("fe80")]
            if not routable and any(gid.kind for gid in gids):
                device = port.port.netdev or "its interface"
                advice = f"give {device} an address (ip address add), and RoCE v2 (cma_roce_mode)"
                sentence = f"{port.name} has no RoCE v2 GID beyond its own link; it has {has}"
                yield Deviation(sentence, advice, grave=False)
            continue
        ipv4 = [gid.index for gid in gids if is_v2(gid) and gid.gid.startswith(_MAPPED_IPV4)]
        index_advice = f"unset it (NCCL 2.21 and newer chooses), or set {ipv4[0]}" if ipv4 else ""
        entry = next((gid for gid in gids if gid.index == index), None)
        origin = "which NCCL_IB_GID_INDEX asks for"
        if entry is None:
            sentence = f"{port.name} has no GID {index}, {origin}: {_NCCL_ERROR}; it has {has}"
            yield Deviation(sentence, index_advice or "give its interface an address")
        elif entry.kind and not is_v2(entry):
            sentence = f"GID {index} of {port.name}, {origin}, is RoCE v1: no router passes it on"
            advice = index_advice or "enable RoCE v2 (cma_roce_mode)"
            yield Deviation(f"{sentence}; it has {has}", advice, grave=False)


def without_gid(port: Port, index: int) -> bool:
    """Whether a port surely has no GID at that index; only `REPORTED_GIDS` entries are reported."""
    gids = port.port.gids
    return gids is not None and index < REPORTED_GIDS and index not in [gid.index for gid in gids]


def is_v2(gid: Gid) -> bool:
    """Whether it is a RoCE v2 GID, which uses UDP."""
    return "v2" in gid.kind.lower()


def _kind(gid: Gid) -> str:
    local = ", link-local" if gid.gid.startswith("fe80") else ""
    return f"{gid.kind.replace('IB/', '')}{local}"


def judge_gid(facts: Facts, environ: Mapping[str, str] | None) -> Verdict:
    """Look up the job's NCCL_IB_GID_INDEX in the table of each RoCE port it selects."""
    ports = [p for p in nccl_ports(facts, hca_of(environ)) if p.active and p.layer == "ethernet"]
    if not ports:
        return not_run("no active RoCE port here that the job selects")
    text = (environ or {}).get("NCCL_IB_GID_INDEX", "").strip()
    index = whole(text)
    if verdict := conclude_deviations(wrong_gids(ports, index)):
        return verdict
    if unreported := [port.name for port in ports if port.port.gids is None]:
        sentence = f"the GID table of {', '.join(unreported)} could not be read"
        return unknown(sentence, advice="look at gids in /sys/class/infiniband/*/ports")
    choice = "a RoCE v2 GID to choose" if index is None else f"GID {index} of RoCE v2"
    tables = {p.name: [f"{g.index} {g.kind} {g.gid}" for g in p.port.gids or ()] for p in ports}
    return ok(f"{count(len(ports), 'RoCE port')} with {choice}", gids=tables)


def test_ib_gid(node: Node, conclude: Conclude) -> None:
    """On RoCE, the GID that NCCL will use exists and can leave its own link."""
    conclude(judge_gid(node.facts, node.environ))


_FAULT = re.compile(r"err|fail|fault|bad|crit|alarm|not ok|nok\b|dead|stop", re.IGNORECASE)
_ABSENT = re.compile(r"absent|not[ _]?(?:present|installed)|missing|removed|off\b", re.IGNORECASE)
ADVICE = "look at the switch itself: replace the fan or supply, free its air, plug its power in"


def judge_switch(switches: tuple[Switch, ...] | None) -> Verdict:
    """A stopped fan and a supply without power are faults; a missing one is a warning."""
    if switches is None:
        return not_run("no node reports its switches; `preflight read` judges a switch's ibswinfo")
    parts = [(switch, part) for switch in switches for part in switch.parts]
    faulty = [_part_words(*row) for row in parts if _FAULT.search(row[1].status) or row[1].rpm == 0]
    absent = [_part_words(*row) for row in parts if _ABSENT.search(row[1].status)]
    if faulty or absent:
        fail_or_warn = fail if faulty else warn
        return fail_or_warn(first_finding(faulty + absent), advice=ADVICE, findings=faulty + absent)
    not_ok = [_part_words(*row) for row in parts if row[1].rpm is None and row[1].status != "OK"]
    if not_ok or not parts:
        summary = not_ok[0] if not_ok else "no fan and no power supply is reported"
        return unknown(summary, advice="read the switch again")
    fans = sum(part.rpm is not None for _, part in parts)
    psus = [(switch, part) for switch, part in parts if part.name.upper().startswith("PSU")]
    units = {(switch.name, part.name.split()[0]) for switch, part in psus}
    supplies = count(len(units), "power supply", "power supplies")
    names = ", ".join(switch.name for switch in switches)
    return ok(f"{names}: {count(fans, 'fan')} turning, {supplies} OK")


def _part_words(switch: Switch, part: SwitchPart) -> str:
    state = "stands still (0 rpm)" if part.rpm == 0 else f"says {part.status or 'nothing'}"
    return f"{switch.name}: {part.name} {state}, OK is expected"


def test_ib_switch(node: Node, conclude: Conclude) -> None:
    """Every reported switch has its fans and power supplies."""
    conclude(judge_switch(node.facts.switches))
