"""Echoes of a failure, counts, and survived errors are no causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import communicator, explained, timed_out

if TYPE_CHECKING:
    from pathlib import Path

GOT = "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0"
UNKNOWN = "Name or service not known"
RAISED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/u/train.py", line {line}, in {code}
[rank{rank}]: {what}
"""


def test_a_link_that_fails_after_a_rank_has_died_is_its_echo(tmp_path: Path) -> None:
    """A dead peer does not acknowledge either; whose link failed first is to blame itself."""
    oom = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    link = f"n1:1:2 [0] {GOT}\n"
    died = explained(tmp_path, oom + link)
    assert (died.category, died.culprits) == ("oom_one_rank", ("rank 3",))
    assert [one.category for one in died.alternatives] == ["nic_or_ib_link"]
    assert explained(tmp_path, link + oom).category == "nic_or_ib_link"


def test_the_clocks_tell_whether_a_rank_had_died_before(tmp_path: Path) -> None:
    """The link's file is read first, but the rank's memory was full a minute before."""
    answer = explained(
        tmp_path,
        f"[2026-10-05 10:02:00] n1:1:2 [0] {GOT}\n",
        "2026-10-05 10:01:00,1 [rank3]: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    )
    assert answer.category == "oom_one_rank"


def test_an_exception_that_passes_on_ncclss_failure_is_none(tmp_path: Path) -> None:
    """`NCCL error: unhandled system error` says only that something else failed."""
    what = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)"
    log = RAISED.format(rank=1, line=9, code="main", what=what)
    assert explained(tmp_path, log).category == "unknown"
    refused = "n1:1:2 [0] NCCL WARN socketPollConnect: Connect to 10.2.3.4<40000> returned 113("
    answer = explained(tmp_path, log + refused + "No route to host) errno 115(...)\n")
    assert answer.category == "firewall"


@pytest.mark.parametrize(
    "what",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed: {}",
        "vllm.v1.engine.exceptions.EngineDeadError: It failed. See stack trace (above) for it.",
        "Exception: WorkerProc failed in a background process. See stack trace for root cause.",
        "RuntimeError: cancelled",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed",
    ],
)
def test_an_exception_that_refers_to_another_is_none(tmp_path: Path, what: str) -> None:
    """The line where vLLM's server, or a peer, learns of a worker's end has no fault."""
    alone = RAISED.format(rank=0, line=9, code="main", what=what)
    assert explained(tmp_path, alone).category == "unknown"
    first = RAISED.format(rank=1, line=7, code="load", what="KeyError: 'layers.0'")
    assert "KeyError" in explained(tmp_path, first + alone).sentence
    assert "KeyError" in explained(tmp_path, alone + first).sentence


def test_an_exception_that_was_caught_ended_nobody(tmp_path: Path) -> None:
    """A rank that waits in a collective an hour later has not died by it."""
    log = RAISED.format(rank=1, line=9, code="log", what="ValueError: no such project")
    answer = explained(tmp_path, log + timed_out(0, 4) + timed_out(1, 4))
    assert answer.category == "unknown"
    assert "ranks 0-1 waited" in answer.sentence
    assert explained(tmp_path, log + timed_out(0, 4)).culprits == ("rank 1",)


def test_the_same_exception_on_all_ranks_names_them_all(tmp_path: Path) -> None:
    """Whose came first by a millisecond is not odd."""
    what = "FileNotFoundError: [Errno 2] No such file or directory: 'x.json'"
    log = "".join(RAISED.format(rank=rank, line=4, code="load", what=what) for rank in (2, 0, 1))
    answer = explained(tmp_path, log)
    assert answer.culprits == ("rank 0", "rank 1", "rank 2")
    assert answer.sentence.startswith("ranks 0-2 raised FileNotFoundError")


def test_torchruns_first_failure_is_the_first(tmp_path: Path) -> None:
    """Its summary lists the others before it; the traceback in it is that rank's."""
    trace = 'Traceback (most recent call last):\n      File "a.py", line {}, in f\n  {}\n'
    one = "  rank      : {} (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n  error_file: /tmp/e\n"
    answer = explained(
        tmp_path,
        "Failures:\n[1]:\n  host      : n1\n"
        + one.format(4)
        + "  traceback : "
        + trace.format(8, "EnvironmentTimeout: no answer")
        + "Root Cause (first observed failure):\n[0]:\n  host      : n2\n"
        + one.format(6)
        + "  traceback : "
        + trace.format(3, "ValueError: bad row"),
    )
    assert answer.culprits == ("rank 6", "node n2")
    assert "ValueError: bad row at a.py:3" in answer.sentence


def test_a_step_that_srun_tidies_up_was_not_cancelled_by_the_scheduler(tmp_path: Path) -> None:
    """Srun ends the others' tasks when one has failed; only a reason makes it Slurm's doing."""
    ended = "srun: error: n3: task 7: Exited with exit code 2\n"
    cancelled = "slurmstepd: error: *** STEP 7.0 ON n3 CANCELLED AT 2026-01-01T00:00:00{} ***\n"
    answer = explained(tmp_path, ended + cancelled.format(""))
    assert (answer.category, answer.culprits) == ("unknown", ("node n3",))
    assert "task 7 on n3 ended first (exit code 2)" in answer.sentence
    assert explained(tmp_path, cancelled.format("")).confidence <= 0.5
    timely = explained(tmp_path, ended + cancelled.format(" DUE TO TIME LIMIT"))
    assert (timely.category, timely.confidence) == ("other", 0.75)


