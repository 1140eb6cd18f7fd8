"""Peers, expectations and floors decide; the sentence says which, and whose fault it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.core.text import time_us
from preflight.core.thresholds import shipped
from preflight.fabric.judge import judge_sweep
from preflight.fabric.samples import End
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import blame, end, hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.fabric.pair_summary import Pair
    from preflight.fabric.samples import PairSamples, PairState


def slow_node(name: str, gbs: float = 0.024) -> Callable[[str, str], float]:
    """0.8 GB/s everywhere but at one node."""
    return lambda a, b: gbs if name in (a, b) else 0.8


def test_a_slow_node_is_named_with_number_and_limit() -> None:
    """Its pairs fail, all blame it, and the sentence holds what was seen and expected."""
    fleet = hosts(4)
    pairs = judge_sweep(sweep(fleet, slow_node("h3")), fleet).pairs
    verdicts = {names: judge_allreduce(pair) for names, pair in pairs.items()}
    failed = {names for names, verdict in verdicts.items() if verdict.outcome is Outcome.FAIL}
    assert failed == {("h1", "h3"), ("h2", "h3"), ("h3", "h4")}
    assert {verdicts[names].blame for names in failed} == {"h3"}
    assert verdicts["h1", "h3"].sentence == (
        "median 0.024 GB/s at 4 MiB with h2; peers' median 0.8 GB/s, limit 0.2 GB/s "
        "(0.25 of the peers' median); h3 is slow with each of its 3 partners"
    )
    assert "h3" in verdicts["h1", "h3"].advice


@settings(deadline=None)
@given(st.integers(4, 12), st.data())
def test_healthy_nodes_are_never_blamed_for_one_slow_one(count: int, data: st.DataObject) -> None:
    """Speeds of healthy pairs vary by as much as two shared cores make them."""
    fleet = hosts(count)
    culprit = data.draw(st.sampled_from([host.name for host in fleet]))
    factors = st.floats(0.6, 1.4)
    found = blame(
        sweep(fleet, lambda a, b: (0.025 if culprit in (a, b) else 0.8) * data.draw(factors)),
        fleet,
    )
    assert [(one.kind, one.component) for one in found] == [("node", culprit)]


def test_a_bad_path_is_a_pair_not_a_node() -> None:
    """Only h1-h2 is slow: the verdict blames the pair, and keeps both nodes fit."""
    fleet = hosts(5)
    measured = sweep(fleet, lambda a, b: 0.02 if (a, b) == ("h1", "h2") else 0.8)
    verdict = judge_allreduce(judge_sweep(measured, fleet).pairs["h1", "h2"])
    assert verdict.blame == "pair h1-h2"
    assert "h1 and h2 are both fine with others" in verdict.sentence


@pytest.mark.parametrize("state", ["hung", "no_connect", "corrupt", "error"])
def test_pairs_that_were_not_measured_to_the_end_are_decoded_alike(state: PairState) -> None:
    """A node that hangs, refuses, corrupts or breaks off with everyone is the culprit."""
    fleet = hosts(4)
    (found,) = blame(sweep(fleet, lambda a, b: state if "h2" in (a, b) else 0.8), fleet)
    assert (found.component, found.kind) == ("h2", "node")


def test_two_nodes_are_held_against_the_shipped_floor() -> None:
    """Without peers and expectation the floor decides, and the sentence says so."""
    fleet = hosts(2)
    fine = judge_allreduce(judge_sweep(sweep(fleet, lambda *_: 0.8), fleet).pairs["h1", "h2"])
    assert fine.outcome is Outcome.OK
    assert "shipped floor for gloo" in fine.sentence
    slow = judge_allreduce(judge_sweep(sweep(fleet, lambda *_: 0.02), fleet).pairs["h1", "h2"])
    assert (slow.outcome, slow.blame) == (Outcome.FAIL, "h1 or h2")


@pytest.mark.parametrize("state", ["hung", "no_connect", "error", 0.02])
def test_two_nodes_that_cannot_be_separated_get_advice_that_can_be_followed(
    state: PairState | float,
) -> None:
    """`exclude it` names no node if it is h1 or h2: both, or a third node to settle it."""
    (found,) = blame(sweep(hosts(2), lambda *_: state), hosts(2))
    assert found.component == "h1 or h2"
    ending = "; exclude both, or run again with a third node to tell which it is"
    assert found.advice.endswith(ending)
    assert "exclude it" not in found.advice


def test_of_several_that_cannot_be_separated_the_advice_says_what_to_add() -> None:
    """All pairs were tried and all are bad: other nodes have to help; of few rounds, more pairs."""
    whole = blame(sweep(hosts(3), lambda *_: "hung"), hosts(3))[-1]
    assert whole.advice.endswith(
        "exclude all 3, or run again beside more nodes to tell which it is"
    )
    some = blame(sweep(hosts(6), lambda *_: "hung", limit=2), hosts(6))[-1]
    assert "with more pairs (--preflight-sweep=exhaustive)" in some.advice


def test_a_process_that_the_kernel_killed_sends_one_to_the_kernel_log() -> None:
    """SIGKILL from an unknown sender is mostly the out-of-memory killer's, no stuck driver."""
    fleet = hosts(4)
    measured = sweep(fleet, lambda a, b: "hung" if "h2" in (a, b) else 0.8)
    killed = "its measuring process was killed by SIGKILL"
    pairs = tuple(
        msgspec.structs.replace(
            pair,
            first=_saying(pair.first, killed) if pair.a == "h2" else pair.first,
            second=_saying(pair.second, killed) if pair.b == "h2" else pair.second,
        )
        for pair in measured.pairs
    )
    (found,) = blame(msgspec.structs.replace(measured, pairs=pairs), fleet)
    assert (found.component, found.kind) == ("h2", "node")
    assert found.advice.startswith("look at the kernel log on h2 for out-of-memory kills")


