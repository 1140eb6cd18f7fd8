"""A group of two ends, or of one node's rails, straight over the store: a bad one harms no other.

`new_group` and `split_group` need every rank of the job to take part, so one hung host would block
them all; a raw process group over a prefix of the store concerns its members alone.

Their options have underscores in torch's Python, but no public equivalents.
"""

# ruff: noqa: SLF001 - see above

from __future__ import annotations

import os
from datetime import timedelta

from . import means

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import plan

NCCL_ENVIRONMENT = {
    # A late measuring process is killed, so torch's own watchdog must not interfere.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
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
"""What of the job's environment is not for us."""


class Group:
    """Ends that can all-reduce: `reduce` blocks on gloo, and enqueues on NCCL."""

    def __init__(self, torch: Any, raw: Any, device: Any, op_s: float) -> None:
        self.device = device
        self._raw = raw
        dist = torch.distributed
        self._sum = _options(dist, dist.ReduceOp.SUM, op_s)
        self._smallest = _options(dist, dist.ReduceOp.MIN, op_s)

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Sum (or take the smallest of) all ends' tensors into all, in place."""
        self._raw.allreduce([tensor], self._smallest if smallest else self._sum).wait()


def _options(dist: Any, operator: Any, op_s: float) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    options.timeout = timedelta(seconds=op_s)
    return options


def connect(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int = 2) -> Group:
    """Connect the two ends of a pair, or so many; RuntimeError when they do not meet in time."""
    return (_nccl if rail.go.backend == "nccl" else _gloo)(torch, store, rank, rail, size)


def _gloo(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int) -> Group:
    """Connect CPU ends over TCP, on the way by which this node reaches the others."""
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    # Left alone, gloo resolves the host name: 127.0.1.1 on Debian, which no other node can reach.
    names = means.gloo_interfaces(rail)
    if names:
        options._devices = [gloo.create_device(interface=name) for name in names]
    else:
        options._devices = [gloo.create_device(hostname=rail.local)]
    options._timeout = timedelta(seconds=rail.go.meet_s)
    return Group(torch, gloo(store, rank, size, options), torch.device("cpu"), rail.go.op_s)


def _nccl(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int) -> Group:
    """Connect one GPU with that of the same rail on the partner, or with its node's others."""
    for name in UNSET:
        os.environ.pop(name, None)
    os.environ.update(NCCL_ENVIRONMENT)
    interface = rail.go.interface or (means.interface_of(rail.local) if rail.go.pinned else "")
    if interface:
        os.environ["NCCL_SOCKET_IFNAME"] = "=" + interface
    nccl = torch.distributed.ProcessGroupNCCL
    device = torch.device("cuda", rail.rail if rail.gpu is None else rail.gpu)
    torch.cuda.set_device(device)
    options = nccl.Options()
    options._timeout = timedelta(seconds=rail.go.op_s)
    group = Group(torch, nccl(store, rank, size, options), device, rail.go.op_s)
    # NCCL connects at the first operation; that belongs to the set-up.
    group.reduce(torch.zeros(1, dtype=torch.int32, device=device))
    torch.cuda.synchronize()
    return group