@pytest.mark.parametrize(
    "line",
    [
        "Possible causes: (1) killed by SIGKILL by OOM killer due to memory (2) stopped",
        "tests/test_kernel.py::test_oom_kill_is_told PASSED",
        'GET /api/zombie/process?id=7 HTTP/1.1" 200',
        "health: no zombie processes",
        "INFO - Found stale lock file and directory '/tmp/worker-7', purging",
        "RuntimeError: NCCL communicator was aborted.",
        "[Rank 2] Running collective: CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE)",
        "NET/Plugin : libnccl-net.so: cannot open shared object file: No such file or directory",
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer",
    ],
)
def test_words_that_only_sound_like_a_failure(tmp_path: Path, line: str) -> None:
    """Possibilities that are counted up, names of tests, addresses, notices."""
    assert explained(tmp_path, line + "\n").category in ("unknown", "no_failure")


def test_a_job_that_came_to_its_end_was_ended_by_no_warning(tmp_path: Path) -> None:
    """Only the program's own last words count, and nothing in it may have died."""
    taken = "[W socket.cpp:9] The server socket has failed to bind to [::]:29511 (errno: 98 - x)\n"
    end = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    answer = explained(tmp_path, taken + end)
    assert (answer.category, answer.confidence) == ("no_failure", 0.0)
    assert "ended normally" in answer.sentence
    assert explained(tmp_path, end + taken).category == "port_in_use"
    died = taken + RAISED.format(rank=1, line=9, code="f", what="ValueError: x") + end
    assert explained(tmp_path, died).category == "port_in_use"


def test_sockets_are_no_mistake_where_there_is_no_infiniband(tmp_path: Path) -> None:
    """NCCL says so itself."""
    none = "n1:1:2 [0] NCCL INFO NET/IB : No device found.\n"
    sockets = "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth7:10.0.0.1<0>\n"
    assert explained(tmp_path, none + sockets).category == "no_failure"


@pytest.mark.parametrize(
    ("xid", "category", "sure"),
    [(79, "gpu_hardware", True), (48, "gpu_hardware", True), (31, "other", False)],
)
def test_an_xid_is_as_grave_as_the_catalog_says(
    tmp_path: Path, xid: int, category: str, *, sure: bool
) -> None:
    """The driver logs a program's own faults as well."""
    answer = explained(tmp_path, f"kernel: NVRM: Xid (PCI:0000:3b:00): {xid}, pid=9, name=python\n")
    assert answer.category == category
    assert (answer.confidence > 0.9) is sure
    assert answer.culprits == ("gpu 0000:3b:00",)


def test_all_ranks_that_a_line_names_are_named(tmp_path: Path) -> None:
    """A barrier's message lists them."""
    answer = explained(
        tmp_path, "RuntimeError: [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 9000 ms\n"
    )
    assert answer.culprits == ("rank 2", "rank 5")
    assert answer.sentence == "ranks 2,5 did not come to the barrier within 9000 ms"


@pytest.mark.parametrize(
    ("prefix", "culprits"),
    [
        ("[1,3]<stderr>:", ("rank 3",)),
        ("(VllmWorker rank=3 pid=85) ERROR 03-20 23:26:06 [executor.py:3] ", ("rank 3",)),
        ("(RayTrainWorker pid=85, ip=10.0.0.3) ", ()),
        ("[pod/train-worker-1/pytorch] ", ()),
        ("7: ", ()),
        ("2026-10-05T10:00:00.123Z ", ()),
    ],
)
def test_a_traceback_behind_any_launchers_prefix(
    tmp_path: Path, prefix: str, culprits: tuple[str, ...]
) -> None:
    """The line of code is found, and a rank is named where the prefix proves one."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: 0\n'
    answer = explained(tmp_path, "".join(f"{prefix}{line}\n" for line in trace.splitlines()))
    assert "raised KeyError: 0 at a.py:5 (f)" in answer.sentence
    assert answer.culprits == culprits


def test_only_the_first_of_torchruns_summaries_is_named(tmp_path: Path) -> None:
    """Each node's torchrun calls one rank the first; the earliest of them is it, by its time."""
    summary = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-10-05_10:{}:00\n"
        "  host      : {}\n  rank      : {} (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n"
        "  error_file: <N/A>\n" + "-" * 20 + "\n" * 8
    )
    answer = explained(tmp_path, summary.format("09", "n1", 0) + summary.format("01", "n2", 4))
    assert answer.culprits == ("rank 4", "node n2")


def test_gloos_time_out_does_not_tell_who_is_missing(tmp_path: Path) -> None:
    """It is no fault of the script's line in which the rank waits."""
    what = "RuntimeError: [gloo/x.cc:8] Timed out waiting 9000ms for recv operation to complete"
    answer = explained(tmp_path, RAISED.format(rank=1, line=9, code="main", what=what))
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert "rank 1 waited 9000 ms for a peer" in answer.sentence


