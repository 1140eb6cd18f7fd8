"""A node with fewer GPUs than its group: rails follow PCI addresses, never what CUDA numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from sweep import plan

from preflight.checks.fabric.test_pairs import judge_allreduce as judge_pair
from preflight.checks.fabric.test_pairs import judge_intra_node as judge_inside
from preflight.checks.gpu.connections import usual_gpus
from preflight.checks.gpu.test_answers import judge_count
from preflight.core.thresholds import SHIPPED
from preflight.fabric.agent_events import InsideAccount, PairAccount, Ready
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.judge import judge_sweep
from preflight.fabric.roster import Roster, build_roster, go_order, match_rails
from preflight.fabric.samples import Rung, Sweep, Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import SweepPlan
from preflight.facts.node import Group
from preflight.fleet.model import Expected
from tests.unit.fabric.synthetic import hosts
from tests.unit.facts.builders import facts, gpus

if TYPE_CHECKING:
    from preflight.fleet.model import Host

BUS_IDS = tuple(f"00000000:{bus:02x}:00.0" for bus in range(0x10, 0x18))
WHOLE = Ready("2.9.0+cu130", cuda=True, gpus=8, bus_ids=BUS_IDS)
HOLE = replace(WHOLE, gpus=7, bus_ids=(*BUS_IDS[:3], *BUS_IDS[4:]))
"""GPU 3 is lost: what CUDA calls 3 is the GPU of rail 4."""

LADDER = (Rung(1 << 26, 1, 5),)


def launch(ready: dict[str, Ready], fleet: list[Host] | None = None) -> Roster:
    """Take these nodes."""
    names = tuple(ready)
    asked = SweepPlan(nodes=names, rounds=circle_rounds(names), nccl=LADDER, nccl_soak=None)
    return build_roster(asked, ready, {host.name: host for host in fleet or []})


def order(who: Roster, name: str) -> plan.Go:
    """Read the order to a node as the node reads it."""
    asked = SweepPlan(nodes=who.names, rounds=who.rounds)
    by_name = {host.name: host for host in hosts(len(who.names))}
    return plan.read(go_order(asked, who, by_name, name, nonce="n", store=("10.0.0.1", 1)))


def four(**odd: Ready) -> dict[str, Ready]:
    """h1 to h4, with eight GPUs each but for those that are given."""
    return {name: odd.get(name, WHOLE) for name in ("h1", "h2", "h3", "h4")}


def test_a_lost_gpu_costs_its_own_rail_of_its_own_node_only() -> None:
    """Eight rails for all; the short node has seven, and the GPUs above the hole keep theirs."""
    who = launch(four(h3=HOLE))
    assert (who.rails, who.missing, who.mismatched) == (8, {"h3": (3,)}, {})
    assert who.short == {"h3": "rail 3 (its torch sees 7 GPUs, 8 on 3 of 4 nodes of its group)"}
    own = order(who, "h3")
    assert own.own_rails == [0, 1, 2, 4, 5, 6, 7]
    assert order(who, "h1").own_rails == list(range(8))
    assert own.missing == order(who, "h1").missing == {2 * 8 + 3}
    turn = next(place for place, each in enumerate(own.turns) if each is not None)
    partner = order(
        who, next(n for pair in who.rounds[turn] if "h3" in pair for n in pair if n != "h3")
    )
    of_three, of_four = (plan.Rail(partner, rail, "", ("", 0)) for rail in (3, 4))
    assert of_three.turn(turn) is None
    assert of_four.turn(turn) is not None


@pytest.mark.parametrize(
    ("ready", "why"),
    [
        (replace(HOLE, bus_ids=()), "PCI addresses do not tell"),
        (replace(HOLE, bus_ids=("00000000:99:00.0", *BUS_IDS[1:7])), "do not tell"),
        (replace(HOLE, bus_ids=tuple(reversed(HOLE.bus_ids))), "do not tell"),
    ],
    ids=["unknown", "another machine", "another order"],
)
def test_a_short_node_that_cannot_be_matched_is_left_out(ready: Ready, why: str) -> None:
    """Its rails are never shifted in silence: it is named, and the others have eight rails."""
    who = launch(four(h3=ready))
    assert (who.names, who.rails, who.missing) == (("h1", "h2", "h4"), 8, {})
    assert "its torch sees 7 GPUs, 8 on 3 of 4 nodes of its group" in who.mismatched["h3"]
    assert why in who.mismatched["h3"]


def test_where_most_have_the_hole_the_one_whole_node_shows_where_it_is() -> None:
    """No node is short if eight are not expected; but no GPU is paired with another place's."""
    who = launch({"h1": WHOLE, **dict.fromkeys(("h2", "h3", "h4"), HOLE)})
    assert (who.rails, who.short, who.mismatched) == (8, {}, {})
    assert who.missing == dict.fromkeys(("h2", "h3", "h4"), (3,))


