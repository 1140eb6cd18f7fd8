"""What all tests share: signals that work, and turns for those that sweep on this machine itself.

Two tests that sweep here at once would meet in one node's lock.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Undo what a shell or nohup does to jobs: they and their children ignore Ctrl-C, or SIGHUP.

    The process that a terminal started keeps ignoring that, its workers do not.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and "PYTEST_XDIST_WORKER" in os.environ:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector of garbage away from thousands of tests, now and as they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what thorough.txt lists, so that -m can leave it out."""
    lines = Path(__file__).with_name("thorough.txt").read_text().splitlines()
    listed = tuple(line for line in lines if line and not line.startswith("#"))
    for item in items:
        if item.nodeid.startswith(listed):
            item.add_marker("thorough")


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
