"""A cause that no line states is inferred: who failed first, and what followed from it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from preflight.facts.boards import xid_info
from preflight.hang.explain.explanation import lines
from preflight.hang.explain.symptom import shipped
from tests.bench.logs_of_hangs import case, verdict
from tests.unit.hang.logs import communicator, explained, status, timed_out

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.hang.explain.symptom import Symptom

HEALTHY = """\
wandb: WARNING Failed to find git repository, continuing without it
UserWarning: lr_scheduler.step() called before optimizer.step(); this is not an error
2026-10-05 10:00:00,123 [INFO] eval.py:7 error rate 0.034, 0 errors, word error = 0.12
n1:1:2 [0] NCCL INFO NET/Plugin: Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file
tests/test_data.py::test_error_is_raised PASSED
DEBUG urllib3 retrying after timeout
"""  # noqa: E501
END = "srun: error: n1: task {}: {}\n"


def test_a_healthy_log_is_called_healthy(tmp_path: Path) -> None:
    """Words of failure in notices, names of tests and rates report none."""
    answer = explained(tmp_path, HEALTHY + "2026-10-05 10:00:01,000 [INFO] step 1 loss 2.0\n" * 50)
    assert answer.category == "no_failure"
    assert answer.sentence.startswith("no line shows a failure; its last line is: ")


@pytest.mark.parametrize("symptom", shipped(), ids=lambda one: one.id)
def test_no_symptom_but_a_fact_is_found_in_a_healthy_log(symptom: Symptom) -> None:
    """Each has a text beside it that is alike and is none."""
    assert symptom.counter
    if symptom.role != "fact":
        assert not [line for line in HEALTHY.splitlines() if symptom.fields(line) is not None]


def test_an_exception_without_its_beginning(tmp_path: Path) -> None:
    """The scroll-back begins in the middle of the traceback; torch's prefix has the rank."""
    answer = explained(tmp_path, "[rank3]: KeyError: 'input_ids'\n" + timed_out(0, 7))
    assert (answer.category, answer.culprits) == ("other", ("rank 3",))
    bare = explained(tmp_path, "KeyError: 'input_ids'\n")
    assert (bare.category, bare.confidence) == ("other", 0.5)
    assert "KeyError: 'input_ids' is the first error" in bare.sentence
    bare = explained(tmp_path, "AssertionError\n")
    assert lines(bare, 80)[0] == "unclear  (40 % sure)"


def test_lines_that_a_terminal_wrapped_are_whole_again(tmp_path: Path) -> None:
    """A time-out cut at 100 columns is read as one line, at the number of its first part."""
    who = "".join(communicator(rank, 4) for rank in range(4))
    log = who + "".join(timed_out(rank, 9) for rank in (0, 1, 3))
    wrapped = "\n".join(
        line[at : at + 100] for line in log.splitlines() for at in range(0, len(line), 100)
    )
    answer = explained(tmp_path, wrapped)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 2",))


@pytest.mark.parametrize("steps", [4, 60])
@pytest.mark.parametrize(
    "foreign",
    [
        "srun: error: gpu017: task 11: Out Of Memory",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0",
        "Segmentation fault (core dumped)",
        "KeyError: 'x'",
        "some.module.PickleError: bad row",
        "[ 123.456789] Out of memory: Killed process 7 (python)",
    ],
)
def test_a_line_after_lines_of_equal_length_is_of_its_own(
    tmp_path: Path, foreign: str, steps: int
) -> None:
    """A terminal cut none of them: what the launcher writes next is not rank 0's."""
    step = "[rank0]: 2025-11-05 11:00:{:02},000 INFO train: step {:03} loss 3.0000\n"
    log = "".join(step.format(number, number) for number in range(steps)) + foreign + "\n"
    assert "rank 0" not in explained(tmp_path, log).culprits
    log = "".join(step.format(number, number) + foreign + "\n" for number in range(steps))
    answer = explained(tmp_path, log)
    assert "rank 0" not in answer.culprits
    assert answer.category != "no_failure"


