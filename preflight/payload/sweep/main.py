"""The agent of one node: says what its torch can do, forks its rails, passes on their words.

It ends with its controller (end of input, or silence for the length of the lease), with the sweep's
store, when told to, and on its deadline; its ranks and their measuring processes end with it,
because the kernel kills them then.

torch is imported once per node then, nobody writes torchrun's one rendezvous key in turn (33 nodes
on a small machine did not get through it within 70 s), and no node unpickles what others wrote to
it. A rank that the job's own torchrun started sweeps one rail by itself; the rank's environment is
ours (its CUDA_VISIBLE_DEVICES, its NUMA binding), and so is its GPU.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import children
import start
from probe import network

from . import agent, cuda, plan, process_groups, supervisor
from .plan import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue
    from collections.abc import Callable
    from typing import Any

    Emit = Callable[["dict[str, Any]"], None]
    Read = Callable[[float], "dict[str, Any] | None"]


class Rails:
    """How many rails there are, and how many of them rest or are through."""

    def __init__(self, count: int, emit: Emit) -> None:
        self._count = count
        self._emit = emit
        self._resting: set[int] = set()
        self._through = 0
        self._lock = threading.Lock()

    def relay(self, pipe: int, rail: int) -> None:
        """Pass on one rail's words to its end; a silent end is told by its number, `rail`."""
        reader = start.Reader(pipe)
        whose = f"its rank of rail {rail}" if self._count > 1 else "its rank"
        while True:
            line = reader.next(None)
            if line is None:
                self._emit({"event": "trouble", "error": f"{whose} ended without a word"})
            if line is None or line["event"] == "rail_done":
                self._count_in(pipe, through=True)
                return
            if line["event"] == "rail_rest":
                self._count_in(pipe, through=False)
            else:
                self._emit(line)

    def _count_in(self, pipe: int, *, through: bool) -> None:
        """A rail that is through rests no more: it counts once."""
        with self._lock:
            if through:
                self._resting.discard(pipe)
                self._through += 1
            else:
                self._resting.add(pipe)
            all_through = self._through == self._count
            all_rest = not all_through and len(self._resting) + self._through == self._count
            if all_rest:
                self._resting.clear()
        if all_through:
            self._emit({"event": "done"})
        elif all_rest:
            self._emit({"event": "rest"})


def _pass_on(more: queue.Queue[dict[str, Any]], pipes: list[int]) -> None:
    """Hand each order to every rail."""
    while True:
        order = more.get()
        for pipe in pipes:
            start.write(pipe, order)


def lock_name(request: dict[str, Any]) -> str:
    """Name the lock: the first rail holds the node, as a whole node's agent would."""
    seat = request.get("seat")
    name = str(request["name"])
    return f"{name}/{seat['rail']}" if seat and seat["rail"] else name


def own(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Of what torch sees, the part that is this rank's: one GPU, if it is there."""
    if event["event"] == "ready" and request.get("seat"):
        there = gpu_of_rank() < event["gpus"]
        return dict(event, cuda=event["cuda"] and there, gpus=int(there), bus_ids=[])
    return event


def gpu_of_rank() -> int:
    """The GPU that the job's rank will take, as its script finds it: cuda:LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def start_rail(rail: plan.Rail, writing: int, orders: int) -> None:
    """Run the rail in a process of its own, which ends with this one; OSError if none comes up."""

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
    orders, kept = agent.hold(request, read_line, emit)
    children.adopt_orphans()
    held = agent.claim(lock_name(request))
    if held is None:
        error, advice = agent.why_taken(lock_name(request))
        emit({"event": "taken", "error": error, "advice": advice} if advice else
             {"event": "busy", "error": error})  # fmt: skip
        return
    if not request.get("seat"):  # a rank of the job takes cuda:LOCAL_RANK of the job's own order
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts, whatever is fastest
    first = own(cuda.describe(), request)
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
        process_groups.host(go, store, orders.shared)
    else:
        process_groups.follow(go, store, kept)
    threading.Event().wait()  # until the controller lets us go: we may be hosting the store
    del server


def _in_thread(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given, daemon=True).start()


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
        local = network.source_address(go.towards)
        for place, rail in enumerate(own):
            gpu = gpu_of_rank() if seated else place
            of_it = plan.Rail(go, rail, local, store, gpu)
            start_rail(of_it, writing=told[place][1], orders=orders[place][0])
        rails = Rails(len(own), emit)
        for place, rail in enumerate(own):
            _in_thread(rails.relay, told[place][0], rail)
        _in_thread(_pass_on, more, [into for _, into in orders])
    except OSError as error:  # no way to the others, or no process to be had
        emit({"event": "trouble", "error": f"{type(error).__name__}: {short(error)}"})
        emit({"event": "done"})
