"""Which of several attempts failed last, and what a job survived or only quoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.hang.explain.log_lines import logs_of
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain
from tests.unit.hang.logs import communicator, explained, status, timed_out

if TYPE_CHECKING:
    from pathlib import Path


def _steps(first: int, last: int, hour: int = 9) -> str:
    line = "[2026-10-05 {:02}:{:02}:{:02},000] INFO train.py:88 step {} loss 2.5\n"
    return "".join(
        line.format(hour, step // 60 % 60, step % 60, step) for step in range(first, last)
    )


def _raised(what: str, rank: int | None = None) -> str:
    head = "" if rank is None else f"[rank{rank}]: "
    lines = ("Traceback (most recent call last):", '  File "a.py", line 5, in f', what)
    return "".join(f"{head}{line}\n" for line in lines)


def _started(world: int, pid: int) -> str:
    return "".join(communicator(rank, world, pid=pid) for rank in range(world))


RESTARTED = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
EXITED = "srun: error: n1: task {}: Exited with exit code 1\n"
BANNER = (
    "W1005 13:00:00.000000 42 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment "
    "variable for each process to be 1 in default, to avoid your system being overloaded\n"
)
OOM = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"


def test_time_outs_hours_apart_are_of_two_attempts(tmp_path: Path) -> None:
    """Rank 3 was missing in the first one, and rank 0 in the last, which counts."""
    first = "".join(timed_out(rank, 90) + status(rank, 90) for rank in (0, 1, 2))
    last = "".join(timed_out(rank, 40, at="14:00:00.1") for rank in (1, 2, 3))
    answer = explained(tmp_path, _started(4, 100) + first + last)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 0",))


def test_time_outs_within_the_clocks_differences_are_of_one_hang(tmp_path: Path) -> None:
    """One node's clock is four minutes ahead, and the hang begins before midnight."""
    log = _started(4, 100) + timed_out(0, 9, at="23:59:00.1") + timed_out(1, 9, at="23:59:01.1")
    log += timed_out(2, 9, at="00:03:00.1").replace("E1005", "E1006")
    answer = explained(tmp_path, log)
    assert (answer.category, answer.culprits) == ("timeout_rank_missing", ("rank 3",))


@pytest.mark.parametrize(
    "between",
    [
        RESTARTED,
        "  restart_count=1\n",
        _started(8, 900),
        EXITED.format(1) + BANNER,
        EXITED.format(1) + _steps(0, 9, hour=13),
        EXITED.format(1) + _steps(51, 90),
    ],
    ids=["torchrun", "its rendezvous", "new processes", "a new launch", "new steps", "more steps"],
)
def test_the_last_attempt_that_failed_is_explained(tmp_path: Path, between: str) -> None:
    """Whatever shows that another one has begun; without such a line the first failure counts."""
    head = _started(8, 100) + _steps(0, 50) + _raised("KeyError: 'x'", 1)
    tail = _raised("ValueError: nan", 6) + EXITED.format(6)
    answer = explained(tmp_path, head + between + tail)
    assert answer.culprits == ("rank 6",)
    assert explained(tmp_path, head + EXITED.format(1) + tail).culprits == ("rank 1",)
    again = explained(tmp_path, head + between + tail.replace("ValueError", "KeyError"))
    assert again.confidence == 0.8


def test_a_failure_before_an_attempt_that_shows_none_is_doubted(tmp_path: Path) -> None:
    """Somebody cancelled the last one, or its output is elsewhere."""
    cancelled = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-10-05T14:00:00 ***\n"
    log = _steps(0, 50) + _raised("KeyError: 'x'", 1) + RESTARTED + _steps(0, 99)
    for end in ("", cancelled, EXITED.format(1)):
        assert explained(tmp_path, log + end).confidence < 0.5