@pytest.mark.parametrize(
    ("lines", "category"),
    [
        ("Received 1 death signal, shutting down workers\nclosing signal SIGHUP\n", "other"),
        ("Received 15 death signal, shutting down workers\nclosing signal SIGTERM\n", "other"),
        ("failed (exitcode: -11) local_rank: 1 (pid: 5) of binary: python\n", "other"),
        ("['python', 'a.py', '--local_rank=1'] exits with return code = -7\n", "shm"),
        ("['python', 'a.py', '--local_rank=1'] exits with return code = 3\n", "unknown"),
        ("process rank 2 with PID 0 on node n4 exited on signal 9 (Killed).\n", "other"),
        ("KeyError: 'LOCAL_RANK'\n", "env_misconfig"),
        ("KeyError: 'loss'\n", "other"),
        ("AssertionError: world size (6) is not divisible by 4\n", "env_misconfig"),
        ("OSError: [Errno 24] Too many open files\n", "env_misconfig"),
        ("NET/OFI Request 0x1 completed with error. RC: 5. Error: 9 (Gone)\n", "nic_or_ib_link"),
        ("lagging/dead/mismatched ranks that caused x:\n - [3] finished collective #4\n",
         "timeout_rank_missing"),
        ("NCCL WARN NET/OFI Couldn't enable endpoint. RC: -22, ERROR: Gone\n", "env_misconfig"),
        ("NCCL WARN Connect to fe80::1%6<40000> failed : Network is unreachable\n",
         "wrong_interface"),
        ("NCCL WARN Cuda failure 711 'peer mapping resources exhausted'\n", "env_misconfig"),
        ("malloc(): corrupted top size\n*** SIGABRT received ***\n", "other"),
        ("ERROR Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n", "other"),
        ("The node n4_5_0 has failed to send a keep-alive heartbeat to the rendezvous job7\n",
         "unknown"),
        ("      Exit Code:    137\n", "other"),
        ("ValueError: TP rank 1 could finish the model loading, but there are other ranks\n",
         "timeout_rank_missing"),
        ("The client socket has timed out after 9s while trying to connect to 10.0.0.7:40404\n",
         "timeout_rank_missing"),
        ("The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied).\n",
         "env_misconfig"),
        ("srun: error: n3: tasks 0-7: Killed\n", "other"),
        ("[rank: 3] Child process with PID 170 terminated with code -9. Forcefully\n", "other"),
        (("[3]: params[0] in this process with sizes [4] appears not to match sizes of the same "
          "param in process 0\n"), "collective_mismatch"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal to 8\n",
         "env_misconfig"),
        ("AssertionError: MPI world size 16 does not match torch world size 8\n", "env_misconfig"),
        ("No GPUs were found on this machine\n", "device_ordinal"),
        ("      Exit Code:    0\n", "no_failure"),
        ("RuntimeError: Socket Timeout\n", "timeout_rank_missing"),
        ("RuntimeError: connect() timed out. Original timeout was 9000 ms.\n",
         "timeout_rank_missing"),
    ],
)  # fmt: skip
def test_how_launchers_and_libraries_say_it(tmp_path: Path, lines: str, category: str) -> None:
    """Torchrun, deepspeed, mpirun; a missing variable of the launch, a launch that does not fit."""
    assert explained(tmp_path, lines).category == category


@pytest.mark.parametrize(
    ("lines", "prefix", "culprits"),
    [
        ([communicator(0, 4)], "", ("rank 1",)),
        ([communicator(0, 4)], "n1: ", ("rank 1",)),
        ([communicator(0, 4)], "n2: ", ()),
        ([communicator(1, 4, host="n1"), communicator(0, 4, host="n2")], "n2: ", ("rank 1",)),
        ([], "", ()),
    ],
)
def test_deepspeed_shows_which_process_ended_first(
    tmp_path: Path, lines: list[str], prefix: str, culprits: tuple[str, ...]
) -> None:
    """NCCL's lines show the rank of a node's first GPU; the exception has no rank of its own."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: 0\n'
    end = "[2026-10-05 10:00:09,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py', "
    end += "'--local_rank=1'] exits with return code = 1\n"
    answer = explained(tmp_path, "".join(lines) + trace + prefix + end)
    assert [one for one in answer.culprits if one.startswith("rank")] == [*culprits]
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    answer = explained(tmp_path, "".join(lines) + memory + prefix + end)
    assert [one for one in answer.culprits if one.startswith("rank")] == [*culprits]


def test_an_exception_without_a_rank_is_not_given_to_one_of_several(tmp_path: Path) -> None:
    """Two ranks ended by an exception, and one of them shows its own."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: 0\n'
    ends = "".join(f"srun: error: n1: task {rank}: Exited with exit code 1\n" for rank in (2, 5))
    other = RAISED.format(rank=5, line=9, code="g", what="RuntimeError: Connection reset by peer")
    assert explained(tmp_path, trace + other + ends).culprits == ("rank 2",)
    assert explained(tmp_path, trace + ends).culprits == ()


def test_ray_reports_the_end_of_a_worker(tmp_path: Path) -> None:
    """Its peers only lost their connections; time-outs end workers, too."""
    ended = "(raylet) A worker died or was killed while executing a task by an unexpected error.\n"
    lost = "n1:7:9 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<4003>\n"
    answer = explained(tmp_path, lost + ended)
    assert (answer.category, answer.culprits, answer.confidence) == ("other", (), 0.5)
    assert explained(tmp_path, timed_out(1, 5) + ended).category == "unknown"


