"""`net.ports`: the holder is explained, and a healthy node is never blamed for its neighbour."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from preflight.checks.net.test_ports import judge_ports
from preflight.facts.model import Attempt, MasterPort
from preflight.facts.node import Net
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import attempt, free_port, nets, ports, process

TWO = "h1 h2"
FOUR = "h1 h2 h3 h4"


def verdicts(results: dict[tuple[str, str], str], names: str = FOUR) -> dict[str, Verdict]:
    """Every node's verdict."""
    return {name: judge_ports(name, net) for name, net in nets(results, names).items()}


def blamed(results: dict[tuple[str, str], str], names: str = FOUR) -> set[str]:
    """The nodes and pairs that any verdict blames."""
    found = verdicts(results, names).items()
    return {verdict.blame or name for name, verdict in found if verdict.makes_not_ready}


def master(port: MasterPort) -> Verdict:
    """The verdict on a lone master with this port."""
    own = ports(master=port)
    return judge_ports("h1", Net(own, "", "h1", True, "--master-port", (), ()))  # noqa: FBT003


def into(name: str, how: str = "timeout") -> dict[tuple[str, str], str]:
    """No other node can connect to a node."""
    return {(other, name): how for other in FOUR.split() if other != name}


def out_of(name: str, how: str = "unreachable") -> dict[tuple[str, str], str]:
    """A node can connect to no other node."""
    return {(name, other): how for other in FOUR.split() if other != name}


def test_all_reach_all() -> None:
    """A sound fleet says what was tried."""
    found = verdicts({})
    assert {verdict.outcome for verdict in found.values()} == {Outcome.OK}
    assert found["h1"].sentence == (
        "port 29500 (torchrun's default) is free, reached by 3 other nodes; "
        "random ports of h2, h3, h4 too"
    )
    assert found["h3"].sentence == "reaches h1:29500; random ports of h1, h2, h4 too"


def test_a_lone_node_needs_only_its_own_port() -> None:
    """One machine has no other that must reach it."""
    assert master(free_port()).sentence == "port 29500 (--master-port) is free"


def test_the_holder_of_the_port_is_named() -> None:
    """Pid, command, owner and age; the cause joins it with `host.stale_processes`."""
    holder = process(4242, listens=(29500,))
    verdict = master(MasterPort(29500, bound=False, error="in use", holder=holder))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "port 29500 (--master-port) is taken by "
        "pid 4242 (python train.py, user alice, started 2 h 0 min ago)"
    )
    assert verdict.advice.startswith("end it: kill 4242; if still there after 10 s: kill -9 4242;")
    assert verdict.cause == "pid 4242"


def test_other_reasons_for_a_port_that_cannot_be_bound() -> None:
    """A hidden owner, our own store, closing connections, or no privilege for the port."""
    hidden = master(MasterPort(29500, bound=False, holder=process(0, user="bob", command="")))
    assert "a process that this login may not see (user bob)" in hidden.sentence
    assert "ss -ltnp" in hidden.advice
    ours = master(MasterPort(29500, bound=False, holder=process(77, ours=True)))
    assert ours.outcome is Outcome.OK
    assert "this run's own store" in ours.sentence
    lingering = master(MasterPort(29500, bound=False, lingering=3))
    assert lingering.outcome is Outcome.WARN
    assert "3 connections of an ended job" in lingering.sentence
    low = master(MasterPort(80, bound=False, error="Permission denied"))
    assert low.sentence == "port 80 (--master-port) cannot be bound: Permission denied"


def test_a_port_that_is_not_given_back() -> None:
    """Taken again at once fails."""
    assert master(free_port(free_again=False)).outcome is Outcome.FAIL


def test_a_master_whose_port_is_taken_is_not_blamed_on_the_others() -> None:
    """The others had nothing to connect to: only the master has a finding."""
    net = nets({}, TWO)["h2"]
    own = ports(attempt("h1"))
    verdict = judge_ports("h2", Net(own, "", "h1", False, "", net.to_me, ()))  # noqa: FBT003
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence == "the port of h1 was not open to try; random ports of h1 too"


@pytest.mark.proves("net.ports", unknown="a port stage without an answer")
def test_a_node_without_an_answer_is_unknown() -> None:
    """A port stage that came to nothing is no pass."""
    verdict = judge_ports("h2", Net(None, "timed out", "h1", False, "", (), ()))  # noqa: FBT003
    assert verdict.outcome is Outcome.UNKNOWN
    assert "timed out" in verdict.sentence
    assert judge_ports("h1", Net(ports(), "", "h1", True, "", (), ())).outcome is Outcome.UNKNOWN  # noqa: FBT003