def _saying(one: End | None, error: str) -> End | None:
    return None if one is None else msgspec.structs.replace(one, error=error)


def test_a_promise_is_stricter_than_peers() -> None:
    """Everybody is equally slow, and the inventory expected more."""
    fleet = hosts(3, Expected(allreduce_min_gbs=40.0, origin="fleet.toml"))
    measured = sweep(fleet, lambda *_: 20.0, backend="nccl")
    verdict = judge_allreduce(judge_sweep(measured, fleet).pairs["h1", "h2"])
    assert verdict.outcome is Outcome.FAIL
    assert "limit 40 GB/s (expected by fleet.toml)" in verdict.sentence
    assert blame(measured, fleet)[0].kind == "systemic"


@pytest.mark.proves("fabric.allreduce", unknown="a single pair with nothing to compare it with")
def test_without_any_yardstick_the_pair_is_unknown() -> None:
    """No peers, and an inventory that expects nothing: not a pass."""
    fleet = hosts(2)
    verdict = judge_allreduce(
        judge_sweep(sweep(fleet, lambda *_: 46.0, backend="nccl"), fleet).pairs["h1", "h2"]
    )
    assert verdict.outcome is Outcome.UNKNOWN


def test_three_slow_nodes_of_eight_are_systemic() -> None:
    """Over a quarter and at least three: reported as one likely cause, with the nodes beside it."""
    fleet = hosts(8)
    bad = {"h1", "h4", "h6"}
    found = blame(sweep(fleet, lambda a, b: 0.02 if {a, b} & bad else 0.8), fleet)
    assert found[0].kind == "systemic"
    assert {one.component for one in found[1:]} == bad


def test_one_slow_rail_is_named_on_its_node() -> None:
    """Rail 1 of h2 is slow with everyone: the node, and which rail."""
    fleet = hosts(4)
    measured = sweep(fleet, lambda *_: 46.0, backend="nccl", rails=2)
    slow = sweep(fleet, lambda *_: 10.0, backend="nccl", rails=2)
    mixed = tuple(
        bad if good.rail == 1 and "h2" in (good.a, good.b) else good
        for good, bad in zip(measured.pairs, slow.pairs, strict=True)
    )
    (found,) = blame(msgspec.structs.replace(measured, pairs=mixed), fleet)
    assert found.component == "h2"
    assert "on rail 1" in found.sentence


