"""Flight recorder dumps of a dead job: `explain` follows the waits to the rank at fault."""

from __future__ import annotations

import gzip
import json
import os
import pickle  # noqa: TID251  only written
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.commands import cli
from preflight.hang.call_waits import follow
from preflight.hang.explain.dumps import Dumps, explain_dumps, separate
from preflight.hang.flight_recorder import Recording, read
from tests.bench.full_dumps import explained, judge, write
from tests.simulate.parallel_job import FAULTS, draw_case
from tests.unit.hang.recordings import document, entry, pending

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = [entry(number) for number in range(1, 5)]
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def _explain(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any], str]:
    code = cli.main(["explain", "--json", *map(str, words)])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def _stuck(folder: Path, *, late: int = 2, world: int = 4) -> None:
    """All ranks but one wait in call 5."""
    for rank in range(world):
        calls = [] if rank == late else [pending(5)]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(document(*BEFORE, *calls))


def test_a_rank_that_sends_to_itself_waits_for_no_rank() -> None:
    """Such a call has no other end at which to look for a fault."""
    to_itself = pending(0, "send 0->0", is_p2p=True, p2p_seq_id=1)
    recording = read(document(to_itself))
    assert isinstance(recording, Recording)
    (root,) = follow({0: recording}).roots
    assert (root.kind, root.ranks) == ("all_in", ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(2 * len(FAULTS)), 391])
def test_drawn_jobs(seed: int) -> None:
    """A job of tensor, pipeline, expert and data parallel groups hangs: the ranks at fault.

    Of two ranks that make different calls, neither is named where nothing else decides; nor is one
    without a dump, where a rank that waits for it may be in the wrong call.
    """
    _, fault, verdict, truth, named, _ = judge(seed, torch=False)
    undecided = verdict == "unnamed" and fault.startswith(("wrong_", "died"))
    assert verdict == "right" or undecided, (fault, truth, named)


@pytest.mark.parametrize("seed", [3005, 6048])
def test_a_rank_that_waits_is_no_witness_of_the_usual_order(seed: int, tmp_path: Path) -> None:
    """Nor is one of another pipeline stage, whose calls have other numbers."""
    case = draw_case(seed, "wrong_order")
    write(case, tmp_path)
    assert explained(tmp_path) <= case.culprits


@pytest.mark.parametrize("seed", [785017, 786257, 786456])
def test_half_of_the_ranks_stopped(seed: int, tmp_path: Path) -> None:
    """All of them are named, or the answer is not sure: the other half may be at fault."""
    case = draw_case(seed, "two_stop")
    write(case, tmp_path)
    answer = explain_dumps(Dumps(separate([tmp_path])[0]))
    named = {int(name.removeprefix("rank ")) for name in answer.culprits}
    assert named <= case.culprits
    assert named == case.culprits or answer.confidence < 0.8


def test_the_same_dumps_have_the_same_answer_each_time(tmp_path: Path) -> None:
    """Whatever Python's hashes are: two calls that wait for each other came in either order."""
    write(draw_case(3005, "wrong_order"), tmp_path)
    words = [sys.executable, "-m", "preflight", "explain", "--json", str(tmp_path)]
    answers = {
        subprocess.run(
            words, env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, check=False
        ).stdout
        for seed in (1, 2)  # with these two, the order of that job's calls differed
    }
    assert len(answers) == 1


