"""What one slow reading is worth, beside longer ones and beside a fault that is named anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.judge import judge_sweep
from preflight.fabric.planner import unread_words
from preflight.fabric.retest import suspects, unsettled_words
from preflight.fabric.samples import Moved, PairSamples, Stall, Timing
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import blame, end, hosts, sweep

if TYPE_CHECKING:
    from preflight.fabric.samples import End, PairState, Sweep

FLEET = hosts(8)
SLOW = ("h2", "h5")
SPIKY = 1000


def once_slow(speed: float = 0.02) -> Sweep:
    """One of 28 pairs is slow, between two nodes that are quick with all others."""
    return sweep(FLEET, lambda a, b: speed if (a, b) == SLOW else 0.8)


def again(
    measured: Sweep, *readings: float | PairState, moved: str = "", assigned: bool = True
) -> Sweep:
    """The slow pair is measured again, each time so fast, in a round of its own."""
    first, backend = len(measured.rounds), measured.pairs[0].backend
    pairs = []
    for number, value in enumerate(readings, first):
        ends = [
            end(name, value, backend=backend)
            if isinstance(value, float)
            else end(name, 1.0, state=value)
            for name in SLOW
        ]
        pairs.append(PairSamples(*SLOW, 0, number, backend, *ends))
    if moved:
        ends = [replace(one, moved=(Moved(moved, 3, assigned),)) for one in ends]
        pairs[-1] = replace(pairs[-1], first=ends[0], second=ends[1])
    return replace(
        measured,
        rounds=measured.rounds + ((SLOW,),) * len(readings),
        pairs=(*measured.pairs, *pairs),
        retested=first,
    )


def test_a_slow_path_is_measured_twice_more() -> None:
    """Also where shared cores scatter so much that statistics alone would not ask for it."""
    assert suspects(once_slow()) == ((SLOW,), (SLOW,))


@pytest.mark.parametrize("readings", [(0.8, 0.02), (0.02, 0.02), (0.8, "hung")])
def test_a_path_that_is_slow_again_is_named(readings: tuple[float | PairState, ...]) -> None:
    """As is one that hangs when it is measured again."""
    (found,) = blame(again(once_slow(), *readings), FLEET)
    assert (found.kind, found.component) == ("path", "pair h2-h5")


def test_a_moment_of_a_busy_machine_is_nobodys_fault() -> None:
    """Two longer readings, alone on the fabric, were quick."""
    moment = once_slow(0.1)
    assert blame(again(moment, 0.8, 0.7), FLEET) == ()
    assert blame(again(moment, 0.8, 0.7, moved="tcp retrans_segs"), FLEET) == ()
    decoded = judge_sweep(again(moment, 0.8, 0.7), FLEET)
    verdict = judge_allreduce(decoded.pairs[SLOW])
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence.startswith("median 0.7 GB/s at 4 MiB")
    assert verdict.sentence.endswith("slow once: 0.1 GB/s, but not when it was measured again")


def test_a_link_that_was_slow_by_far_and_healed_is_flaky() -> None:
    """No operation of a whole size came near the limit: that was no busy moment."""
    decoded = judge_sweep(again(once_slow(), 0.8, 0.7), FLEET)
    verdict = judge_allreduce(decoded.pairs[SLOW])
    assert (verdict.outcome, verdict.blame) == (Outcome.FLAKY, "pair h2-h5")
    assert verdict.sentence.startswith(
        "1 of 3: slow when first measured, median 0.02 GB/s, "
        "then 0.8 GB/s and 0.7 GB/s (limit 0.2 GB/s"
    )
    assert [one.component for one in decoded.blames] == ["pair h2-h5"]
    slow = [one.once for one in decoded.judgements if (one.a, one.b) == SLOW]
    assert slow == ["bandwidth", "", ""]


@pytest.mark.parametrize(("ms", "outcome"), [(250.0, Outcome.OK), (50.0, Outcome.FLAKY)])
def test_an_end_that_waited_for_a_cpu_explains_a_slow_reading(ms: float, outcome: Outcome) -> None:
    """For as long as such an operation took (0.2 s), that is; the quick readings then stand."""
    measured = once_slow()
    starved = Stall(at_s=1.0, ms=ms, what="starved")
    pairs = tuple(
        replace(pair, second=replace(pair.second, stalls=(starved,)))
        if (pair.a, pair.b) == SLOW and pair.second
        else pair
        for pair in measured.pairs
    )
    decoded = judge_sweep(again(replace(measured, pairs=pairs), 0.8, 0.7), FLEET)
    assert judge_allreduce(decoded.pairs[SLOW]).outcome is outcome


def once_hung() -> Sweep:
    """One of 28 pairs hung on rail 0; its other rail, and both nodes with others, are fine."""
    measured = sweep(FLEET, lambda *_: 46.0, backend="nccl", rails=2)
    pairs = [
        replace(pair, first=end(pair.a, 1.0, state="hung"), second=end(pair.b, 1.0, state="hung"))
        if (pair.a, pair.b, pair.rail) == (*SLOW, 0)
        else pair
        for pair in measured.pairs
    ]
    return replace(measured, pairs=tuple(pairs))


@pytest.mark.proves("fabric.allreduce", finds="one all-reduce that hung once")
def test_a_path_that_hung_once_is_measured_again_and_then_flaky() -> None:
    """One hang proves nothing against a node; without a retest it is reported as a hang."""
    assert suspects(once_hung()) == ((SLOW,), (SLOW,))
    verdict = judge_allreduce(judge_sweep(again(once_hung(), 46.0, 46.0), FLEET).pairs[SLOW])
    assert (verdict.outcome, verdict.blame) == (Outcome.FLAKY, "pair h2-h5")
    assert "an all-reduce hung once on rail 0" in verdict.sentence
    for lasting in (again(once_hung(), 46.0, "hung"), once_hung()):
        verdict = judge_allreduce(judge_sweep(lasting, FLEET).pairs[SLOW])
        assert (verdict.outcome, verdict.blame) == (Outcome.FAIL, "pair h2-h5")
        assert "hung" in verdict.sentence


def test_a_hang_is_not_taken_back_where_a_counter_moved() -> None:
    """An error counter of the rail's own NIC that moves in the retest proves the way bad."""
    looked = again(once_hung(), 46.0, 46.0, moved="mlx5_0/1 symbol_error")
    assert judge_allreduce(judge_sweep(looked, FLEET).pairs[SLOW]).outcome is Outcome.FAIL