def test_an_xid_whose_line_calls_it_nonfatal_is_no_proof(tmp_path: Path) -> None:
    """Of some numbers the line itself tells how grave it is."""
    line = "NVRM: Xid (PCI:0000:3b:00): 145, RLW {} XC0 i0 Link 02\n"
    assert explained(tmp_path, line.format("Fatal")).category == "gpu_hardware"
    assert explained(tmp_path, line.format("Nonfatal")).category == "unknown"


def test_an_xid_in_words_and_number_is_told_with_its_meaning(tmp_path: Path) -> None:
    """Not only that some GPU is faulty."""
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    assert "Xid 79 for the GPU at 0000:3b:00" in explained(tmp_path, line).sentence


def test_memory_that_ran_out_before_the_others_timed_out(tmp_path: Path) -> None:
    """That the rank did not come is the echo; why it did not is the cause."""
    log = "".join(communicator(rank, 4) for rank in range(4))
    log += RAISED.format(rank=2, line=9, code="step", what="torch.OutOfMemoryError: CUDA out of m.")
    log += "".join(timed_out(rank, 9) for rank in (0, 1, 3))
    answer = explained(tmp_path, log)
    assert (answer.category, answer.culprits) == ("oom_one_rank", ("rank 2",))


@pytest.mark.parametrize(
    "early",
    [
        "The client socket has failed to connect to [m0]:29511 (errno: 111 - Connection refused).",
        f"network addresses of (m0, 1) cannot be retrieved (gai error: -2 - {UNKNOWN})",
        "socketPollConnect: connect returned No route to host, retrying (1/34) after 100 msec",
        "urllib3: Connection reset by peer, trying again",
    ],
)
def test_what_was_tried_again_is_not_the_failure_that_followed(tmp_path: Path, early: str) -> None:
    """A master that is not up yet, a name that comes late; alone it is all there is."""
    early += "\n"
    failed = RAISED.format(rank=1, line=9, code="step", what="ValueError: bad batch")
    assert explained(tmp_path, early + failed).culprits == ("rank 1",)
    full = "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert explained(tmp_path, early + full).category == "oom_one_rank"
    late = explained(tmp_path, early + timed_out(0, 5))
    assert late.category == "unknown"
    assert "rank 0 waited in ALLREDUCE" in late.sentence
    assert explained(tmp_path, early).confidence <= 0.55


def test_a_program_s_xid_names_no_gpu_beside_a_faulty_one(tmp_path: Path) -> None:
    """What another Xid brought about is judged by that; a program's own fault accuses no GPU."""
    line = "kernel: NVRM: Xid (PCI:0000:{}:00): 45, pid=77, name=python, Ch 00000001{}\n"
    answer = explained(
        tmp_path, line.format("1a", "") + line.format("5a", " caused by previous Xid 48")
    )
    assert (answer.category, answer.culprits) == ("gpu_hardware", ("gpu 0000:5a:00",))
    assert "Xid 45 for the GPU at 0000:5a:00, caused by Xid 48" in answer.sentence


@pytest.mark.parametrize("error", ["unknown error", "unspecified launch failure"])
def test_a_hint_of_torch_s_after_every_cuda_error_is_no_assert(tmp_path: Path, error: str) -> None:
    """It stands there whatever the error was; these words do not say that either."""
    log = f"RuntimeError: CUDA error: {error}\n"
    log += "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    assert explained(tmp_path, log).category == "unknown"


def test_a_segment_that_cuda_refused_had_room(tmp_path: Path) -> None:
    """Older NCCL warns of the segment in the same words, whatever kept it from having it."""
    made = (
        "n1:5:6 [1] misc/shmutils.cc:90 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-Qa1 (size 4096){}\n"
    )
    cuda = "n1:5:6 [1] misc/shmutils.cc:80 NCCL WARN Cuda failure 'operation not permitted'\n"
    full = explained(tmp_path, made.format(", error: No space left on device (28)"))
    assert (full.category, full.confidence) == ("shm", 0.93)
    bare = explained(tmp_path, made.format(""))
    assert (bare.category, bare.confidence) == ("shm", 0.5)
    refused = explained(tmp_path, cuda + made.format(""))
    assert (refused.category, refused.confidence) == ("unknown", 0.3)


def test_the_tasks_that_did_not_come_to_jax_s_barrier(tmp_path: Path) -> None:
    """Its exception is no fault of the line that waits; the first task there is not missing."""
    task = "/job:jax_worker/replica:0/task:{}\n"
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 5, in f\n'
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: ckpt::4. "
        "This usually happens because a task was slow. The first task at the barrier: "
        + task.format(0)
        + "Some timed out task names:\n"
        + task.format(11)
        + task.format(3)
        + "\nAdditional GRPC error information\n"
    )
    answer = explained(tmp_path, log)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("task 3", "task 11"))
    assert answer.sentence == "tasks 3, 11 did not reach JAX's barrier ckpt::4"
    full = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert explained(tmp_path, full + log).category == "oom_one_rank"


def test_the_task_that_sent_jax_no_heartbeat(tmp_path: Path) -> None:
    """The coordinator reports it; the task's own log has the reason."""
    task = "/job:jax_worker/replica:0/task:37"
    log = f"E0101 {task} has been set to ERROR in coordination service: UNAVAILABLE: Task {task} "
    answer = explained(tmp_path, log + "heartbeat timeout. This indicates a failure.\n")
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("task 37",))
    assert answer.sentence == "task 37 sent JAX's coordination service no heartbeat in time"


