"""The pieces that run on a node: data that is checked, lines that stay whole."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.fabric.nodes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

torch: Any = pytest.importorskip("torch")

from sweep import (  # noqa: E402  needs torch's skip first
    groups,
    inside,
    ladder,
    lifeline,
    lines,
    means,
    meeting,
    pair,
    pattern,
    plan,
    rails,
    same,
    seat,
    starvation,
    verify,
    wall,
    watch,
)

GO: dict[str, Any] = {
    "run": "r", "index": 0, "nodes": 2, "rails": 1, "backend": "gloo", "address": "a",
    "towards": "b", "interface": None, "store": ["a", 1], "seed": 7,
    "ladder": [[64, 2, 10], [4096, 1, 50]], "meet_s": 1, "op_s": 1, "box_s": 1, "pair_s": 5,
    "barrier_s": 1,
    "turns": [{"round": 0, "a": "h1", "b": "h2", "rank": 0, "partner": 1}, None],
}  # fmt: skip


class Partner:
    """Stands for a two-ended group whose other end does its part, but for one flipped bit."""

    device = torch.device("cpu")

    def __init__(self, flip_at: int | None) -> None:
        self.operations = 0
        self._flip_at = flip_at
        self._other: Any = None

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Add what the other end has: its pattern at first, then the same sum as we."""
        if smallest:
            return
        mine = torch.empty_like(tensor)
        pattern.fill(torch, mine, pattern.key(7, 0, 0))
        if torch.equal(mine, tensor):
            self._other = torch.empty_like(tensor)
            pattern.fill(torch, self._other, pattern.key(7, 0, 1))
        tensor.add_(self._other)
        self.operations += 1
        if self.operations == self._flip_at:
            tensor[5] ^= 1 << 30
        self._other = tensor.clone()


def _climb(flip_at: int | None, **changes: Any) -> ladder.Ladder:
    go = plan.read({**GO, **changes})
    assert go.turns[0] is not None
    keys = [pattern.key(go.seed, 0, rank) for rank in (0, 1)]
    climbed = ladder.Ladder(torch, Partner(flip_at), go, pattern.Ends(keys, 0), lambda *_: None)  # type: ignore[arg-type]
    climbed.climb(1e18, time.monotonic())  # it has all the time there is
    return climbed


def test_right_data_is_measured() -> None:
    """Every size yields as many times as were agreed on, and gaps beside them."""
    climbed = _climb(None)
    assert [timing["size_bytes"] for timing in climbed.timings] == [64, 4096]
    assert [len(timing["times_us"]) for timing in climbed.timings] == [10, 50]
    assert not climbed.spoilt


def test_a_soak_follows_the_ladder_and_all_have_their_place_in_time() -> None:
    """One size for longer, as often as fits its time; each size began after the one before."""
    climbed = _climb(None, ladder=[[64, 1, 4], [65536, 1, 4]], soak=[65536, 1, 30], soak_s=60.0)
    kinds = [(timing["size_bytes"], timing["phase"]) for timing in climbed.timings]
    assert kinds == [(64, "ladder"), (65536, "ladder"), (65536, "soak")]
    assert [len(timing["gaps_us"]) for timing in climbed.timings] == [4, 4, 30]
    began = [timing["began_s"] for timing in climbed.timings]
    assert began == sorted(began)
    spent_s = [sum(t["times_us"] + t["gaps_us"]) / 1e6 for t in climbed.timings]
    assert began[1] >= began[0] + spent_s[0]


class Spiky(Partner):
    """Holds one in five operations up for 10 ms, from the tenth on."""

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Late now and then; never in what both ends agree on."""
        super().reduce(tensor, smallest=smallest)
        if not smallest and self.operations > 10 and self.operations % 5 == 0:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("changes", "stopped", "times"),
    [
        ({}, "", 300),
        ({"condemn": [8000.0, 0.01, 0.1, 13.8]}, "spikes", 67),
        ({"condemn": [1e6, 0.01, 0.1, 13.8]}, "", 300),
        ({"pair_s": 0.1}, "time", 67),
    ],
)
def test_a_size_is_left_when_it_is_condemned_or_takes_too_long(
    changes: dict[str, Any], stopped: str, times: int
) -> None:
    """Both ends look every 64 operations; the samples say why there are no more of them."""
    go = plan.read({**GO, "ladder": [[64, 2, 300], [4096, 1, 5]], "pair_s": 60.0, **changes})
    keys = [pattern.key(go.seed, 0, rank) for rank in (0, 1)]
    spiky: Any = Spiky(None)
    climbed = ladder.Ladder(torch, spiky, go, pattern.Ends(keys, 0), lambda *_: None)
    climbed.climb(1e18, time.monotonic())
    said = [(timing["stopped"], len(timing["times_us"])) for timing in climbed.timings]
    assert said[0] == (stopped, times)
    assert said[1:] == [("", 5)]
    assert not climbed.spoilt


class Tardy(Partner):
    """Takes 5 ms for each operation, but for the first few."""

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Quick only while the size is begun; what both ends agree on is always quick."""
        super().reduce(tensor, smallest=smallest)
        if not smallest and self.operations > 6:
            time.sleep(0.005)


