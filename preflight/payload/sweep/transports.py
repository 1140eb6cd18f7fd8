"""Binds a rail to its own NIC, and finds out what transport its data really used.

NCCL falls back to another transport without an error, so only its log shows it. The log is in
memory, never on a disk.

By default NCCL may send one GPU's data over another GPU's NIC, and hide the one under test.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from probe import node_files
from probe.network import interface_of
from probe.node_files import attempt, names

from . import plan

_USING = re.compile(r"NCCL INFO NET/(\S+?) ?: Using (.*)")
# "[0]mlx5_3:1/RoCE", from 2.30 on with rail and plane "[0]mlx5_3:1:3:0/IB"; "[0]eth0:10.0.0.41<0>".
_DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):(?:[\d:]*/(\w+))?")
# Ports that NCCL merges follow the devices under a number of their own: "name=mlx5_0+mlx5_1".
_VIRTUAL = re.compile(r"NCCL INFO NET/\S+ : Made virtual device \[(\d+)\] name=(\S+)")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)?\s*: .{0,200} via (.+)")
_MULTICAST = re.compile(r"NCCL INFO NVLS comm ")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
# With the Data Direct interface of a NIC, NCCL calls it "mlx5_3_dma"; the system does not.
_DIRECT = re.compile(r"_dma(?=\+|$)")
_WARN = re.compile(r"NCCL WARN (.+)")
# aws-ofi-nccl before and after 1.14; HPC-X's copy of NET/IB is called IBext_v8 and so on.
_NAMES = {"AWS Libfabric": "OFI", "Libfabric": "OFI"}
_PLUGIN_IB = "IBext"
_LARGEST = 4 << 20
KEPT_BYTES = 256 << 10
"""Most bytes of a process's log in a capture: half from its start, half from its end."""


class NcclLog:
    """NCCL's log of one measuring process; its supervisor can read it even after that was killed.

    Both have the descriptor, which survives a fork.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("nccl")
        self._read = 0

    def begin(self) -> None:
        """Let NCCL write it, in this process; call this before NCCL is first used."""
        os.environ.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH",
            NCCL_DEBUG_FILE=f"/proc/self/fd/{self._file}",
        )

    @property
    def length(self) -> int:
        """Bytes so far."""
        return os.fstat(self._file).st_size

    def words(self) -> str:
        """The transport used since the last call; "" if the log does not show it."""
        log = os.pread(self._file, _LARGEST, 0).decode("ascii", "replace")
        new = log[self._read :]
        self._read = len(log)
        return parse_log(log, new)

    def reason(self, since: int = 0) -> str:
        """Return NCCL's last warning after byte `since`; "" if there is none.

        It is the text of ncclGetLastError: src/debug.cc of NCCL keeps the last WARN.
        """
        warnings = _WARN.findall(os.pread(self._file, _LARGEST, since).decode("ascii", "replace"))
        return warnings[-1].strip() if warnings else ""

    def text(self) -> str:
        """Return it as printable lines, without the middle of a long one."""
        raw = os.pread(self._file, _LARGEST, 0)
        if len(raw) > KEPT_BYTES:
            half = KEPT_BYTES // 2
            left_out = f"\n[{len(raw) - 2 * half} bytes are left out here]\n"
            raw = raw[:half] + left_out.encode("ascii") + raw[-half:]
        text = raw.decode("ascii", "replace").replace("\ufffd", "?")
        return "".join(letter for letter in text if letter in "\t\n" or letter.isprintable())

    def close(self) -> None:
        """Give up this process's descriptor."""
        os.close(self._file)


def parse_log(log: str, new: str) -> str:
    """Find the transport in NCCL's log: "NET/IB mlx5_3 GDRDMA", "NET/Socket eth0", "P2P".

    `log`: the whole log (it names devices once per process). `new`: the communicator's part.
    Several transports are joined by " + ". The lines are those of NCCL 2.27 to 2.31:
    transport/net.cc, p2p.cc, shm.cc, nvls.cc, net_ib.cc (net_ib/init.cc), net_socket.cc.
    """
    devices = _devices(log)
    ways: dict[str, None] = {}
    for match in _CHANNEL.finditer(new):
        ways[_way(match.group(1).strip(), devices)] = None
    if _MULTICAST.search(new):
        ways["NVLS"] = None
    if not ways:
        for match in _NETWORK.finditer(new):
            ways[_network(_name(match.group(1).strip()), devices)] = None
    return " + ".join(ways)