def test_a_connection_that_was_aborted_does_not_show_why(tmp_path: Path) -> None:
    """NCCL 2.17 to 2.23 gives no other reason; a peer's end before it is the cause."""
    aborted = "NCCL WARN Connect to 10.2.3.4<40000> failed : Software caused connection abort\n"
    answer = explained(tmp_path, aborted)
    assert (answer.category, answer.confidence) == ("firewall", 0.45)
    full = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert explained(tmp_path, full + aborted).category == "oom_one_rank"


def test_an_address_that_is_none_is_a_matter_of_versions_where_two_met(tmp_path: Path) -> None:
    """Else of an interface, with the versions as what it may be instead."""
    none = "ncclSocketInit: connecting to address  with family 77 "
    none += "is neither AF_INET(2) nor AF_INET6(10)\n"
    alone = explained(tmp_path, "NCCL version 2.18.1+cuda12.1\n" + none)
    assert (alone.category, alone.confidence) == ("wrong_interface", 0.5)
    assert [one.category for one in alone.alternatives] == ["version_mismatch"]
    two = explained(tmp_path, "NCCL version 2.18.1+cuda12.1\nNCCL version 2.22.3\n" + none)
    assert (two.category, two.confidence) == ("version_mismatch", 0.7)
    assert two.sentence.endswith("; NCCL 2.18.1 and 2.22.3 met")


def test_who_could_not_connect_tells_more_than_who_waited(tmp_path: Path) -> None:
    """A watchdog's timeout is an echo; Docker's own bridge is the wrong interface."""
    gave_up = "The client socket has timed out after 600s while trying to connect to ({}, 40404).\n"
    answer = explained(tmp_path, gave_up.format("n7") + timed_out(0, 5))
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("node n7",))
    assert "firewall" in [one.category for one in answer.alternatives]
    bridge = explained(tmp_path, timed_out(0, 5) + gave_up.format("172.17.0.8"))
    assert (bridge.category, bridge.confidence) == ("wrong_interface", 0.65)


def test_a_rank_without_peers_needs_no_infiniband(tmp_path: Path) -> None:
    """A communicator of one sends nothing."""
    sockets = "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth7:10.0.0.1<0>\n"
    assert explained(tmp_path, sockets + communicator(0, 1)).category == "no_failure"
    assert explained(tmp_path, sockets + communicator(0, 2)).category == "wrong_interface"


def test_what_was_gone_round_did_not_end_a_job_that_ended_well(tmp_path: Path) -> None:
    """NCCL goes on without libfabric; where the job did not, it is what is known."""
    plugin = "n1:1:2 [0] NCCL WARN NET/OFI Could not find any optimal provider\n"
    assert explained(tmp_path, plugin).culprits == ("node n1",)
    end = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    assert "ended normally" in explained(tmp_path, plugin + end).sentence


_CAUGHT = """\
WARNING checkpoint failed, continuing
Traceback (most recent call last):
  File "/app/train.py", line 88, in save
    torch.save(state, path)
OSError: [Errno 28] No space left on device
"""
_RESTART = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 30, in main
[rank1]:     x = next(it)
[rank1]: ValueError: a bad record
E1120 10:00:20 42 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) \
local_rank: 1 (pid: 4243) of binary: /usr/bin/python3
I1120 10:00:22 42 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group \
FAILED. 2/3 attempts left; will restart worker group
"""
_STEPS = "INFO step 21 loss 2.5\nINFO step 22 loss 2.4\n"
_ENDED = "INFO Training complete\n"
_SUCCEEDED = "[default] worker group successfully finished. Waiting 300 seconds for other agents.\n"


def test_a_failure_that_the_job_outlived_ended_nothing(tmp_path: Path) -> None:
    """Caught, tried again with less, or followed by a restart: the job's own end decides."""
    oom = "WARNING caught torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    smaller = "WARNING retrying with batch size 8\n"
    for text in (oom + smaller, _RESTART):
        assert "ended normally" in explained(tmp_path, text + _STEPS + _ENDED).sentence
    for text in (_CAUGHT, _RESTART):
        assert "ended normally" in explained(tmp_path, text + _STEPS + _SUCCEEDED).sentence


_BUS = "gpu055 kernel: NVRM: Xid (PCI:0000:98:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize("failure", [_CAUGHT, _BUS])
def test_a_scripts_last_words_make_a_failure_unclear(tmp_path: Path, failure: str) -> None:
    """It may print them whatever happened; a library prints its own only after all work."""
    answer = explained(tmp_path, _STEPS + failure + _STEPS + _ENDED)
    assert (answer.confidence, answer.category == "no_failure") == (0.45, False)
    assert "a later line reports the end of the work" in answer.sentence
    finished = explained(tmp_path, failure + "`Trainer.fit` stopped: `max_epochs=3` reached.\n")
    assert "ended normally" in finished.sentence


@pytest.mark.parametrize(
    "ended",
    [
        "  Process name: [[4711,1],3]\n  Exit code:    1\n",
        "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 7)\n",
    ],
)
def test_an_exit_code_after_the_last_words_counts(tmp_path: Path, ended: str) -> None:
    """The launcher knows better than a library on one rank."""
    end = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    answer = explained(tmp_path, _CAUGHT + end + ended)
    assert (answer.category, answer.confidence) == ("other", 0.8)
    zero = ended.replace(": 1 ", ": 0 ").replace("   1\n", "   0\n")
    assert "ended normally" in explained(tmp_path, _CAUGHT + end + zero).sentence


