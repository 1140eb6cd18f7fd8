"""Of many lines the first failure counts; what it set off is an echo, and a guess is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import communicator, explained, status, timed_out

if TYPE_CHECKING:
    from pathlib import Path

SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-10-05_10:00:00
  host      : n3
  rank      : 5 (local_rank: 1)
  exitcode  : {code} (pid: 77)
  error_file: <N/A>
  traceback : {why}
"""


def test_the_first_failure_in_time_wins_over_its_echoes(tmp_path: Path) -> None:
    """Rank 0 speaks first in the file, but rank 3's clock says that it failed before."""
    answer = explained(
        tmp_path,
        "[rank0]:[E1005 10:00:09.5 x.cpp:1] NCCL WARN Connect to 10.0.0.4<4000> failed : "
        "No route to host\n"
        "[rank0]: taking the entire process down.\n",
        "[rank3]:[E1005 10:00:01.5 x.cpp:1] CUDA error: uncorrectable ECC error encountered\n",
    )
    assert (answer.category, answer.culprits) == ("gpu_hardware", ("rank 3",))
    assert answer.evidence[0].line == 1
    assert answer.evidence[0].source.endswith("1.log")
    assert [one.category for one in answer.alternatives] == ["firewall"]
    assert answer.confidence + sum(one.confidence for one in answer.alternatives) <= 1


def test_one_rank_that_was_not_there(tmp_path: Path) -> None:
    """Four ranks have spoken, three of them waited."""
    who = "".join(communicator(rank, 4) for rank in range(4))
    answer = explained(
        tmp_path,
        who
        + "".join(timed_out(rank, 9) for rank in (0, 1, 3))
        + "[rank2]: NCCL WARN x ncclRemoteError\n",
    )
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 2",))
    assert answer.sentence == "rank 2 did not reach ALLREDUCE number 9, in which ranks 0-1,3 waited"


def test_a_rank_whose_position_shows_that_it_had_called(tmp_path: Path) -> None:
    """Its line about the time-out is missing, but it had enqueued the call, as the others had."""
    position = (
        "[rank2]:[E1005 10:10:01.5 ProcessGroupNCCL.cpp:1] [PG 0 Rank 2] Exception (either an "
        "error or timeout) detected by watchdog at work: 9, last enqueued NCCL work: {}, "
        "last completed NCCL work: 8.\n"
    )
    late = "".join(timed_out(rank, 9) for rank in (0, 1, 3))
    answer = explained(tmp_path, late + position.format(11))
    assert (answer.culprits, answer.confidence < 0.5) == ((), True)
    assert answer.sentence.startswith("ranks 0-3 waited in ALLREDUCE number 9")
    assert explained(tmp_path, late + position.format(8)).culprits == ("rank 2",)


def test_a_rank_whose_log_is_not_here_is_not_accused(tmp_path: Path) -> None:
    """Silence in these files is no proof of absence."""
    answer = explained(tmp_path, communicator(0, 4) + timed_out(0, 9) + timed_out(1, 9))
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert "these lines do not show which rank is missing" in answer.sentence


def test_of_two_halves_none_is_named(tmp_path: Path) -> None:
    """Two of four ranks waited: the other two may be at fault, or the network between them."""
    who = "".join(communicator(rank, 4) for rank in range(4))
    answer = explained(tmp_path, who + timed_out(0, 9) + timed_out(2, 9))
    assert (answer.category, answer.culprits) == ("unknown", ())


def test_all_waited_for_each_other(tmp_path: Path) -> None:
    """Nobody is missing: no rank is named."""
    who = "".join(communicator(rank, 2) for rank in range(2))
    answer = explained(tmp_path, who + timed_out(0, 3) + timed_out(1, 3))
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert "all 2 ranks waited in ALLREDUCE number 3" in answer.sentence


def test_a_rank_that_is_behind(tmp_path: Path) -> None:
    """It says itself how far it had come."""
    answer = explained(tmp_path, timed_out(0, 40) + status(0, 41) + status(1, 12))
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 1",))
    assert "rank 1 had only reached collective 12" in answer.sentence


def test_the_same_number_and_another_collective(tmp_path: Path) -> None:
    """The few are odd, not the many."""
    answer = explained(
        tmp_path,
        timed_out(0, 7) + timed_out(1, 7) + timed_out(2, 7, op="BROADCAST", numel=1),
    )
    assert (answer.category, answer.culprits) == ("collective_mismatch", ("rank 2",))


