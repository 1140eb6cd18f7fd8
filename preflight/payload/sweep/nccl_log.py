"""What NCCL itself says carries the data: sockets where InfiniBand was promised are no small thing.

It falls back without an error, so only its log tells. The log goes to memory, never to a disk.
"""

from __future__ import annotations

import os
import re

_USING = re.compile(r"NCCL INFO NET/(\S+?) ?: Using (.*)")
# "[0]mlx5_3:1/RoCE", from 2.30 on with rail and plane "[0]mlx5_3:1:3:0/IB"; "[0]eth0:10.0.0.41<0>".
_DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):(?:[\d:]*/(\w+))?")
# Ports that NCCL merges follow the devices under a number of their own: "name=mlx5_0+mlx5_1".
_VIRTUAL = re.compile(r"NCCL INFO NET/\S+ : Made virtual device \[(\d+)\] name=(\S+)")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)?\s*: .{0,200} via (.+)")
_MULTICAST = re.compile(r"NCCL INFO NVLS comm ")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
# NCCL names a NIC of which it uses the Data Direct interface "mlx5_3_dma"; the system does not.
_DIRECT = re.compile(r"_dma(?=\+|$)")
_WARNING = re.compile(r"NCCL WARN (.+)")
# aws-ofi-nccl before and after 1.14; the copy of NET/IB in HPC-X calls itself IBext_v8 and so on.
_NAMES = {"AWS Libfabric": "OFI", "Libfabric": "OFI"}
_PLUGIN_IB = "IBext"
_MOST = 4 << 20
KEPT_BYTES = 256 << 10
"""Of one process's log, for a capture: its first and its last half."""


def kept(file: int) -> str:
    """Return the log as printable lines; of a long one the middle is left out."""
    said = os.pread(file, _MOST, 0)
    if len(said) > KEPT_BYTES:
        half = KEPT_BYTES // 2
        left_out = f"\n[{len(said) - 2 * half} bytes are left out here]\n"
        said = said[:half] + left_out.encode("ascii") + said[-half:]
    text = said.decode("ascii", "replace").replace("\ufffd", "?")
    return "".join(each for each in text if each in "\t\n" or each.isprintable())


class Log:
    """NCCL's log of this process, in memory; to be made before NCCL is first used."""

    def __init__(self, file: int | None = None) -> None:
        """`file`: where it goes; whoever made it reads it also after this process was killed."""
        self._file = made() if file is None else file
        self._told = 0
        os.environ.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH",
            NCCL_DEBUG_FILE=f"/proc/self/fd/{self._file}",
        )

    def words(self) -> str:
        """What carried the data since the last call; nothing where NCCL did not say."""
        said = os.pread(self._file, _MOST, 0).decode("ascii", "replace")
        new = said[self._told :]
        self._told = len(said)
        return carried(said, new)


def carried(said: str, new: str) -> str:
    """Read "NET/IB mlx5_3 GDRDMA", "NET/Socket eth0", "P2P" out of NCCL's own lines.

    `said`: everything so far (devices are named once per process). `new`: the communicator's part.
    Several ways at once are all named, with " + " between them. The lines are those of NCCL 2.27
    to 2.31: transport/net.cc, p2p.cc, shm.cc, nvls.cc, net_ib.cc (net_ib/init.cc), net_socket.cc.
    """
    devices = _devices(said)
    ways: dict[str, None] = {}
    for found in _CHANNEL.finditer(new):
        ways[_way(found.group(1).strip(), devices)] = None
    if _MULTICAST.search(new):
        ways["NVLS"] = None
    if not ways:
        for found in _NETWORK.finditer(new):
            ways[_network(_name(found.group(1).strip()), devices)] = None
    return " + ".join(ways)


def _devices(said: str) -> dict[str, dict[str, str]]:
    """What each number of each network stands for: "mlx5_3", "mlx5_3 RoCE", "eth0"."""
    devices: dict[str, dict[str, str]] = {}
    links: dict[str, str] = {}
    for using in _USING.finditer(said):
        for number, name, link in _DEVICE.findall(using.group(2)):
            links[name] = " RoCE" if link == "RoCE" else ""
            own = devices.setdefault(_name(using.group(1)), {})
            own[number] = _DIRECT.sub("", name) + links[name]
    for number, name in _VIRTUAL.findall(said):
        link = links.get(name.partition("+")[0], "")
        devices.setdefault("IB", {})[number] = _DIRECT.sub("", name) + link
    return devices


def _name(network: str) -> str:
    return "IB" if network.startswith(_PLUGIN_IB) else _NAMES.get(network, network)


def _way(via: str, devices: dict[str, dict[str, str]]) -> str:
    """One channel's: "NET/IB/0/GDRDMA(PCI)", "NET/Socket/0", "P2P/CUMEM/read", "SHM/direct"."""
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
    """Of a communicator without channels over the network yet: its only device, if it has one."""
    names = list(devices.get(network, {}).values())
    return f"NET/{network} {names[0]}" if len(names) == 1 else f"NET/{network}"


def made() -> int:
    """A file in memory for a log; its descriptor survives a fork."""
    return os.memfd_create("nccl")


def length(file: int | None) -> int:
    """Bytes in that log so far; 0 without one."""
    return 0 if file is None else os.fstat(file).st_size


def reason(file: int | None, since: int = 0) -> str:
    """Return NCCL's last warning in that log from that byte on; nothing where it gave none.

    ncclGetLastError has the same one: src/debug.cc of NCCL keeps the text of the last WARN.
    """
    if file is None:
        return ""
    warnings = _WARNING.findall(os.pread(file, _MOST, since).decode("ascii", "replace"))
    return warnings[-1].strip() if warnings else ""