def test_an_exception_after_which_the_program_goes_on_is_unclear(tmp_path: Path) -> None:
    """It was perhaps caught; where a process is reported to end, or few lines follow, it was not.

    With several files none shows which of them go on.
    """
    ended = "srun: error: gpu003: task 3: Exited with exit code 1\n"
    answer = explained(tmp_path, _CAUGHT + 60 * _STEPS)
    assert (answer.category, answer.confidence) == ("other", 0.45)
    assert "120 lines follow, and none reports an end" in answer.sentence
    assert explained(tmp_path, _CAUGHT + 20 * _STEPS).confidence == 0.8
    for text in (_CAUGHT + 60 * _STEPS + ended, 60 * _STEPS + _CAUGHT):
        assert explained(tmp_path, text).confidence == 0.8


def test_a_failure_before_further_steps_did_not_end_the_job(tmp_path: Path) -> None:
    """The answer quotes what the job survived, unless a part is broken or a program ended by it."""
    caught = """Traceback (most recent call last):
  File "/app/train.py", line 88, in evaluate
    score(batch)
{}
"""
    steps = "".join(f"step {number} loss 2.5\n" for number in range(1, 60))
    error = "KeyError: 'x'"
    answer = explained(tmp_path, steps[:130] + caught.format(error) + steps[130:])
    assert (answer.category, answer.confidence) == ("no_failure", 0.0)
    assert f"ended the job: a rank raised {error} at /app/train.py:88" in answer.sentence
    for lasting, after in (
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ""),
        ("OSError: [Errno 28] No space left on device", ""),
        (error, "mytool: failed to open the device\n"),
        (error, "epoch 3/40\n"),
        (error, "reward nan\n"),
    ):
        text = steps[:130] + caught.format(lasting) + steps[130:] + after
        assert 0 < explained(tmp_path, text).confidence <= 0.5
    of_script = caught.format(error).replace("in evaluate", "in <module>")
    assert explained(tmp_path, steps[:130] + of_script + steps[130:]).confidence == 0.45


def test_an_end_of_one_rank_hides_no_other_ranks_failure(tmp_path: Path) -> None:
    """The failure of a rank with a name, one after the restart, one that the launcher reports."""
    failed = "ValueError: nan in loss"
    other = f"[rank0]: Traceback (most recent call last):\n[rank0]: {failed}\n"
    assert failed in explained(tmp_path, other + _STEPS + _ENDED).sentence
    assert failed in explained(tmp_path, _RESTART + other + _ENDED).sentence
    assert failed in explained(tmp_path, _RESTART + _STEPS + other).sentence
    exited = "srun: error: gpu003: task 3: Exited with exit code 1\n"
    assert explained(tmp_path, _CAUGHT + _ENDED + exited).category != "no_failure"


def test_another_files_end_settles_nothing(tmp_path: Path) -> None:
    """One node's ranks may succeed while another's fail."""
    failed = _RESTART.replace("will restart worker group", "giving up")
    assert "ValueError: a bad record" in explained(tmp_path, failed, _STEPS + _SUCCEEDED).sentence


def test_a_pair_that_gloo_closed_is_no_fault_of_the_line_that_waits(tmp_path: Path) -> None:
    """Its exception only passes it on."""
    what = "RuntimeError: Application timeout caused pair closure"
    answer = explained(tmp_path, RAISED.format(rank=1, line=9, code="main", what=what))
    assert (answer.category, answer.confidence) == ("timeout_rank_missing", 0.45)


def test_memory_that_a_trainer_left_a_batch_for_ended_nobody(tmp_path: Path) -> None:
    """Only where training went on after it; a later one that was not caught counts."""
    full = "CUDA out of memory. Tried to allocate 6.00 MiB (GPU 1; 9.00 GiB total capacity; "
    full += "8.00 GiB already allocated; 1.00 MiB free; 8.50 GiB reserved in total)\n"
    caught = full + "| WARNING | trainer | attempting to recover from OOM in forward pass\n"
    went_on = "| INFO | train_inner | epoch 002:    40 / 900 loss=2.5\n"
    assert explained(tmp_path, caught + went_on).category == "no_failure"
    assert explained(tmp_path, caught).category == "oom_one_rank"
    assert explained(tmp_path, caught + went_on + full).category == "oom_one_rank"


def test_a_gpu_is_named_where_no_rank_is(tmp_path: Path) -> None:
    """Its number may count within the process only, so a rank's says more."""
    full = "CUDA out of memory. Tried to allocate 6.00 MiB. GPU 3 has a total capacity of 9.00 GiB"
    full += " of which 1.00 MiB is free.\n"
    assert explained(tmp_path, full).culprits == ("gpu 3",)
    assert explained(tmp_path, f"[rank7]: {full}").culprits == ("rank 7",)


def test_a_local_rank_is_called_one(tmp_path: Path) -> None:
    """Which rank of the job it is, its node alone tells."""
    log = "failed (exitcode: -9) local_rank: 2 (pid: 99) of binary: python\n"
    answer = explained(tmp_path, log)
    assert answer.culprits == ("local rank 2",)
    assert answer.sentence.startswith("local rank 2 of its node was killed")
    summary = (
        "Root Cause (first observed failure):\n[0]:\n  host : n1\n  rank      : 6 (local_rank: 2)\n"
    )
    summary += "  exitcode  : -9 (pid: 99)\n  traceback : Signal 9 (SIGKILL) received by PID 99\n"
    assert explained(tmp_path, log + summary).culprits == ("rank 6", "node n1")