def test_the_exception_that_began_it(tmp_path: Path) -> None:
    """A rank's own line of code; the others' time-outs and connection errors come after it."""
    answer = explained(
        tmp_path,
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/u/train.py", line 88, in step\n'
        "[rank1]:     loss = model(batch)\n"
        '[rank1]:   File "/venv/lib/python3.11/site-packages/torch/nn/module.py", line 1, in f\n'
        "[rank1]: ValueError: shapes differ\n" + timed_out(0, 5),
    )
    assert (answer.category, answer.culprits) == ("other", ("rank 1",))
    assert (
        answer.sentence == "rank 1 raised ValueError: shapes differ at /home/u/train.py:88 (step)"
    )


def test_several_tracebacks_woven_into_each_other(tmp_path: Path) -> None:
    """Each rank's lines belong together by its prefix."""
    answer = explained(
        tmp_path,
        "[rank0]: Traceback (most recent call last):\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 1, in main\n'
        '[rank2]:   File "b.py", line 2, in load\n'
        "[rank2]: FileNotFoundError: [Errno 2] No such file or directory: 'x'\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error\n",
    )
    assert answer.culprits == ("rank 2",)
    assert "at b.py:2 (load)" in answer.sentence


def test_killed_from_outside(tmp_path: Path) -> None:
    """The summary names rank and node; that memory was full is likely, not proven."""
    answer = explained(
        tmp_path, SUMMARY.format(code=-9, why="Signal 9 (SIGKILL) received by PID 77")
    )
    assert (answer.category, answer.culprits) == ("other", ("rank 5", "node n3"))
    assert answer.sentence == "rank 5 on n3 was killed from outside (SIGKILL, pid 77)"
    assert answer.confidence == 0.5


def test_a_summary_without_detail_is_unknown(tmp_path: Path) -> None:
    """And says what is missing: @record."""
    answer = explained(tmp_path, SUMMARY.format(code=1, why="To enable traceback see: ..."))
    assert answer.category == "unknown"
    assert answer.culprits == ("rank 5", "node n3")
    assert "@record" in answer.advice


def test_an_abort_is_an_echo(tmp_path: Path) -> None:
    """SIGABRT is how torch's watchdog ends a process that has failed before."""
    answer = explained(
        tmp_path, SUMMARY.format(code=-6, why="Signal 6 (SIGABRT) received by PID 77")
    )
    assert answer.category == "unknown"


def test_memory_that_others_hold(tmp_path: Path) -> None:
    """The message's own arithmetic tells how much of the GPU is somebody else's."""
    answer = explained(
        tmp_path,
        "[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 4 "
        "has a total capacity of 80.00 GiB of which 512.00 MiB is free. Including non-PyTorch "
        "memory, this process has 20.00 GiB memory in use.\n",
    )
    assert (answer.category, answer.culprits) == ("oom_one_rank", ("rank 4",))
    assert "59.5 GiB of it belongs to other processes" in answer.sentence


def test_memory_of_all_ranks_is_no_rank_s_fault(tmp_path: Path) -> None:
    """Who all fail alike are not one culprit."""
    log = "".join(communicator(rank, 2) for rank in range(2))
    log += "".join(
        f"[rank{rank}]: CUDA out of memory. Tried to allocate 2.00 GiB\n" for rank in range(2)
    )
    assert explained(tmp_path, log).category == "other"


def test_a_flushed_queue_is_a_consequence(tmp_path: Path) -> None:
    """Status 5 alone names no link; beside status 12 at the other end that one counts."""
    got = "NCCL WARN NET/IB : Got completion from peer"
    flushed = f"n1:1:2 [0] {got} 10.0.0.2<1> with error 5, opcode 1, len 0, vendor err 244\n"
    retry = f"n2:1:2 [0] {got} 10.0.0.1<1> with error 12, opcode 1, len 0, vendor err 129\n"
    alone = explained(tmp_path, flushed)
    assert (alone.category, alone.culprits) == ("unknown", ())
    both = explained(tmp_path, flushed + retry)
    assert (both.category, both.culprits[0]) == ("nic_or_ib_link", "node 10.0.0.1")
    assert "0x81" in both.sentence


