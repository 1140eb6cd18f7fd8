"""The sweep's agent on a node: reports what its torch can do, forks its rails, relays their events.

It ends with its controller (end of input, or silence for the length of the lease), with the sweep's
store, on "finish", and on its deadline. The kernel then kills its ranks and their measuring
processes.

So torch is imported once per node, ranks do not write torchrun's single rendezvous key in turn (33
nodes on a small machine needed more than 70 s for it), and no node unpickles what others wrote to
it. A rank that the job's own torchrun started sweeps one rail by itself, in the rank's environment
(its CUDA_VISIBLE_DEVICES, its NUMA binding) and on its GPU.
"""

from __future__ import annotations

import os
import queue
import threading
from datetime import timedelta
from typing import Any, Callable

import children
import start
from probe import network
from start import Emit, Read

from . import agent, cuda, plan, process_groups, supervisor
from .plan import short


def _relay(pipes: dict[int, int], emit: Emit) -> None:
    """Relay the events of all rails, each from its pipe, and report when all rest or are done.

    A rail that ends without "rail_done" is reported.
    """
    events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    for rail, pipe in pipes.items():
        _in_thread(_read_events, rail, pipe, events)
    resting: set[int] = set()
    done: set[int] = set()
    while len(done) < len(pipes):
        rail, event = events.get()
        if event is None:
            name = f"its rank of rail {rail}" if len(pipes) > 1 else "its rank"
            emit({"event": "trouble", "error": f"{name} ended without a report"})
        if event is None or event["event"] == "rail_done":
            done.add(rail)
        elif event["event"] == "rail_rest":
            resting.add(rail)
        else:
            emit(event)
            continue
        if len(done) < len(resting | done) == len(pipes):
            resting.clear()
            emit({"event": "rest"})
    emit({"event": "done"})


def _read_events(
    rail: int, pipe: int, events: queue.Queue[tuple[int, dict[str, Any] | None]]
) -> None:
    """Read one rail's events to its end."""
    reader, event = start.Reader(pipe), None
    while event is None or event["event"] != "rail_done":
        event = reader.next(None)
        events.put((rail, event))
        if event is None:
            return


def _forward(more: queue.Queue[dict[str, Any]], pipes: list[int]) -> None:
    """Send each order to every rail."""
    while True:
        order = more.get()
        for pipe in pipes:
            start.write(pipe, order)


def lock_name(request: dict[str, Any]) -> str:
    """Return the lock's name: the first rail locks the node, like an agent of a whole node."""
    rail = request.get("job_rail", 0)
    return f"{request['name']}/{rail}" if rail else str(request["name"])


def only_own_gpu(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Reduce what torch sees to the GPU of this rank of the job, if there is one."""
    if event["event"] == "ready" and "job_rail" in request:
        has_gpu = gpu_of_rank() < event["gpus"]
        return dict(event, cuda=event["cuda"] and has_gpu, gpus=int(has_gpu), bus_ids=[])
    return event


def gpu_of_rank() -> int:
    """The GPU that the job's rank will use: cuda:LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def start_rail(rail: plan.Rail, writing: int, orders: int) -> None:
    """Run the rail in a child that ends with this process; OSError if none starts."""

    def work() -> None:
        if rail.rail in rail.go.own_rails:
            supervisor.supervise(rail, writing, orders)
        else:  # another node has fewer ranks
            start.write(writing, {"event": "rail_done"})

    children.fork_surely("preflight-rank", work, f" for rail {rail.rail}")
    os.close(writing)


_STORE_S = 30.0


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one sweep. `read_line(within_s)`: the controller's next line; None when it is gone."""
    orders, lease = agent.serve_controller(request, read_line, emit)
    children.adopt_orphans()
    lock = agent.claim(lock_name(request))
    if lock is None:
        error, advice = agent.lock_holder(lock_name(request))
        emit({"event": "taken", "error": error, "advice": advice} if advice else
             {"event": "busy", "error": error})  # fmt: skip
        return
    if "job_rail" not in request:  # a rank of the job takes cuda:LOCAL_RANK of the job's own order
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, not the fastest GPU first
    first = only_own_gpu(cuda.describe(), request)
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
    _sweep(go, store, emit, request.get("job_rail"), orders)
    # Only now: a fork while another thread is inside of torch would copy its locks, for ever.
    if server is not None:
        process_groups.host(go, store, orders.shared)
    else:
        process_groups.follow(go, store, lease)
    threading.Event().wait()  # until the controller ends us: we may host the store
    del server


def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _host_store(address: str) -> Any:
    """Host the sweep's only store in this process, on a port that the kernel chooses."""
    import torch.distributed as dist

    return dist.TCPStore(
        address,
        0,
        is_master=True,
        timeout=timedelta(seconds=_STORE_S),
        wait_for_workers=False,
    )


def _sweep(
    go: plan.Go, store: tuple[str, int], emit: Emit, job_rail: int | None, orders: agent.Orders
) -> None:
    """Fork the rails and relay their accounts and orders, each through pipes of its own.

    `job_rail`: the only one, if this is a rank that the job's own torchrun started.
    """
    rails = go.own_rails if job_rail is None else [job_rail]
    accounts, further = [os.pipe() for _ in rails], [os.pipe() for _ in rails]
    try:
        local = network.source_address(go.towards)
        for index, rail in enumerate(rails):
            gpu = index if job_rail is None else gpu_of_rank()
            rail_plan = plan.Rail(go, rail, local, store, gpu)
            start_rail(rail_plan, writing=accounts[index][1], orders=further[index][0])
        pipes = {rail: accounts[index][0] for index, rail in enumerate(rails)}
        _in_thread(_relay, pipes, emit)
        _in_thread(_forward, orders.more, [into for _, into in further])
    except OSError as error:  # no route to the others, or no new process
        emit({"event": "trouble", "error": f"{type(error).__name__}: {short(error)}"})
        emit({"event": "done"})
