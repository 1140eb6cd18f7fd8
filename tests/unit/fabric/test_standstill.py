"""A controller that stood still blames nobody for having left it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.transport import leased
from preflight.transport.leased import Leased
from preflight.transport.protocol import ReachError
from tests.unit.fabric.nodes import HAS_TORCH

ROOT = Path(__file__).parents[3]

_CONTROLLER = """
import json
from msgspec.structs import replace
from preflight.fabric import cut_short, launch
from preflight.fabric.judge import judge_sweep
from preflight.transport import leased
from tests.unit.fabric.nodes import DEADLINE_S, Starter, fleet, plan
launch.LEASE_S = cut_short.LEASE_S = 5.0
cut_short.RENEW_S, leased.RENEW_S, leased.LOST_S = 1.0, 1.0, 4.0
hosts = [replace(host, name="still-" + host.name) for host in fleet(3)]
found = launch.sweep(
    plan(hosts, long_s=2.5), hosts, Starter({}), nonce="still", deadline_s=DEADLINE_S,
    progress=lambda done, total, _waiting: print(f"{done}/{total}", flush=True),
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
def test_a_controller_that_was_stopped_blames_nobody() -> None:
    """SIGSTOP for longer than the lease: the nodes leave, the first pair is kept, nobody is bad."""
    with subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "1/3\n" in process.stdout  # one of three pairs is through
            time.sleep(0.5)
            process.send_signal(signal.SIGSTOP)
            time.sleep(9)  # nearly twice the lease: also a slow machine's agents have left
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    found = json.loads(said.splitlines()[-1])
    assert re.search(r"preflight itself stood still for (9|1\d) s", found["unfinished"])
    assert (found["against"], found["owed"]) == ([], [])
    assert set(found["pairs"].values()) == {"measured", "not_run"}


class Mute:
    """A payload that says nothing; while it is listened to, the listener itself may be stopped."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def hear(self, within_s: float) -> None:
        """Nothing comes."""
        time.sleep(within_s + self.stopped_s)
        self.stopped_s = 0.0

    def send(self, message: object) -> None:
        """Nobody listens either."""

    def close(self) -> None:
        """Nothing runs."""


def test_who_did_not_listen_gives_a_line_some_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is not lost because its listener stood still; but it is when nothing comes then."""
    monkeypatch.setattr(leased, "LOST_S", 1.0)
    monkeypatch.setattr(leased, "_HELD_UP_S", 0.5)
    mute = Mute()
    line = Leased(mute)
    line.watch()
    mute.stopped_s = 2.0
    assert line.hear(0.01) is None
    time.sleep(0.4)
    assert line.hear(0.01) is None
    time.sleep(0.2)
    with pytest.raises(ReachError, match="the connection to it was lost"):
        line.hear(0.01)