def test_of_several_paths_the_end_that_all_share_is_named(tmp_path: Path) -> None:
    """One node without its link loses all its peers, and all peers lose it."""
    got = "NCCL WARN NET/IB : Got completion from peer"
    rest = "<1> with error 12, opcode 1, len 0, vendor err 129 (Recv) hca mlx5_0\n"
    one = [f"n5:1:2 [{gpu}] {got} 10.0.0.{gpu}{rest}" for gpu in range(3)]
    assert explained(tmp_path, "".join(one)).culprits == ("node n5", "hca mlx5_0")
    all_others = [f"n{node}:1:2 [0] {got} 10.0.0.9{rest}" for node in range(3)]
    assert explained(tmp_path, "".join(all_others)).culprits == ("node 10.0.0.9",)


def test_a_full_disk_keeps_the_others_waiting(tmp_path: Path) -> None:
    """The rank that saves is late; a rank that timed out is its victim."""
    answer = explained(
        tmp_path, "saving: OSError: [Errno 28] No space left on device\n" + timed_out(6, 2)
    )
    assert answer.category == "timeout_rank_missing"
    assert "rank 6" not in answer.culprits


def test_a_hint_matters_where_nothing_failed(tmp_path: Path) -> None:
    """Sockets instead of InfiniBand are slow; a log with a failure is about that."""
    slow = "NCCL INFO NET/Socket : Using [0]eth7:10.0.0.1<0>\n"
    assert explained(tmp_path, slow).category == "wrong_interface"
    dead = slow + "x NCCL WARN Error while creating shared memory segment nccl-1 (size 999)\n"
    assert explained(tmp_path, dead).category == "shm"


def test_an_uneventful_log_is_not_explained(tmp_path: Path) -> None:
    """Nothing failed, and that is the answer."""
    answer = explained(tmp_path, "step 1 loss 2.0\nstep 2 loss 1.9\n" * 50)
    assert (answer.category, answer.confidence) == ("no_failure", 0.0)
    assert [place.line for place in answer.evidence] == [100]  # the last one
    assert answer.lines == 100


def test_a_file_named_after_its_rank_speaks_for_it(tmp_path: Path) -> None:
    """Torchrun's log folders have no prefixes on their lines."""
    answer = explained(tmp_path, "CUDA error: invalid device ordinal\n", names=("rank_6.stderr",))
    assert answer.culprits == ("rank 6",)


def test_nccls_process_is_known_by_its_communicator(tmp_path: Path) -> None:
    """A warning shows only host and pid; the communicator's line has the rank."""
    answer = explained(
        tmp_path,
        communicator(3, 8, host="n9")
        + "n9:103:7 [3] shm.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes\n",
    )
    assert answer.culprits == ("rank 3", "node n9")


def test_no_alternative_is_as_sure_as_the_answer(tmp_path: Path) -> None:
    """One timeout shows which rank waited; that another was missing is only a guess."""
    answer = explained(tmp_path, timed_out(3, 12))
    (other,) = answer.alternatives
    assert (answer.category, other.category) == ("unknown", "timeout_rank_missing")
    assert 0 < other.confidence < answer.confidence
    assert answer.confidence + other.confidence <= 1


def test_an_empty_log_is_told_to_be_one(tmp_path: Path) -> None:
    """Else somebody looks for the symptom that is not known, where nothing was written."""
    answer = explained(tmp_path, "", "")
    assert (answer.category, answer.lines) == ("unknown", 0)
    assert "empty" in answer.sentence
    assert "empty" not in explained(tmp_path, "", "step 1\n").sentence


def test_a_log_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    """It is not called empty."""
    answer = explained(tmp_path, b"\x1f\x8b\x08\x00")
    assert answer.sentence == "no line of the given logs could be read"


RAISES = """\
Traceback (most recent call last):
  File "/home/u/my runs/fit.py", line 61, in <module>
    main()
  File "/home/u/my runs/data.py", line 12, in load
    raise KeyError(name)
{what}
"""
LAUNCHER = """\
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============
fit.py FAILED
------------
Failures:
  {others}
------------
"""
ALONE = LAUNCHER.format(others="<NO_OTHER_FAILURES>")
TOGETHER = LAUNCHER.format(others="[1]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)")
NO_TRACE = "To enable traceback see: ..."