def test_a_master_that_most_cannot_reach_is_blamed() -> None:
    """A firewall on the master's port: one finding, on the master, in everyone's words."""
    results = {(other, "master"): "timeout" for other in ("h2", "h3", "h4")}
    found = verdicts(results)
    assert blamed(results) == {"h1"}
    assert {verdict.cause for verdict in found.values()} == {"ports of h1"}
    assert found["h2"].sentence == (
        "3 of 3 other nodes cannot reach h1:29500 "
        "(timed out: a firewall drops it, or there is no way back)"
    )
    assert not found["h2"].blocks


def test_a_stranger_on_the_master_port_is_the_masters_fault() -> None:
    """An answer of another program is no firewall, and one witness is enough."""
    assert blamed({("h2", "master"): "wrong_answer"}, TWO) == {"h1"}


def test_one_node_that_fails_where_others_succeed_is_blamed() -> None:
    """The master answers two of three: the third is at fault, and only it fails."""
    results = {("h3", "master"): "refused"}
    found = verdicts(results)
    assert blamed(results) == {"h3"}
    assert found["h3"].sentence.startswith("cannot reach h1:29500 (refused")
    assert found["h3"].sentence.endswith("2 of 3 other nodes can")
    assert found["h1"].outcome is Outcome.OK


def test_two_nodes_alone_cannot_tell_who_is_at_fault() -> None:
    """Between two nodes the pair is blamed, once, with the same words from both."""
    found = verdicts({("h2", "master"): "timeout"}, TWO)
    assert {verdict.blame for verdict in found.values()} == {"pair h1-h2"}
    assert len({(verdict.sentence, verdict.cause) for verdict in found.values()}) == 1
    assert "either end may be at fault" in found["h1"].sentence
    assert blamed({("h2", "h1"): "ok", ("h1", "h2"): "timeout"}, TWO) == {"pair h1-h2"}


@pytest.mark.parametrize("node", ["h1", "h3"])
def test_a_node_that_accepts_no_connection_is_blamed_by_all(node: str) -> None:
    """Its neighbours reach each other, and it reaches them: only its own gate is left."""
    assert blamed(into(node)) == {node}


def test_a_node_that_can_connect_to_no_other_is_blamed() -> None:
    """The others reach it and each other."""
    assert blamed(out_of("h3")) == {"h3"}


def test_a_node_without_a_network_is_blamed() -> None:
    """Nothing in, nothing out, while the master answers the rest."""
    assert blamed({**into("h4"), **out_of("h4")}) == {"h4"}


def test_one_broken_path_blames_the_pair() -> None:
    """Two nodes that reach all but each other are each fine."""
    results = {("h2", "h3"): "timeout", ("h3", "h2"): "timeout"}
    assert blamed(results) == {"pair h2-h3"}


@pytest.mark.parametrize(
    ("how", "words"),
    [("reset", "cut off"), ("unreachable", "no route")],
)
def test_how_a_connection_failed_is_in_the_sentence(how: str, words: str) -> None:
    """A drop, a reject and a missing route have different remedies."""
    net = nets({("h3", "master"): how})["h3"]
    odd = tuple((n, replaced(one, error="weird")) for n, one in net.others_to_master)
    verdict = judge_ports("h3", Net(net.own, "", "h1", False, "", net.to_me, odd))  # noqa: FBT003
    assert words in verdict.sentence


@given(
    gate=st.sampled_from(FOUR.split()),
    shut_in=st.booleans(),
    shut_out=st.booleans(),
    how=st.sampled_from(["refused", "timeout", "unreachable", "reset"]),
)
def test_one_bad_node_never_costs_another(
    *, gate: str, shut_in: bool, shut_out: bool, how: str
) -> None:
    """Whichever single node of four is shut, in either or both directions, only it fails."""
    results = (into(gate, how) if shut_in else {}) | (out_of(gate, how) if shut_out else {})
    assert blamed(results) <= {gate}
    assert bool(blamed(results)) == (shut_in or shut_out)


def between_two(one: str, other: str, how: str) -> dict[tuple[str, str], str]:
    """A firewall between two nodes only, on all ports."""
    return {(one, other): how, (other, one): how}


