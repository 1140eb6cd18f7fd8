"""Nothing works on a node for a controller that has fallen silent."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from preflight.transport.bundle import PAYLOAD

from .node import NONCE, Remote

if str(PAYLOAD) not in sys.path:
    sys.path.append(str(PAYLOAD))  # its modules are imported as they are on a node

import start

pytestmark = pytest.mark.slow

LAPSED = 5


def asked(lease_s: float | None) -> Remote:
    """Start a node in the port stage, under a lease."""
    node = Remote("ports")
    under = {} if lease_s is None else {"lease_s": lease_s}
    node.ask(nonce=NONCE, name="h1", deadline_s=40, master_port=None, data_ports=1, **under)
    assert b"listening" in node.answer()
    return node


def test_a_payload_leaves_when_nothing_comes_any_more() -> None:
    """Its input stays open, as with a cut cable; it ends by itself and says so by its status."""
    assert asked(lease_s=0.5).leave() == LAPSED


def test_any_message_renews_the_lease() -> None:
    """Told to go on for longer than its lease lasts, it still answers at the end."""
    node = asked(lease_s=3.0)
    for number in range(8):
        time.sleep(0.5)
        node.ask(renew=number)
    node.ask(finish=True)
    assert b"attempts" in node.answer()
    assert node.leave() == 0


def test_each_source_that_was_there_once_must_stay() -> None:
    """A line that works does not make up for a store that has fallen silent."""
    kept = start.Lease(0.2)
    kept.renew("store")

    def lines(within_s: float) -> dict[str, object]:
        time.sleep(min(within_s, 0.02))
        return {"renew": 1}

    assert start.attend(lines, kept, lambda _: None) == "store"


def test_who_was_held_up_may_read_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped for longer than the lease: it is spared once, until a message came or did not."""
    now = [100.0]
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: now[0]))
    kept = start.Lease(15.0)
    assert kept.lapsed() == ""
    now[0] += 60.0
    assert kept.lapsed() == ""
    for _ in range(16):
        now[0] += 0.5
        ended = kept.lapsed()
    assert ended == start.LINE
    kept.renew(start.LINE)
    assert kept.lapsed() == ""


@pytest.mark.parametrize("seconds", [None, 1e9])
def test_without_a_lease_only_the_end_of_input_counts(seconds: float | None) -> None:
    """A request that names none is served as before."""
    assert start.Lease(seconds).lapsed() == ""