def test_the_exception_of_the_only_rank_that_failed(tmp_path: Path) -> None:
    """No line of the traceback tells its rank; torchrun's summary leaves but one."""
    raised = RAISES.format(what="KeyError: 'tokens'")
    answer = explained(tmp_path, raised + ALONE + SUMMARY.format(code=1, why=NO_TRACE))
    assert (answer.category, answer.culprits) == ("other", ("rank 5", "node n3"))
    assert answer.sentence.startswith("rank 5 on n3 raised KeyError: 'tokens'")
    assert answer.next == "preflight lint '/home/u/my runs/fit.py'"


def test_the_exception_before_which_no_rank_lost_its_peer(tmp_path: Path) -> None:
    """The others that failed report a lost peer, by an exception or by torch's warning."""
    raised = RAISES.format(what="KeyError: 'tokens'")
    lost = '[W ProcessGroupNCCL.cpp:6] [Rank 1] Cannot read the "should dump" flag on TCPStore\n'
    answer = explained(tmp_path, raised + lost + TOGETHER + SUMMARY.format(code=1, why=NO_TRACE))
    assert answer.culprits == ("rank 5", "node n3")


def test_memory_of_the_only_rank_that_failed(tmp_path: Path) -> None:
    """A symptom in that exception's words is that rank's as well."""
    raised = RAISES.format(what="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    answer = explained(tmp_path, raised + ALONE + SUMMARY.format(code=1, why=NO_TRACE))
    assert (answer.category, answer.culprits) == ("oom_one_rank", ("rank 5", "node n3"))


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (RAISES.format(what="KeyError: 'tokens'") + TOGETHER, 1),
        (RAISES.format(what="KeyError: 'tokens'") * 2 + ALONE, 1),
        (
            RAISES.format(what="ValueError: caught") + RAISES.format(what="KeyError: 'x'") + ALONE,
            1,
        ),
        (RAISES.format(what="KeyError: 'tokens'") + ALONE, -11),
    ],
    ids=["others failed too", "raised twice", "caught by another", "died of a signal"],
)
def test_an_exception_that_may_be_another_rank_s(tmp_path: Path, log: str, code: int) -> None:
    """The summary's rank is not accused of it."""
    answer = explained(tmp_path, log + SUMMARY.format(code=code, why=NO_TRACE))
    assert "raised" in answer.sentence
    assert answer.culprits == ()


def _came(*ranks: int, world: int = 4) -> str:
    line = "Initializing distributed: GLOBAL_RANK: {}, MEMBER: {}/{}\n"
    return "".join(line.format(rank, rank + 1, world) for rank in ranks)


def test_a_start_to_which_not_all_came(tmp_path: Path) -> None:
    """Lightning's processes print their ranks; if the log ends there, some are missing."""
    answer = explained(tmp_path, _came(1, 0))
    assert (answer.category, answer.culprits, answer.confidence) == (
        "timeout_rank_missing",
        (),
        0.5,
    )
    assert answer.sentence == "2 of 4 ranks joined, and the log ends there; missing: 2, 3"
    twice = explained(tmp_path, _came(0, 1, 0, 1))
    assert (twice.category, twice.sentence) == (answer.category, answer.sentence)
    assert "NODE_RANK" in twice.advice


def test_the_driver_s_exception_about_a_lost_node(tmp_path: Path) -> None:
    """Ray's own exceptions report the loss; the script's line that waited is not at fault."""
    lost = "The node with node id: 5c1f and address: 10.2.0.7 has been marked dead because ...\n"
    for kind in ("ray.exceptions.OwnerDiedError", "ray.worker.RayGetError"):
        log = lost + RAISES.format(what=f"{kind}: Could not get objectid ObjectID(01)")
        assert explained(tmp_path, log).sentence.startswith("Ray lost the node 10.2.0.7"), kind


def _waited(*ranks: int, world: int = 4) -> str:
    line = (
        "INFO:root:Waiting in store based barrier to initialize process group for rank: {}, "
        "key: store_based_barrier_key:1 (world_size={}, worker_count=3, timeout=0:30:00)\n"
    )
    return "".join(line.format(rank, world) for rank in ranks)


