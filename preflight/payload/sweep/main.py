"""The agent of one node: says what its torch can do, forks its rails, passes on their words.

It ends with its controller (end of input, or silence for the length of the lease), with the sweep's
store, when told to, and on its deadline; its ranks and their measuring processes end with it,
because the kernel kills them then.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta

from probe import resolve

from . import holder, lifeline, line, lock, plan, rails, seat, shared, torch_facts
from .account import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue
    from collections.abc import Callable
    from typing import Any

    Read = Callable[[float], "dict[str, Any] | None"]
    Emit = Callable[["dict[str, Any]"], None]

_STORE_S = 30.0


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one sweep. `read_line(within_s)`: the controller's next line; None when it is gone."""
    orders, kept = line.hold(request, read_line, emit)
    lifeline.adopt_orphans()
    held = lock.claim(seat.lock_name(request))
    if held is None:
        error, advice = holder.words(lock.address(seat.lock_name(request)))
        emit({"event": "taken", "error": error, "advice": advice} if advice else
             {"event": "busy", "error": error})  # fmt: skip
        return
    if not request.get("seat"):  # a rank of the job takes cuda:LOCAL_RANK of the job's own order
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts, whatever is fastest
    first = seat.own(torch_facts.describe(), request)
    emit(first)
    if first["event"] == "no_torch":
        return
    go = plan.read(orders.go.get())
    server = None
    store = go.store
    if store is None:
        server = _host_store(go.address)
        store = (go.address, server.port)
        emit({"event": "store", "port": server.port})
    _sweep(go, store, emit, request.get("seat"), orders.more)
    # Only now: a fork while another thread is inside of torch could take its locks along, for ever.
    if server is not None:
        shared.host(go, store, orders.shared)
    else:
        shared.follow(go, store, kept)
    threading.Event().wait()  # until the controller lets us go: we may be hosting the store
    del server


def _host_store(address: str) -> Any:
    """Serve the one store of the sweep from this process, on a port that the kernel picks."""
    import torch.distributed as dist

    return dist.TCPStore(
        address,
        0,
        is_master=True,
        timeout=timedelta(seconds=_STORE_S),
        wait_for_workers=False,
    )


def _sweep(
    go: plan.Go,
    store: tuple[str, int],
    emit: Emit,
    seated: dict[str, Any] | None,
    more: queue.Queue[dict[str, Any]],
) -> None:
    """Fork the rails and relay their accounts, each rail through pipes of its own.

    `seated`: the job's own torchrun has launched the ranks, and this is one of them. `more`: what
    is ordered after the last round.
    """
    own = [seated["rail"]] if seated else go.own_rails
    told, orders = [os.pipe() for _ in own], [os.pipe() for _ in own]
    try:
        local = resolve.source_address(go.towards)
        for place, rail in enumerate(own):
            gpu = seat.gpu() if seated else place
            ends = (told[place][1], orders[place][0])
            seat.sit(plan.Rail(go, rail, local, store, gpu), ends)
        rails.start({rail: told[place][0] for place, rail in enumerate(own)}, emit)
        rails.pass_on(more, [into for _, into in orders])
    except OSError as error:  # no way to the others, or no process to be had
        emit({"event": "trouble", "error": f"{type(error).__name__}: {short(error)}"})
        emit({"event": "done"})