def _devices(log: str) -> dict[str, dict[str, str]]:
    """The device of each number, by network: "mlx5_3", "mlx5_3 RoCE", "eth0"."""
    devices: dict[str, dict[str, str]] = {}
    links: dict[str, str] = {}
    for using in _USING.finditer(log):
        for number, name, link in _DEVICE.findall(using.group(2)):
            links[name] = " RoCE" if link == "RoCE" else ""
            by_number = devices.setdefault(_name(using.group(1)), {})
            by_number[number] = _DIRECT.sub("", name) + links[name]
    for number, name in _VIRTUAL.findall(log):
        link = links.get(name.partition("+")[0], "")
        devices.setdefault("IB", {})[number] = _DIRECT.sub("", name) + link
    return devices


def _name(network: str) -> str:
    return "IB" if network.startswith(_PLUGIN_IB) else _NAMES.get(network, network)


def _way(via: str, devices: dict[str, dict[str, str]]) -> str:
    """Convert a channel's transport: "NET/IB/0/GDRDMA(PCI)", "NET/Socket/0", "P2P/CUMEM/read"."""
    kind, *rest = via.split("/")
    if kind == "P2P" and rest[:1] == ["MNNVL"]:
        return "P2P MNNVL"
    if kind != "NET" or not rest:
        return kind
    network = _name(rest[0])
    number = rest[1].partition("(")[0] if len(rest) > 1 else ""
    device = devices.get(network, {}).get(number, "")
    direct = [word for word in rest[2:] if word.startswith("GDRDMA")]
    return " ".join(word for word in ("NET/" + network, device, *direct) if word)


def _network(network: str, devices: dict[str, dict[str, str]]) -> str:
    """For a communicator without network channels yet: the network, with its device if only one."""
    names = list(devices.get(network, {}).values())
    return f"NET/{network} {names[0]}" if len(names) == 1 else f"NET/{network}"


_ROOT_ONLY = 1


def bus_id(torch: Any, gpu: int) -> str | None:
    """The PCI address of one of torch's GPUs as in sysfs; None where not known.

    torch has it from 2.8 on (torch/csrc/cuda/Module.cpp), CUDA's driver library always; both number
    GPUs by CUDA_VISIBLE_DEVICES.
    """
    device = torch.cuda.get_device_properties(gpu)
    try:
        return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"
    except AttributeError:
        return _ask_driver(gpu)