@pytest.mark.parametrize(("partner", "times"), [(Tardy, 67), (Spiky, 300)])
def test_a_box_holds_what_fits_though_the_first_few_were_quick_and_spikes_cost_no_samples(
    partner: type[Partner], times: int
) -> None:
    """Both ends count again every 64 operations: it is the usual one that must fit."""
    go = plan.read({**GO, "ladder": [[64, 2, 300]], "box_s": 0.3, "pair_s": 60.0})
    keys = [pattern.key(go.seed, 0, rank) for rank in (0, 1)]
    other: Any = partner(None)
    climbed = ladder.Ladder(torch, other, go, pattern.Ends(keys, 0), lambda *_: None)
    climbed.climb(1e18, time.monotonic())
    (timing,) = climbed.timings
    assert (timing["stopped"], len(timing["times_us"])) == ("", times)


@pytest.mark.parametrize(("flip_at", "seen"), [(1, 12), (12, 12), (40, 41), (41, 41)])
def test_small_data_on_a_gpu_are_compared_after_the_last_operation(flip_at: int, seen: int) -> None:
    """After many doublings in place bits are lost, so one more operation is made for it."""
    keys = [pattern.key(7, 0, rank) for rank in (0, 1)]
    data = verify.Data(torch, Partner.device, 64, keys, 0, each=False)
    partner = Partner(flip_at)
    for _ in range(12 if seen == 12 else 40):
        partner.reduce(data.buffer)
        data.check()
    data.settle(partner)
    assert (data.operations, partner.operations) == (seen, seen)
    assert bool(data.wrong) == (flip_at in (12, 41))


@pytest.mark.parametrize("operation", [1, 2, 31, 61, 64])
def test_one_wrong_bit_in_any_operation_is_found_and_numbered(operation: int) -> None:
    """Warm-up, ladder, soak; also high bits in a long run, which doubling would shift out."""
    climbed = _climb(operation, ladder=[[1 << 16, 2, 20]], soak=[1 << 17, 2, 40], soak_s=60.0)
    assert climbed.spoilt
    assert climbed.data is not None
    first = operation <= 22
    number, of = (operation, 22) if first else (operation - 22, 42)
    said = climbed.data.words()
    assert f"in operation {number} of {of}; 1 of them" in said
    assert f"{(1 << 16) if first else (1 << 17)} B: element 5 of" in said
    got, wanted = (int(word, 16) for word in re.findall(r"0x[0-9a-f]{8}", said))
    assert got ^ wanted == 1 << 30


@pytest.mark.parametrize("elements", [1, 2, 3, 1 << 10])
def test_any_bit_that_differs_is_seen(elements: int) -> None:
    """The first bit of a buffer, its last, and none."""
    buffer = torch.arange(elements, dtype=torch.int32)
    assert same.same(buffer, buffer.clone())
    for place, bit in ((0, 1), (elements - 1, -(2**31))):
        other = buffer.clone()
        other[place] ^= bit
        assert not same.same(buffer, other)


def test_a_device_tells_the_same_without_being_waited_for() -> None:
    """What is enqueued on a GPU finds the first wrong element as the CPU's comparison does."""
    wanted = torch.arange(1000, dtype=torch.int32)
    buffer = wanted.clone()
    assert verify.report(torch, buffer, wanted).tolist()[0] == 0
    buffer[[17, 400]] = -5
    assert verify.report(torch, buffer, wanted).tolist() == [1, 17, -5]


class Still(watch.Watch):
    """Reads no counters."""

    def __init__(self) -> None:
        pass

    def read(self, what: dict[str, Any]) -> None:
        """Nothing came in time."""
        del what


