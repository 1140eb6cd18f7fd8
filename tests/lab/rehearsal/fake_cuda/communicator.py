"""One NCCL communicator: its ends meet over real sockets and agree when each operation ran.

Rank 0 listens where NCCL would (NCCL_SOCKET_IFNAME) and tells its address through the store, as the
unique id does. For each batch of operations the ends send it when their streams reach them and what
they sum; it answers when they ended and what came out. Nobody answers for an end that hangs.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import socket
import struct
from typing import TYPE_CHECKING, Any

from . import cuda, log, machine
from .rates import Wire
from .stream import Reached, spin

if TYPE_CHECKING:
    from .cuda import Gpu

_HEAD = struct.Struct("!II")
_LONGEST_S = 3600.0
_FAILED = "failed"


class Communicator:
    """The ends of one process group, as one of them sees it."""

    def __init__(self, torch: Any, rank: int, size: int, gpu: Gpu) -> None:
        self.rank = rank
        self.size = size
        self.gpu = gpu
        self.ends: list[dict[str, Any]] = []
        self._torch = torch
        self._peers: list[socket.socket] = []
        """Of rank 0: to rank 1, 2, ...; of the others: to rank 0 only."""
        self._wire: Wire | None = None
        self._run = 0
        self.error = ""
        """What ncclCommGetAsyncError answers, as torch words it."""

    # -- coming up

    def listen(self) -> str:
        """Of rank 0: where the others connect, which is what the unique id holds."""
        self._server = socket.create_server((_address(), 0), backlog=self.size)
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    def connect(self, unique_id: str, setup_us: float) -> None:
        """Meet the others; all host clocks agree from here on."""
        own = self._profile()
        if self.rank == 0:
            self._peers = [socket.socket()] * (self.size - 1)
            self.ends = [own] * self.size
            for _ in range(self.size - 1):
                peer, _address_of = self._server.accept()
                said, _data = _receive(peer)
                self._peers[said["rank"] - 1] = peer
                self.ends[said["rank"]] = said
            self._server.close()
            for peer in self._peers:
                _send(peer, {"ends": self.ends})
        else:
            host, _, port = unique_id.rpartition(":")
            peer = socket.create_connection((host, int(port)), timeout=_LONGEST_S)
            self._peers = [peer]
            _send(peer, own)
            self.ends = _receive(peer)[0]["ends"]
        clock = self.gpu.stream.clock
        clock.enter()
        clock.wait_until(max(end["now_us"] for end in self.ends) + setup_us)
        for end in self.ends:
            end["carrier"] = self._carrier()
        seed = f"{machine.known()['seed']} {[end['pid'] for end in self.ends]}"
        self._wire = Wire(self.ends, machine.known()["fabric"], seed)

    def refused(self) -> str:
        """Why no connection came up, as torch words it at this end; empty if one did.

        An end that fails closes its bootstrap sockets, and the others fail for that. Source:
        transport.cc (ncclTransportP2pSetup), misc/socket.cc (socketProgress).
        """
        assert self._wire is not None
        failed = {
            end["rank"]: fault
            for end in self.ends
            for fault in end["faults"]
            if fault["kind"] == "connect error" and self._wire.concerns(fault)
        }
        if self.rank in failed:
            return log.connect_failed(failed[self.rank])
        return next((log.left(self.ends[rank]["address"]) for rank in failed), "")

    def close(self) -> None:
        """Abort: the others get nothing more from this end."""
        for peer in self._peers:
            peer.close()
        self._peers = []

    @property
    def carrier(self) -> str:
        """What carries the data: "IB", "Socket", "P2P", "SHM"."""
        return str(self.ends[0]["carrier"])

    @property
    def mnnvl(self) -> bool:
        """Whether NVLink joins the nodes of these ends. Source: src/mnnvl.cc, ncclMnnvlCheck."""
        domains = {end["domain"] for end in self.ends}
        several = len({end["host"] for end in self.ends}) > 1
        allowed = os.environ.get("NCCL_MNNVL_ENABLE") != "0"
        return several and allowed and len(domains) == 1 and None not in domains

    def _profile(self) -> dict[str, Any]:
        known = machine.known()
        nics = _usable_nics()
        nic, share = _nearest(nics, self.gpu.spec)
        faults = [fault for fault in known["faults"] if fault["slot"] in (None, self.gpu.slot)]
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "leaf": known["fabric"]["leaf"],
            "domain": known["fabric"]["nvlink_domain"],
            "p2p": known["fabric"]["p2p"] == "nvlink" and os.environ.get("NCCL_P2P_DISABLE") != "1",
            "slot": self.gpu.slot,
            "gpu": self.gpu.index,
            "nics": nics,
            "nic": nic,
            "address": _address(),
            "share": share,
            "now_us": self.gpu.stream.clock.now_us,
            "faults": faults,
        }

    def _carrier(self) -> str:
        """P2P, shared memory, network: NCCL's order. Source: src/transport.cc, ncclTransports."""
        hosts = {end["host"] for end in self.ends}
        near = len(hosts) == 1 or self.mnnvl
        if near and all(end["p2p"] for end in self.ends):
            return "P2P"
        if len(hosts) == 1 and os.environ.get("NCCL_SHM_DISABLE") != "1":
            return "SHM"
        return "IB" if all(end["nic"] for end in self.ends) else "Socket"

    # -- operations

    def run(self, reached: list[Reached], end_us: float, tensor: Any, operator: str) -> list[float]:
        """Do these all-reduces, in place, one after the other; when each ended."""
        self._fail_if_planted()
        ends: list[float] = []
        while reached:
            own = {
                "at": [reached[0].at(end_us)],
                "reached": [list(each) for each in reached],
                "operator": operator,
            }
            with self._torch._C.DisableTorchFunction():
                result, data = self._exchange(own, _bytes(tensor), tensor)
                _write(tensor, data)
            ends += result["ends"]
            self._run += len(result["ends"])
            end_us, reached = ends[-1], reached[len(result["ends"]) :]
        return ends

    def _exchange(
        self, own: dict[str, Any], data: bytes, tensor: Any
    ) -> tuple[dict[str, Any], bytes]:
        if self.rank:
            _send(self._peers[0], own, data)
            answer = _receive(self._peers[0])
            if _FAILED in answer[0]:
                self._fail()
            return answer
        said = [(own, data), *(_receive(peer) for peer in self._peers)]
        if any(_FAILED in head for head, _ in said):
            self._fail()
        size_bytes = tensor.claimed * tensor.element_size()
        times, results = self._decide(said, size_bytes, tensor.dtype)
        for peer, result in zip(self._peers, results[1:], strict=True):
            _send(peer, {"ends": times}, result)
        return {"ends": times}, results[0]

    def _decide(
        self, said: list[tuple[dict[str, Any], bytes]], size_bytes: int, dtype: Any
    ) -> tuple[list[float], list[bytes]]:
        """When each operation ends that all have reached, and what comes out at each end.

        In place, so from the second on all ends sum what the first one left.
        """
        assert self._wire is not None
        count = min(len(one["reached"]) for one, _ in said)
        total = self._sum([data for _, data in said], said[0][0]["operator"], dtype)
        ends: list[float] = []
        wrong = None
        for number in range(count):
            if number == 0:
                at = max(one["at"][0] for one, _ in said)
            else:
                at = max(Reached(*one["reached"][number]).at(ends[-1]) for one, _ in said)
                if said[0][0]["operator"] == "sum":
                    total = total * self.size
            ends.append(at + self._wire.takes_us(size_bytes))
            wrong = self._wire.corrupts(size_bytes) if said[0][0]["operator"] == "sum" else None
            if wrong is not None:
                break
        right = _bytes(total)
        results = [right] * self.size
        if wrong is not None:
            results[wrong] = _flipped(right)
        return ends, results

    def _sum(self, parts: list[bytes], operator: str, dtype: Any) -> Any:
        tensors = [self._torch.frombuffer(bytearray(part), dtype=dtype) for part in parts]
        total = tensors[0].clone()
        for other in tensors[1:]:
            total = total + other if operator == "sum" else self._torch.minimum(total, other)
        return total.to(dtype)

    def _fail_if_planted(self) -> None:
        """Where it is planted, our kernel never ends: once, or whenever it comes so far."""
        assert self._wire is not None
        for kind in ("hang", "network error"):
            for fault in cuda.faults(kind, self.gpu.slot):
                if not self._wire.concerns(fault) or self._run < fault["after"]:
                    continue
                if not fault["once"] or machine.first_time(f"{kind}.once"):
                    if kind == "hang":
                        spin()
                    self._fail(fault["last_error"])

    def _fail(self, warning: str = "") -> None:
        """A connection broke: NCCL's proxy warns and keeps the error, and our kernel never ends.

        Each end gets a completion with an error, of what it had sent itself. Source: net_ib/p2p.cc
        (ncclIbTest), proxy.cc (ncclProxyProgress: comm->asyncResult).
        """
        own = self.ends[self.rank]
        other = self.ends[(self.rank + 1) % self.size]
        self.error = log.failed(warning, other["address"], own["nic"])
        for peer in self._peers:
            _send(peer, {_FAILED: True})
        spin()