@pytest.mark.parametrize("nodes", [4, 8])
@pytest.mark.parametrize("rails", [2, 8])
@pytest.mark.parametrize("kinds", [("slow", "slow"), ("hung", "slow"), ("slow", "hung")])
@pytest.mark.parametrize("second", [0, 1])
def test_faults_on_single_rails_of_two_nodes_are_two_findings(
    nodes: int, rails: int, kinds: tuple[str, str], second: int
) -> None:
    """Each is reported with its own rail and its own symptom, also where both are on one rail."""
    fleet = hosts(nodes)
    faults = {("h1", 0): kinds[0], ("h3", second): kinds[1]}
    measured = sweep(fleet, lambda *_: 46.0, backend="nccl", rails=rails)
    pairs = []
    for one in measured.pairs:
        here = [faults.get((name, one.rail), "") for name in (one.a, one.b)]
        hung = "hung" in here
        ends = [
            end(name, 23.0 if "slow" in here else 46.0, state="hung" if hung else "measured",
                backend="nccl")
            for name in (one.a, one.b)
        ]  # fmt: skip
        pairs.append(msgspec.structs.replace(one, first=ends[0], second=ends[1]))
    found = {
        one.component: one.sentence
        for one in blame(msgspec.structs.replace(measured, pairs=tuple(pairs)), fleet)
    }
    assert set(found) == {"h1", "h3"}
    for name, rail, kind in (("h1", 0, kinds[0]), ("h3", second, kinds[1])):
        assert f"{'slow' if kind == 'slow' else 'bad'} with each of its" in found[name]
        assert found[name].endswith(f"on rail {rail}")


def test_a_node_left_out_earlier_is_not_run_and_one_that_failed_the_sweep_unknown() -> None:
    """h4 has its finding elsewhere; h3 had no torch, which nothing else says."""
    fleet = hosts(4)
    measured = sweep(fleet[:2], lambda *_: 0.8)
    measured = msgspec.structs.replace(
        measured,
        left_out={"h3": "no usable torch", "h4": "reach.login of h4: refused"},
        troubles={"h3": "no usable torch"},
    )
    pairs = judge_sweep(measured, fleet).pairs
    assert judge_allreduce(pairs["h1", "h4"]).outcome is Outcome.NOT_RUN
    verdict = judge_allreduce(pairs["h1", "h3"])
    assert (verdict.outcome, verdict.blame) == (Outcome.UNKNOWN, "h3")
    assert judge_allreduce(pairs["h1", "h2"]).outcome is Outcome.OK


def test_a_busy_machine_is_not_a_slow_link() -> None:
    """Most iterations were held up and some were not: no link does that to a median."""
    fleet = hosts(4)
    measured = sweep(fleet, lambda *_: 0.8)
    slow = end("h1", 0.1)
    held_up = msgspec.structs.replace(
        slow.timings[1], times_us=(*slow.timings[1].times_us[1:], 5e3)
    )
    odd = msgspec.structs.replace(slow, timings=(slow.timings[0], held_up))
    pairs = tuple(
        msgspec.structs.replace(pair, first=odd, second=odd) if pair.a == "h1" else pair
        for pair in measured.pairs
    )
    assert blame(msgspec.structs.replace(measured, pairs=pairs), fleet) == ()


def test_both_backends_have_the_same_limits() -> None:
    """What is judged of the one is judged of the other."""
    gloo, nccl = (
        {n.partition(".")[2] for n in shipped() if n.startswith(b)} for b in ("gloo.", "nccl.")
    )
    assert gloo == nccl


def test_small_sizes_are_not_held_to_bandwidth_limits() -> None:
    """A ladder that ends at 8 B says nothing of bandwidth: neither slow nor a pass."""
    fleet = hosts(2)
    measured = sweep(fleet, lambda *_: 0.8)
    short = msgspec.structs.replace(
        measured,
        ladder=measured.ladder[:1],
        pairs=tuple(
            msgspec.structs.replace(
                pair,
                first=end(pair.a, 0.8, sizes=1),
                second=end(pair.b, 0.8, sizes=1),
            )
            for pair in measured.pairs
        ),
    )
    assert judge_allreduce(judge_sweep(short, fleet).pairs["h1", "h2"]).outcome is Outcome.UNKNOWN
    assert blame(short, fleet) == ()


def test_every_node_in_trouble_is_not_ready() -> None:
    """Two left out, one lost after its last pair: some verdict blames each, and no other."""
    fleet = hosts(5)
    measured = msgspec.structs.replace(
        sweep(fleet[:3], lambda *_: 0.8),
        left_out={"h4": "no torch", "h5": "cut"},
        troubles={"h4": "no torch", "h5": "cut", "h2": "killed"},
        advice={"h5": "look at its link"},
    )
    pairs = judge_sweep(measured, fleet).pairs
    assert _not_ready(pairs) == {"h2", "h4", "h5"}
    verdict = judge_allreduce(pairs["h1", "h5"])
    assert (verdict.blame, verdict.advice) == ("h5", "look at its link")
    assert judge_allreduce(pairs["h4", "h5"]).blame == "h4 and h5"
    assert "h4: no torch; h5: cut" in judge_allreduce(pairs["h4", "h5"]).sentence