def test_ranks_that_wait_for_another_at_the_start(tmp_path: Path) -> None:
    """Torch repeats the line of each rank that waits; the rank without one is missing."""
    answer = explained(tmp_path, _waited(0, 2, 3, 0, 2, 3))
    assert answer.category == "timeout_rank_missing"
    assert answer.sentence == "3 of 4 ranks joined, and the log ends there; missing: 1"
    done = "INFO:root:Rank 0: Completed store-based barrier for key:store_based_barrier_key:1\n"
    for log in (_waited(0, 2, 3) + done, _waited(0, 2, 3) + "step\n" * 40, _waited(2, 3)):
        assert (explained(tmp_path, log).category, log) == ("no_failure", log)


def test_a_start_that_succeeded_or_of_which_this_is_a_part_only(tmp_path: Path) -> None:
    """Another node's ranks write elsewhere: nobody is missing where the job went on."""
    for log in (
        _came(0, 1, 2, 3),
        _came(0, 1, 2, 3, 0, 1, 2, 3),
        _came(2, 3),
        _came(0, 1) + "All distributed processes registered. Starting with 4 processes\n",
        _came(0, 1) + "step\n" * 40,
    ):
        assert (explained(tmp_path, log).category, log) == ("no_failure", log)
    failed = _came(0, 1) + "[rank1]: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert explained(tmp_path, failed).category == "oom_one_rank"


CANCELLED = (
    "slurmstepd: error: *** STEP 7.0 ON n12 CANCELLED AT 2026-01-01T00:00:00 DUE TO {} ***\n"
)


@pytest.mark.parametrize(("why", "do"), [("TIME LIMIT", "--time"), ("PREEMPTION", "--requeue")])
def test_a_job_that_the_scheduler_ended_has_no_culprit(tmp_path: Path, why: str, do: str) -> None:
    """The node in the line is where slurmstepd ran; the advice fits the reason."""
    answer = explained(tmp_path, CANCELLED.format(why))
    assert (answer.category, answer.confidence >= 0.75, answer.culprits) == ("other", True, ())
    assert why in answer.sentence
    assert do in answer.advice
    assert "sacct" not in answer.advice


def test_the_node_that_failed_is_the_one_that_srun_names(tmp_path: Path) -> None:
    """Slurmstepd on another node reports it as well; alone it shows no node."""
    named = "srun: error: Node failure on n20\n"
    cancelled = CANCELLED.format("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    for log in (named + cancelled, cancelled + named):
        answer = explained(tmp_path, log + "srun: error: n12: tasks 0-7: Terminated\n")
        assert (answer.category, answer.culprits) == ("other", ("node n20",))
    assert explained(tmp_path, cancelled).culprits == ()


@pytest.mark.parametrize(
    ("log", "culprits"),
    [
        (
            "Nov  5 11:00:01 gpu055 kernel: NVRM: GPU 0000:98:00.0: GPU has fallen off the bus.\n",
            ("gpu 0000:98:00.0", "node gpu055"),
        ),
        (
            "Nov  5 11:00:01 gpu055 kernel: NVRM: Xid (PCI:0000:98:00): 79, off the bus\n",
            ("gpu 0000:98:00", "node gpu055"),
        ),
        (
            "2025-11-05T10:00:00 gpu003 t[33]: [rank5]: CUDA error: uncorrectable ECC error\n",
            ("node gpu003", "rank 5"),
        ),
        (
            "gpu003: [rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
            ("node gpu003", "rank 5"),
        ),
        ("gpu7 GPU #3: uncorrectable ECC error encountered\n", ("gpu 3",)),
    ],
)
def test_a_host_name_is_no_gpu_number(tmp_path: Path, log: str, culprits: tuple[str, ...]) -> None:
    """A node called gpu055 is a node; the GPU is what stands behind the word GPU."""
    answer = explained(tmp_path, log)
    assert (answer.category, answer.culprits) == ("gpu_hardware", culprits)


@pytest.mark.parametrize(
    "text",
    [
        "they say uncorrectable ECC error encountered, or Xid 79, but dmesg shows neither.",
        "dmesg shows neither an uncorrectable ECC error nor Xid 79",
        "there is no uncorrectable ECC error and no Xid 79",
        "it fails without any uncorrectable ECC error",
    ],
)
def test_what_a_line_denies_is_not_found(tmp_path: Path, text: str) -> None:
    """Prose that denies a GPU's fault drains no node."""
    answer = explained(tmp_path, f"RuntimeError: CUDA error: out of memory\n{text}\n")
    assert answer.category == "oom_one_rank"


def test_an_evicted_pod_is_a_failure(tmp_path: Path) -> None:
    """Kubernetes ended it for a resource of its node; no rank is named."""
    event = "  Warning  Evicted  2m  kubelet  The node was low on resource: ephemeral-storage.\n"
    answer = explained(tmp_path, f"Events:\n{event}  Normal  Killing  2m  kubelet  Stopping\n")
    assert (answer.category, answer.culprits) == ("other", ())
    assert "ephemeral-storage" in answer.sentence


def test_an_exception_before_the_normal_end_was_caught(tmp_path: Path) -> None:
    """The trainer went on and reports its end; one that comes after it counts."""
    caught = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/wandb/sender.py", line 3, in send\n'
        "requests.exceptions.HTTPError: 502 Server Error\n"
    )
    end = "step 101 loss 2.3\n{'train_runtime': 12.5, 'train_samples_per_second': 3.1}\n"
    assert explained(tmp_path, caught + end).category == "no_failure"
    assert explained(tmp_path, end + caught).category != "no_failure"