def test_of_two_nodes_none_is_short_by_the_other_and_none_is_shifted() -> None:
    """There is no majority: no node is blamed, and the rails are matched all the same."""
    who = launch({"h1": WHOLE, "h2": HOLE})
    assert (who.missing, who.short) == ({"h2": (3,)}, {})
    blind = launch({"h1": replace(WHOLE, bus_ids=()), "h2": replace(HOLE, bus_ids=())})
    assert (blind.names, "do not tell" in blind.mismatched["h2"]) == (("h1",), True)


def test_the_inventory_says_how_many_there_should_be() -> None:
    """An expectation comes before the group's majority, and another group has its own number."""
    fleet = [
        replace(host, group="small", expected=Expected(gpus=7)) if host.name == "h3" else host
        for host in hosts(4)
    ]
    who = launch(four(h3=HOLE), fleet)
    assert (who.rails, who.missing, who.short) == (8, {"h3": (7,)}, {})
    expected = [replace(host, expected=Expected(gpus=8)) for host in hosts(2)]
    assert "8 expected" in launch({"h1": WHOLE, "h2": HOLE}, expected).short["h2"]


def test_machines_of_another_kind_have_the_first_rails() -> None:
    """Two of each: four GPUs at other addresses are no short node, and are measured on four."""
    small = replace(WHOLE, gpus=4, bus_ids=tuple(f"0001:{bus:02x}:00.0" for bus in range(4)))
    who = launch(four(h3=small, h4=small))
    assert (who.mismatched, who.short) == ({}, {})
    assert who.missing == {"h3": (4, 5, 6, 7), "h4": (4, 5, 6, 7)}
    assert (who.rails_of("h1", "h2"), who.rails_of("h1", "h3")) == ([*range(8)], [0, 1, 2, 3])


def seen(round_: int, rail: int, a: str, b: str) -> PairAccount:
    """One account at 46 GB/s."""
    return PairAccount(
        round=round_, rail=rail, a=a, b=b, **_measured(46.0), plan="", net="NET/IB mlx5_0"
    )


def _measured(gbs: float, ranks: int = 2) -> dict[str, Any]:
    took_us = LADDER[0].size_bytes * 2 * (ranks - 1) / ranks / gbs / 1e3
    timing = Timing(LADDER[0].size_bytes, (took_us,) * 5, (1.0,) * 5)
    return {
        "backend": "nccl", "state": "measured", "error": "", "started_s": 1.0, "setup_ms": 1.0,
        "timings": (timing,),
    }  # fmt: skip


def swept(who: Roster) -> tuple[SweepAccounts, Sweep]:
    """Everyone gives every account that the order asked for."""
    collected = SweepAccounts(who)
    for number, around in enumerate(who.rounds):
        for a, b in around:
            for name in (a, b):
                for rail in who.rails_of(a, b):
                    assert collected.add(name, seen(number, rail, a, b))
    for name in who.names:
        rails = who.rails_of(name)
        for rail in rails:
            inside = _measured(350.0, len(rails))
            assert collected.add(name, InsideAccount(rail=rail, **inside))
    collected.done.update(who.names)
    sweep = Sweep(LADDER, who.rounds, collected.pairs(), short=who.short, inside=collected.inside())
    return collected, sweep


