"""What NCCL 2.27 to 2.31 write into NCCL_DEBUG_FILE, and what torch makes of NCCL's errors.

Every format is that of NCCL's sources at the tags v2.27.7-1, v2.28.9-1, v2.29.7-1 and v2.30.7-1.
Of 2.31 no source is at hand: its formats are the strings in libnccl.so.2 of 2.31.2. The lines are
those that NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH lets through, without the topology that GRAPH adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RELEASES = {
    "2.27": "2.27.7",
    "2.28": "2.28.9",
    "2.29": "2.29.7",
    "2.30": "2.30.7",
    "2.31": "2.31.2",
}
"""The release of each version whose formats these are."""

_BEFORE_2_29, _BEFORE_2_30 = ("2.27", "2.28"), ("2.27", "2.28", "2.29")
_PLUGINS = {"OFI": "Libfabric"}  # aws-ofi-nccl from 1.14 on; before, and on older NCCL, with AWS


class Failure(NamedTuple):
    """A way in which a communicator fails, as torch words it."""

    error: str
    """ncclGetErrorString, src/init.cc."""
    detail: str
    """getNcclErrorDetailStr, torch/csrc/distributed/c10d/NCCLUtils.cpp."""


FAILURES = {
    "system": Failure(
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error. ",
    ),
    "remote": Failure(
        "remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
    ),
    "cuda": Failure(
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    ),
    "internal": Failure(
        "internal error - please report this issue to the NCCL developers",
        "ncclInternalError: Internal check failed.",
    ),
}


def bootstrap_line(
    version: str,
    *,
    host: str,
    pid: int,
    tid: int,
    cuda_dev: int,
    socket: tuple[str, str],
) -> str:
    """Which interface ranks meet over (bootstrap.cc); only with BOOTSTRAP among the subsystems."""
    name, address = socket
    return _info(
        version, f"{host}:{pid}:{tid} [{cuda_dev}]", f"Bootstrap: Using {name}:{address}<0>"
    )


def init_lines(
    version: str,
    *,
    host: str,
    pid: int,
    tid: int,
    cuda_dev: int,
    nics: Sequence[tuple[str, int, str]],
    sockets: Sequence[tuple[str, str]],
    plugin: str = "IB",
    merged: Sequence[Sequence[int]] = (),
) -> list[str]:
    """A process finds its network, before its first communicator.

    `nics`: (name, port, "IB" or "RoCE") of those that NCCL_IB_HCA permits and whose port is active.
    `sockets`: (interface, address). `plugin`: "IB", "Socket" or "OFI". `merged`: the numbers of
    the NICs that become one device, for each such device; their speed is given as 400 Gb/s each.
    net_ib.cc (from 2.29 on net_ib/init.cc), net_socket.cc, plugin/plugin_open.cc; OFI: the strings
    of aws-ofi-nccl 1.21, nccl_ofi_net.cpp.
    """
    tail = ". " if version == "2.27" else ""
    lines = [f"NCCL version {RELEASES[version]}+cuda12.9"]
    if version not in _BEFORE_2_29:
        lines.append("NCCL git version master 0000000")
    if plugin == "OFI":
        lines += [
            "NET/OFI Initializing aws-ofi-nccl 1.21.1",
            f"NET/OFI Selected provider is efa, fabric is efa (found {len(nics)} nics)",
        ]
    else:
        lines.append(f"NET/Plugin: Could not find: libnccl-net.so{tail}")
        if plugin == "IB" or not nics:  # else NCCL_IB_DISABLE or NCCL_NET keeps it from looking
            lines += _ib_lines(version, nics, sockets, merged)
    if plugin == "Socket":
        if version != "2.27" and not nics:
            lines.append("Failed to initialize NET plugin IB")
        listed = "".join(f" [{n}]{name}:{at}<0>" for n, (name, at) in enumerate(sockets))
        lines.append(f"NET/Socket : Using{listed}")
    return [_info(version, f"{host}:{pid}:{tid} [{cuda_dev}]", line) for line in lines]


def _ib_lines(
    version: str,
    nics: Sequence[tuple[str, int, str]],
    sockets: Sequence[tuple[str, str]],
    merged: Sequence[Sequence[int]],
) -> list[str]:
    """Each NIC is also a virtual device; where there is none, it says so and goes on."""
    names = [name for name, _, _ in nics]
    made = [(name, 1) for name in names]
    after = [("+".join(names[number] for number in each), len(each)) for each in merged]
    planes = "" if version in _BEFORE_2_30 else " rail=-1 plane=-1"
    virtual = [
        f"NET/IB : Made virtual device [{n}] name={name} speed={400_000 * count} ndevs={count}"
        + planes
        for n, (name, count) in enumerate([*made, *after])
    ]
    listed = "".join(f" [{n}]{name}:{port}/{link}" for n, (name, port, link) in enumerate(nics))
    name, address = sockets[0]
    using = f"NET/IB : Using{listed} [RO]; OOB {name}:{address}<0>"
    found = virtual[: len(nics)] if nics else ["NET/IB : No device found."]
    return [*found, using, *virtual[len(nics) :]]


def communicator_lines(
    version: str,
    *,
    host: str,
    pid: int,
    tid: int,
    cuda_dev: int,
    rank: int,
    ranks: int,
    plugin: str = "IB",
    mnnvl: int = 0,
    comm: int = 0x55D0C0DE0000,
) -> list[str]:
    """One communicator is set up (init.cc); its channels are connected by its first operation."""
    name = _PLUGINS.get(plugin, plugin)
    what = (
        f"comm 0x{comm:x} rank {rank} nranks {ranks} cudaDev {cuda_dev} nvmlDev {cuda_dev} "
        f"busId {0x1B000 + cuda_dev * 0x1000:x} commId 0x5b1d2e3f40516273"
    )
    short = f"comm 0x{comm:x} rank {rank} nRanks {ranks}"
    who = "" if version in _BEFORE_2_30 else f"[Rank {rank}] "
    counted = "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels"
    lines = [
        f"Initialized NET plugin {name}",
        f"Assigned NET plugin {name} to comm",
        f"Using network {name}",
        f"DMA-BUF is available on GPU device {cuda_dev}",
        f"{who}ncclCommInitRankConfig {what} - Init START",
        f"{short} nNodes {ranks} localRanks 1 localRank 0 MNNVL {mnnvl}",
        *([f"Channel 00/01 : {' '.join(map(str, range(ranks)))}"] if rank == 0 else []),
        "P2P Chunksize set to 131072",
        f"{counted}, 2 p2p channels per peer",
    ]
    lines.append(f"ncclCommInitRankConfig {what} - Init COMPLETE")
    return [_info(version, f"{host}:{pid}:{tid} [{cuda_dev}]", line) for line in lines]


def channel_lines(
    version: str,
    *,
    host: str,
    pid: int,
    tid: int,
    cuda_dev: int,
    rank: int,
    peer: int,
    ranks: int,
    carrier: str,
    channels: int = 2,
) -> list[str]:
    """The channels of a ring in which `peer` follows `rank`: first all it receives on, then sends.

    `carrier`: "NET/IB/0/GDRDMA", "NET/IB/0/GDRDMA(PCI)/Shared", "NET/Socket/0", "P2P/CUMEM/read",
    "P2P/MNNVL", "P2P/IPC", "P2P/direct pointer", "SHM". transport/net.cc, p2p.cc, shm.cc. A GPU on
    another node counts as the same rail's, one on this node as the one of its rank.
    """
    before = (2 * rank - peer) % ranks
    inside = not carrier.startswith("NET/")
    own, to, of = (
        f"{each}[{each if inside and each != rank else cuda_dev}]" for each in (rank, peer, before)
    )
    if carrier.startswith("SHM"):
        carrier = "SHM/direct/direct" if version in _BEFORE_2_30 else "SHM/direct"
        lines = [f"Channel {n:02d} : {own} -> {to} via {carrier}" for n in range(channels)]
    elif inside:
        lines = [f"Channel {n:02d}/0 : {own} -> {to} via {carrier}" for n in range(channels)]
    else:
        flush = "/flush=None" if version == "2.31" and "GDRDMA" in carrier else ""
        lines = [
            f"Channel {n:02d}/0 : {of} -> {own} [receive] via {carrier}{flush}"
            for n in range(channels)
        ]
        lines += [
            f"Channel {n:02d}/0 : {own} -> {to} [send] via {carrier}" for n in range(channels)
        ]
    direct = int("GDRDMA" in carrier)
    lines.append(f"Connected all rings, use ring PXN 0 GDR {direct}")
    return [_info(version, f"{host}:{pid}:{tid} [{cuda_dev}]", line) for line in lines]


def multicast_lines(
    version: str, *, host: str, pid: int, tid: int, cuda_dev: int, rank: int, ranks: int
) -> list[str]:
    """A communicator's first operation over NVLink SHARP (transport/nvls.cc)."""
    line = (
        f"NVLS comm 0x55d0c0de0000 headRank {rank} nHeads {ranks} nvlsRanks {ranks} "
        "buffSize 4194304 nvlsPerRankSize 201326592 nvlsTotalSize 1610612736"
    )
    return [_info(version, f"{host}:{pid}:{tid} [{cuda_dev}]", line)]