class Both:
    """Both ends of one real pair over gloo, as two threads of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self._go = {**GO, "meet_s": 10, "op_s": 10, "pair_s": 60, **changes}
        self._patch = monkeypatch

    def spoil(self, node: str, *, when_rank: int | None = None) -> None:
        """One node's results come out wrong, whatever its role, or in one role only."""
        connect = groups.connect

        def connected(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int = 2) -> Any:
            group = connect(torch, store, rank, rail, size)
            reduce = group.reduce

            def spoiled(tensor: Any, *, smallest: bool = False) -> None:
                reduce(tensor, smallest=smallest)
                ours = rail.go.index == int(node == "h2") and when_rank in (None, rank)
                if ours and not smallest and tensor.numel() > 2:
                    tensor[3] ^= 4

            group.reduce = spoiled  # type: ignore[method-assign]
            return group

        self._patch.setattr(groups, "connect", connected)

    def measure_inside(self, *rails: int, of: int = 3) -> list[dict[str, Any]]:
        """What these rails of one node have to say of each other."""
        store = torch.distributed.HashStore()
        go = plan.read({**self._go, "nodes": 1, "rails": of, "inside": True, "turns": []})

        def rail(number: int) -> dict[str, Any]:
            own = plan.Rail(go, number, "127.0.0.1", ("a", 1))
            met = meeting.Meeting(store, number, of)
            seat = pair.Seat(torch, store, met, own, means.Means(torch, own), Still(), wall.Steps())
            return inside.measure(seat, lambda *_: None)

        with ThreadPoolExecutor(of) as all_of_them:
            return list(all_of_them.map(rail, rails))

    def measure(self) -> list[dict[str, Any]]:
        """What each end has to say."""
        store = torch.distributed.HashStore()
        with ThreadPoolExecutor(2) as both:
            return list(both.map(lambda rank: self._end(store, rank), (0, 1)))

    def _end(self, store: Any, rank: int) -> dict[str, Any]:
        turn = {"round": 0, "a": "h1", "b": "h2", "rank": rank, "partner": 1 - rank}
        rail = plan.Rail(
            plan.read({**self._go, "index": rank, "turns": [turn]}), 0, "127.0.0.1", ("a", 1)
        )
        assert rail.go.turns[0] is not None
        met = meeting.Meeting(store, rank, 2)
        seat = pair.Seat(torch, store, met, rail, means.Means(torch, rail), Still(), wall.Steps())
        return pair.measure(seat, rail.go.turns[0], lambda *_: None)


def test_wrong_data_names_the_end_that_got_it_and_tries_with_roles_swapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The healthy end is measured; the other says what came out, and what swapping showed."""
    both = Both(monkeypatch, ladder=[[8, 1, 5], [1 << 16, 1, 10]], soak=[1 << 16, 1, 10])
    both.spoil("h2")
    first, second = both.measure()
    assert (first["state"], second["state"]) == ("measured", "corrupt")
    sizes = [[timing["size_bytes"] for timing in end["timings"]] for end in (first, second)]
    assert sizes == [[8, 1 << 16]] * 2
    assert "with the roles swapped 8 of 8" in second["error"]
    assert second["error"].endswith("its own sum without a network is right")


def test_wrong_data_in_one_role_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapped, nothing is wrong any more: it is not that end's memory."""
    both = Both(monkeypatch, ladder=[[1 << 16, 1, 10]])
    both.spoil("h2", when_rank=1)
    first, second = both.measure()
    assert (first["state"], second["state"]) == ("measured", "corrupt")
    assert "11 of them were wrong here; with the roles swapped 0 of 8" in second["error"]


def test_what_a_pair_that_broke_off_meant_to_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL names its network before it connects: sockets at one end only explain the failure."""
    monkeypatch.setattr(means.Means, "words", lambda _: "NET/Socket")

    def refused(*_: Any) -> None:
        raise RuntimeError("no way to the partner")

    monkeypatch.setattr(groups, "connect", refused)
    ends = Both(monkeypatch, op_s=1).measure()
    assert {(end["state"], end["net"]) for end in ends} == {("no_connect", "NET/Socket")}


def test_three_rails_of_a_node_all_reduce_and_wrong_data_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right data on all three; then rail 1 gets them wrong, and the other two say nothing of it."""
    node = Both(monkeypatch, ladder=[[8, 1, 5], [1 << 16, 1, 10]], soak=[1 << 16, 1, 10])
    fine = node.measure_inside(0, 1, 2)
    assert {end["state"] for end in fine} == {"measured"}, fine
    for end in fine:
        kinds = [(t["size_bytes"], t["phase"], len(t["times_us"])) for t in end["timings"]]
        assert kinds == [(8, "ladder", 5), (1 << 16, "ladder", 10)]
    node.spoil("h1", when_rank=1)
    spoilt = node.measure_inside(0, 1, 2)
    assert [end["state"] for end in spoilt] == ["measured", "corrupt", "measured"]
    assert spoilt[1]["error"].endswith("its own sum of the same data is right")