def _usable_nics() -> list[dict[str, Any]]:
    """The NICs with an active port among those that NCCL_IB_HCA permits, in NCCL's order."""
    if not machine.known()["fabric"]["ib_plugin"] or os.environ.get("NCCL_NET") == "Socket":
        return []
    spec = os.environ.get("NCCL_IB_HCA", "")
    exclude, exact = spec.startswith("^"), spec.lstrip("^").startswith("=")
    names = [word.partition(":")[0] for word in spec.lstrip("^=").split(",") if word]
    found = []
    for nic in machine.known()["nics"]:
        hit = any(nic["name"] == n if exact else nic["name"].startswith(n) for n in names)
        if nic["active"] and (not names or hit != exclude):
            found.append(nic)
    return found


def _nearest(nics: list[dict[str, Any]], gpu: dict[str, Any]) -> tuple[str, float]:
    """The NIC that NCCL takes for a GPU, and what share of it; none: sockets.

    A NIC that is not the GPU's own carries the data of another GPU, too. Source:
    src/graph/topo.cc, ncclTopoGetLocalNet.
    """
    if not nics:
        return "", 1.0
    best = min(nics, key=lambda nic: abs(int(nic["slot"]) - int(gpu["slot"])))
    return str(best["name"]), 1.0 if best["slot"] == gpu["slot"] else 0.5