def test_steps_that_a_program_prints_at_its_end_are_before_its_exception(tmp_path: Path) -> None:
    """Python keeps 8 KiB of them until then; the launcher reports that the process has ended."""
    log = _steps(0, 50) + _raised("KeyError: 'x'", 1) + _steps(50, 110) + EXITED.format(1)
    answer = explained(tmp_path, log)
    assert (answer.culprits, answer.confidence) == (("rank 1",), 0.8)


@pytest.mark.parametrize("line", ["n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth7:10.0.0.1<0>\n"])
def test_a_hint_is_no_failure_that_the_training_goes_on_after(tmp_path: Path, line: str) -> None:
    """It says why a job is slow that runs."""
    assert explained(tmp_path, line + _steps(0, 99)).sentence == explained(tmp_path, line).sentence


def test_reports_of_launchers_hours_apart_are_of_two_attempts(tmp_path: Path) -> None:
    """The steps have no time, and nothing tells the start of the second."""
    report = (
        "E1005 {}:31:05.000000 900 torch/distributed/elastic/multiprocessing/api.py:882] failed "
        "(exitcode: 1) local_rank: {} (pid: 100{}) of binary: /usr/bin/python\n"
    )
    for hour, rank in (("02", 1), ("07", 6)):  # of another node, which waited; the next morning
        log = _raised("ValueError: a", 1) + report.format("01", 1, 1) + "step 30 loss 2.1\n"
        log += _raised("KeyError: 1", 6) + report.format(hour, 6, 6)
        assert explained(tmp_path, log).culprits == (f"rank {rank}",)


def test_torchrun_s_folder_shows_its_last_attempt(tmp_path: Path) -> None:
    """The last that wrote anything: the time-outs of another are of other processes."""
    for name, log in {
        "attempt_9/0": timed_out(0, 90),
        "attempt_9/1": timed_out(1, 90),
        "attempt_9/2": timed_out(2, 88),
        "attempt_10/0": timed_out(0, 40),
        "attempt_10/3": _raised("KeyError: 'x'", 3),
        "attempt_11/0": "",
    }.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(log)
    answer = explain(Scanner(shipped()).read(logs_of([tmp_path], (), [])))
    assert (answer.category, answer.culprits) == ("other", ("rank 3",))


def test_an_attempt_with_fewer_ranks_misses_no_rank_of_the_one_before(tmp_path: Path) -> None:
    """An elastic job goes on with six of eight ranks."""
    first = _started(8, 100) + "".join(timed_out(rank, 500) for rank in range(7))
    last = _started(6, 900) + "".join(timed_out(rank, 70) for rank in (0, 2, 3, 4, 5))
    answer = explained(tmp_path, first + RESTARTED + last)
    assert answer.culprits == ("rank 1",)


@pytest.mark.parametrize(
    "quoted",
    [
        "notes of run 17:\n" + _raised("KeyError: 'x'"),
        _raised("ConnectionError: 503", 2) + "[rank2]: retry 1/5\n",
        OOM.format(3),
        XID,
        "".join(timed_out(rank, 9) for rank in (0, 1, 3)) + timed_out(2, 9, "BROADCAST"),
        "in that run: " + EXITED.format(7),
    ],
    ids=["traceback", "retry", "memory", "Xid", "time-outs", "exit"],
)
def test_what_the_training_goes_on_after_is_doubted(tmp_path: Path, quoted: str) -> None:
    """It was quoted, or caught; a failure after it counts, and so does the job's normal end."""
    log = _steps(0, 50) + quoted + _steps(50, 350)
    assert explained(tmp_path, log).confidence < 0.5
    failed = explained(tmp_path, log + _raised("ValueError: nan", 6))
    assert (failed.culprits, failed.confidence) == (("rank 6",), 0.8)
    ended = explained(tmp_path, log + "Training complete\n")
    assert "ended normally" in ended.sentence


