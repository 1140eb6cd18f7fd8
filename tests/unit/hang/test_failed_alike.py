"""Where several ranks fail in the same way at the same time, no single one is the culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import explained

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = """\
[{place}]:
  time      : 2026-10-05_10:00:{at:02}
  host      : n7
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {rank}77)
  error_file: <N/A>
  traceback : {why}
"""
RULE = "-" * 60 + "\n"
WHY = {
    -11: "Signal 11 (SIGSEGV) received by PID 77",
    -9: "Signal 9 (SIGKILL) received by PID 77",
    -6: "Signal 6 (SIGABRT) received by PID 77",
    -15: "Signal 15 (SIGTERM) received by PID 77",
    1: "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
}
RAISED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/u/train.py", line {line}, in main
[rank{rank}]:     build(config)
[rank{rank}]: {what}
"""


def summary(*ended: tuple[int, int, int]) -> str:
    """Torchrun's report: rank, exit code and second of each end, the first one observed first."""
    first, *others = (
        ENTRY.format(place=place, rank=rank, code=code, at=at, why=WHY[code])
        for place, (rank, code, at) in enumerate(ended)
    )
    listed = "".join(others) or "  <NO_OTHER_FAILURES>\n"
    head = f"train.py FAILED\n{RULE}Failures:\n{listed}{RULE}"
    return f"{head}Root Cause (first observed failure):\n{first}{'=' * 60}\n"


@pytest.mark.parametrize("code", [-11, -9, -6, 1])
def test_ranks_that_torchrun_saw_end_alike(tmp_path: Path, code: int) -> None:
    """Torchrun lists the one with the lowest number first: it is no more at fault than others."""
    log = (
        f"E1005 10:00:05.1 9 torch/distributed/elastic/multiprocessing/api.py:882] failed "
        f"(exitcode: {code}) local_rank: 0 (pid: 77) of binary: /usr/bin/python\n"
    )
    every = explained(tmp_path, log + summary(*((rank, code, 5) for rank in range(4))))
    assert "ranks 0-3 ended alike" in every.sentence
    assert every.culprits in ((), ("rank 0", "rank 1", "rank 2", "rank 3"))
    only = explained(tmp_path, log + summary((0, code, 5), (1, -15, 5)))
    assert "alike" not in only.sentence
    assert only.culprits[0] == "rank 0"


def test_a_rank_that_ended_before_those_that_ended_as_it_did(tmp_path: Path) -> None:
    """With @record, each has the time of its own exception."""
    answer = explained(tmp_path, summary((2, 1, 1), (0, 1, 5), (1, 1, 5)))
    assert answer.culprits == ("rank 2", "node n7")
    assert "alike" not in answer.sentence


def test_tasks_that_srun_reports_in_one_line(tmp_path: Path) -> None:
    """It does not report which of them was the first."""
    log = "srun: error: n1: tasks 0-3: Exited with exit code 1\n"
    answer = explained(tmp_path, log)
    assert "tasks 0-3 on n1 ended alike (exit code 1)" in answer.sentence
    assert explained(tmp_path, log.replace("tasks 0-3", "task 2")).culprits == ("node n1",)
    crashed = "srun: error: n1: tasks {}: Segmentation fault (core dumped)\n"
    answer = explained(tmp_path, crashed.format("0-3"))
    assert (answer.category, answer.culprits) == ("other", ())


def test_ranks_that_crash_alike_in_their_own_words(tmp_path: Path) -> None:
    """Each of them has it: the sentence does not name the first one alone."""
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    lines = [RAISED.format(rank=rank, line=9, what=error) for rank in (1, 0, 2)]
    assert "ranks 0-2 ended alike" in explained(tmp_path, "".join(lines)).sentence
    alone = explained(tmp_path, lines[0])
    assert "rank 1 crashed" in alone.sentence


def test_exceptions_of_one_line_are_alike_whatever_their_messages(tmp_path: Path) -> None:
    """Each rank names its own file; another line of the script is another failure."""
    lines = [
        RAISED.format(rank=rank, line=9, what=f"KeyError: 'shard-{name}'")
        for rank, name in ((1, "b"), (0, "a"))
    ]
    alike = explained(tmp_path, "".join(lines))
    assert alike.culprits == ("rank 0", "rank 1")
    assert "not one node's fault" in alike.advice
    other = RAISED.format(rank=2, line=4, what="ValueError: no weights")
    assert explained(tmp_path, other + "".join(lines)).culprits == ("rank 2",)


def test_exceptions_without_ranks_of_several_that_ended_alike(tmp_path: Path) -> None:
    """As many as torchrun reports: each rank has written its own."""
    text = RAISED.format(rank=0, line=9, what="ValueError: bad setting").replace("[rank0]: ", "")
    answer = explained(tmp_path, text * 3 + summary((0, 1, 5), (1, 1, 5), (2, 1, 5)))
    assert answer.sentence.startswith("ranks 0-2 raised ValueError")
    assert "not one node's fault" in answer.advice
