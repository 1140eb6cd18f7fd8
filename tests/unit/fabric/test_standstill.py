"""A controller that was suspended blames no node for having left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from preflight.core.remote_command import ReachError
from preflight.transport import payload_session
from preflight.transport.payload_session import LeasedSession
from tests.unit.fabric.nodes import HAS_TORCH, below, wait_for

ROOT = Path(__file__).parents[3]

_CONTROLLER = """
import json, os, signal
from msgspec.structs import replace
from preflight.fabric import collect as cut_short, launch
from preflight.fabric.sweep_plan import Budget
from preflight.fabric.judge import judge_sweep
from preflight.transport import payload_session as leased
from tests.unit.fabric.nodes import DEADLINE_S, Starter, fleet, plan
launch.LEASE_S = cut_short.LEASE_S = 6.0
cut_short.RENEW_S, leased.RENEW_S, leased.LOST_S = 1.0, 1.0, 5.0
budget = Budget(meet_s=30.0, op_s=30.0, box_s=4.0, pair_s=6.0)  # a loaded machine hangs no pair

def progress(done, total, _waiting):
    if done == 1 and not stopped:  # one of three pairs is through
        stopped.append(True)
        os.kill(os.getpid(), signal.SIGSTOP)

stopped = []
hosts = [replace(host, name="still-" + host.name) for host in fleet(3)]
found = launch.sweep(
    plan(hosts, long_s=4.0, gloo_budget=budget), hosts, Starter({}), nonce="still",
    deadline_s=DEADLINE_S, hooks=launch.Hooks(progress=progress),
)
judged = judge_sweep(found, hosts)
print(json.dumps({
    "unfinished": found.unfinished,
    "against": [*found.troubles, *(one.component for one in judged.blames)],
    "pairs": {"-".join(ends): one.state for ends, one in judged.pairs.items()},
    "owed": [one.error for one in judged.pairs.values() if one.trouble],
}))
"""


@pytest.mark.busy
@pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")
def test_a_controller_that_was_stopped_blames_no_node() -> None:
    """SIGSTOP until the nodes have left by their lease: the first pair is kept, no node is bad.

    It stops itself. The two other pairs take longer than the lease.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert wait_for(lambda: [] if _running(process.pid) else [1], 60)
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    found = json.loads(output.splitlines()[-1])
    assert re.search(r"preflight itself was suspended for \d+ s", found["unfinished"])
    assert (found["against"], found["owed"]) == ([], [])
    assert "measured" in found["pairs"].values()
    assert set(found["pairs"].values()) <= {"measured", "not_run"}  # a late stop: all are measured


def _running(pid: int) -> list[int]:
    """Who has not ended below a process; a stopped one reaps none."""
    found = []
    for each in below(pid):
        with suppress(OSError):
            state = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2][0]
            found += [each] if state not in "ZX" else []
    return found


class Mute:
    """A payload that says nothing; while it is listened to, the listener itself may be stopped."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def receive(self, within_s: float) -> None:
        """Nothing comes."""
        time.sleep(within_s + self.stopped_s)
        self.stopped_s = 0.0

    def send(self, message: object) -> None:
        """No process listens either."""

    def close(self) -> None:
        """Nothing runs."""


@pytest.mark.slow
def test_who_did_not_listen_gives_a_line_some_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is not lost because its listener stood still; but it is when nothing comes then."""
    monkeypatch.setattr(payload_session, "LOST_S", 1.0)
    monkeypatch.setattr(payload_session, "_SUSPENDED_S", 0.5)
    mute = Mute()
    line = LeasedSession(mute)
    line.watch()
    mute.stopped_s = 2.0
    assert line.receive(0.01) is None
    time.sleep(0.4)
    assert line.receive(0.01) is None
    time.sleep(0.2)
    with pytest.raises(ReachError, match="the connection to it was lost"):
        line.receive(0.01)
