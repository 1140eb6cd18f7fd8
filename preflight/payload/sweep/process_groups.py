"""Groups of two or more processes over one store, and the start of each round together.

`new_group` and `split_group` need every rank of the job, so one hung host would block all of them;
a raw process group over a prefix of the store needs only its members.

torch has only private names for the options of such a group.

All members meet at the store before each round. After a timeout one of them notes the missing ones,
which skip that round and may come to the next. A member that misses a second round, never came to
one, or is lost to the controller, is struck from the list: no member waits for it again.

Each agent has its own connection to the controller, but all need the store: if its host is cut off,
frozen or dead, no agent can go on.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from datetime import timedelta
from typing import Any, Collection

from probe import network
from start import Lease

from . import plan, transports

STRIKING_S = 5.0
"""Time to strike the missing members, with one query of the store per member."""

_MISSES = 2


class Rendezvous:
    """The round barrier of one sweep; `member` counts over nodes and rails.

    `missing`: members that do not exist, since their node lacks the rail.
    """

    def __init__(
        self, store: Any, member: int, members: int, missing: Collection[int] = ()
    ) -> None:
        self._store = store
        self._member = member
        self._members = [number for number in range(members) if number not in missing]

    def arrive(self, round_index: int, within_s: float) -> bool:
        """Wait for the others; False if they began this round without this member."""
        if self.missed(round_index, self._member):
            return False
        begin = f"begin/{round_index}"
        if self._count_in(round_index) + self._store.add("struck", 0) >= len(self._members):
            self._store.set(begin, "1")
        elif not self._wait([begin], within_s):
            self._strike_the_missing(round_index, begin)
        return not self.missed(round_index, self._member)

    def missed(self, round_index: int, member: int) -> bool:
        """Whether a member was late for a round, or is struck."""
        return self.struck(member) or bool(self._store.check([f"missed/{round_index}/{member}"]))

    def struck(self, member: int) -> bool:
        """Whether a member is removed from all rounds."""
        return bool(self._store.check([f"struck/{member}"]))

    def strike(self, member: int, rounds: int) -> None:
        """Remove a member that is known to be lost, so that no other waits for it."""
        if member not in self._members or self.struck(member):
            return
        step = next((n for n in range(rounds) if not self._store.check([f"begin/{n}"])), rounds)
        if self._store.check([f"here/{step}/{member}"]):
            self._store.add(f"count/{step}", -1)  # it came, and counts as struck from now on
        self._store.set(f"struck/{member}", "1")
        struck = self._store.add("struck", 1)
        if step < rounds and self._store.add(f"count/{step}", 0) + struck >= len(self._members):
            self._store.set(f"begin/{step}", "1")

    def agree(self, pair: str, rank: int, own_plan: str, within_s: float) -> bool | None:
        """Compare our plan with the partner's; None if it did not come."""
        self._store.set(f"plan/{pair}/{rank}", own_plan)
        partner_key = f"plan/{pair}/{1 - rank}"
        if not self._wait([partner_key], within_s):
            return None
        return bool(self._store.get(partner_key).decode("ascii", "replace") == own_plan)

    def leave(self, pair: str, rank: int) -> None:
        """Note that this end has finished a pair, successfully or not."""
        self._store.set(f"left/{pair}/{rank}", "1")

    def await_leave(self, pair: str, rank: int, within_s: float) -> None:
        """Wait for the partner: closing first could cut off its last bytes."""
        self._wait([f"left/{pair}/{1 - rank}"], within_s)

    def gather(self, place: str, rank: int, count: int, within_s: float) -> list[int]:
        """Wait until `count` members have come to a place; return the missing ones."""
        self._store.set(f"{place}/{rank}", "1")
        keys = [f"{place}/{number}" for number in range(count)]
        if self._wait(keys, within_s):
            return []
        return [number for number, key in enumerate(keys) if not self._store.check([key])]

    def _count_in(self, round_index: int) -> int:
        """Count this member once, even if its process was replaced; return how many came."""
        self._store.set(f"came/{self._member}", "1")
        first = self._store.add(f"here/{round_index}/{self._member}", 1) == 1
        return int(self._store.add(f"count/{round_index}", 1 if first else 0))

    def _wait(self, keys: list[str], within_s: float) -> bool:
        try:
            self._store.wait(keys, timedelta(seconds=within_s))
        except RuntimeError:  # DistStoreError: the wait ran out (or the store is gone: next line)
            return bool(self._store.check(keys))
        return True

    def _strike_the_missing(self, round_index: int, begin: str) -> None:
        if self._store.add(f"striker/{round_index}", 1) > 1:
            self._wait([begin], STRIKING_S)
            return
        for member in self._members:
            missing = not self._store.check([f"here/{round_index}/{member}"])
            if missing and not self.struck(member):
                self._note_miss(round_index, member)
        self._store.set(begin, "1")

    def _note_miss(self, round_index: int, member: int) -> None:
        self._store.set(f"missed/{round_index}/{member}", "1")
        came_before = round_index and self._store.check([f"came/{member}"])
        if not came_before or self._store.add(f"misses/{member}", 1) >= _MISSES:
            self._store.set(f"struck/{member}", "1")
            self._store.add("struck", 1)


