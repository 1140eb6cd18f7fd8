"""Decides what is at fault if a connection fails: the node, its target, or the path.

A healthy node must never fail for its neighbour's firewall, so every conclusion rests on
other connections: most nodes failing at one target blames the target; one node failing where the
others succeed blames that node; two nodes alone cannot tell, and the pair is blamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from preflight.core.text import count, natural
from preflight.facts.model import Attempt
from preflight.facts.node import Net

Failed = Mapping[str, Sequence[Attempt]]
"""Node name → its attempts at the master port that failed."""

WORDS: Final[Mapping[str, str]] = {
    "refused": "refused: a firewall rejects it, or the address leads to another host",
    "timeout": "timed out: a firewall drops it, or there is no way back",
    "unreachable": "no route, or a firewall rejects it",
    "reset": "cut off by something on the way",
    "wrong_answer": "answered by something that is not this run",
}
"""The meaning of a failed connection to a listener that surely existed."""

OPEN_PORTS: Final = (
    "let the nodes reach each other on all TCP ports: look at nftables, security groups"
)
SEVERAL: Final = 2
"""Fewer failures than this are between two nodes, and may be the fault of either."""
_UNRESOLVED: Final = re.compile(r"[Nn]ame or service|name resolution|hostname|[Nn]ame does not")
"""Error texts of C libraries for a name without an address: the node's fault, not ours."""


class Fault(Struct, frozen=True):
    """A failed connection explained. `blame` is a node, "pair a-b", or "" if none is known."""

    blame: str
    sentence: str
    advice: str = OPEN_PORTS

    @property
    def cause(self) -> str:
        """The same for all nodes with the same culprit, so that they are one finding."""
        return f"ports of {self.blame}"


def evidence(net: Net, attempts: Iterable[tuple[str, Attempt]]) -> tuple[tuple[str, Attempt], ...]:
    """The attempts that show something of the path between two nodes.

    An attempt that its own node could not make shows nothing, nor does a failure at a node whose
    port stage died: its listeners died with it.
    """
    silent: dict[str, bool] = {}
    kept = []
    for source, one in attempts:
        if one.result not in ("ok", "error") and one.target not in silent:
            silent[one.target] = _gave_no_report(one.target, net)
        if one.result == "ok" or (one.result != "error" and not silent[one.target]):
            kept.append((source, one))
    return tuple(kept)


def _gave_no_report(target: str, net: Net) -> bool:
    """Whether a node that others tried made no attempt itself."""
    if not net.others_to or (net.is_master and target == net.master):
        return False
    return not any(source == target for tried in net.others_to.values() for source, _ in tried)


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
    cut = _path(name, net, failed if name == net.master else {name: failed[name]}, others)
    if cut or name == net.master:
        return cut
    how = in_words(failed[name])
    sentence = f"cannot reach {net.master}:{failed[name][0].port} ({how}); {others}"
    return Fault(name, sentence, f"on {name}: {OPEN_PORTS}")


def _path(name: str, net: Net, mine: Failed, others: str) -> Fault | None:
    """Only the path to the master is cut: both ends report it, in the same words."""
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

    Only the master looks through the whole fleet, once; a node knows its own attempts.
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

    A node that reaches the master's data ports, but not the master port, is itself at fault; so is
    a node that accepts no connection.
    """
    peers = by_peer(out)
    if peers.pop(net.master, None) == []:
        return False
    reached = sum(not failed for failed in peers.values())
    tried = (each for each in net.others_to.get(source, ()) if each[1].kind == "data")
    into = by_peer(evidence(net, tried))
    into.pop(net.master, None)
    return 2 * reached > len(peers) and not (into and all(into.values()))


def own_trouble(name: str, net: Net) -> Fault | None:
    """An attempt that this node could not make: its own limits, or a name it cannot resolve."""
    for one in net.own.attempts if net.own is not None else ():
        if one.result == "error":
            sentence = f"its own attempt at {one.target}:{one.port} failed: {one.error}"
            unresolved = _UNRESOLVED.search(one.error)
            advice = f"on {name}: make {one.target} resolvable (DNS, /etc/hosts)"
            if not unresolved:
                advice = f"on {name}: look at the limit of open files and at memory, and run again"
            return Fault(name if unresolved else "", sentence, advice)
    return None


def master_without_report(net: Net) -> str:
    """The master, if this node cannot reach it and the master's port stage died; else ""."""
    for one in net.own.attempts if net.own is not None else ():
        if one.kind == "master" and one.result not in ("ok", "error"):
            return one.target if _gave_no_report(one.target, net) else ""
    return ""