_STEPS = "step 1 loss 0.9\nstep 2 loss 0.8\n"


@pytest.mark.parametrize(
    "log",
    [
        "INFO ECC errors: 0 uncorrectable ECC error\n" + _STEPS,
        "gpu3: 0 uncorrectable ECC errors\n" + _STEPS,
        "monitor: watching for Xid 79\n" + _STEPS,
        "doc: handle Xid 79 by draining\n" + _STEPS,
        "Detected 0 oom_kill events in StepId=1\n" + _STEPS,
        "OOM Killed 0 times\n" + _STEPS,
        "checkpoint: will stop with No space left on device below 1 GiB\n" + _STEPS,
        "[rank2]: WARNING: CUDA out of memory, retrying with smaller micro-batch\n"
        + "".join(f"[rank2]: step {step} loss 0.5\n" for step in range(300))
        + "Training complete\n",
        "WARNING: bind port 29500: Address already in use, trying 29501\n" + _STEPS,
        "[rank0]: eval prompt: NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus\n"
        + _STEPS,
        "2026-11-20 10:06:20 INFO question: ERROR uncorrectable ECC error, what now?\n" + _STEPS,
        'eval Q: how do I fix "Address already in use" ?\n' + _STEPS,
        "Performance might be sub-optimal! Config file not found at /w/E=8.json\n" + _STEPS,
        _STEPS + "Exception ignored in: <function X.__del__ at 0x7f>\nTraceback (most recent call "
        'last):\n  File "/opt/x.py", line 16, in __del__\nTypeError: not callable\n',
        _STEPS + "Exception ignored in: <function X.__del__ at 0x7f>\nTraceback (most recent call "
        'last):\n  File "/opt/x.py", line 16, in __del__\ntorch.multiprocessing.spawn.'
        "ProcessRaisedException: -- Process 1 terminated: Traceback (most recent call last):\n"
        '  File "/opt/x.py", line 20, in end\nTypeError: not callable\n',
        _STEPS + "[after training is done] datetime: 2026-11-20 10:06:20\n",
    ],
)
def test_a_line_that_reports_health_is_no_failure(tmp_path: Path, log: str) -> None:
    """A count of zero, a plan, a retry and a quoted text name a failure that did not happen."""
    assert explained(tmp_path, log).category == "no_failure"


@pytest.mark.parametrize(
    "line",
    [
        "  exitcode  : 1 (pid: 81)",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "Command exited with non-zero status 1",
        "rank 5: loss is NaN at step 10. Aborting.",
        "[rank0]:[F1120 10:10:00.1 Heart.cpp:15] [PG ID 0 PG GUID 0 Rank 0] Terminating it",
    ],
)
def test_a_failure_that_no_symptom_knows_is_unclear(tmp_path: Path, line: str) -> None:
    """A torchrun summary whose beginning is cut off; words of MPI, of a script."""
    answer = explained(tmp_path, f"{line}\n")
    assert (answer.category, answer.confidence) == ("unknown", 0.2)


