"""Every node finds the job's master by its name."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.master_name import misled
from preflight.facts.oddities import conclude_oddities
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("net.master_name", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(
    facts: Facts, master: Facts | None, group: Group, job_says: str = "", *, alone: bool
) -> Verdict:
    """Hold where the name leads against the master's own addresses and the other nodes.

    `job_says`: MASTER_ADDR of the job, where that is known. `alone`: the fleet is this one node.
    """
    network = facts.network
    if network is None:
        if not any(said.startswith("network") for said in facts.problems):
            return not_run("no name was looked up here")
        return unknown("where names lead could not be told", advice="look at getent ahosts there")
    if not network.names:
        return _not_asked(alone=alone)
    looked = (
        misled(one, facts, master, group, promised=one.name == job_says) for one in network.names
    )
    if (bad := conclude_oddities(odd for odd in looked if odd)) is not None:
        return bad
    found = {one.name: list(one.addresses) for one in network.names if one.addresses}
    if not found:
        names = ", ".join(one.name for one in network.names)
        return not_run(f"no node knows the name {names}; the job needs another for its master")
    name, its = next(iter(found.items()))
    return ok(f"the master {name} is {', '.join(its[:2])}", found=found)


def _not_asked(*, alone: bool) -> Verdict:
    if alone:
        return not_run("one node alone: there is no master to find")
    said = "the master's name was not looked up here: these facts were taken of a node alone"
    return unknown(said, advice="ask the nodes again, all in one run")


def test_net_master_name(node: Node, conclude: Conclude) -> None:
    """Joins a node, the master's facts and the judgement; the frame does the rest."""
    master = node.group.facts.get(node.net.master)
    said = (node.environ or {}).get("MASTER_ADDR", "")
    conclude(judge(node.facts, master, node.group, said, alone=node.net.nodes == 1))