@pytest.mark.parametrize("prefix", ["train-worker-1 pytorch ", "gpu004: ", "> ", " 3: "])
def test_a_prefix_that_no_list_has_is_learned(tmp_path: Path, prefix: str) -> None:
    """What stands before the traceback's first line belongs to its launcher."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: 0\n'
    answer = explained(tmp_path, "".join(f"{prefix}{line}\n" for line in trace.splitlines()))
    assert "raised KeyError: 0 at a.py:5 (f)" in answer.sentence


def test_srun_s_labels_are_ranks_unless_a_line_contradicts(tmp_path: Path) -> None:
    """With `srun torchrun` a label is a node: the rank behind it is another."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: 0\n'
    labelled = "".join(f"1: {line}\n" for line in trace.splitlines())
    assert explained(tmp_path, "0: step 1 failed?\n" + labelled).culprits == ("rank 1",)
    other = "0: [rank4]: Connection reset by peer\n"
    assert explained(tmp_path, other + labelled).culprits == ()


def test_who_waits_in_an_earlier_collective_is_behind(tmp_path: Path) -> None:
    """The numbers alone show it, without the lines that say how far each rank was."""
    log = timed_out(0, 40) + timed_out(1, 40) + timed_out(2, 38)
    answer = explained(tmp_path, log)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 2",))
    far = explained(tmp_path, timed_out(0, 4000) + timed_out(1, 4000) + timed_out(2, 38))
    assert far.culprits == ()


@pytest.mark.parametrize("far", [4810, 125])
@pytest.mark.parametrize("local", [(1, 1), (1, 2)])
def test_groups_that_wait_each_in_itself_are_not_compared(
    tmp_path: Path, far: int, local: tuple[int, int]
) -> None:
    """Their numbers differ, however near; the time-out names no group, the position does."""
    one = "".join(timed_out(rank, 120) + status(rank, 120, local[0], "10") for rank in (0, 1))
    other = "".join(timed_out(rank, far) + status(rank, far, local[1], "11") for rank in (2, 3))
    answer = explained(tmp_path, one + other)
    assert (answer.category, answer.culprits) == ("unknown", ())
    bare = explained(tmp_path, timed_out(0, 120) + status(0, 120, 1, "10") + status(2, 7, 1, "11"))
    assert bare.culprits == ()


def test_a_rank_behind_in_one_of_several_groups_is_named(tmp_path: Path) -> None:
    """Its position is compared with the time-outs of its own group only."""
    other = timed_out(4, 900) + status(4, 900, 2, "a" * 40)
    here = "".join(timed_out(rank, 120) + status(rank, 121, 1, "10") for rank in (0, 1))
    answer = explained(
        tmp_path, other + here.replace("work: 120", "work: 119") + status(2, 119, 1, "10")
    )
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 2",))


@pytest.mark.parametrize("apart", [False, True])
def test_a_rank_that_wrote_lines_and_did_not_wait_is_missing(
    tmp_path: Path, *, apart: bool
) -> None:
    """Its lines, or the name of its file, show that it is of the job; no line has their number."""
    step = ["step 9 loss 2.0\n" if apart else f"[rank{rank}]: step 9\n" for rank in range(8)]
    logs = [line + timed_out(rank, 9) * (rank != 5) for rank, line in enumerate(step)]
    names = tuple(f"rank{rank}.log" for rank in range(8))
    answer = explained(tmp_path, *(logs if apart else ["".join(logs)]), names=names)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 5",))
    assert answer.confidence <= 0.7
    half = [line + timed_out(rank, 9) * (rank < 4) for rank, line in enumerate(step)]
    assert explained(tmp_path, *(half if apart else ["".join(half)]), names=names).culprits == ()
    logs[5] = ""
    assert explained(tmp_path, *(logs if apart else ["".join(logs)]), names=names).culprits == ()


