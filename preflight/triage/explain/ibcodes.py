"""What the numbers of InfiniBand completions and of Linux' errno mean to an operator."""

from __future__ import annotations

STATUS = {
    4: "a local memory access was refused (local protection error)",
    5: "the queue had been flushed: a consequence of an earlier failure at either end",
    9: "the peer refused the request (remote invalid request)",
    10: "the peer refused access to its memory (remote access error)",
    11: "the peer failed in carrying it out (remote operation error)",
    12: "the peer did not acknowledge in time, retries used up (transport retry counter exceeded)",
    13: "the peer was not ready to receive, retries used up (RNR retry counter exceeded)",
}
"""enum ibv_wc_status of rdma-core, libibverbs/verbs.h."""

FLUSHED = 5

VENDOR = {
    129: "Mellanox syndrome 0x81: no acknowledgement came, the path or the peer is dead",
    130: "Mellanox syndrome 0x82: the peer answered that it was not ready",
    136: "Mellanox syndrome 0x88: the peer refused access to its memory",
    138: "Mellanox syndrome 0x8a: the peer took the request for invalid",
    244: "Mellanox syndrome 0xf4: the queue was flushed",
    249: "Mellanox syndrome 0xf9: the queue was flushed",
}
"""`vendor err` as mlx5 fills it in: the low byte of the completion's vendor syndrome."""

ERRNO = {
    19: "errno 19, the device does not know that port, path or interface (No such device)",
    22: "errno 22, a GID or an attribute does not fit the other end's",
    61: "errno 61, the GID at that index is empty",
    101: "errno 101, no route between these two ports",
    110: "errno 110, the other end did not answer",
    113: "errno 113, no way to the other end",
}
"""What ibv_modify_qp returns on the way to RTR."""

ERRNO_OF = {
    "Invalid argument": 22,
    "No data available": 61,
    "Network is unreachable": 101,
    "Connection timed out": 110,
    "No route to host": 113,
}

NAMES = {
    "RETRY_EXC_ERR": 12,
    "Transport retry count exceeded": 12,
    "RNR_RETRY_EXC_ERR": 13,
}