@pytest.mark.parametrize(
    "noise",
    [
        "".join(f"n1:10{n % 8}:9 [{n % 8}] NCCL INFO comm 0x{n:x} rank {n % 8} nranks 8 cudaDev "
                f"{n % 8} busId 1000 - Abort COMPLETE\n" for n in range(300)),
        "".join(f"#{n}  0x00007f in train_step (x={n}) at train.py:{n}\n" for n in range(300)),
        "".join(f"[rank{n}]: stopped at step 50\n" for n in range(64)),
        _steps(50, 55),
        "".join(f"Eval:  {n}%|##  | {n}/400 [00:01<00:40, 10.1it/s]\n" for n in range(49)),
        _steps(0, 50),
    ],
    ids=["NCCL", "stacks", "ranks", "a few steps", "another bar", "another rank's file"],
)  # fmt: skip
def test_lines_after_a_failure_that_are_no_later_steps(tmp_path: Path, noise: str) -> None:
    """Other ranks end, or had printed that before."""
    log = _started(8, 100) + _steps(0, 50) + _raised("KeyError: 'x'", 5) + noise
    for text in (log, log + "".join(timed_out(rank, 9) for rank in (0, 1, 2))):
        answer = explained(tmp_path, text)
        assert (answer.culprits, answer.confidence) == (("rank 5",), 0.8)


def _lost_store(rank: int) -> str:
    """What torch warns of when rank 0, which holds the store, has ended before another rank."""
    head, cpp = f"[rank{rank}]:[W1005 10:00:00.1 ", ".cpp:125] [c10d] "
    socket = "SocketImpl(fd=58, addr=[n1]:54000, remote=[n1]:29500)"
    stack = "frame #3: c10d::ProcessGroupNCCL::HeartbeatMonitor::runLoop() + 0x3c8 (0x7f in x)\n"
    return (
        f"{head}TCPStore{cpp}recvValue failed on {socket}: Failed to recv, got 0 bytes.\n"
        "Exception raised from recvBytes at /pytorch/Utils.hpp:678 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in x)\n"
        f"{stack}{head}ProcessGroupNCCL.cpp:1783] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down '
        "too early), with error: Failed to recv, got 0 bytes.\n"
        f"{head}TCPStore{cpp}sendBytes failed on {socket}: Broken pipe\n"
    )


EXIT = (
    "[rank0]:[W1005 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources.\n"
)


@pytest.mark.parametrize("end", ["Training complete\n", EXIT, "{'train_runtime': 12.5}\n"])
def test_a_lost_store_at_the_end_is_no_failure(tmp_path: Path, end: str) -> None:
    """The job reports its end; otherwise rank 0 may have died, and a failure is one."""
    log = _steps(0, 90) + end + _lost_store(1) + _lost_store(2)
    assert explained(tmp_path, log).category == "no_failure"
    assert explained(tmp_path, _steps(0, 90) + _lost_store(1)).category == "unknown"
    failed = explained(tmp_path, _steps(0, 90) + _raised("KeyError: 'x'", 2) + log)
    assert (failed.category, failed.culprits) == ("other", ("rank 2",))
    killed = explained(tmp_path, log + "srun: error: n1: task 3: Killed\n")
    assert killed.category == "other"


STARTS = "Resuming from checkpoint 30\n"
LIMIT = (
    "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-10-05T14:00:00 DUE TO TIME LIMIT ***\n"
)


def _bare(first: int, last: int) -> str:
    return "".join(f"step {step} loss 2.5\n" for step in range(first, last))


RESTARTS = "Restarting training\n"


@pytest.mark.parametrize("failed", [_raised("KeyError: 'x'", 1), OOM.format(1), LIMIT])
@pytest.mark.parametrize(
    "again", [_bare(1, 9), _bare(30, 39), STARTS, RESTARTS, "--- attempt 2 of 3\n"]
)
def test_of_two_attempts_without_times_the_last_is_named_with_doubt(
    tmp_path: Path, failed: str, again: str
) -> None:
    """Steps that begin anew may be another rank's; a start after the whole job's end is not."""
    head = _bare(1, 40) + failed
    answer = explained(tmp_path, head + again + _raised("ValueError: nan", 6))
    sure = failed == LIMIT and again in (STARTS, RESTARTS)
    assert (answer.culprits, answer.confidence) == (("rank 6",), 0.8 if sure else 0.45)
    assert explained(tmp_path, head + again).confidence < 0.5
    ended = explained(tmp_path, head + again + "`Trainer.fit` stopped: `max_epochs=3` reached.\n")
    assert ended.category == "no_failure"


