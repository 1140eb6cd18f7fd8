"""What a rail's data go over on this node: held to its own NIC, and looked at after the fact."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct

from . import nccl_log, rail_nic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import plan

UNPLACED = (
    "the PCI address of its GPU is unknown: NCCL was not held to the NIC next to it, and no error "
    "counter or clock of the GPU is tied to this rail"
)

_SIOCGIFADDR = 0x8915  # linux/sockios.h


class Means:
    """One per measuring process; `prepare` before the first group is made."""

    def __init__(
        self, torch: Any, rail: plan.Rail, by_uuid: Callable[[str], str | None],
        log: int | None = None,
    ) -> None:  # fmt: skip
        """`by_uuid` asks NVML for a GPU's PCI address, where torch and CUDA do not tell it.

        `log`: where NCCL is to write its log, a descriptor.
        """
        self._torch = torch
        self._rail = rail
        self._by_uuid = by_uuid
        self._carried: set[str] = set()
        """Of the words on what carried the data: devices are among them."""
        self._ready = False
        self._log: nccl_log.Log | None = None
        self._file = nccl_log.made() if log is None and rail.go.backend == "nccl" else log
        self._since = 0
        self._sockets: set[str] = set()
        self.bus_id: str | None = None
        self.devices: tuple[str, ...] = ()
        self.interface = ""
        self.unplaced = ""
        """What is not checked for want of the GPU's PCI address."""

    def prepare(self) -> None:
        """Find the rail's own NIC and hold the library to it; note which sockets there are."""
        if not self._ready:
            self._ready = True
            if self._rail.go.backend == "nccl":
                self._prepare_nccl()
            else:
                named = gloo_interfaces(self._rail)
                self.interface = named[0] if named else interface_of(self._rail.local)
        self._sockets = set(_sockets())
        self._carried = set()
        self._since = nccl_log.length(self._file)

    def question(self) -> dict[str, Any]:
        """Which counters to read: those of all devices, where this rail's own are not known."""
        return {
            "bus_id": self.bus_id,
            "devices": self.devices or None,
            "interface": self.interface,
        }

    def words(self) -> str:
        """What carried the data, by the library's log or by the sockets that it opened."""
        said = self._log.words() if self._log is not None else self._tcp()
        self._carried.update(re.split(r"[ +]+", said))
        return said

    def owns(self, counter: str) -> bool:
        """Whether a counter is surely this rail's: its GPU's, its NIC's, its interface's.

        Its NIC is the only one that it was held to, or one that is said to have carried its data:
        several are as near where rails share a PCI switch, or in a VM that shows no PCI tree.
        """
        part = counter.partition(" ")[0]
        if part in ("GPU", "Xid"):
            return self.bus_id is not None
        if part in ("tcp", self.interface):
            return True
        device = part.partition("/")[0]
        return device in self._carried or self.devices == (device,)

    def reason(self) -> str:
        """Why NCCL failed since `prepare`, in its own words; nothing where it gave none."""
        return nccl_log.reason(self._file, self._since)

    def _prepare_nccl(self) -> None:
        rail = self._rail
        self.bus_id = rail_nic.bus_id(self._torch, rail.cuda, self._by_uuid)
        wanted = os.environ.get("NCCL_IB_HCA", "")
        if self.bus_id is None:
            self.unplaced = UNPLACED
        else:
            self.devices = rail_nic.nearest(rail.go.sysfs, self.bus_id, wanted)
        if self.devices:
            os.environ["NCCL_IB_HCA"] = "=" + ",".join(self.devices)
        self._log = nccl_log.Log(self._file)

    def _tcp(self) -> str:
        """The interfaces of the connections that were opened since `prepare`."""
        found: dict[str, None] = {}
        for link, descriptor in _sockets().items():
            if link not in self._sockets:
                found.update(dict.fromkeys(_local(descriptor)))
        named = dict.fromkeys(interface_of(address) or address for address in found)
        return "tcp " + " ".join(named) if named else ""


def gloo_interfaces(rail: plan.Rail) -> list[str]:
    """The interfaces that gloo is held to: ours, or the job's; none where the route decides.

    GLOO_SOCKET_IFNAME as torch reads it: whole names (torch/csrc/distributed/c10d/init.cpp).
    """
    if rail.go.interface:
        return [rail.go.interface]
    text = "" if rail.go.pinned else os.environ.get("GLOO_SOCKET_IFNAME", "")
    return [name for name in text.split(",") if name]


def interface_of(address: str) -> str:
    """The interface that has this address; nothing where none says so."""
    if ":" in address:
        return _interface_of_v6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no address of this family
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _interface_of_v6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    return next((line[-1] for line in lines if line and line[0] == wanted), "")


def _sockets() -> dict[str, int]:
    """Our own sockets: what the kernel calls each, and its descriptor."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the listing's own descriptor, gone by now
        if link.startswith("socket:"):
            found[link] = int(name)
    return found


def _local(descriptor: int) -> list[str]:
    """The local address of a connection; nothing for what is not connected over IP."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.getpeername()
            return [str(copy.getsockname()[0])] if copy.family != socket.AF_UNIX else []
    except OSError:
        return []  # it listens only, or the library has closed it