@pytest.mark.proves("fabric.intra_node", unknown="a node that lacks a rail of its group")
def test_the_accounts_fit_and_the_short_node_is_not_passed() -> None:
    """Its lacking rail is neither missing nor ok: pairs say so, and inside it is unknown."""
    collected, found = swept(launch(four(h3=HOLE)))
    assert collected.complete == collected.expected
    assert not [*collected._inside.missing]
    assert not collected.add("h3", seen(0, 3, *collected._roster.rounds[0][0]))
    decoded = judge_sweep(found, hosts(4))
    assert decoded.blames == ()
    verdicts = {ends: judge_pair(pair) for ends, pair in decoded.pairs.items()}
    assert {verdict.outcome for verdict in verdicts.values()} == {"ok"}
    words = "on 7 rails: h3 lacks rail 3"
    partial = [ends for ends, one in verdicts.items() if words in one.sentence]
    assert len(partial) == 3
    assert all("h3" in ends for ends in partial)
    inside = {name: judge_inside(name, one, limit=SHIPPED) for name, one in decoded.inside.items()}
    assert inside["h3"].outcome == "unknown"
    assert inside["h3"].sentence.startswith("it lacks rail 3 (its torch sees 7 GPUs, 8 on 3 of 4")
    assert {inside[name].outcome for name in ("h1", "h2", "h4")} == {"ok"}


def test_a_rail_of_a_short_node_is_named_by_its_number() -> None:
    """The sixth of seven rails is rail 6, since rail 3 is not there."""
    _, found = swept(launch(four(h3=HOLE)))
    insides = [
        replace(one, rails=(*one.rails[:5], None, one.rails[6])) if one.node == "h3" else one
        for one in found.inside
    ]
    assert [one.numbers for one in insides if one.node == "h3"] == [(0, 1, 2, 4, 5, 6, 7)]
    one = replace(insides[2], rails=tuple(
        replace(end, state="absent", error="rail 6 of this node did not come") if end else end
        for end in found.inside[2].rails
    ))  # fmt: skip
    decoded = judge_sweep(replace(found, inside=(*insides[:2], one, insides[3])), hosts(4))
    assert "GPU 6 of h3" in decoded.inside["h3"].why


@pytest.mark.proves("gpu.count", finds="fewer GPUs than most nodes of the group have")
def test_a_short_node_fails_by_its_peers() -> None:
    """Nothing is expected, and no two machines have their GPUs at the same addresses."""
    whole = [
        facts(gpus=tuple(replace(gpu, bus_id=f"0000:{node}{gpu.index}:00.0") for gpu in gpus(8)))
        for node in range(3)
    ]
    short = facts(gpus=tuple(replace(gpu, bus_id=f"0000:9{gpu.index}:00.0") for gpu in gpus(7)))
    group = Group("all", {f"h{place}": each for place, each in enumerate((*whole, short), 1)})
    verdict = judge_count(None, short.gpus, usual_gpus(group))
    assert (verdict.outcome, verdict.sentence) == (
        "fail", "7 of 8 GPUs answer; 3 of 4 nodes of its group have 8",
    )  # fmt: skip
    assert judge_count(None, whole[0].gpus, usual_gpus(group)).outcome == "ok"


def test_holes_in_different_places_are_not_measured_as_one_rail() -> None:
    """Each node lacks another of the eight GPUs that are expected: no node is whole."""
    ready = {
        f"h{at + 1}": replace(WHOLE, gpus=7, bus_ids=BUS_IDS[:at] + BUS_IDS[at + 1 :])
        for at in range(4)
    }
    fleet = {one.name: replace(one, expected=Expected(gpus=8)) for one in hosts(4)}
    found = match_rails(ready, list(ready), fleet, nccl=True)
    assert found.unknown.keys() == ready.keys()
    assert "7 GPUs, 8 expected" in found.unknown["h1"]
    alike = dict.fromkeys(ready, ready["h1"])
    assert match_rails(alike, list(alike), fleet, nccl=True).count == 7