def test_a_rank_of_an_earlier_attempt_alone_is_not_missing(tmp_path: Path) -> None:
    """The job goes on with fewer ranks: those that are left all wait."""
    first = "".join(f"[rank{rank}]: step 9\n" for rank in range(8))
    restart = "I1005 09:00:00.1 9 torch/distributed/elastic/agent/server/api.py:9] [default] "
    restart += "Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    last = "".join(f"[rank{rank}]: step 9\n" + timed_out(rank, 9) for rank in range(7))
    assert explained(tmp_path, first + restart + last).culprits == ()


def test_a_rank_that_did_not_come_had_died(tmp_path: Path) -> None:
    """The launcher reports it after all time-outs; the time-outs are its consequence."""
    who = "".join(communicator(rank, 4) for rank in range(4))
    waited = "".join(timed_out(rank, 9) for rank in (0, 1, 3))
    answer = explained(
        tmp_path, who + waited + END.format(2, "Killed") + END.format(0, "Aborted (core dumped)")
    )
    assert (answer.category, answer.culprits[0]) == ("other", "rank 2")
    assert answer.consequences == ("ranks 0-1,3: ALLREDUCE number 9 did not end within 600000 ms",)


def test_a_crash_is_the_rank_s_with_its_exit_code(tmp_path: Path) -> None:
    """The process that dies prints no rank; the launcher's line has it."""
    answer = explained(
        tmp_path,
        "Fatal Python error: Segmentation fault\n"
        + END.format(3, "Segmentation fault (core dumped)")
        + END.format(1, "Exited with exit code 1"),
    )
    assert answer.culprits[0] == "rank 3"


@pytest.mark.parametrize(
    "line",
    [
        "n7: Xid 79 detected (GPU fallen off bus)",
        "node-monitor: n7 GPU 3: XID error 79 reported by DCGM",
    ],
)
def test_an_xid_in_other_words(tmp_path: Path, line: str) -> None:
    """Monitors write the number without the driver's own words; what to do stands in one table."""
    answer = explained(tmp_path, line + "\n")
    assert (answer.category, answer.advice) == ("gpu_hardware", xid_info(79).advice)


