"""A lazy thread that strikes at a sweep's processes while it runs, and what it left behind."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.fabric.nodes import below, named, wait_for

_PAYLOAD = str(Path(__file__).parents[3] / "preflight" / "payload")
if _PAYLOAD not in sys.path:
    sys.path.append(_PAYLOAD)  # its modules are imported as they are on a node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Run something beside the sweep; its own failure fails the test."""
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def run(what: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                what()
            except BaseException as error:  # noqa: BLE001 - reported by the test below
                failures.append(error)

        threads.append(threading.Thread(target=guarded, daemon=True))
        threads[-1].start()

    yield run
    for thread in threads:
        thread.join(60)
    assert not failures


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no process of any sweep runs below us."""
    yield

    def gone() -> list[int]:
        left = below(os.getpid())
        ours = named("preflight-rank", left) + named("preflight-pair", left)
        return [] if ours else [1]

    assert wait_for(gone, 10), "a sweep left processes behind"