def test_a_rail_that_does_not_come_is_named_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait as long as for a round, and say who was missing."""
    ends = Both(monkeypatch, barrier_s=0.3).measure_inside(0, 2)
    said = [(end["state"], end["error"]) for end in ends]
    assert said == [("absent", "rail 1 of this node did not come")] * 2


@pytest.mark.parametrize("ends", [3, 4])
def test_small_data_of_many_ends_are_compared_by_one_more_operation(ends: int) -> None:
    """In place the sum grows by their number each time: only a fresh one can be compared."""
    keys = [pattern.key(7, 0, rank) for rank in range(ends)]
    data = verify.Data(torch, Partner.device, 64, keys, 0, each=False)

    class Others:
        def reduce(self, tensor: Any) -> None:
            tensor.copy_(pattern.expected(torch, tensor, keys))

    others = Others()
    for _ in range(3):
        others.reduce(data.buffer)
        data.check()
    data.buffer.zero_()
    data.settle(others)
    assert (data.operations, data.wrong) == (4, None)


def test_no_two_ends_send_the_same_data() -> None:
    """Keys differ by seed, round and rank."""
    ends = product((1, 2), range(50), (0, 1))
    keys = {pattern.key(seed, number, rank) for seed, number, rank in ends}
    assert len(keys) == 200


def test_long_lines_stay_whole_and_half_a_line_is_dropped() -> None:
    """A pipe takes 64 KiB at once; a killed writer leaves a line without its end."""
    reading, writing = os.pipe()

    def write() -> None:
        lines.write(writing, {"long": "x" * 200_000})
        os.write(writing, b'{"half":')
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    reader = lines.Reader(reading)
    assert reader.next(10.0) == {"long": "x" * 200_000}
    assert reader.next(10.0) is None
    writer.join()
    os.close(reading)


def test_a_late_line_is_a_timeout() -> None:
    """Silence is noticed after the time that the writer itself had announced."""
    reading, writing = os.pipe()
    with pytest.raises(TimeoutError):
        lines.Reader(reading).next(0.01)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ((b"", b""), ["trouble", "trouble", "done"]),
        ((b"", b'{"event":"rail_done"}\n'), ["trouble", "done"]),
        ((b'{"event":"rail_done"}\n', b'{"event":"rail_done"}\n'), ["done"]),
        ((b'{"event":"rail_rest"}\n{"event":"rail_done"}\n',) * 2, ["rest", "done"]),
    ],
)
def test_what_rails_say_becomes_what_their_node_says(
    said: tuple[bytes, bytes], heard: list[str]
) -> None:
    """It rests when all that are not through do; a rank that dies without a word is a trouble."""
    told: list[dict[str, Any]] = []
    both = rails.Rails(2, told.append)
    with ThreadPoolExecutor(2) as relays, ExitStack() as stack:
        pipes = [os.pipe() for _ in said]
        for rail, (reading, _) in enumerate(pipes):
            stack.callback(os.close, reading)
            relays.submit(both.relay, reading, rail)
        rests = []
        for (_, writing), words in reversed([*zip(pipes, said, strict=True)]):
            first, _, rest = words.partition(b"\n")
            os.write(writing, first + b"\n" * bool(first))
            rests.append((writing, rest))
        wait_for(lambda: [1] if "rest" in [one["event"] for one in told] else [], 0.3)
        for writing, rest in rests:
            os.write(writing, rest)
            os.close(writing)
        relays.shutdown()
    assert [one["event"] for one in told] == heard
    troubles = [one["error"] for one in told if one["event"] == "trouble"]
    assert all(error.startswith("its rank of rail ") for error in troubles)


def test_a_rail_that_rested_and_left_is_not_counted_twice() -> None:
    """The other is still at work: nothing is said of the node until it ends, here by its death."""
    told: list[str] = []
    both = rails.Rails(2, lambda event: told.append(event["event"]))
    working, at_work = os.pipe()
    with ThreadPoolExecutor(1) as relay, ExitStack() as stack:
        stack.callback(os.close, working)
        ended = relay.submit(both.relay, working, 0)
        resting, writing = os.pipe()
        os.write(writing, b'{"event":"rail_rest"}\n{"event":"rail_done"}\n')
        both.relay(resting, 1)
        os.close(resting)
        os.close(writing)
        assert told == []
        os.close(at_work)
        ended.result(10)
    assert told == ["trouble", "done"]


def test_who_misses_one_round_may_come_to_the_next_and_who_misses_two_is_struck() -> None:
    """Held up by a bad partner once: the others go on, and wait for it again in the next round."""
    store = torch.distributed.HashStore()
    late, other = meeting.Meeting(store, 0, 2), meeting.Meeting(store, 1, 2)
    with ThreadPoolExecutor(2) as both:
        first = [both.submit(one.arrive, 0, 10.0) for one in (late, other)]
    assert all(one.result() for one in first)
    assert other.arrive(1, 0.05)
    assert other.missed(1, 0)
    assert not late.arrive(1, 0.05)
    with ThreadPoolExecutor(2) as both:
        again = [both.submit(one.arrive, 2, 10.0) for one in (late, other)]
    assert all(one.result() for one in again)
    assert other.arrive(3, 0.05)
    assert late.struck(0)
    assert not late.arrive(4, 0.05)


def test_nobody_waits_for_a_member_that_is_known_to_be_lost() -> None:
    """Struck while others stand at the barrier, they go on, and so do all later rounds."""
    store = torch.distributed.HashStore()
    lost, *others = (meeting.Meeting(store, number, 3) for number in range(3))
    with ThreadPoolExecutor(3) as all_three:
        first = [all_three.submit(one.arrive, 0, 10.0) for one in (lost, *others)]
        assert all(one.result() for one in first)
        waiting = all_three.submit(others[0].arrive, 1, 60.0)
        lost._count_in(1)
        meeting.Meeting(store, -1, 3).strike(0, 3)
        assert not store.check(["begin/1"])
        assert others[1].arrive(1, 60.0)
        assert waiting.result()
    with ThreadPoolExecutor(2) as both:
        assert all(both.map(lambda one: one.arrive(2, 60.0), others))
    assert not any(store.check([f"striker/{number}"]) for number in range(3))
    assert not lost.arrive(2, 60.0)


def test_a_starved_process_is_told_from_one_that_hangs() -> None:
    """One only sleeps; the other shares a CPU with a loop and comes last; a third is stopped."""
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, {{{cpu}}});"
    last = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0));"
    spin = "\nwhile True: pass"
    with ExitStack() as stack:

        def start(code: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", code])
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        sleeping = start("import time; time.sleep(600)")
        start(loop + spin)
        starved = start(loop + last + spin)
        before = starvation.waited_s(starved)
        assert before
        wait_for(lambda: [1] if "for a CPU" in starvation.excuse(before, starved, 1.0) else [])
        assert re.search(r"it waited \d\.\d s for a CPU", starvation.excuse(before, starved, 1.0))
        assert starvation.excuse(starvation.waited_s(sleeping), sleeping, 1.0) == ""
        os.kill(sleeping, signal.SIGSTOP)
        assert wait_for(lambda: [1] if starvation.stopped(sleeping) else [])
        assert starvation.excuse({}, sleeping, 1.0) == "; it was stopped by a signal"
    assert starvation.excuse({}, starved, 1.0) == ""


def test_a_rail_that_hangs_in_its_fork_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first process says nothing, as one that waits for a lock nobody holds; the next works."""
    first = tmp_path / "first"

    def begin(_agent: int, _name: str) -> None:
        if not first.exists():
            first.write_text(str(os.getpid()))
            time.sleep(600)

    monkeypatch.setattr(lifeline, "die_with_parent", begin)
    monkeypatch.setattr(seat, "_UP_S", 2.0)
    (told, telling), (ordered, ordering) = os.pipe(), os.pipe()
    none_of_its_own = plan.Rail(plan.read(GO), 1, "a", ("a", 1))
    seat.sit(none_of_its_own, (telling, ordered))
    assert lines.Reader(told).next(30) == {"event": "rail_done"}
    assert os.waitpid(int(first.read_text()), 0)[1] == signal.SIGKILL
    for each in (told, ordered, ordering):
        os.close(each)


def test_a_node_on_which_no_rail_comes_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three silent processes are enough."""
    monkeypatch.setattr(lifeline, "die_with_parent", lambda *_: os._exit(1))
    (told, telling), (ordered, ordering) = os.pipe(), os.pipe()
    with pytest.raises(OSError, match="none of 3 processes for rail 0 came up"):
        seat.sit(plan.Rail(plan.read(GO), 0, "a", ("a", 1)), (telling, ordered))
    for each in (told, telling, ordered, ordering):
        os.close(each)