def test_the_drivers_own_words_get_the_advice_of_their_xid(tmp_path: Path) -> None:
    """A GPU off the bus is Xid 79; a program's own Xid sends nobody to drain its node."""
    words = "NVRM: The NVIDIA GPU 0000:1a:00.0\nNVRM: (PCI ID: 10de:2330) installed in\n"
    off = explained(tmp_path, f"{words}NVRM: this system has fallen off the bus and is silent\n")
    assert (off.culprits, off.advice) == (("gpu 0000:1a:00.0",), xid_info(79).advice)
    own = explained(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python3, MMU Fault\n")
    assert (own.category, own.advice) == ("other", xid_info(31).advice)
    unknown = explained(tmp_path, "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal\n")
    assert "preflight read" in unknown.advice


def test_what_is_not_known_is_quoted(tmp_path: Path) -> None:
    """The first line that reports a failure: at the end of the log it is more likely the cause."""
    log = "step 1\nFATAL: flux capacitor lost its phase\n"
    for more, sure in (("", ("other", 0.5)), ("the rest\n" * 40, ("unknown", 0.2))):
        answer = explained(tmp_path, log + more)
        assert (answer.category, answer.confidence) == sure
        assert "flux capacitor lost its phase" in answer.sentence


@pytest.mark.slow
def test_generated_logs_have_the_right_answer(tmp_path: Path) -> None:
    """Of 60 drawn jobs none is explained wrongly with confidence, and most are right."""
    found: Counter[str] = Counter()
    for seed in range(60):
        text, label = case(seed)
        found[verdict(explained(tmp_path, text), label)] += 1
    assert not found["confidently wrong"]
    assert found["right"] >= 50


@pytest.mark.parametrize("op", ["SCATTER", "GATHER"])
def test_the_root_of_a_collective_has_a_size_of_its_own(tmp_path: Path, op: str) -> None:
    """Two sizes are no mismatch there; in an all-reduce they are."""
    sizes = {0: 4096, 1: 64, 2: 64, 3: 64}
    rooted = "".join(timed_out(rank, 9, op, numel) for rank, numel in sizes.items())
    assert explained(tmp_path, rooted).category != "collective_mismatch"
    reduced = rooted.replace(op, "ALLREDUCE")
    assert explained(tmp_path, reduced).category == "collective_mismatch"


def _nameless(rank: int, seq: int, op: str = "ALLREDUCE") -> str:
    """A time-out as torch 2.1 writes it: the rank may count within the group."""
    return f"[E ProcessGroupNCCL.cpp:474] {timed_out(rank, seq, op).partition('.cpp:7] ')[2]}"


@pytest.mark.parametrize(
    "sign",
    [
        "  tensor_model_parallel_size ...................... 2\n",
        "torchrun pretrain.py --pipeline-model-parallel-size 4\n",
        communicator(0, 4) + communicator(0, 2).replace("0x5555", "0x7777"),
        communicator(0, 4).replace("COMPLETE", "START") + 3 * communicator(0, 4)
        + communicator(0, 4).replace("0x5555", "0x7777"),
        _nameless(0, 30, "SEND"),
        _nameless(0, 44),
        timed_out(4, 41).replace("[Rank 4]", "[Rank 0]"),
        "[1,7]<stderr>:" + _nameless(3, 41),
        status(0, 41, 1, "1") + status(4, 41, 1, "1").replace(" Rank 4]", " Rank 0]"),
    ],
    ids=["options", "command", "communicators", "of the same ranks", "send", "two calls", "rank",
         "mpirun", "2.3"],
)  # fmt: skip
@pytest.mark.parametrize("odd", [_nameless(2, 41, "BROADCAST"), _nameless(2, 39)])
def test_calls_without_a_group_are_compared_with_doubt_where_there_are_several(
    tmp_path: Path, sign: str, odd: str
) -> None:
    """A plain job has only one group: there the odd rank is named."""
    log = _nameless(0, 41) + _nameless(1, 41) + odd
    plain = explained(tmp_path, log)
    assert (plain.culprits, plain.confidence) == (("rank 2",), 0.7)
    shown = explained(tmp_path, "".join(communicator(rank, 4) for rank in range(4)) + log)
    assert (shown.culprits, shown.confidence) == (("rank 2",), 0.85)
    assert explained(tmp_path, log + sign).confidence < 0.5


def test_a_line_that_passes_on_another_ranks_words_names_no_rank(tmp_path: Path) -> None:
    """Rank 0 collects what the others print."""
    full = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    answer = explained(tmp_path, "[rank0]: collected: " + full)
    assert (answer.category, answer.culprits) == ("oom_one_rank", ())
    assert explained(tmp_path, full).culprits == ("rank 5",)


def test_a_position_names_the_group_of_its_ranks_time_out(tmp_path: Path) -> None:
    """The options show several groups, but these calls are of one."""
    calls = "".join(
        timed_out(rank, 41, "BROADCAST" if rank == 2 else "ALLREDUCE") + status(rank, 41, 1, "7")
        for rank in range(4)
    )
    answer = explained(tmp_path, "sharding: HYBRID_SHARD\n" + calls)
    assert (answer.culprits, answer.confidence) == (("rank 2",), 0.85)


def test_a_traceback_whose_beginning_is_cut_off(tmp_path: Path) -> None:
    """Its frames show where; lines that no exception follows are none."""
    frames = '  File "/job/train.py", line 7, in step\n    x = batch["ids"]\n'
    answer = explained(tmp_path, frames + "KeyError: 'ids'\n")
    assert "a rank raised KeyError: 'ids' at /job/train.py:7 (step)" in answer.sentence
    stack = explained(tmp_path, frames + "step 1 loss 2.5\nKeyError: 'ids'\n")
    assert "/job/train.py" not in stack.sentence