def test_the_one_node_that_tells_of_it_is_named(tmp_path: Path) -> None:
    """Where two tell the same, neither is odd."""
    warn = "{}:1:2 [0] NCCL WARN Call to connect failed : Connection timed out\n"
    assert explained(tmp_path, warn.format("n4")).culprits == ("node n4",)
    assert explained(tmp_path, warn.format("n4") + warn.format("n5")).culprits == ()


def test_a_driver_is_no_adapter(tmp_path: Path) -> None:
    """The kernel's line names the driver first, and the adapter by its place on the bus."""
    log = "Oct  5 10:00:00 n1 kernel: mlx5_core 0000:9a:00.0 ibp154s0: Link down\n"
    assert explained(tmp_path, log).culprits == ("node n1",)


def test_who_only_reports_is_not_blamed(tmp_path: Path) -> None:
    """NCCL's root says which number came twice; who gave it is elsewhere."""
    warn = "n1:1:2 [0] bootstrap.cc:9 NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already"
    answer = explained(tmp_path, f"{warn} checked in\n")
    assert (answer.category, answer.culprits) == ("env_misconfig", ())


SUMMARY = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-10-05_10:{}:00\n"
    "  host      : n{}\n  rank      : {} (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n"
    "  error_file: <N/A>\n  traceback : To enable traceback see: https://x\n============\n"
)


@pytest.mark.parametrize(("times", "culprit"), [(("05", "01"), "rank 1"), (("01", "05"), "rank 9")])
def test_of_two_nodes_exceptions_the_earlier_summary_counts(
    tmp_path: Path, times: tuple[str, str], culprit: str
) -> None:
    """Logs of nodes are joined in any order; without a rank the answer is unclear."""
    nine = RAISED.format(rank=9, line=4, code="f", what="KeyError: 0")
    nine += SUMMARY.format(times[0], 2, 9)
    one = RAISED.format(rank=1, line=7, code="g", what="ValueError: nan")
    one += SUMMARY.format(times[1], 1, 1)
    answer = explained(tmp_path, nine + one)
    assert (answer.culprits[0], answer.confidence) == (culprit, 0.8)
    bare = explained(tmp_path, (nine + one).replace("[rank9]: ", "").replace("[rank1]: ", ""))
    assert bare.confidence < 0.5
    tied = explained(tmp_path, (nine + one).replace("10:05", "10:01"))
    assert tied.confidence < 0.5
    full = explained(
        tmp_path, (nine + one).replace("KeyError: 0", "torch.OutOfMemoryError: CUDA out of memory")
    )
    assert (full.category == "oom_one_rank") is (culprit == "rank 9")
    assert full.culprits[0] == culprit


def test_a_gpu_that_is_lost_comes_before_those_that_talked_to_it(tmp_path: Path) -> None:
    """Its peers log Xid 74 for their NVLinks; another node's Xid is a matter of its own."""
    xid = "Oct  5 10:00:0{} {} kernel: NVRM: Xid (PCI:0000:{}:00): {}, pid=9, x\n"
    peer, lost = xid.format(0, "n1", "3b", 74), xid.format(1, "n1", "5a", 79)
    assert explained(tmp_path, peer + lost).culprits == ("gpu 0000:5a:00", "node n1")
    other = explained(tmp_path, peer + lost.replace("n1", "n2"))
    assert other.culprits == ("gpu 0000:3b:00", "node n1")


@pytest.mark.parametrize(
    "line",
    [
        "gpu-monitor[12]: GPU health: Xid 31, 79 on GPU 3",
        "Xid 79, 119 on GPU 3",
        "healthd: Xid 43 and 79 for GPU 3",
        "healthd: GPU 3 reports Xids 13, 31, 79",
        "GPU1: Xid 31 x2 | GPU3: Xid 79 x1",
        "GPU3 xid: [31, 79]",
    ],
)
def test_the_gravest_of_several_xids_in_a_line_is_the_cause(tmp_path: Path, line: str) -> None:
    """A daemon that watches the GPUs writes them in a list, in the order of time or of number."""
    assert "Xid 79:" in explained(tmp_path, f"n1 {line}\n").sentence


@pytest.mark.parametrize(
    "line",
    [
        "GPU 3: Xid 31, 79 times in the last hour",
        "GPU 3: Xid 31, 95 GPUs are fine",
        "healthd: fatal Xids: 48, 74, 79",
        "GPU 3: Xid 31 detected; look for Xid 79 in dmesg",
        "healthd: watching for Xid 48, 74, 79 on GPU 3",
        "GPU 3: Xid 31, 79% of the memory is in use",
    ],
)
def test_a_number_beside_an_xid_is_none(tmp_path: Path, line: str) -> None:
    """It counts something else, or the list is of what a daemon watches for."""
    assert explained(tmp_path, f"n1 {line}\n").category != "gpu_hardware"