@pytest.mark.parametrize("how", ["timeout", "refused"])
@pytest.mark.parametrize("other", ["h2", "h4"])
def test_a_firewall_between_the_master_and_one_node_is_their_paths(other: str, how: str) -> None:
    """Both reach all others: the pair is blamed once, and the hanging rendezvous is reported."""
    found = verdicts(between_two("h1", other, how))
    assert blamed(between_two("h1", other, how)) == {f"pair h1-{other}"}
    assert found["h1"].sentence == found[other].sentence
    assert found["h1"].sentence.startswith(f"{other} cannot reach the master port h1:29500 (")
    assert "would hang at its rendezvous; 2 of 3 other nodes can" in found["h1"].sentence
    assert f"open the firewall between h1 and {other} for port 29500" in found["h1"].advice
    assert not any(verdict.blocks for verdict in found.values() if verdict.makes_not_ready)


def test_a_path_to_the_master_that_is_cut_one_way_is_still_a_path() -> None:
    """The master gets to the node, the node not to the master, and it reaches all the others."""
    assert blamed({("h3", "h1"): "timeout"}) == {"pair h1-h3"}


def test_a_node_that_reaches_few_is_to_blame_and_not_its_path_to_the_master() -> None:
    """It fails at the master and at one of two others: that is no single path."""
    assert blamed(between_two("h1", "h3", "timeout") | {("h3", "h2"): "timeout"}) >= {"h3"}


def test_a_firewall_beside_the_master_where_no_other_node_tried() -> None:
    """Of a large fleet few are partners: a node that only the master cannot reach does not fail."""
    found = {}
    for name, net in nets(between_two("h1", "h3", "timeout")).items():
        kept = {
            target: tuple(each for each in tried if target != "h3" or each[0] == "h1")
            for target, tried in net.others_to.items()
        }
        found[name] = judge_ports(name, dataclasses.replace(net, to_me=kept[name], others_to=kept))
    assert {v.blame or name for name, v in found.items() if v.makes_not_ready} == {"pair h1-h3"}


@given(cut=st.sampled_from(["h2", "h3", "h4", "h5"]), both=st.booleans())
def test_no_path_to_the_master_costs_a_node(*, cut: str, both: bool) -> None:
    """Whichever node is cut off from the master only, one way or both, no node fails."""
    results = {(cut, "h1"): "timeout"} | ({("h1", cut): "timeout"} if both else {})
    assert blamed(results, "h1 h2 h3 h4 h5") == {f"pair h1-{cut}"}


def mute(results: dict[tuple[str, str], str], dead: str) -> dict[str, Net]:
    """Every node's view of a stage in which one node's payload died after it had listened."""
    found = {}
    for name, net in nets(results, FOUR).items():

        def kept(pairs: tuple[tuple[str, Attempt], ...]) -> tuple[tuple[str, Attempt], ...]:
            return tuple(pair for pair in pairs if pair[0] != dead)

        found[name] = dataclasses.replace(
            net,
            own=None if name == dead else net.own,
            to_me=kept(net.to_me),
            others_to_master=kept(net.others_to_master),
            others_to={target: kept(pairs) for target, pairs in net.others_to.items()},
        )
    return found


@pytest.mark.parametrize("dead", ["h1", "h3"])
def test_a_node_whose_port_stage_died_costs_no_other(dead: str) -> None:
    """Its listeners went with it: who was refused there blames neither a pair nor itself."""
    found = {
        name: judge_ports(name, net) for name, net in mute(into(dead, "refused"), dead).items()
    }
    assert {v.blame or name for name, v in found.items() if v.makes_not_ready} == {dead}
    assert found[dead].outcome is Outcome.UNKNOWN
    if dead == "h1":
        assert found["h2"].outcome is Outcome.UNKNOWN
        assert "cannot reach h1, whose port stage gave no report" in found["h2"].sentence
    else:
        assert found["h2"].outcome is Outcome.OK
        assert "h3" not in found["h2"].sentence


def failing(error: str) -> Verdict:
    """The verdict on h3, whose own system refused its attempt at the master."""
    net = nets({("h3", "master"): "error"})["h3"]
    assert net.own is not None
    own = replaced(net.own, attempts=tuple(replaced(one, error=error) for one in net.own.attempts))
    return judge_ports("h3", dataclasses.replace(net, own=own))


def test_an_attempt_that_could_not_be_made_is_no_firewall() -> None:
    """Too many open files is no firewall; a name without an address is this node's fault."""
    ours = failing("Too many open files")
    assert ours.outcome is Outcome.UNKNOWN
    assert "failed: Too many open files" in ours.sentence
    assert "nftables" not in ours.advice
    unnamed = failing("Name or service not known")
    assert unnamed.makes_not_ready
    assert not unnamed.blame
    assert "make h1 resolvable" in unnamed.advice