def test_two_lost_nodes_are_both_blamed_by_their_pair() -> None:
    """Both ends of the only pair vanished: neither of them is ready."""
    fleet = hosts(2)
    lost = msgspec.structs.replace(
        sweep(fleet, lambda *_: "error"), troubles={"h1": "killed", "h2": "cut"}
    )
    assert _not_ready(judge_sweep(lost, fleet).pairs) == {"h1", "h2"}


def test_a_sweep_in_which_all_waited_is_unknown_for_all() -> None:
    """No culprit is known: no node is named, and none is ready."""
    fleet = hosts(3)
    measured = msgspec.structs.replace(
        sweep(fleet, lambda *_: "not_run"),
        waited=dict.fromkeys(("h1", "h2", "h3"), "waited for one another"),
    )
    pairs = judge_sweep(measured, fleet).pairs
    assert {judge_allreduce(pair).outcome for pair in pairs.values()} == {Outcome.UNKNOWN}
    assert _not_ready(pairs) == {"h1", "h2", "h3"}


def test_a_pair_that_reached_8_bytes_fails_where_others_reached_more() -> None:
    """A lossy link at h3: its pairs clear no node, and the sentence says how far they came."""
    fleet = hosts(4)
    measured = sweep(fleet, lambda *_: 0.8)
    pairs = tuple(
        msgspec.structs.replace(
            pair, first=end(pair.a, 0.8, sizes=1), second=end(pair.b, 0.8, sizes=1)
        )
        if "h3" in (pair.a, pair.b)
        else pair
        for pair in measured.pairs
    )
    (found,) = blame(msgspec.structs.replace(measured, pairs=pairs), fleet)
    assert (found.kind, found.component) == ("node", "h3")
    assert "only 8 B of 4 MiB were reached" in found.sentence


def test_a_lone_pair_that_reached_8_bytes_says_how_far_it_came() -> None:
    """Without peers it cannot be judged, and that is why."""
    fleet = hosts(2)
    measured = sweep(fleet, lambda *_: 0.8)
    (pair,) = measured.pairs
    short = msgspec.structs.replace(
        pair, first=end("h1", 0.8, sizes=1), second=end("h2", 0.8, sizes=1)
    )
    one = judge_sweep(msgspec.structs.replace(measured, pairs=(short,)), fleet)
    assert not one.judgements[0].good
    verdict = judge_allreduce(one.pairs["h1", "h2"])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "only 8 B of 4 MiB were reached" in verdict.sentence


@pytest.mark.parametrize(
    ("state", "own", "words"),
    [
        ("hung", "its measuring process stood still for 5 s and was killed", "stood still"),
        ("error", "its measuring process was killed by SIGKILL", "only the process on h3 died"),
        ("error", "its measuring process ended by itself with status 3", "on h3 died"),
    ],
)
def test_the_end_whose_process_failed_is_the_suspect_not_the_path(
    state: PairState, own: str, words: str
) -> None:
    """h3's measuring process failed once; h1 merely lost it, and both are fine elsewhere."""
    fleet = hosts(4)
    measured = sweep(fleet, lambda a, b: state if (a, b) == ("h1", "h3") else 0.8)
    pairs = tuple(
        msgspec.structs.replace(pair, second=msgspec.structs.replace(pair.second, error=own))
        if (pair.a, pair.b) == ("h1", "h3") and pair.second
        else pair
        for pair in measured.pairs
    )
    (found,) = blame(msgspec.structs.replace(measured, pairs=pairs), fleet)
    assert (found.kind, found.component) == ("node", "h3")
    assert words in found.sentence
    assert "each of" not in found.sentence


STILL = "its measuring process stood still for 12 s and was killed"