@pytest.mark.parametrize("code", [94, 109, 119])
def test_a_programs_xid_before_the_gpus_is_no_cause(tmp_path: Path, code: int) -> None:
    """A GPU that fails lets programs fail: what the driver logs of them comes first."""
    xid = "Oct  5 10:00:0{} n1 kernel: NVRM: Xid ({}): {}, pid=9, name=python, x\n"
    answer = explained(tmp_path, xid.format(0, "PCI:0000:3b:00", 31) + xid.format(1, "3b:00", code))
    assert f"Xid {code} " in answer.sentence
    assert answer.category == ("gpu_hardware" if code != 109 else "unknown")


@pytest.mark.parametrize(
    "failed",
    [
        "ERROR upload of step_9.pt failed: ReadTimeoutError, retrying (1/5)",
        "ERROR bind port 29500: Address already in use; will retry in 1 s",
        "ERROR cannot write: No space left on device, attempt 2 of 5",
        "ERROR Connection reset by peer, reconnecting",
        "RuntimeError: CUDA out of memory, retrying attempt 2 of 5",
    ],
)
def test_a_failure_after_which_the_program_tries_again_is_none(tmp_path: Path, failed: str) -> None:
    """Another failure is the cause; at the log's end no line shows whether it helped."""
    steps = "".join(f"step {step} loss 2.5\n" for step in range(5))
    assert explained(tmp_path, f"{failed}\n{steps}").category == "no_failure"
    last = explained(tmp_path, f"{steps}{failed}\n")
    assert last.category != "no_failure"
    assert last.confidence < 0.5
    raised = RAISED.format(rank=1, line=9, code="step", what="ValueError: bad batch")
    assert explained(tmp_path, f"{failed}\n{steps}{raised}").culprits == ("rank 1",)


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: ld.so: object 'x.so' from LD_PRELOAD cannot be preloaded (no such file): ignored.",
        "ERROR: pip's dependency resolver does not currently take into account all packages.",
        "E0000 00:00:1728.0 42 cuda_dnn.cc:8310] Unable to register cuDNN factory: it was already",
        "node check: Xid errors: none",
        "No valid triton configs. OutOfMemoryError: out of resource. Ignoring this choice.",
        "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>",
        "n4:1:2 [3] NCCL WARN NET/IB : mlx5_1:1 Got async event : client reregistration",
        "n4:1:2 [3] NCCL WARN Cuda failure 4 'driver shutting down'",
        "we see neither ECC errors nor Xid 79",
        "is it Xid 79? dmesg says none",
        "slurmstepd: error: couldn't chdir to `/root/x': No such file: going to /tmp instead",
        "gpu-watchd[7]: acts on Xid 48, 79 and 95",
        "xid-monitor: will drain the node on Xid 79",
    ],
)
def test_what_healthy_jobs_print_is_no_failure(tmp_path: Path, line: str) -> None:
    """Also where no line reports the end."""
    assert explained(tmp_path, f"{line}\nstep 1 loss 2.5\n").category == "no_failure"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("F0102 10:00:00.123456    77 a.cc:9] Check failed: ret == 0", "at a.cc:9: Check failed"),
        ("2026-01-02 03:04:05.1: F xla/b.cc:9] Termination timeout", "at xla/b.cc:9: Termination"),
        (
            "  slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 10 DUE TO PREEMPTION ***",
            "PREEMPTION",
        ),
        ("Killed", "killed from outside (SIGKILL)"),
    ],
)
def test_how_a_process_ends(tmp_path: Path, line: str, says: str) -> None:
    """By a fatal line of a library, by a scheduler whose line is indented, by a shell's word."""
    answer = explained(tmp_path, f"step 1 loss 2.5\n{line}\n")
    assert says in answer.sentence
    assert (answer.category, answer.confidence >= 0.5) == ("other", True)


def test_what_a_launcher_kills_after_the_first_end_is_no_cause(tmp_path: Path) -> None:
    """The exit code 137 of the others follows from the first process's end."""
    ended = "INFO: container failed with non-zero exit code:  (exit code {})\n"
    first = explained(tmp_path, ended.format(1) + ended.format(137))
    assert first.sentence.startswith("a process ended (exit code 1)")
    assert first.confidence < 0.5
    assert "SIGKILL" in explained(tmp_path, ended.format(137)).sentence
    assert "SIGKILL" in explained(tmp_path, ended.format(137) + ended.format(1)).sentence


@pytest.mark.parametrize(
    "words",
    ["Training done in 3 h 20 min", "Job finished successfully.", "Finished training", "All done!"],
)
def test_last_words_of_scripts(tmp_path: Path, words: str) -> None:
    """They count where nothing failed for good."""
    tried = "2026-10-05 10:00:00 ERROR storage.py:4 upload failed, retrying in 5 s\n"
    assert explained(tmp_path, f"{tried}{words}\n").category == "no_failure"


@pytest.mark.parametrize(
    ("line", "who"),
    [
        (
            "E0409 api.py:8] failed (exitcode: 1) local_rank: 2 (pid: 7) of binary: python",
            "local rank 2",
        ),
        ("Container rank 4 status failed cmd ['python3', 'a.py'] code 1 log log/w.4", "rank 4"),
    ],
)
def test_a_launcher_that_names_the_process_says_more_than_a_signal(
    tmp_path: Path, line: str, who: str
) -> None:
    """The signal to the others may stand before it."""
    answer = explained(
        tmp_path, f"W0409 api.py:9] Sending process 9 closing signal SIGTERM\n{line}\n"
    )
    assert (answer.culprits, answer.confidence) == ((who,), 0.3)