def test_the_answer_has_the_waits_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks, group, call, and for whom each waits; as JSON and as text."""
    _stuck(tmp_path)
    code, answer, _ = _explain(capsys, tmp_path)
    assert (code, answer["category"], answer["culprits"]) == (1, "timeout_rank_missing", ["rank 2"])
    (row,) = answer["waits"]
    assert (row["ranks"], row["number"], row["waits_for"]) == ([0, 1, 3], 5, [2])
    assert cli.main(["explain", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "rank 2 has not made call 5 of group 0 (default_pg): all_reduce" in text
    assert "ranks 0-1,3: all_reduce of [64, 64] Float 5 in group 0 (default_pg)" in text


def test_the_call_that_a_rank_has_not_made_comes_first() -> None:
    """Of thousands of groups, all but one have all their ranks in their call."""
    large, small = ["large", "large"], ["small", "small"]
    calls = dict.fromkeys(range(3), pending(5, process_group=large))
    calls |= {3: pending(7, process_group=small), 4: entry(6, process_group=small)}
    known = {rank: read(document(call)) for rank, call in calls.items()}
    rows = follow({r: one for r, one in known.items() if isinstance(one, Recording)}).rows
    assert [(row.ranks, row.waits_for) for row in rows] == [((3,), (4,)), ((0, 1, 2), ())]


def test_pickle_json_and_gzip_of_any_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rank is in the name, or in the groups of which only this rank is a member."""
    own = {"9": {"name": "9", "desc": "cp", "ranks": "[2]"}}
    files = {
        "dump-of-0.json": document(*BEFORE, pending(5)),
        "1.pkl": pickle.dumps({"version": "2.10", "entries": [*BEFORE, pending(5)]}, 4),
        "third": pickle.dumps({"pg_config": {**CONFIG, **own}, "entries": BEFORE}, 2),
        "rank_3.gz": gzip.compress(document(*BEFORE, pending(5))),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    code, answer, err = _explain(capsys, *(tmp_path / name for name in files))
    assert (code, answer["culprits"], err) == (1, ["rank 2"], "")


def test_a_cause_in_the_logs_says_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a log that names the cause, the dumps add who waited; a watchdog's line adds nothing."""
    _stuck(tmp_path)
    log = tmp_path / "train.log"
    log.write_text("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    code, answer, _ = _explain(capsys, log, tmp_path)
    assert (code, answer["category"]) == (1, "oom_one_rank")
    assert answer["waits"]
    log.write_text("epoch 1: loss 0.3\n")
    assert _explain(capsys, log, tmp_path)[1]["culprits"] == ["rank 2"]


def test_a_rank_without_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others wait for it: it had died. If most dumps are missing, none is named."""
    config = {"pg_config": CONFIG}
    for rank in (0, 1, 3):
        data = {**config, "entries": [*BEFORE, pending(5)]}
        (tmp_path / f"rank_{rank}").write_text(json.dumps(data))
    code, answer, _ = _explain(capsys, tmp_path)
    assert (code, answer["culprits"], answer["unseen"]) == (1, ["rank 2"], ["no dump of rank 2"])
    for rank in (1, 3):
        (tmp_path / f"rank_{rank}").unlink()
    code, answer, _ = _explain(capsys, tmp_path)
    assert (code, answer["culprits"]) == (3, [])
    assert "1-3" in answer["sentence"]


def test_the_only_rank_without_a_dump_died_if_one_of_the_waits_proves_it(tmp_path: Path) -> None:
    """Another rank waits for it alone, in a call that nothing shows to be usual."""
    case = draw_case(3119, "died")
    write(case, tmp_path)
    assert explained(tmp_path) == case.culprits


@pytest.mark.parametrize(
    ("ranks", "late", "named"),
    [
        ((0, 1, 3), (), ["rank 2"]),
        ((0, 1, 3), (1,), ["rank 1"]),  # its GPU has not begun what the others' have
        ((0, 1, 3), (0, 1, 3), ["rank 2"]),  # no GPU shows what it has begun
        ((0, 3), (), []),  # either may have died
        ((3,), (), []),
    ],
)
def test_a_rank_without_a_dump_may_wait_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ranks: tuple[int, ...],
    late: tuple[int, ...],
    named: list[str],
) -> None:
    """It is named only if no other rank can be at fault; else none is, and the answer is unsure."""
    for rank in ranks:
        call = pending(5, state="scheduled" if rank in late else "started")
        data = {"pg_config": CONFIG, "entries": [*BEFORE, call]}
        (tmp_path / f"rank_{rank}").write_text(json.dumps(data))
    _, answer, _ = _explain(capsys, tmp_path)
    assert answer["culprits"] == named
    assert (answer["confidence"] < 0.5) == (not named)


def test_of_two_ranks_that_differ_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One waits in a call that the other has not made: either may be wrong."""
    _stuck(tmp_path, late=1, world=2)
    _, answer, _ = _explain(capsys, tmp_path)
    assert answer["culprits"] == []
    assert answer["confidence"] < 0.5
    assert "rank 1 has not made call 5" in answer["sentence"]


USUAL = ["_all_gather_base", "_reduce_scatter_base"] * 6


@pytest.mark.parametrize(
    ("of_rank_1", "named"),
    [
        ([*reversed(USUAL[:2]), *USUAL[2:]], ["rank 1"]),  # two calls in the other order
        (["all_reduce", *USUAL[1:]], ["rank 1"]),  # another call in place of one
        ([*USUAL[1:], USUAL[0]], []),  # a call left out: nobody knows who is right
        (["barrier", *USUAL[:-1]], []),  # a call more
    ],
)
def test_of_two_ranks_the_one_whose_calls_follow_each_other_as_nowhere_else(
    of_rank_1: list[str], named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dumps of unfinished calls only: what comes later shows which of two ranks is out of step."""
    for rank, ops in enumerate([USUAL, of_rank_1]):
        calls = [pending(number, op) for number, op in enumerate(ops, 5)]
        (tmp_path / f"rank_{rank}").write_bytes(document(*calls))
    _, answer, _ = _explain(capsys, tmp_path)
    assert (answer["category"], answer["culprits"]) == ("collective_mismatch", named)


def test_a_torn_or_hostile_dump_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each; nothing in it is run; the rest is explained."""
    _stuck(tmp_path, world=8)
    os.mkfifo(tmp_path / "nccl_trace_rank_8")
    whole = gzip.compress(document(*BEFORE))
    (tmp_path / "nccl_trace_rank_5").write_bytes(whole[: len(whole) // 2])
    mark = tmp_path / "mark"
    attack = b"\x80\x02cposix\nsystem\nX%cid" % 2
    (tmp_path / "nccl_trace_rank_6").write_bytes(attack + f"touch {mark}".encode() + b"\x85R.")
    code, answer, err = _explain(capsys, tmp_path)
    assert (code, answer["culprits"]) == (1, ["rank 2"])
    assert sorted(line.partition(" is not used: ")[0][-1] for line in err.splitlines()) == [
        "5",
        "6",
    ]
    assert not mark.exists()


def test_dumps_of_two_jobs_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two dumps of one rank, or groups of different sizes: exit 4, and what to type."""
    _stuck(tmp_path)
    (tmp_path / "old_2").write_bytes(document(*BEFORE, entry(5), pending(6)))
    code, _, err = _explain(capsys, tmp_path)
    assert code == 4
    assert "rank 2 has two dumps" in err
    assert "name them rank_N" in err
    (tmp_path / "old_2").unlink()
    for rank, ranks in ((0, "[0, 1]"), (1, "[0, 1, 2]")):
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
        data = {"pg_config": config, "entries": [*BEFORE, pending(5)]}
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(data))
    code, _, err = _explain(capsys, tmp_path)
    assert code == 4
    assert "several jobs" in err


def test_a_dump_of_an_earlier_run_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last call is hours older than those of the others."""
    now = 1_795_000_000 * 10**9
    for rank in range(8):
        old = 7200 * 10**9 if rank == 5 else 0
        calls = [entry(4, time_created_ns=now - old)]
        calls += [pending(5, time_created_ns=now)] if rank not in (2, 5) else []
        (tmp_path / f"rank_{rank}").write_bytes(document(*calls))
    code, answer, err = _explain(capsys, tmp_path)
    assert (code, answer["culprits"]) == (1, ["rank 2"])
    assert "2.0 h older" in err


def test_a_dump_whose_groups_lack_its_rank_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its name nor its groups alone show whose it is."""
    _stuck(tmp_path)
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[4, 5]"}}
    foreign = {"pg_config": config, "entries": [*BEFORE, pending(5)]}
    (tmp_path / "nccl_trace_rank_9").write_text(json.dumps(foreign))
    _, answer, err = _explain(capsys, tmp_path)
    assert answer["culprits"] == ["rank 2"]
    assert "rank 9, which its name shows, is not in all of its groups" in err


def test_dumps_that_may_be_of_two_runs_make_the_answer_less_sure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks 2 and 3 ended twelve minutes before the others, or their node's clock is wrong."""
    now, sure = 1_795_000_000 * 10**9, {}
    for older in (0, 720 * 10**9):
        for rank in range(4):
            at = now - older * (rank > 1)
            calls = [entry(4, time_created_ns=at)]
            calls += [pending(5, time_created_ns=at)] if rank != 2 else []
            (tmp_path / f"rank_{rank}").write_bytes(document(*calls))
        _, answer, _ = _explain(capsys, tmp_path)
        assert answer["culprits"] == ["rank 2"]
        sure[older] = answer["confidence"], [one for one in answer["unseen"] if "older" in one]
    (alike, none), (apart, remark) = sure.values()
    assert apart < alike
    assert not none
    assert "ranks 2-3 are minutes older" in remark[0]


def test_a_rank_is_named_with_doubt_if_as_many_made_the_other_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two ranks made another call than both did before: a habit proves less than a count."""
    before = [
        entry(number, ("all_reduce", "broadcast", "reduce")[number % 3]) for number in range(1, 60)
    ]
    sure = []
    for world in (2, 3):
        for rank in range(world):
            call = pending(60, "barrier" if rank == 1 else "all_reduce")
            (tmp_path / f"rank_{rank}").write_bytes(document(*before, call))
        _, answer, _ = _explain(capsys, tmp_path)
        assert answer["culprits"] == ["rank 1"]
        sure.append(answer["confidence"])
    assert sure[0] < 0.7 < sure[1]


def test_what_is_left_of_ended_batches_is_no_wait() -> None:
    """A dump of unfinished calls has the parts of ended batches: torch does not update them."""
    parts = [
        pending(
            0, f"{way} 0{to}1", is_p2p=True, p2p_seq_id=number, retired=False, state="scheduled"
        )
        for number in (1, 2)
        for way, to in (("send", "->"), ("recv", "<-"))
    ]
    held = {0: read(document(*parts)), 1: read(document(pending(5)))}
    assert [
        (row.ranks, row.waits_for)
        for row in follow({r: one for r, one in held.items() if isinstance(one, Recording)}).rows
    ] == [((1,), ())]


def test_a_call_that_the_watchdog_gave_up_is_unfinished() -> None:
    """NCCL retires it without an end; gloo, which knows no end, retires what is done."""
    for backend, open_calls in (("nccl", 1), ("gloo", 0)):
        call = pending(5, profiling_name=f"{backend}:all_reduce", retired=True, state="scheduled")
        recording = read(document(call))
        assert isinstance(recording, Recording)
        assert sum(one.pending for one in recording.calls) == open_calls


@pytest.mark.slow
@pytest.mark.parametrize("world", [300, 3000])
def test_a_long_chain_of_waits(world: int) -> None:
    """Each rank waits to receive from the one before: the first has not sent."""
    ranks = tuple(range(world))
    recorded = {}
    for rank in ranks:
        wait = pending(0, f"recv {rank}<-{rank - 1}", is_p2p=True, p2p_seq_id=1)
        recording = read(document(*BEFORE, *[wait][: rank > 0]))
        assert isinstance(recording, Recording)
        recorded[rank] = replace(recording, members={"0": ranks})
    assert [root.ranks for root in follow(recorded).roots] == [(0,)]


REAL = """
import os, sys, time
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
folder, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
def step(number):
    if rank == 2 and number == 3:
        time.sleep(600)
    dist.all_reduce(torch.ones(4), group=pair)
    dist.all_reduce(torch.ones(8))
def leave():
    time.sleep(4)
    with open(f"{folder}/left-by-{rank}", "wb") as file:
        file.write(c10d._dump_fr_trace())
    time.sleep(4)
    os._exit(0)
import threading
threading.Thread(target=leave).start()
for number in range(9):
    step(number)
"""


@pytest.mark.slow
def test_a_real_job_of_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four ranks over gloo, one of which stops on the host: that rank, and the line it came to."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(REAL)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
         str(script), str(dumps)],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1"},
        check=False, timeout=120, capture_output=True,
    )  # fmt: skip
    assert len(list(dumps.iterdir())) == 4
    code, answer, _ = _explain(capsys, dumps)
    assert (code, answer["culprits"]) == (1, ["rank 2"]), answer
    assert answer["line"] == f"{script}:13 in step"
    assert {tuple(row["ranks"]): row["waits_for"] for row in answer["waits"]} == {
        (0, 1): [2, 3], (3,): [2],
    }  # fmt: skip


def test_a_torn_dump_shows_no_death(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rank was writing it: it is not named, and nothing says that it left none."""
    for rank in range(4):
        whole = json.dumps({
            "version": "2.10", "pg_config": CONFIG, "entries": [*BEFORE, pending(5)],
        }).encode()  # fmt: skip
        torn = whole[: len(whole) // 2] if rank == 2 else whole
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(torn)
    _, answer, err = _explain(capsys, tmp_path)
    assert (answer["category"], answer["culprits"]) == ("unknown", [])
    assert "left no dump" not in json.dumps(answer)
    assert "nccl_trace_rank_2" in err


@pytest.mark.parametrize("more", [{"input_sizes": "a"}, {"input_sizes": [7]}, {"state": None}])
def test_a_value_that_cannot_be_read_blames_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    """Rank 2 is missing; rank 1 has only a recorder of another form."""
    _stuck(tmp_path)
    calls = [*BEFORE[:2], *(entry(number, **more) for number in (3, 4)), pending(5, **more)]
    (tmp_path / "nccl_trace_rank_1").write_bytes(document(*calls))
    _, answer, _ = _explain(capsys, tmp_path)
    assert (answer["category"], answer["culprits"]) == ("timeout_rank_missing", ["rank 2"])