@pytest.mark.parametrize(
    ("first", "second", "culprit"),
    [
        (("hung", STILL), ("hung", STILL), "pair h1-h3"),
        (("hung", STILL), ("error", "its measuring process was killed by SIGKILL"), "h3"),
        (("hung", STILL), ("hung", STILL + "; it was stopped by a signal"), "h3"),
        (("hung", STILL), ("error", "unhandled system error; NCCL: ... mlx5_3"), "pair h1-h3"),
        (("measured", ""), ("hung", STILL), "h3"),
    ],
)
def test_with_nccl_an_end_that_stood_still_may_have_waited_for_the_other(
    first: tuple[PairState, str], second: tuple[PairState, str], culprit: str
) -> None:
    """NCCL waits for ever for a partner that died, was stopped or broke off: that one is named."""
    fleet = hosts(4)
    whole = sweep(fleet, lambda *_: 46.0, backend="nccl")

    def change(pair: PairSamples) -> PairSamples:
        if (pair.a, pair.b) != ("h1", "h3") or pair.first is None or pair.second is None:
            return pair
        ends = [
            msgspec.structs.replace(end, state=state, error=error)
            for end, (state, error) in zip((pair.first, pair.second), (first, second), strict=True)
        ]
        return msgspec.structs.replace(pair, first=ends[0], second=ends[1])

    pairs = tuple(map(change, whole.pairs))
    (found,) = blame(msgspec.structs.replace(whole, pairs=pairs), fleet)
    assert found.component == culprit
    assert found.kind == ("path" if culprit.startswith("pair") else "node")


MODIFY_QP = (
    "unhandled system error; NCCL: Call to ibv_modify_qp failed with 110 Connection timed out, on "
    "dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID fe80::1"
)
COMPLETION = (
    "remote process exited or there was a network error; NCCL: NET/IB: Got completion from peer "
    "10.0.0.42<38111> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) hca mlx5_3"
)
OUT_OF_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("state", "error", "headline", "advice"),
    [
        ("no_connect", MODIFY_QP, "no connection came about", "on h3 look at mlx5_3 port 1: cable"),
        ("no_connect", MODIFY_QP, "on dev mlx5_3:1", "its GID 3 (show_gids mlx5_3)"),
        ("error", COMPLETION, "all-reduces broke off", "(rdma link show mlx5_3/1)"),
        ("error", OUT_OF_MEMORY, "all-reduces broke off", "on h3: nvidia-smi shows which process"),
        ("no_connect", OUT_OF_MEMORY, "no connection came about", "holds the GPU's memory; end it"),
        (
            "error",
            "CUDA error: unspecified launch failure",
            "broke off",
            "on h3: nvidia-smi, and X",
        ),
    ],
)
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_cause_that_one_end_tells_decides_headline_and_advice(
    nodes: int, state: PairState, error: str, headline: str, advice: str
) -> None:
    """The other end waited for it: that is no hang; the advice is for the node that reported it."""
    fleet = hosts(nodes)
    bad = "h3" if nodes > 2 else "h2"
    whole = sweep(fleet, lambda *_: 46.0, backend="nccl")

    def change(pair: PairSamples) -> PairSamples:
        if bad not in (pair.a, pair.b):
            return pair
        ends = [
            End(name, state, error=error) if name == bad else End(name, "hung", error=STILL)
            for name in (pair.a, pair.b)
        ]
        return msgspec.structs.replace(pair, first=ends[0], second=ends[1])

    (found,) = blame(msgspec.structs.replace(whole, pairs=tuple(map(change, whole.pairs))), fleet)
    assert headline in found.sentence
    assert "hung" not in found.sentence
    assert advice.replace("h3", bad) in found.advice
    if nodes > 2 or "CUDA" in error:
        assert (found.kind, found.component) == ("node", bad)


@pytest.mark.parametrize("bad", ["h1", "h4"])
def test_of_two_ends_that_tell_of_a_port_the_named_node_is_looked_at_first(bad: str) -> None:
    """A completion fails on both ends: the advice does not begin with a node that is ready."""
    fleet = hosts(4)
    whole = sweep(fleet, lambda *_: 46.0, backend="nccl")

    def change(pair: PairSamples) -> PairSamples:
        ends = [
            End(name, "hung", error=f"{STILL}; NCCL: {COMPLETION}") for name in (pair.a, pair.b)
        ]
        both = msgspec.structs.replace(pair, first=ends[0], second=ends[1])
        return both if bad in (pair.a, pair.b) else pair

    (found,) = blame(msgspec.structs.replace(whole, pairs=tuple(map(change, whole.pairs))), fleet)
    assert found.component == bad
    assert found.advice.startswith(f"on {bad} look at mlx5_3 port 1: cable"), found.advice


