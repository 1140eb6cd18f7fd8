"""The agent of one node: says what its torch can do, joins the launch, passes on its rails' words.

It ends with its controller (end of input, or silence for the length of the lease), with the sweep's
store, when told to, and on its deadline; its ranks and their measuring processes end with it,
because the kernel kills them then.
"""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta

from . import engine, lifeline, line, lines, lock, plan, seat, shared, supervisor, torch_facts
from .account import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Read = Callable[[float], "dict[str, Any] | None"]
    Emit = Callable[["dict[str, Any]"], None]

_STORE_S = 30.0
_DISCARD = 9  # any port will do: nothing is sent there


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one sweep. `read_line(within_s)`: the controller's next line; None when it is gone."""
    orders, kept = line.hold(request, read_line, emit)
    lifeline.adopt_orphans()
    held = lock.claim(seat.lock_name(request))
    if held is None:
        emit({"event": "busy", "error": "another preflight run measures this node; wait for it"})
        return
    engine.prepare()
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
        shared.host(go, store, orders.shared)
        emit({"event": "store", "port": server.port})
    else:
        shared.follow(go, store, kept)
    _sweep(go, store, emit, request.get("seat"))
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


def _local_address(other: str) -> str:
    """Our own address on the way to another node: what the partners can connect back to."""
    family, kind, protocol, _, there = socket.getaddrinfo(other, _DISCARD, type=socket.SOCK_DGRAM)[
        0
    ]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # a datagram socket: finds the route, sends nothing
        return str(probe.getsockname()[0])


def _sweep(go: plan.Go, store: tuple[str, int], emit: Emit, seated: dict[str, Any] | None) -> None:
    """Launch the ranks and relay their accounts, each rail through a pipe of its own.

    `seated`: the job's own torchrun has launched the ranks, and this is one of them.
    """
    pipes = [os.pipe() for _ in range(1 if seated else go.rails)]
    threading.Thread(target=_relay_all, args=([out for out, _ in pipes], emit), daemon=True).start()
    try:
        local = _local_address(go.towards)
        writing = [into for _, into in pipes]
        if seated:
            seat.sit(seated["rail"], go, local, store, writing[0])
        else:
            engine.launch(go, local, store, _rank, go, local, store, writing, os.getpid())
    except Exception as error:  # noqa: BLE001 - whatever the rendezvous raises is the finding
        emit({"event": "trouble", "error": f"{type(error).__name__}: {short(error)}"})
        emit({"event": "done"})


def _rank(go: plan.Go, local: str, store: tuple[str, int], writing: list[int], agent: int) -> None:
    """Run in the process that torchrun's engine forked for one local rank."""
    number, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    supervisor.supervise(plan.Rail(go, number, local, store, world), writing[number], agent)


def _relay_all(pipes: list[int], emit: Emit) -> None:
    threads = [threading.Thread(target=_relay, args=(pipe, emit), daemon=True) for pipe in pipes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit({"event": "done"})


def _relay(pipe: int, emit: Emit) -> None:
    reader = lines.Reader(pipe)
    while True:
        line = reader.next(None)
        if line is None:
            emit({"event": "trouble", "error": "one of its ranks ended without a word"})
            return
        if line["event"] == "rail_done":
            return
        emit(line)