@pytest.mark.parametrize(
    "late", ["step 40 loss 2.5\n", _bare(39, 40) * 3, "Loading checkpoint shards\n"]
)
def test_what_other_ranks_print_late_is_no_attempt(tmp_path: Path, late: str) -> None:
    """Each of them the same step, or a start before any step."""
    steps = "" if late.startswith("Loading") else _bare(1, 41)
    answer = explained(tmp_path, steps + _raised("KeyError: 'x'", 1) + late + EXITED.format(1))
    assert (answer.culprits, answer.confidence) == (("rank 1",), 0.8)


@pytest.mark.parametrize("kind", ["ModuleNotFoundError: No module named 'x'", "ImportError: x"])
def test_an_import_that_failed_before_the_first_step_was_caught(tmp_path: Path, kind: str) -> None:
    """The script did without that library; where no step follows, the script ended by it."""
    log = "WARNING x is not installed\n" + _raised(kind)
    assert explained(tmp_path, log).confidence == 0.8
    assert explained(tmp_path, log + _bare(1, 5)).confidence < 0.5
    answer = explained(tmp_path, log + _bare(1, 5) + _raised("ValueError: nan", 6))
    assert (answer.culprits, answer.confidence) == (("rank 6",), 0.8)


def test_an_import_that_failed_before_another_exception_was_caught_or_led_to_it(
    tmp_path: Path,
) -> None:
    """A process ends by its last exception; the chain of Python shows which one led to another."""
    first, last = _raised("ImportError: x"), _raised("ValueError: bad")
    answer = explained(tmp_path, first + "INFO going on\n" + last)
    assert (answer.sentence.partition(" at ")[0], answer.confidence) == (
        "a rank raised ValueError: bad",
        0.8,
    )
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    led = explained(tmp_path, first + chain + last)
    assert (led.sentence.partition(" at ")[0], led.confidence) == (
        "a rank raised ImportError: x",
        0.8,
    )


_HEADER = (
    "tool 1.2 starts on host n1\nLoading the configuration file config.yaml\nreading the data\n"
)


def test_a_program_that_prints_its_first_lines_again_has_started_again(tmp_path: Path) -> None:
    """The last start's own failure counts; without one, the failure before it is in doubt."""
    first = _HEADER + "work\n" + _raised("KeyError: 'kappa'")
    answer = explained(tmp_path, first + _HEADER + _raised("OSError: quota"))
    assert "OSError: quota" in answer.sentence
    assert answer.confidence <= 0.65
    answer = explained(tmp_path, first + _HEADER + 30 * "item is done\n")
    assert answer.confidence == 0.45
    assert "KeyError: 'kappa'" in answer.sentence
    assert "seems to start again after that" in answer.sentence
    alike = explained(tmp_path, 3 * first)
    assert (alike.confidence, [place.line for place in alike.evidence]) == (0.8, [21])


def test_first_lines_that_others_print_late_are_no_start(tmp_path: Path) -> None:
    """Other processes of the same start, a scheduler's last words, and ranks with names."""
    failed = _raised("KeyError: 'kappa'")
    for log in (
        3 * _HEADER + failed + 2 * _HEADER + 30 * "item is done\n",
        _HEADER + failed + _HEADER + "bye\n",
        _HEADER + _raised("KeyError: 'kappa'", rank=3) + _HEADER + 30 * "item is done\n",
    ):
        answer = explained(tmp_path, log)
        assert "KeyError: 'kappa'" in answer.sentence
        assert answer.confidence >= 0.75