# ruff: noqa: SLF001 - see above


NCCL_ENVIRONMENT = {
    # A late measuring process is killed by its supervisor: torch's own watchdog must not interfere,
    # whatever the job has set (ProcessGroupNCCL.cpp and .hpp, torch 2.4 to 2.13).
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
    # A dump signal is a key in the store without prefix: every group of the sweep would see it.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    # The monitor's thread runs anyway; it would abort the process, and now only logs.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600",
    # The watchdog would end the process on a CUDA error before we can report it.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # These add kernels and events to what is timed.
    "TORCH_NCCL_ENABLE_TIMING": "0",
    "TORCH_NCCL_NAN_CHECK": "0",
    # A dead InfiniBand link is noticed after 7 retries of 0.54 s instead of 4.3 s.
    "NCCL_IB_TIMEOUT": "17",
    # One rail at a time: nothing may route around the NIC under test.
    "NCCL_ALGO": "Ring",
    "NCCL_PXN_DISABLE": "1",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NVLS_ENABLE": "0",
    # Nodes of one NVLink domain (GB200 NVL72) would leave their NICs idle; since NCCL 2.21.
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
}

UNSET = (
    # The one meeting point of the job's own communicator.
    "NCCL_COMM_ID",
    # Old names of what is set above, which torch still reads.
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    # They write files.
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "UCX_LOG_FILE",
    "UCX_STATS_DEST",
)
"""Variables of the job's environment that we must not use."""

_WATCHDOG_S = 3600.0
"""Limit of torch's watchdog for one operation: far above any `op_s`, our own limit."""

_undestroyed: list[Any] = []
"""NCCL groups, kept for the life of the process: the destructor would join threads that sleep for
up to TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, and the process ends by os._exit."""


class Group:
    """A connected group: `reduce` blocks with gloo, and enqueues with NCCL."""

    def __init__(self, torch: Any, raw: Any, device: Any, op_s: float) -> None:
        self.device = device
        self._raw = raw
        dist = torch.distributed
        self._sum = _options(dist, dist.ReduceOp.SUM, op_s)
        self._smallest = _options(dist, dist.ReduceOp.MIN, op_s)

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Sum (or take the smallest of) all ends' tensors into all, in place."""
        self._raw.allreduce([tensor], self._smallest if smallest else self._sum).wait()

    def close(self) -> None:
        """Abort NCCL's communicators, which frees them; gloo's end with the last reference.

        `_shutdown` aborts until torch 2.5; since 2.6 it waits.
        """
        if self._raw in _undestroyed:
            (self._raw.abort if hasattr(self._raw, "abort") else self._raw._shutdown)()


def _options(dist: Any, operator: Any, op_s: float) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    options.timeout = timedelta(seconds=op_s)
    return options