def data_fault(name: str, net: Net) -> Fault | None:
    """Why this node and its partners in the sweep cannot connect to each other's data ports."""
    into, out = _directions(name, net)
    if shut := shut_off(name, net):
        return shut
    for peer, failed in sorted(out.items(), key=lambda item: natural(item[0])):
        if failed and "ok" in _others_results(name, peer, net):
            return between(name, peer, failed[0].port, in_words(failed), "others can reach it")
        if failed and _is_its_own(peer, net, out, into):
            sentence = f"{peer} cannot be reached on random ports ({in_words(failed)})"
            return Fault(peer, sentence, f"on {peer}: {OPEN_PORTS}")
        if failed:
            return between(name, peer, failed[0].port, in_words(failed))
    return None


def shut_off(name: str, net: Net) -> Fault | None:
    """A node that no partner in the sweep can connect to, or that can connect to none."""
    into, out = _directions(name, net)
    for direction, verb in ((into, "cannot connect to it"), (out, "cannot be reached from it")):
        if len(direction) >= SEVERAL and all(direction.values()):
            how = in_words(one for failed in direction.values() for one in failed)
            peers = ", ".join(sorted(direction, key=natural))
            sentence = f"{peers} {verb} on random ports ({how})"
            return Fault(name, sentence, f"on {name}: {OPEN_PORTS}")
    return None


def _directions(name: str, net: Net) -> tuple[dict[str, list[Attempt]], dict[str, list[Attempt]]]:
    """Failed attempts at data ports by peer: into this node, and out of it."""
    own = ((name, one) for one in net.own.attempts) if net.own is not None else ()
    out = ((one.target, one) for _, one in evidence(net, own) if one.kind == "data")
    return by_peer(p for p in evidence(net, net.to_me) if p[1].kind == "data"), by_peer(out)


def _is_its_own(
    peer: str, net: Net, out: Mapping[str, list[Attempt]], into: Mapping[str, list[Attempt]]
) -> bool:
    """Whether a peer that is not reached is to blame.

    It is when it cannot reach the master either, or when we reach others and it reaches us, so that
    only its own firewall is left. If we are the master, its failure there is on the path in
    question: it counts only once others have failed to connect too.
    """
    at_master = {source: attempt.result == "ok" for source, attempt in net.others_to_master}
    cut_off = at_master.get(peer) is False and any(at_master.values())
    cut_off = cut_off and (not net.is_master or bool(_others_results(net.master, peer, net)))
    we_get_out = any(not failed for other, failed in out.items() if other != peer)
    it_gets_here = peer in into and not into[peer]
    return cut_off or (we_get_out and it_gets_here)


def _others_results(name: str, peer: str, net: Net) -> set[str]:
    """How other nodes' attempts at a peer's data ports ended: with an "ok" its firewall is open."""
    tried = net.others_to.get(peer, ())
    return {one.result for source, one in tried if source != name and one.kind == "data"}


def between(
    source: str, target: str, port: int, how: str, known: str = "either end may be at fault"
) -> Fault:
    """Blame the path between two nodes, and neither of the two."""
    first, second = sorted((source, target), key=natural)
    sentence = f"{source} cannot reach {target}:{port} ({how}); {known}"
    advice = f"on {first} and {second}: {OPEN_PORTS}"
    return Fault(f"pair {first}-{second}", sentence, advice)


def by_peer(attempts: Iterable[tuple[str, Attempt]]) -> dict[str, list[Attempt]]:
    """Failed attempts by peer; an empty list for a peer with none."""
    peers: dict[str, list[Attempt]] = {}
    for peer, attempt in attempts:
        failed = peers.setdefault(peer, [])
        if attempt.result != "ok":
            failed.append(attempt)
    return peers


def in_words(attempts: Iterable[Attempt]) -> str:
    """The kinds of failure in words, each once."""
    return "; ".join(dict.fromkeys(WORDS[one.result] for one in attempts if one.result != "ok"))