def _ask_driver(gpu: int) -> str | None:
    """Query CUDA's driver library, as torch does: the function is the same since CUDA 4.1."""
    import ctypes

    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        failed = (
            cuda.cuInit(0)
            or cuda.cuDeviceGet(ctypes.byref(device), gpu)
            or cuda.cuDeviceGetPCIBusId(text, len(text), device)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else node_files.bus_id(text.value.decode("ascii")) or None


def nearest(root: str, gpu_bus_id: str, allowed: str = "") -> tuple[str, ...]:
    """RDMA devices with an active port that share the longest PCI path with the GPU.

    `allowed`: the job's NCCL_IB_HCA. () if none shares more than the root complex: then NCCL
    chooses the GPU's NIC. Several if they are equally near.
    """
    gpu = node_files.pci_path(f"{root}/bus/pci/devices/{gpu_bus_id}")
    shared: dict[str, int] = {}
    folder = root + "/class/infiniband"
    for name in names(folder):
        if permits(allowed, name) and active(f"{folder}/{name}"):
            nic = node_files.pci_path(f"{folder}/{name}/device")
            shared[name] = len(os.path.commonprefix([gpu or [], nic or []]))  # noqa: RUF071 (of steps)
    longest = max(shared.values(), default=0)
    if longest <= _ROOT_ONLY:
        return ()
    return tuple(name for name, steps in shared.items() if steps == longest)


def permits(spec: str, name: str) -> bool:
    """Whether NCCL_IB_HCA lets NCCL use a device: a list; "^" excludes, "=" matches whole names.

    Without "=", names are prefixes; ports after a colon are ignored. Source: NCCL's env.rst.
    """
    exclude, exact = spec.startswith("^"), spec.lstrip("^").startswith("=")
    names = [word.partition(":")[0] for word in spec.lstrip("^=").split(",") if word]
    hit = any(name == pattern if exact else name.startswith(pattern) for pattern in names)
    return not names or hit != exclude


def active(device: str) -> list[str]:
    """The active ports of an RDMA device, given its folder in sysfs."""
    ports = device + "/ports"
    return [port for port in names(ports) if "ACTIVE" in attempt(f"{ports}/{port}/state")]


UNPLACED = (
    "the PCI address of its GPU is unknown: NCCL was not bound to the NIC next to it, and no error "
    "counter or clock of the GPU is assigned to this rail"
)


class Transport:
    """A rail's transport, one per measuring process; call `prepare` before making a group."""

    def __init__(self, torch: Any, rail: plan.Rail, log: NcclLog | None = None) -> None:
        """Find the rail's own NIC and bind the library to it. `log`: with NCCL its log."""
        self._used: set[str] = set()
        """The words of the transports used, devices among them."""
        self._log = log
        self._log_start = 0
        self._sockets: set[str] = set()
        self.bus_id: str | None = None
        self.devices: tuple[str, ...] = ()
        self.interface = ""
        self.unplaced = ""
        """What is not checked because the GPU's PCI address is not known."""
        if log is not None:
            self._bind_nccl(torch, rail, log)
        else:
            interfaces = gloo_interfaces(rail)
            self.interface = interfaces[0] if interfaces else interface_of(rail.local)

    def prepare(self) -> None:
        """Note the open sockets, and where the log of the next group begins."""
        self._sockets = set(_sockets())
        self._used = set()
        self._log_start = 0 if self._log is None else self._log.length

    def question(self) -> dict[str, Any]:
        """Which counters to read: those of all devices if this rail's own are not known."""
        return {
            "bus_id": self.bus_id,
            "devices": self.devices or None,
            "interface": self.interface,
        }

    def words(self) -> str:
        """The transport used, by the library's log or by the sockets that it opened."""
        used = self._tcp() if self._log is None else self._log.words()
        self._used.update(re.split(r"[ +]+", used))
        return used

    def owns(self, counter: str) -> bool:
        """Whether a counter surely belongs to this rail: to its GPU, its NIC or its interface.

        Its NIC is the only one that it was bound to, or one that its data used. Several NICs are
        equally near if rails share a PCI switch, or in a VM without a PCI tree.
        """
        device_word = counter.partition(" ")[0]
        if device_word in ("GPU", "Xid"):
            return self.bus_id is not None
        if device_word in ("tcp", self.interface):
            return True
        device = device_word.partition("/")[0]
        return device in self._used or self.devices == (device,)

    def reason(self) -> str:
        """Why NCCL failed since `prepare`, in its own words; "" if it gave no reason."""
        return "" if self._log is None else self._log.reason(self._log_start)

    def _bind_nccl(self, torch: Any, rail: plan.Rail, log: NcclLog) -> None:
        self.bus_id = bus_id(torch, rail.gpu)
        spec = os.environ.get("NCCL_IB_HCA", "")
        if self.bus_id is None:
            self.unplaced = UNPLACED
        else:
            self.devices = nearest(rail.go.sysfs, self.bus_id, spec)
        if self.devices:
            os.environ["NCCL_IB_HCA"] = "=" + ",".join(self.devices)
        log.begin()

    def _tcp(self) -> str:
        """The interfaces of connections opened since `prepare`."""
        addresses: dict[str, None] = {}
        for link, descriptor in _sockets().items():
            if link not in self._sockets:
                addresses.update(dict.fromkeys(_local_address(descriptor)))
        interfaces = dict.fromkeys(interface_of(address) or address for address in addresses)
        return "tcp " + " ".join(interfaces) if interfaces else ""


def gloo_interfaces(rail: plan.Rail) -> list[str]:
    """The interfaces that gloo is bound to: ours, or the job's; [] if the route decides.

    GLOO_SOCKET_IFNAME as torch reads it: whole names (torch/csrc/distributed/c10d/init.cpp).
    """
    if rail.go.interface:
        return [rail.go.interface]
    text = "" if rail.go.pinned else os.environ.get("GLOO_SOCKET_IFNAME", "")
    return [name for name in text.split(",") if name]


def _sockets() -> dict[str, int]:
    """Our own sockets: the kernel's name of each, and its descriptor."""
    descriptors: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the listing's own descriptor, gone by now
        if link.startswith("socket:"):
            descriptors[link] = int(name)
    return descriptors


def _local_address(descriptor: int) -> list[str]:
    """The local address of a connection; [] if it is not connected over IP."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.getpeername()
            return [str(copy.getsockname()[0])] if copy.family != socket.AF_UNIX else []
    except OSError:
        return []  # it listens only, or the library has closed it
