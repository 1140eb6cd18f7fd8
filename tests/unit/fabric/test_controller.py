"""What the controller believes: typed, bounded, asked for; and who it lets take part."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from preflight.errors import WireError
from preflight.fabric.agent_events import PairAccount, Ready, decode_event
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.judge import judge_sweep
from preflight.fabric.phrases import advice_on
from preflight.fabric.roster import Roster, build_roster, go_order
from preflight.fabric.samples import Moved, Rung, Sweep, Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import NCCL, SweepPlan
from tests.unit.fabric.synthetic import hosts

NAMES = ("h1", "h2", "h3", "h4")
PLAN = SweepPlan(nodes=NAMES, rounds=circle_rounds(NAMES))
CPU, GPUS = Ready("2.13.0+cpu", cuda=False, gpus=0), Ready("2.13.0+cu130", cuda=True, gpus=8)
SEEN = PairAccount(
    round=0,
    rail=0,
    a="h1",
    b="h4",
    backend="gloo",
    state="measured",
    error="",
    started_s=1.0,
    setup_ms=2.0,
    timings=(Timing(8, (1.0, 2.0, 3.0), (0.0, 0.0, 0.0)),),
)


@pytest.fixture
def who() -> Roster:
    """Four CPU nodes that take up to five iterations of 8 B, and nine of a soak of 64 B."""
    plan = msgspec.structs.replace(PLAN, gloo=(Rung(8, 1, 5),), gloo_soak=Rung(64, 1, 9))
    return build_roster(plan, dict.fromkeys(NAMES, CPU))


@pytest.mark.parametrize(
    "document",
    [
        b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b'{"event":"ready","torch":7}',
        b'{"event":"ready","torch":"2","cuda":true,"gpus":-1}',
        b'{"event":"store","port":70000}',
        b'{"event":"no_torch","error":"' + b"x" * 1000 + b'"}',
        msgspec.json.encode(SEEN).replace(b"measured", b"splendid"),
        msgspec.json.encode(SEEN).replace(b"1.0,2.0", b"-1.0,2.0"),
        msgspec.json.encode(SEEN).replace(b'"net":""', b'"net":"\\u001b[2J"'),
        msgspec.json.encode(SEEN).replace(b'"moved":[]', b'"moved":[{"name":"\\n","by":1}]'),
        msgspec.json.encode(msgspec.structs.replace(SEEN, moved=(Moved("a", 1.0),) * 65)),
    ],
)
def test_an_event_that_is_none_is_refused_in_words(document: bytes) -> None:
    """Wrong JSON, wrong types, negative times, endless text: one kind of error."""
    with pytest.raises(WireError, match="sent an invalid event"):
        decode_event(document)


def test_an_event_survives_the_wire() -> None:
    """What an agent writes is what the controller reads."""
    assert decode_event(msgspec.json.encode(SEEN)) == SEEN


@pytest.mark.parametrize(
    ("node", "change"),
    [
        ("h2", {}),
        ("h1", {"round": 1}),
        ("h1", {"rail": 1}),
        ("h1", {"a": "h4", "b": "h1"}),
        ("h1", {"backend": "nccl"}),
        ("h1", {"timings": ()}),
        ("h1", {"timings": (Timing(16, (1.0,), (0.0,)),)}),
        ("h1", {"timings": (Timing(8, (1.0,) * 6, (0.0,) * 6),)}),
        ("h1", {"timings": (Timing(8, (1.0,), ()),)}),
        ("h1", {"timings": (Timing(8, (1.0,), (0.0,), "soak"),)}),
        ("h1", {"timings": (Timing(64, (1.0,), (0.0,)),)}),
        ("h1", {"timings": (Timing(64, (1.0,) * 10, (0.0,) * 10, "soak"),)}),
    ],
)
def test_accounts_that_were_not_requested_are_refused(
    who: Roster, node: str, change: dict[str, object]
) -> None:
    """Another's pair, another round, more iterations than asked: a node cannot speak for others."""
    collected = SweepAccounts(who)
    assert not collected.add(node, msgspec.structs.replace(SEEN, **change))
    kept = [end for pair in collected.pairs() for end in (pair.first, pair.second)]
    assert not any(end is not None and end.state == "measured" for end in kept)


