"""A log that goes on after a line of failure, to more steps or a normal end, is healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import explained

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = [f"Epoch {number}/6 - loss: {3 - number / 10:.2f}\n" for number in range(1, 7)]
BIND = """\
WARNING: Open MPI tried to bind a process but failed.  This is a
warning only; your job will continue, though performance may be degraded.
  Error message:     failed to bind memory
"""
DEEPSPEED = (
    "Installed CUDA version 12.0 does not match the version torch was compiled with 12.6 but since "
    "the APIs are compatible, accepting this combination\n"
)
SHARP = "[n1:0:77 unique id 7] ERROR Failed to connect to Aggregation Manager in sharp_create.\n"
UCX = "[17.83] [n1:77:0]  mm_posix.c:250  UCX  ERROR open(file_name=/proc/9/fd/3) failed\n"
LOGGED = "2026-10-05 10:00:01,000 ERROR tokenizer: could not parse line 7, left out\n"


@pytest.mark.parametrize(
    "line",
    [
        "n1:7:9 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n",
        "n1:7:9 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_9\n",
        "n1:7:9 [0] ras/client.cc:160 NCCL WARN Call to bind failed: Address already in use\n",
        "[n1:7:0] Error: coll_ml_module.c:9 - COLL-ML ml_discover_hierarchy exited with error\n",
        'n1:7:9 [0] init.cpp:120 NCCL WARN Missing "amd_iommu=on" from kernel command line\n',
        BIND,
        DEEPSPEED,
    ],
)
def test_what_a_library_does_without_is_no_failure(tmp_path: Path, line: str) -> None:
    """Nothing has to follow: each is known as a notice."""
    assert explained(tmp_path, line + "# Size  Latency\n4  20.12\n").category == "no_failure"


@pytest.mark.parametrize("line", [SHARP, LOGGED], ids=["sharp", "logged"])
def test_steps_after_a_logged_error(tmp_path: Path, line: str) -> None:
    """Two more of them are enough; without any, the log may have ended by it."""
    begin, rest = "".join(EPOCHS[:3]), "".join(EPOCHS[3:])
    assert explained(tmp_path, begin + line + rest).category == "no_failure"
    assert explained(tmp_path, begin + line).category == "other"


def test_steps_and_the_end_after_a_known_failure(tmp_path: Path) -> None:
    """A sign of failure, which no process died of."""
    begin, rest = "".join(EPOCHS[:3]), "".join(EPOCHS[3:])
    assert explained(tmp_path, begin + UCX + rest + "Training finished.\n").category == "no_failure"
    assert explained(tmp_path, begin + rest + UCX).category == "other"


def test_an_exception_when_python_ends(tmp_path: Path) -> None:
    """The words before its traceback are cut off, but its frames show it."""
    log = (
        '  File "/opt/py/lib/python3.11/multiprocessing/util.py", line 334, in _exit_function\n'
        "    _run_finalizers(0)\n"
        '  File "/opt/py/lib/python3.11/shutil.py", line 681, in rmtree\n'
        "    os.rmdir(path)\n"
        "OSError: [Errno 16] Device or resource busy: '.nfs000'\n"
    )
    assert explained(tmp_path, log).category == "no_failure"
    other = log.replace("_exit_function", "main").replace("_run_finalizers(0)", "clean()")
    assert explained(tmp_path, other).category == "other"


def test_steps_after_the_end_of_the_only_process_are_of_another_start(tmp_path: Path) -> None:
    """Another rank's process may go on to its next time-out; and a few lines show nothing."""
    raised = (
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 8, in <module>\n'
        "    model(batch)\nNameError: name 'x' is not defined\n"
    )
    of_rank = "".join(f"[rank3]: {line}\n" for line in raised.splitlines())
    steps = [f"step {step} loss {3 - step / 200:.3f}\n" for step in range(1, 150)]
    again = explained(tmp_path, "".join(steps[:9]) + raised + "".join(steps))
    assert (again.category, again.confidence) == ("no_failure", 0.0)
    assert "NameError: name 'x'" in again.sentence
    for log in (
        "".join(steps[:9]) + of_rank + "".join(steps),
        "".join(steps[:9]) + raised + "".join(steps[:60]),
        "".join(steps[:9]) + raised + "".join(steps[9:]),
    ):
        assert explained(tmp_path, log).confidence == 0.45
