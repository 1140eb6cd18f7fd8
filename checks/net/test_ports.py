"""Whose fault it is that a node cannot reach the master port, without which no job begins.

That port proves the least of all: a firewall between the master and one other node looks there as
if the other were cut off from everybody. So the data ports, tried at the same time, are asked too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.port_blame import (
    OPEN_PORTS,
    SEVERAL,
    Fault,
    between,
    by_peer,
    evidence,
    in_words,
    shut_off,
)
from preflight.facts.wiring import natural
from preflight.facts.words import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.node import Net
    from preflight.facts.ports import Attempt

    Failed = Mapping[str, Sequence[Attempt]]
    """Node name → its attempts at the master port that failed."""


def master_fault(name: str, net: Net) -> Fault | None:
    """Why this node cannot reach the master port, or, on the master, why others cannot."""
    tried = evidence(net, net.others_to_master)
    failed = {source: [one] for source, one in tried if one.result != "ok"}
    if not failed:
        return None
    every = [one for attempts in failed.values() for one in attempts]
    strangers = any(one.result == "wrong_answer" for one in every)
    most = len(failed) >= SEVERAL and 2 * len(failed) > len(tried)
    if strangers or most:
        who = f"{len(failed)} of {count(len(tried), 'other node')}"
        sentence = f"{who} cannot reach {net.master}:{every[0].port} ({in_words(every)})"
        return Fault(net.master, sentence, OPEN_PORTS)
    if len(tried) == 1:
        return between(next(iter(failed)), net.master, every[0].port, in_words(every))
    others = f"{len(tried) - len(failed)} of {len(tried)} other nodes can"
    if name != net.master and name not in failed:
        return None
    mine = failed if name == net.master else {name: failed[name]}
    return _path(name, net, mine, others) or _its_own(name, net, mine, others)


def _its_own(name: str, net: Net, mine: Failed, others: str) -> Fault | None:
    """The node is at fault, not the master, which has nothing to answer for."""
    if name == net.master:
        return None
    how = in_words(mine[name])
    sentence = f"cannot reach {net.master}:{mine[name][0].port} ({how}); {others}"
    return Fault(name, sentence, f"on {name}: {OPEN_PORTS}")


def _path(name: str, net: Net, mine: Failed, others: str) -> Fault | None:
    """Only the path to the master is cut: both its ends say so, in the same words."""
    out = _data_out_of(mine, net)
    source = next((each for each in mine if _cut_from_master_only(each, net, out[each])), None)
    if source is None:
        return None
    if shut := shut_off(name, net):
        return shut
    port, how = mine[source][0].port, in_words(mine[source])
    first, second = sorted((source, net.master), key=natural)
    return Fault(
        f"pair {first}-{second}",
        f"{source} cannot reach the master port {net.master}:{port} ({how}), so a job with both "
        f"would hang at its rendezvous; {others}, and {source} reaches other nodes",
        f"open the firewall between {first} and {second} for port {port} and all other TCP ports: "
        "look on both at nftables, security groups",
    )


def _data_out_of(sources: Failed, net: Net) -> dict[str, list[tuple[str, Attempt]]]:
    """What each of these nodes tried at the others' data ports: (target, attempt).

    The fleet is gone through for the master only, which asks once; a node knows its own.
    """
    found: dict[str, list[tuple[str, Attempt]]] = {source: [] for source in sources}
    if not net.is_master and net.own is not None:
        (name,) = sources
        own = evidence(net, ((name, one) for one in net.own.attempts))
        return {name: [(one.target, one) for _, one in own if one.kind == "data"]}
    for target, tried in net.others_to.items():
        for source, one in evidence(net, (each for each in tried if each[0] in sources)):
            if one.kind == "data":
                found[source].append((target, one))
    return found


def _cut_from_master_only(source: str, net: Net, out: Sequence[tuple[str, Attempt]]) -> bool:
    """Whether this node reaches most others that it tried and only the master is out of its reach.

    Who reaches the master's data ports, and not the master port, is itself in the way; and so is
    who lets nobody in.
    """
    peers = by_peer(out)
    if peers.pop(net.master, None) == []:
        return False
    reached = sum(not failed for failed in peers.values())
    tried = (each for each in net.others_to.get(source, ()) if each[1].kind == "data")
    into = by_peer(evidence(net, tried))
    into.pop(net.master, None)
    return 2 * reached > len(peers) and not (into and all(into.values()))