def _address() -> str:
    """The address of the interface that NCCL_SOCKET_IFNAME names, or of the first but loopback."""
    import fcntl

    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "").lstrip("=")
    for _, name in socket.if_nameindex():
        if not name.startswith(wanted) if wanted else name == "lo":
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                continue
            return socket.inet_ntoa(answer[20:24])
    raise RuntimeError("NCCL WARN Bootstrap : no socket interface found")


def _send(peer: socket.socket, head: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(head).encode()
    try:
        peer.sendall(_HEAD.pack(len(text), len(data)) + text + data)
    except OSError:
        spin()  # the other end is gone: nothing of ours will ever end


def _receive(peer: socket.socket) -> tuple[dict[str, Any], bytes]:
    length, more = _HEAD.unpack(_exactly(peer, _HEAD.size))
    head: dict[str, Any] = json.loads(_exactly(peer, length))
    return head, _exactly(peer, more)


def _exactly(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        try:
            part = peer.recv(count - len(found))
        except OSError:
            part = b""
        if not part:
            spin()  # the other end is gone; without async error handling nobody says so
        found += part
    return found


def _bytes(tensor: Any) -> bytes:
    count = math.prod(cuda.exists(tensor))
    return ctypes.string_at(tensor.data_ptr(), count * tensor.element_size())


def _write(tensor: Any, data: bytes) -> None:
    ctypes.memmove(tensor.data_ptr(), data, len(data))


def _flipped(data: bytes) -> bytes:
    """One bit of one byte is wrong."""
    place = random.randrange(len(data))  # noqa: S311
    return data[:place] + bytes((data[place] ^ 0x10,)) + data[place + 1 :]
