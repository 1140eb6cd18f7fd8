"""What all tests share: signals that work, and turns for those that sweep on this machine itself.

Two tests that sweep here at once would meet in one node's lock.
"""

from __future__ import annotations

import fcntl
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Undo what a shell does to background jobs: they and their children ignore Ctrl-C."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _in_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait until no other test process sweeps here; hosts of a lab are a world of their own."""
    marked = request.node.get_closest_marker
    if marked("busy") is None or marked("lab") is not None:
        yield
        return
    with Path(tempfile.gettempdir(), "preflight-tests-sweep-here.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
