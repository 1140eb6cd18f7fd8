"""Who hosts the sweep's store: a cut path costs its pair, and neither node all of its pairs."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.agent_events import Ready
from preflight.fabric.judge import judge_sweep
from preflight.fabric.roster import build_roster, host_first
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import SweepPlan
from preflight.run.stages import cut_links
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import attempt, ports

NAMES = ("h1", "h2", "h3", "h4", "h5")
CPU = Ready("2.13.0+cpu", cuda=False, gpus=0)
LINKS = st.permutations(NAMES).map(lambda names: (names[0], names[1]))


def test_the_first_node_hosts_when_nothing_is_known() -> None:
    """No port stage, or one without a failure: fleet order."""
    assert host_first(NAMES, ()) == NAMES
    assert host_first((), ()) == ()


def test_a_node_with_a_cut_path_does_not_host() -> None:
    """h1 and h3 cannot reach each other, whichever of them noticed: h2 hosts, and order stays."""
    for cut in ([("h1", "h3")], [("h3", "h1")], [("h1", "h3"), ("h3", "h1")]):
        assert host_first(NAMES, cut) == ("h2", "h1", "h3", "h4", "h5")


def test_a_node_that_takes_no_part_counts_for_nothing() -> None:
    """A dead node that no node reaches, and that reaches none, moves the store nowhere."""
    cut = [(name, "h9") for name in NAMES] + [("h9", "h1")]
    assert host_first(NAMES, cut)[0] == "h1"


@given(cut=st.frozensets(LINKS))
def test_the_host_is_the_first_of_those_with_the_fewest_cut_paths(
    cut: frozenset[tuple[str, str]],
) -> None:
    """Every node is there once, and none before the host in the fleet is as well connected."""
    ordered = host_first(NAMES, cut)
    paths = {frozenset(link) for link in cut}
    cuts = {name: sum(name in path for path in paths) for name in NAMES}
    assert ordered[0] == min(NAMES, key=lambda name: (cuts[name], NAMES.index(name)))
    assert ordered[1:] == tuple(name for name in NAMES if name != ordered[0])


def test_what_did_not_connect_is_a_cut_path() -> None:
    """Dropped, refused, or answered by a stranger; not what the node could not even try."""
    tried = (attempt("h1", "timeout"), attempt("h2", "refused"), attempt("h4", "ok"))
    found = cut_links({"h3": ports(*tried, attempt("h5", "error"))})
    assert found == {("h3", "h1"), ("h3", "h2")}


def test_who_cannot_reach_the_store_is_left_out_of_the_launch() -> None:
    """Where every node has a path cut, the first hosts and who cannot reach it has no turn."""
    cut = frozenset({("h3", "h1"), ("h2", "h4"), ("h4", "h5")})
    plan = SweepPlan(nodes=NAMES[:4], rounds=circle_rounds(NAMES[:4]), cut=cut)
    who = build_roster(plan, dict.fromkeys(NAMES[:4], CPU))
    assert (who.host, who.names) == ("h1", ("h1", "h2", "h4"))
    assert who.cut_off == {"h3"}
    assert "h3" not in {name for around in who.rounds for pair in around for name in pair}


def test_a_node_that_could_not_reach_the_store_neither_fails_nor_passes() -> None:
    """Its pairs are unknown on account of the path; the port stage's finding has the same cause."""
    measured = msgspec.structs.replace(
        sweep(hosts(2), lambda *_: 0.8),
        left_out={"h3": "it cannot connect to h1"},
        cut_off={"h3": "h1"},
    )
    verdict = judge_allreduce(judge_sweep(measured, hosts(3)).pairs["h2", "h3"])
    assert verdict.outcome is Outcome.UNKNOWN
    assert (verdict.blame, verdict.cause) == ("pair h1-h3", "ports of pair h1-h3")
    assert verdict.sentence == "h3 was left out: it cannot connect to h1"