def test_a_size_of_the_ladder_may_be_the_soaks_too() -> None:
    """What is asked for twice may come twice, each within its own number of iterations."""
    plan = msgspec.structs.replace(PLAN, gloo=(Rung(8, 1, 5),), gloo_soak=Rung(8, 1, 9))
    collected = SweepAccounts(build_roster(plan, dict.fromkeys(NAMES, CPU)))
    both = (Timing(8, (1.0,) * 5, (0.0,) * 5), Timing(8, (1.0,) * 9, (0.0,) * 9, "soak"))
    assert not collected.add("h1", msgspec.structs.replace(SEEN, timings=both + both[:1]))
    assert collected.add("h1", msgspec.structs.replace(SEEN, timings=both))


def test_an_end_speaks_once(who: Roster) -> None:
    """The first account of an end stands; the pair is complete with both ends' accounts."""
    collected = SweepAccounts(who)
    assert collected.add("h1", SEEN)
    assert not collected.add("h1", SEEN)
    assert (collected.complete, collected.expected) == (0, 6)
    assert collected.add("h4", SEEN)
    assert collected.complete == 1


def test_losing_the_store_excuses_all_but_its_host(who: Roster) -> None:
    """Unfinished pairs of other nodes are not run, and only the host is in trouble."""
    collected = SweepAccounts(who)
    collected.mark_lost("h1", "its connection broke")
    collected.give_up(["h2", "h3", "h4"])
    states = {(p.a, p.b): p.first.state if p.first else None for p in collected.pairs()}
    assert states["h2", "h3"] == "not_run"
    assert states["h1", "h2"] is None
    silence = collected.breakdown()
    assert silence.culprits == {"h1": "its connection broke"}
    assert set(silence.victims) == {"h2", "h3", "h4"}


def test_a_failed_rendezvous_blames_only_the_node_that_broke_it(who: Roster) -> None:
    """h3 went; the others' store waits ran out: their pairs are not run, h3's are its own."""
    collected = SweepAccounts(who)
    collected.add_error("h2", "DistStoreError: wait timeout, keys: /torch.rendezvous.x")
    collected.mark_lost("h3", "its connection broke", "look at h3")
    collected.add_error("h4", "DistStoreError: wait timeout, keys: /torch.rendezvous.x")
    collected.give_up(["h1"])
    first = {(p.a, p.b): p.first for p in collected.pairs()}
    assert collected.breakdown().culprits == {"h3": "its connection broke"}
    assert first["h1", "h3"] is None
    assert first["h2", "h4"] is not None
    assert (first["h2", "h4"].state, first["h2", "h4"].error) == ("not_run", "h2 waited for h3")
    assert collected.advice == {"h3": "look at h3"}


def test_a_rendezvous_that_fails_for_all_proves_no_culprit(who: Roster) -> None:
    """All waited, none broke: no culprit, and no key of the store in any sentence."""
    collected = SweepAccounts(who)
    for name in NAMES:
        collected.add_error(name, "DistStoreError: wait timeout, keys: /torch.rendezvous.x")
    assert collected.breakdown().culprits == {}
    assert all(p.first is not None and p.first.state == "not_run" for p in collected.pairs())
    assert "keys" not in str(collected.pairs())


def test_a_sweep_that_ended_early_blames_no_node_for_what_is_missing(who: Roster) -> None:
    """Time up or Ctrl-C: a pair with one account or none is not run; what came is kept."""
    collected = SweepAccounts(who)
    assert collected.add("h1", SEEN)
    pairs = {(pair.a, pair.b): pair for pair in collected.pairs("time was up")}
    assert collected.breakdown().culprits == {}
    half, none = pairs["h1", "h4"], pairs["h2", "h3"]
    assert half.first is not None
    assert half.first.timings == SEEN.timings
    assert {end and end.state for end in (half.second, none.first, none.second)} == {"not_run"}
    sweep = Sweep((), who.rounds, tuple(pairs.values()), unfinished="time was up")
    seen = judge_sweep(sweep, hosts(4))
    assert seen.blames == ()
    assert {(pair.state, pair.error, pair.waited) for pair in seen.pairs.values()} == {
        ("not_run", "time was up", True)
    }


def test_a_sweep_whose_time_was_up_before_any_node_was_ready_blames_none() -> None:
    """No node, no pair, no culprit; and no traceback."""
    collected = SweepAccounts(build_roster(PLAN, {}))
    assert (collected.pairs("time was up"), collected.breakdown().culprits) == ((), {})