def test_a_log_that_ends_with_an_unknown_failure_names_it(tmp_path: Path) -> None:
    """Numbers after it are no other work; what follows a retry, or is of a rank, is unclear."""
    failed = "runc: initialization error: load library failed: libcuda.so.1: no such file\n"
    answer = explained(tmp_path, failed + "Total execution time: 1300.77 seconds\n")
    assert (answer.category, answer.confidence) == ("other", 0.5)
    assert "libcuda.so.1: no such file" in answer.sentence
    earlier = "cp: cannot stat 'a.txt': No such file or directory\n" + 9 * "copied b.txt\n"
    answer = explained(tmp_path, earlier + failed)
    assert (answer.category, answer.confidence) == ("other", 0.5)
    assert "the log ends with: runc: initialization error" in answer.sentence
    for last in ("rank 7 timed out after 600 s", "CUDA error: 700 in solver.cu"):
        assert last in explained(tmp_path, f"copied b.txt\n{last}\n").sentence
    for unclear in (f"[rank0]: {failed}", failed + 9 * "copied b.txt\n", f"retrying: {failed}"):
        assert explained(tmp_path, unclear).confidence < 0.5


def test_the_lines_before_an_unexplained_end_are_quoted(tmp_path: Path) -> None:
    """A program prints its reason last, in words that no symptom knows.

    Noise after it is passed over; lines without a reason are shown, and the answer is unclear.
    """
    ended = "srun: error: n1: task 0: Exited with exit code 2\n"
    answer = explained(tmp_path, f'Field "l2_cache_size" is not a valid field.\n\n{ended}')
    assert (answer.category, answer.confidence) == ("other", 0.5)
    assert 'right before it: Field "l2_cache_size" is not a valid field.' in answer.sentence
    assert answer.culprits == ("node n1",)
    noise = "wandb: Synced 5 files\nreal 0m3.2s\n"
    answer = explained(tmp_path, f"--data-dir must be a folder\n{noise}{ended}")
    assert "right before it: --data-dir must be a folder" in answer.sentence
    for reason in ("CUDA runtime version is insufficient, 12.4 required", "14:02:11 no such mesh"):
        assert f"right before it: {reason}" in explained(tmp_path, f"{reason}\n{ended}").sentence
    other = "1: no such mesh\n00: the mesh must be closed\n"
    assert "before it: 00: the mesh" in explained(tmp_path, "saved a.pt\n" + other + ended).sentence
    assert (
        "no such mesh" not in explained(tmp_path, "00: closed\n1: no such mesh\n" + ended).sentence
    )
    for before in ("epoch 3 loss 2.1", "12:00:01 INFO saved a.pt", "+-----+", "Found 4 GPUs", ""):
        assert explained(tmp_path, f"{before}\n{ended}").confidence == 0.3
    goes_on = "no ib0, eth0 is used\n" + ended + "step 1 loss 2\nstep 2 loss 2\n"
    assert explained(tmp_path, goes_on).confidence < 0.5


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("GPU 0 uncorrectable ECC error", "gpu_hardware"),
        ("GPU 0000:98:00.0 uncorrectable ECC error", "gpu_hardware"),
        ("Node n3 reported 2 uncorrectable ECC errors", "gpu_hardware"),
        ("Node n3: normal boot, node has Xid 79", "gpu_hardware"),
        ("failed to handle Xid 79", "gpu_hardware"),
        ("GPU 3: 10 uncorrectable ECC errors", "gpu_hardware"),
        ("GPU 3: Xid 48 detected; look for Xid 48 in dmesg", "gpu_hardware"),
        ("bind port 29500: Address already in use, trying 29500 again", "port_in_use"),
        ("[rank3]: failed on prompt: CUDA error: uncorrectable ECC error", "gpu_hardware"),
        ("checkpoint: could not write, No space left on device", "other"),
        ("slurmstepd: error: Detected 10 oom_kill events in StepId=7.0", "other"),
    ],
)
def test_a_line_that_is_nearly_one_of_health_is_a_failure(
    tmp_path: Path, line: str, category: str
) -> None:
    """GPU 0 is no count of zero, and the same port again is no other port."""
    answer = explained(tmp_path, line + "\n" + _STEPS)
    assert (answer.category, answer.confidence > 0.5) == (category, True)