def warn_line(  # noqa: PLR0917 - the order of the line itself
    version: str,
    host: str,
    pid: int,
    tid: int,
    cuda_dev: int,
    text: str,
    where: str = "misc/ibvwrap.cc:301",
    function: str = "wrap_ibv_modify_qp",
    at: str = "2026-01-02 03:04:05",
) -> str:
    """A warning, whose text is NCCL's last error from then on (debug.cc).

    An empty line stands before it and a time in it; from 2.30 on also the function.
    """
    inside = "" if version in _BEFORE_2_30 else f" ({function})"
    return f"\n[{at}] {host}:{pid}:{tid} [{cuda_dev}] {where}{inside} NCCL WARN {text}"


def modify_qp_failed(
    device: str,
    port: int = 1,
    error: str = "110 Connection timed out",
    local: str = "fe80::1",
    remote: str = "fe80::2",
) -> str:
    """A warning's text: a queue pair did not reach its partner over RoCE (misc/ibvwrap.cc)."""
    return (
        f"Call to ibv_modify_qp failed with {error}, on dev {device}:{port}, curr state INIT, "
        f"next state RTR, local GID index 3, local GID {local}, remote GID {remote}"
    )


def completion_failed(
    version: str, peer: str, device: str, status: str = "IBV_WC_RETRY_EXC_ERR", number: int = 12
) -> str:
    """A warning's text: an operation over IB failed (net_ib.cc, from 2.29 on net_ib/p2p.cc).

    `peer`: its address and port, "10.0.0.42<38111>". `status`: the 13th of enum ibv_wc_status.
    """
    told = {
        "2.27": f"status={number} opcode=0 len=0 vendor err 129 (Send)",
        "2.28": f"status={status}({number}) opcode=IBV_WC_SEND(0) reqSize=524288 vendor_err=129 "
        "req_type=Send",
    }
    after = f"status={status}({number}) opcode=IBV_WC_SEND(0) vendor_err=129 "
    return f"NET/IB: Got completion from peer {peer} with {told.get(version, after)} hca {device}"