@pytest.mark.parametrize(
    ("net", "advice"),
    [
        (
            "NET/IB mlx5_3 GDRDMA",
            "error counters of mlx5_3 on h3 (rdma link show mlx5_3/1; perfquery",
        ),
        ("NET/IB mlx5_3 RoCE", "rdma statistic show link mlx5_3/1)"),
        ("NET/Socket eth0", "port errors (ethtool -S)"),
    ],
)
def test_the_advice_on_a_slow_rail_names_what_carried_it(net: str, advice: str) -> None:
    """An InfiniBand port is not read by ethtool."""
    fleet = hosts(4)
    whole = sweep(fleet, lambda a, b: 2.0 if "h3" in (a, b) else 46.0, backend="nccl")
    pairs = tuple(
        msgspec.structs.replace(
            pair,
            first=pair.first and msgspec.structs.replace(pair.first, net=net),
            second=pair.second and msgspec.structs.replace(pair.second, net=net),
        )
        for pair in whole.pairs
    )
    (found,) = blame(msgspec.structs.replace(whole, pairs=pairs), fleet)
    assert found.component == "h3"
    assert advice in found.advice
    assert ("ethtool" in found.advice) is (net == "NET/Socket eth0")


def test_a_rail_whose_gpu_another_process_holds_is_not_run_and_no_node_is_blamed() -> None:
    """Its partners waited in vain, and say so: that is no failure of either."""
    held = "exclusive process: pid 4711 (python) holds GPU 0"
    fleet = hosts(4)
    whole = sweep(fleet, lambda *_: 46.0, backend="nccl")
    pairs = tuple(
        msgspec.structs.replace(
            pair,
            first=End(pair.a, "absent", error="its partner did not come to round 1"),
            second=End("h4", "not_run", error=held),
        )
        if pair.b == "h4"
        else pair
        for pair in whole.pairs
    )
    decoded = judge_sweep(msgspec.structs.replace(whole, pairs=pairs), fleet)
    assert decoded.blames == ()
    verdict = judge_allreduce(decoded.pairs["h1", "h4"])
    assert verdict.outcome is Outcome.NOT_RUN
    assert held in verdict.sentence


def test_a_systemic_fault_is_reported_on_every_pair_and_drains_no_node() -> None:
    """All pairs are slow: one shared cause, suspects in fleet order, no advice to exclude."""
    fleet = hosts(4)
    decoded = judge_sweep(sweep(fleet, lambda *_: 0.02), fleet)
    for verdict in map(judge_allreduce, decoded.pairs.values()):
        assert "one shared cause is likelier" in verdict.sentence
        assert "too few pairs" not in verdict.sentence
        assert "exclude" not in verdict.advice
        assert verdict.blame == "h1, h2, h3 or h4"


def test_times_and_partners_are_given_in_plain_numbers() -> None:
    """No exponents, and no "each of its 1 partners"."""
    assert [time_us(us) for us in (5.0, 210_000.0, 1_200_000.0)] == ["5 us", "210 ms", "1.2 s"]
    fleet = hosts(2)
    lost = msgspec.structs.replace(sweep(fleet, lambda *_: "error"), troubles={"h2": "cut"})
    (found,) = blame(lost, fleet)
    assert "h2 is bad with its only partner" in found.sentence


def _not_ready(pairs: Mapping[tuple[str, str], Pair]) -> set[str]:
    bad: set[str] = set()
    for names, pair in pairs.items():
        verdict = judge_allreduce(pair)
        if verdict.makes_not_ready:
            one = {verdict.blame} & {"h1", "h2", "h3", "h4", "h5"}
            bad |= one or set(names)
    return bad


def test_peers_near_the_floor_excuse_those_that_are_as_slow() -> None:
    """A machine on which all is slow: half below the floor is no node's fault, a tenth is."""
    fleet = hosts(8)
    near = {0: 0.05, 1: 0.07}
    measured = sweep(fleet, lambda a, b: near[(int(a[1:]) + int(b[1:])) % 2])
    assert blame(measured, fleet) == ()
    worse = sweep(fleet, lambda a, b: 0.005 if "h2" in (a, b) else 0.07)
    assert [one.component for one in blame(worse, fleet)] == ["h2"]
