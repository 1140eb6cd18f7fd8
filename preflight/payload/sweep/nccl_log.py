"""What NCCL itself says carries the data: sockets where InfiniBand was promised are no small thing.

It falls back without an error, so only its log tells. The log goes to memory, never to a disk.
"""

from __future__ import annotations

import os
import re

_USING = re.compile(r"NCCL INFO NET/(.+?) ?: Using (.*)")
_DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)?\s*: .* via (.+)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_NAMES = {"AWS Libfabric": "OFI", "Libfabric": "OFI"}
_MOST = 4 << 20


class Log:
    """NCCL's log of this process, in memory; to be made before NCCL is first used."""

    def __init__(self) -> None:
        self._file = os.memfd_create("nccl")
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
    Several ways at once are all named, with " + " between them.
    """
    devices: dict[str, dict[str, str]] = {}
    for found in _USING.finditer(said):
        devices[_name(found.group(1))] = dict(_DEVICE.findall(found.group(2)))
    ways: dict[str, None] = {}
    for found in _CHANNEL.finditer(new):
        ways[_way(found.group(1).strip(), devices)] = None
    if not ways:
        for found in _NETWORK.finditer(new) or ():
            ways[_network(_name(found.group(1).strip()), devices)] = None
    return " + ".join(ways)


def _name(network: str) -> str:
    return _NAMES.get(network, network)


def _way(via: str, devices: dict[str, dict[str, str]]) -> str:
    """One channel's: "NET/IB/0/GDRDMA", "NET/Socket/0", "P2P/CUMEM/read", "SHM/direct/direct"."""
    kind, *rest = via.split("/")
    if kind != "NET" or not rest:
        return kind
    network = _name(rest[0])
    number = rest[1].partition("(")[0] if len(rest) > 1 else ""
    device = devices.get(network, {}).get(number, "")
    words = ["NET/" + network, device, "GDRDMA" if "GDRDMA" in rest else ""]
    return " ".join(word for word in words if word)


def _network(network: str, devices: dict[str, dict[str, str]]) -> str:
    """Of a communicator without channels over the network yet: its only device, if it has one."""
    names = list(devices.get(network, {}).values())
    return f"NET/{network} {names[0]}" if len(names) == 1 else f"NET/{network}"