def closed_by(peer: str) -> str:
    """A warning's text: the other end closed its socket (misc/socket.cc, socketProgress)."""
    return f"socketProgress: Connection closed by remote peer {peer}"


def exception_text(
    version: str,
    torch_version: str,
    *,
    kind: str = "system",
    last_error: str = "",
    rank: int = 0,
    timeout_ms: int = 10_000,
) -> str:
    """What torch's DistBackendError says.

    `kind`: "timeout" of the watchdog and of Work.wait(timeout), or one of FAILURES. "remote" comes
    later, by the watchdog's question; the others out of the call that failed, as "left" does, which
    reads the same otherwise. `last_error`: the last warning's text.
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (checkTimeout, checkForNCCLErrorsInternal) and
    NCCLUtils.hpp (C10D_NCCL_CHECK) of 2.6 to 2.13; torch was built
    in another folder before 2.6.
    """
    if kind == "timeout":
        return (
            f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
            f"OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={timeout_ms}) ran for "
            f"{timeout_ms + 55} milliseconds before timing out."
        )
    failure = FAILURES["remote" if kind == "left" else kind]
    root = "/pytorch" if tuple(map(int, torch_version.split(".")[:2])) >= (2, 6) else ".."
    where = f" in: {root}/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690,"
    return (
        f"NCCL error{':' if kind == 'remote' else where} {failure.error}, NCCL version "
        f"{RELEASES[version]}\n{failure.detail}\nLast error:\n{last_error}"
    )


def _info(version: str, who: str, text: str) -> str:
    """One line (debug.cc): cut at 1023 characters up to 2.28, whole from then on."""
    line = f"{who} NCCL INFO {text}"
    return line[:1023] if version in _BEFORE_2_29 else line
