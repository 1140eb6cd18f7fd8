"""The Ethernet links of a job's sockets run at full speed, with the frames of their peers."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.ethernet_counts import undated_flaps
from preflight.facts.ethernet_links import data_over_sockets, job_links, over_rdma
from preflight.facts.ethernet_odd import odd_links, speed, unheld
from preflight.facts.network_model import Interface
from preflight.facts.oddities import conclude_oddities
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("net.ethernet", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts, environ: Mapping[str, str] | None, group: Group) -> Verdict:
    """Hold speed, duplex, MTU, a bond's links and lost frames against configuration and peers."""
    network, env = facts.network, environ or {}
    if network is None or network.interfaces is None:
        if network is None and not any(said.startswith("network") for said in facts.problems):
            return not_run("no interfaces told")
        return unknown("the interfaces could not be read", advice="look at ip link there")
    links = job_links(facts, env)
    if not links:
        return not_run("no interface here that the job's sockets could use")
    odd = conclude_oddities(
        odd_links(links, facts, group, grave=data_over_sockets(facts, env)),
    )
    if odd is not None:
        return odd
    told = tuple(one for one in links if one.name not in over_rdma(facts))
    if not told:
        return ok(f"{', '.join(one.name for one in links)}: over RDMA ports, judged as those")
    return _untold(told, facts, group) or ok(
        "; ".join(map(_words, told[:4])), links=[one.name for one in told]
    )


def _untold(links: tuple[Interface, ...], facts: Facts, group: Group) -> Verdict | None:
    mute = [one.name for one in links if one.mtu is None and one.ethernet is None]
    if mute:
        said = f"{', '.join(mute)} would not tell its link"
        return unknown(said, advice="look at mtu, speed and duplex in /sys/class/net")
    if old := [said for one in links if (said := undated_flaps(one, facts))]:
        return unknown(old[0], advice="take a second reading after a known time")
    alone = unheld(links, facts, group)
    if not alone:
        return None
    said = f"nothing says what speed {', '.join(alone)} should have"
    advice = "look at ethtool there, or take a healthy node beside it"
    return unknown(f"{said} ({'; '.join(map(_words, links[:4]))})", advice=advice)


def _words(one: Interface) -> str:
    words = [speed(one.speed_mbits) if one.speed_mbits else "speed not told"]
    if one.ethernet and one.ethernet.counters and not (one.speed_mbits or one.mtu):
        words = ["no more frames lost than usual"]
    words += [f"{one.ethernet.duplex} duplex"] if one.ethernet and one.ethernet.duplex else []
    words += [f"MTU {one.mtu}"] if one.mtu else []
    return f"{one.name}: {', '.join(words)}"


def test_net_ethernet(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.environ, node.group))