def test_one_slow_reading_without_time_for_a_second_fails_no_path() -> None:
    """The pair could not be judged, says why and what to give; its nodes are blamed for nothing."""
    unsettled = replace(once_slow(), unsettled=(SLOW,))
    decoded = judge_sweep(unsettled, FLEET)
    assert decoded.blames == ()
    verdict = judge_allreduce(decoded.pairs[SLOW])
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence.startswith(
        "slow once in 10 operations, no time to look again: median 0.02 "
    )
    assert "--preflight-budget=SECONDS" in verdict.advice
    assert (verdict.blame, verdict.culprits) == ("pair h2-h5", ())
    assert unsettled_words(unsettled) == (
        "not measured again for lack of time: h2-h5; give --preflight-budget=SECONDS"
    )
    assert unsettled_words(once_slow()) == ""


@pytest.mark.parametrize("speed", [30.0, 20.0])
@pytest.mark.parametrize("rails", [1, 2])
def test_a_path_that_is_slow_in_one_round_only_is_unknown(speed: float, rails: int) -> None:
    """Above or below the limit, on all rails at once, and without a note why it was once."""
    once = sweep(FLEET, lambda a, b: speed if (a, b) == SLOW else 46.0, backend="nccl", rails=rails)
    decoded = judge_sweep(once, FLEET)
    verdict = judge_allreduce(decoded.pairs[SLOW])
    assert decoded.blames == ()
    assert (verdict.outcome, verdict.blame) == (Outcome.UNKNOWN, "pair h2-h5")
    assert verdict.sentence.startswith("slow once in 10 operations, not measured again: ")
    assert "run again" in verdict.advice
    rest = [judge_allreduce(pair).outcome for ends, pair in decoded.pairs.items() if ends != SLOW]
    assert set(rest) == {Outcome.OK}
    if rails == 1:
        assert [one.component for one in blame(again(once, speed, speed), FLEET)] == ["pair h2-h5"]
        assert blame(again(once, 46.0, 46.0), FLEET) == ()


def test_a_path_that_was_quick_again_while_a_counter_moved_is_flaky() -> None:
    """15 or 35 per cent slower at first: its port confesses, so quick readings do not clear it."""
    for speed in (39.0, 30.0):
        once = sweep(FLEET, lambda a, b: speed if (a, b) == SLOW else 46.0, backend="nccl")  # noqa: B023
        quick = again(once, 46.0, 46.0, moved="mlx5_0/1 symbol_error")
        decoded = judge_sweep(quick, FLEET)
        verdict = judge_allreduce(decoded.pairs[SLOW])
        assert [one.component for one in decoded.blames] == ["pair h2-h5"]
        assert (verdict.outcome, verdict.blame) == (Outcome.FLAKY, "pair h2-h5")
        assert "then 46 GB/s and 46 GB/s" in verdict.sentence
        assert "mlx5_0/1 symbol_error moved" in verdict.sentence
        assert blame(again(once, 46.0, 46.0, moved="tcp retrans_segs"), FLEET) == ()
        others = again(once, 46.0, 46.0, moved="mlx5_0/1 symbol_error", assigned=False)
        assert blame(others, FLEET) == (), "it may be another rail's"


