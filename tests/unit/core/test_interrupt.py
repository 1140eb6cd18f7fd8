"""The first Ctrl-C ends a run in order, the second at once; a wrapper's echo is no second one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import signal, sys, time
from preflight.core.command_line import Interrupts
interrupts = Interrupts()
interrupts.install()
try:
    print("held", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("first", flush=True)
    for _ in range(600):
        time.sleep(0.1)
        if sys.stdin.read(1):
            break
interrupts.restore()
print("in order", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_ctrl_c_leaves_at_once(first: signal.Signals, second: signal.Signals) -> None:
    """Status 130 and one line; a scheduler that says SIGTERM twice still gets its report."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        run.send_signal(first)
        assert run.stdout.readline() == "first\n"
        time.sleep(0.7)
        run.send_signal(second)
        if second is signal.SIGTERM:
            time.sleep(0.2)
        out, err = run.communicate("x", timeout=60)
    if second is signal.SIGINT:
        assert run.returncode == 130
        assert "left at once" in err
    else:
        assert (run.returncode, out) == (0, "in order True\n")