def test_a_node_whose_line_was_lost_keeps_its_measurements_and_its_partners_their_name(
    who: Roster,
) -> None:
    """h3 and h4 go after the first round: h1 and h2 have bad pairs with both; no blame."""
    collected = SweepAccounts(who)
    for number, (a, b) in ((0, ("h1", "h4")), (0, ("h2", "h3")), (2, ("h1", "h2"))):
        for name in (a, b):
            assert collected.add(name, msgspec.structs.replace(SEEN, round=number, a=a, b=b))
    for name in ("h3", "h4"):
        collected.mark_lost(name, "the connection to it was lost", f"look at {name}'s network")
    collected.done.update(("h1", "h2"))
    silence = collected.breakdown()
    sweep = Sweep(
        who.ladder, who.rounds, collected.pairs(), troubles=silence.culprits,
        advice=collected.advice,
    )  # fmt: skip
    judged = judge_sweep(sweep, hosts(4))
    assert [one.component for one in judged.blames] == ["h3", "h4"]
    assert judged.blames[0].sentence.startswith("it fell out of the sweep: the connection to it")
    assert judged.blames[0].advice == "look at h3's network"
    assert {judged.pairs[pair].state for pair in who.rounds[0]} == {"measured"}


def test_a_node_with_all_accounts_is_not_blamed_for_its_partners_full_disks(who: Roster) -> None:
    """h2 and h4 break off; h3 has measured with h1, and then waits for them in vain."""
    collected = SweepAccounts(who)
    for name in ("h1", "h3"):
        seen = msgspec.structs.replace(SEEN, round=1, a="h1", b="h3")
        assert collected.add(name, seen)
    for name in ("h2", "h4"):
        collected.add_error(
            name, "OSError: No space left on device", advice_on(name, "No space left on device")
        )
    collected.resting.add("h1")
    collected.give_up(["h3"])
    assert collected.breakdown().culprits.keys() == {"h2", "h4"}
    assert "make room in /tmp" in collected.advice["h2"]


def test_who_owes_an_account_to_a_healthy_partner_is_blamed_for_its_silence(who: Roster) -> None:
    """h3 never reported its pair with h1, which has finished."""
    collected = SweepAccounts(who)
    assert collected.add("h1", msgspec.structs.replace(SEEN, round=1, a="h1", b="h3"))
    for name in ("h2", "h4"):
        collected.add_error(name, "OSError: No space left on device")
    collected.resting.add("h1")
    collected.give_up(["h3"])
    assert "h3" in collected.breakdown().culprits


def test_nccl_is_used_where_gpus_are_and_the_odd_one_is_left_out() -> None:
    """Three nodes with eight GPUs and one without: eight rails of three nodes."""
    who = build_roster(PLAN, {"h1": GPUS, "h2": GPUS, "h3": CPU, "h4": GPUS})
    assert (who.backend, who.rails, who.names, who.ladder) == ("nccl", 8, ("h1", "h2", "h4"), NCCL)
    assert "sees no GPU" in who.mismatched["h3"]
    assert {name for around in who.rounds for pair in around for name in pair} == set(who.names)


def test_gloo_is_used_when_most_have_no_gpus() -> None:
    """One GPU node among CPU nodes takes part over gloo."""
    who = build_roster(PLAN, {"h1": GPUS, "h2": CPU, "h3": CPU, "h4": CPU})
    assert (who.backend, who.rails, who.names) == ("gloo", 1, NAMES)


def test_an_order_holds_the_agents_own_pairs_only(who: Roster) -> None:
    """One turn per round, with its rank in the pair and the partner's number."""
    by_name = {host.name: host for host in hosts(4)}
    order = go_order(PLAN, who, by_name, "h3", nonce="n", store=("10.0.0.1", 4711))
    assert order["turns"] == [
        {"round": 0, "a": "h2", "b": "h3", "rank": 1, "partner": 1},
        {"round": 1, "a": "h1", "b": "h3", "rank": 1, "partner": 0},
        {"round": 2, "a": "h3", "b": "h4", "rank": 0, "partner": 3},
    ]
    assert (order["index"], order["towards"]) == (2, "10.0.0.1")
    assert order["pinned"]
    free = msgspec.structs.replace(PLAN, unpinned=frozenset({"h3"}))
    assert not go_order(free, who, by_name, "h3", nonce="n", store=None)["pinned"]


def test_the_controller_needs_no_torch() -> None:
    """A head node judges and launches without it."""
    code = (
        "import sys; import preflight.fabric.launch, preflight.fabric.judge;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
