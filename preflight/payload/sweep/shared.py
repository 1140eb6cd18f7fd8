"""What all agents of a sweep learn through its store: that it is still wanted, and who is lost.

Each agent hears its own controller line. The store adds the sweep as a whole: when its host is cut
off, frozen or dead, nobody can go on, however alive the other lines look.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from .meeting import Meeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue
    from typing import Any

    from lease import Lease

    from . import plan

STORE = "store"
"""The lease's source that `follow` renews."""

POLL_S = 2.0
_CONNECT_S = 20.0
_RENEWALS = "renewals"


def host(go: plan.Go, address: tuple[str, int], lines: queue.Queue[dict[str, Any]]) -> None:
    """Write to the store, from now on, what the controller tells its host for all."""
    store = _client(go, address)
    store.set(_RENEWALS, "0")
    threading.Thread(target=_write, args=(go, store, lines), daemon=True).start()


def follow(go: plan.Go, address: tuple[str, int], kept: Lease) -> None:
    """Renew the lease, from now on, whenever the store's host was renewed."""
    threading.Thread(target=_poll, args=(go, address, kept), daemon=True).start()


def _write(go: plan.Go, store: Any, lines: queue.Queue[dict[str, Any]]) -> None:
    meeting = Meeting(store, -1, go.nodes * go.rails, go.missing)
    renewals, rounds = 0, len(go.turns)
    while True:
        line = lines.get()
        renewals += 1
        store.set(_RENEWALS, str(renewals))
        rounds += line.get("rounds", 0)
        for node in line.get("gone", ()):
            for rail in range(go.rails):
                meeting.strike(node * go.rails + rail, rounds)


def _poll(go: plan.Go, address: tuple[str, int], kept: Lease) -> None:
    """The answer may never come (a frozen host): the lease is watched by another thread."""
    try:
        store = _client(go, address)
        seen = b""
        while True:
            renewals = store.get(_RENEWALS)
            if renewals != seen:
                seen = renewals
                kept.renew(STORE)
            time.sleep(POLL_S)
    except RuntimeError:
        return  # torch's DistError: the store is gone, and no more renewals will come


def _client(go: plan.Go, address: tuple[str, int]) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=_CONNECT_S)
    raw = dist.TCPStore(*address, timeout=timeout, wait_for_workers=False)
    return dist.PrefixStore("preflight/" + go.run, raw)