def connect(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int = 2) -> Group:
    """Connect `size` ends; RuntimeError if they do not meet in time."""
    return (_nccl if rail.go.backend == "nccl" else _gloo)(torch, store, rank, rail, size)


def _gloo(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int) -> Group:
    """Connect CPU ends over TCP, on the route from this node to the others."""
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    # By default gloo resolves the host name: 127.0.1.1 on Debian, which no other node can reach.
    names = transports.gloo_interfaces(rail)
    if names:
        options._devices = [gloo.create_device(interface=name) for name in names]
    else:
        options._devices = [gloo.create_device(hostname=rail.local)]
    options._timeout = timedelta(seconds=rail.go.meet_s)
    return Group(torch, gloo(store, rank, size, options), torch.device("cpu"), rail.go.op_s)


def _nccl(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int) -> Group:
    """Connect one GPU with the same rail's on the partner, or with the others of its node."""
    for name in UNSET:
        os.environ.pop(name, None)
    os.environ.update(NCCL_ENVIRONMENT)
    if rail.mnnvl:
        os.environ["NCCL_MNNVL_ENABLE"] = "1"
    interface = rail.go.interface or (network.interface_of(rail.local) if rail.go.pinned else "")
    if interface:
        os.environ["NCCL_SOCKET_IFNAME"] = "=" + interface
    nccl = torch.distributed.ProcessGroupNCCL
    device = torch.device("cuda", rail.gpu)
    torch.cuda.set_device(device)
    options = nccl.Options()
    options._timeout = timedelta(seconds=_WATCHDOG_S)
    raw = nccl(store, rank, size, options)
    _undestroyed.append(raw)
    group = Group(torch, raw, device, _WATCHDOG_S)
    # NCCL connects at the first operation; that belongs to the set-up.
    group.reduce(torch.zeros(1, dtype=torch.int32, device=device))
    torch.cuda.synchronize()
    return group


STORE = "store"
"""The lease's source that `follow` renews."""

POLL_S = 2.0
_RENEWALS = "renewals"


def host(go: plan.Go, address: tuple[str, int], lines: queue.Queue[dict[str, Any]]) -> None:
    """Start to write the controller's messages for all agents to the store."""
    store = client(go, address)
    store.set(_RENEWALS, "0")
    threading.Thread(target=_write, args=(go, store, lines), daemon=True).start()


def follow(go: plan.Go, address: tuple[str, int], lease: Lease) -> None:
    """Start to renew the lease whenever the store's host was renewed."""
    threading.Thread(target=_poll, args=(go, address, lease), daemon=True).start()


def _write(go: plan.Go, store: Any, lines: queue.Queue[dict[str, Any]]) -> None:
    rendezvous = Rendezvous(store, -1, go.nodes * go.rails, go.missing)
    renewals, rounds = 0, len(go.turns)
    while True:
        line = lines.get()
        renewals += 1
        store.set(_RENEWALS, str(renewals))
        rounds += line.get("rounds", 0)
        for node in line.get("gone", ()):
            for rail in range(go.rails):
                rendezvous.strike(node * go.rails + rail, rounds)


def _poll(go: plan.Go, address: tuple[str, int], lease: Lease) -> None:
    """Poll the store; if a frozen host never answers, another thread ends us with the lease."""
    try:
        store = client(go, address)
        former = b""
        while True:
            renewals = store.get(_RENEWALS)
            if renewals != former:
                former = renewals
                lease.renew(STORE)
            time.sleep(POLL_S)
    except RuntimeError:
        return  # torch's DistError: the store is gone, and no more renewals will come


def client(
    go: plan.Go, address: tuple[str, int], within_s: float = 20.0, wait_s: float | None = None
) -> Any:
    """Connect to the sweep's store; `wait_s`: time limit for a key (default: `within_s`)."""
    import torch.distributed as dist

    raw = dist.TCPStore(*address, timeout=timedelta(seconds=within_s), wait_for_workers=False)
    if wait_s is not None:
        raw.set_timeout(timedelta(seconds=wait_s))
    return dist.PrefixStore("preflight/" + go.run, raw)
