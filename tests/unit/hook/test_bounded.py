"""What is asked of a scheduler's program ends in time, with all that it has started."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from preflight.hook.slurm import run_program
from tests.unit.burn.nodes import until
from tests.unit.hook.processes import ended

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_wrappers_children_end_with_it(tmp_path: Path) -> None:
    """A script that waits for another program leaves none of both."""
    pid = tmp_path / "pid"
    words = ["/bin/sh", "-c", f"sleep 60 & echo $! >{pid}; wait"]
    assert run_program(words, dict(os.environ), time.monotonic() + 1.0) is None
    assert until(lambda: ended(int(pid.read_text())))


def test_a_background_childs_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A wrapper that has ended, and whose child holds its pipe open, has not answered."""
    pid = tmp_path / "pid"
    words = ["/bin/sh", "-c", f"sleep 60 & echo $! >{pid}"]
    assert run_program(words, dict(os.environ), time.monotonic() + 0.5) is None
    assert until(lambda: ended(int(pid.read_text())))


def test_an_endless_answer_is_none() -> None:
    """It is not kept in memory, and half of a list of nodes would be too few nodes."""
    with pytest.raises(OSError, match="prints more than 4 MiB"):
        run_program(["/bin/cat", "/dev/zero"], {}, time.monotonic() + 60)
    answer = run_program(
        ["/bin/sh", "-c", "head -c 4000000 /dev/zero; head -c 9000000 /dev/zero >&2; exit 3"],
        dict(os.environ),
        time.monotonic() + 60,
    )
    assert answer is not None
    assert (answer.returncode, len(answer.stdout), len(answer.stderr)) == (3, 4_000_000, 200)
