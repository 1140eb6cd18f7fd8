"""Ranks that disagree about the plan: the odd one is named before anybody hangs with it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from preflight.fabric.agent_events import PairAccount, Ready, Trouble
from preflight.fabric.launch import PlanDigest, sweep
from preflight.fabric.phrases import OTHER_PLAN, OWN_CAUSES, advice_on
from preflight.fabric.retest import add_rounds
from preflight.fabric.roster import build_roster, go_order, measuring_order
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import SweepPlan
from tests.unit.fabric.nodes import DEADLINE_S, HAS_TORCH, Starter, fleet, plan, real, states
from tests.unit.fabric.synthetic import blame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.fleet.model import Host
    from preflight.transport.payload_session import MessageSession

    Change = Callable[[dict[str, Any]], object]

FINE = ("measured", "measured")


class Tampered:
    """A real node whose order is another one than it was given."""

    def __init__(self, talk: MessageSession, change: Change) -> None:
        self._talk = talk
        self._change = change

    def receive(self, within_s: float) -> bytes | None:
        """What it says."""
        return self._talk.receive(within_s)

    def send(self, message: Mapping[str, object]) -> None:
        """Its orders, changed on the way."""
        changed: dict[str, Any] = copy.deepcopy(dict(message))
        if "go" in changed:
            self._change(changed["go"])
        self._talk.send(changed)

    def close(self) -> None:
        """End it."""
        self._talk.close()


def _first_two_rounds_swapped(order: dict[str, Any]) -> None:
    turns = order["turns"]
    turns[0], turns[1] = {**turns[1], "round": 0}, {**turns[0], "round": 1}


@pytest.mark.busy
@pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("nodes", "odd", "change", "trouble"),
    [
        (3, 0, lambda order: order.update(seed=99), OTHER_PLAN),
        (4, 2, _first_two_rounds_swapped, "it sent a result that was not requested"),
    ],
    ids=["the store's host has another seed", "other rounds"],
)
def test_the_odd_one_is_named_and_the_others_are_measured(
    nodes: int, odd: int, change: Change, trouble: str
) -> None:
    """Sums of another seed look wrong, another round hangs; neither is taken for the network's."""
    hosts = [replace(host, name=f"a{host.name}") for host in fleet(nodes)]

    def start(host: Host, request: Mapping[str, object]) -> MessageSession:
        return Tampered(real(host, request), change)

    name = hosts[odd].name
    found = sweep(
        plan(hosts), hosts, Starter({name: start}), nonce="odd-plan", deadline_s=DEADLINE_S
    )
    assert found.troubles == {name: trouble}
    others = {pair: both for pair, both in states(found).items() if name not in pair}
    assert others == dict.fromkeys(others, FINE)
    assert others
    (blamed,) = blame(found, hosts)
    assert blamed.component == name


def test_both_sides_make_the_same_digest_of_a_plan() -> None:
    """The node's, of the order as it read it, is the controller's, also for the retests' rounds."""
    from sweep import plan  # the payload, as it is imported on a node
    from sweep import plan as orders

    hosts = {host.name: host for host in fleet(4)}
    made = SweepPlan(nodes=tuple(hosts), rounds=circle_rounds(list(hosts)), seed=7)
    who = build_roster(made, dict.fromkeys(hosts, Ready("2.13.0", cuda=False, gpus=0)))
    longer_who = add_rounds(who, made, ((("h2", "h3"),),))
    kept = PlanDigest()
    for name in hosts:
        order = go_order(made, who, hosts, name, nonce="n", store=("127.0.0.1", 1))
        more = measuring_order(longer_who, name, len(who.rounds))
        kept.add_order(order)
        kept.add_order(more, len(who.rounds))
        go = orders.read(_as_json(order))
        later = orders.extend(go, _as_json(more))
        for turn in filter(None, later.turns):
            seen = PairAccount(
                round=turn.round, rail=0, a=turn.a, b=turn.b, backend="gloo", state="measured",
                error="", started_s=1.0, setup_ms=1.0, timings=(),
                plan=plan.digest(go if turn in go.turns else later, turn),
            )  # fmt: skip
            assert kept.verify(seen, longer_who) is seen
            assert kept.verify(replace(seen, plan=""), longer_who) == Trouble(OTHER_PLAN)
    assert len(later.turns) == 4


@pytest.mark.parametrize("error", [OTHER_PLAN, *OWN_CAUSES])
def test_what_preflight_itself_reports_of_a_node_has_advice(error: str) -> None:
    """The words of the error stand in the code, those of the advice in advice.toml."""
    assert "h1" in advice_on("h1", error)


def _as_json(order: Mapping[str, object]) -> Any:
    return json.loads(msgspec.json.encode(order))