def test_what_is_proven_needs_no_second_look() -> None:
    """A hung pair, a node slow with all, and two slow readings are named, time or not."""
    hung = sweep(FLEET, lambda a, b: "hung" if (a, b) == SLOW else 0.8)
    slow_node = sweep(FLEET, lambda a, b: 0.02 if "h5" in (a, b) else 0.8)
    for measured in (hung, slow_node, again(once_slow(), 0.02)):
        assert blame(replace(measured, unsettled=(SLOW,)), FLEET) == blame(measured, FLEET) != ()


def test_a_counter_that_moved_meanwhile_clears_no_part() -> None:
    """A cable that is slow now and then confesses at its port."""
    moved = "mlx5_0/1 symbol_error"
    (found,) = blame(again(once_slow(0.1), 0.8, 0.8, moved=moved), FLEET)
    assert found.component == "pair h2-h5"
    assert blame(again(once_slow(0.1), 0.8, 0.8, moved=moved, assigned=False), FLEET) == ()


def test_counters_that_were_not_read_are_reported_with_place_and_reason() -> None:
    """By reason: two rails of one node, and one that stopped in the second round."""
    late, unplaced = "error counters were not read: late", "the PCI address of its GPU is unknown"

    def unread(pair: PairSamples) -> PairSamples:
        first, second = pair.first, pair.second
        assert first is not None
        assert second is not None
        if "h1" in (pair.a, pair.b):
            both = f"{unplaced}; {late}" if pair.round > 1 else unplaced
            first = replace(first, unread=both if pair.a == "h1" else "")
            second = replace(second, unread=late if pair.rail and pair.round > 1 else "")
        return replace(pair, first=first, second=second)

    measured = sweep(hosts(4), lambda *_: 46.0, backend="nccl", rails=2)
    lines = unread_words(replace(measured, pairs=tuple(map(unread, measured.pairs))))
    assert lines == (
        f"not checked on h1 (rail 0, 1, from round 1 on): {unplaced}",
        f"not checked on h1, h2 (rail 0, 1, from round 3 on): {late}",
    )
    assert unread_words(measured) == ()


@pytest.mark.parametrize("state", [0.02, "hung"])
def test_a_lossy_node_accounts_for_pairs_that_are_slow_or_hung(state: float | PairState) -> None:
    """Two of its pairs came nowhere within their time: one fault, no paths beside it."""
    bad = {("h3", "h4"), ("h2", "h3")}
    measured = sweep(FLEET, lambda a, b: state if (a, b) in bad else 0.8)

    def losing(pair: PairSamples) -> PairSamples:
        lost = "h3" in (pair.a, pair.b) and (pair.a, pair.b) not in bad

        def longer(one: End | None) -> End | None:
            times = tuple(2e5 if lost and not at % 50 else 200.0 for at in range(SPIKY))
            small = Timing(8, times, (6e4,) * SPIKY)
            return one and replace(one, timings=(small, *one.timings[1:]), started_s=1e9)

        return replace(pair, first=longer(pair.first), second=longer(pair.second))

    losing_link = replace(
        measured,
        pairs=tuple(one if (one.a, one.b) in bad else losing(one) for one in measured.pairs),
    )
    assert {one.component for one in blame(losing_link, FLEET)} == {"h3"}


def test_three_nodes_with_faults_of_their_own_share_no_cause() -> None:
    """One is slow, one hangs, one breaks off: three faults, each with its own advice."""
    kinds: dict[str, float | PairState] = {"h1": 0.02, "h4": "hung", "h6": "error"}

    def speed(a: str, b: str) -> float | PairState:
        return kinds.get(b, kinds.get(a, 0.8))

    found = blame(sweep(FLEET, speed), FLEET)
    assert {one.component for one in found} == set(kinds)
    assert {one.kind for one in found} == {"node"}


def test_a_slow_path_beside_a_worker_that_died_once_is_its_own_finding() -> None:
    """The death of h5's worker explains its own pair, and no other; the path is looked at again."""

    def speed(a: str, b: str) -> float | PairState:
        return "error" if (a, b) == ("h5", "h8") else 0.02 if (a, b) == SLOW else 0.8

    measured = sweep(FLEET, speed)
    died = "its measuring process was killed by SIGKILL"
    pairs = tuple(
        replace(one, first=replace(one.first, error=died))
        if one.first is not None and one.first.state == "error"
        else one
        for one in measured.pairs
    )
    measured = replace(measured, pairs=pairs)
    assert suspects(measured) == ((SLOW,), (SLOW,))
    found = {one.component: one.pairs for one in blame(again(measured, 0.02), FLEET)}
    assert found == {"h5": (("h5", "h8"),), "pair h2-h5": (("h2", "h5"),)}
