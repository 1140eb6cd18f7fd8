"""What `preflight watch` costs beside a job of eight ranks: per cent of one core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.outside import environment
from tests.bench.ratio import Bound, Row, extremes

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANKS, _SECONDS, _RUNS = 8, 30.0, 3
_BOUND = Bound("at most", 0.5)
_JOB = f"""\
import os, sys, time
for rank in range({_RANKS}):
    if os.fork() == 0:
        words = [sys.executable, "-c", "import time\\nwhile True: time.sleep(0.05)"]
        os.execve(sys.executable, words, {{**os.environ, "RANK": str(rank)}})
time.sleep(3600)
"""
"""Ranks that do next to nothing: they leave the machine to whoever else is measured on it."""


def measure() -> Iterator[Row]:
    """Its own processor time over half a minute of a launch, its start and all; children apart."""
    shares = [_share() for _ in range(_RUNS)]
    yield Row(
        id="watch.cost",
        what=f"preflight watch beside {_RANKS} ranks for {_SECONDS:g} s, its start included",
        unit="%",
        value=extremes(shares),
        value_unit="% of a core",
        runs=_RUNS,
        bound=_BOUND,
    )


def _share() -> float:
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as folder:
        watch = subprocess.Popen(
            [sys.executable, "-m", "preflight", "watch", "--", sys.executable, "-c", _JOB],
            cwd=folder, env=environment() | {"PYTHONPATH": root}, process_group=0,
        )  # fmt: skip
        try:
            time.sleep(_SECONDS)
            if watch.poll() is not None:
                raise RuntimeError(f"the launch ended with {watch.returncode}")
            # The kernel's clock of a process with all its threads: clock_getcpuclockid(3).
            ns = time.clock_gettime_ns((~watch.pid << 3) | 2)
        finally:
            os.killpg(watch.pid, signal.SIGKILL)
            watch.wait()
    return 100 * ns / 1e9 / _SECONDS
