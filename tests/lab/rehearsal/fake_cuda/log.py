"""What NCCL writes into NCCL_DEBUG_FILE, and the text of its errors."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import machine, nccl_text

if TYPE_CHECKING:
    from .communicator import Communicator

_told: set[int] = set()
_read: set[int] = set()


def environment() -> None:
    """Keep what NCCL reads at its first call in a process (misc/param.cc), for tests to see."""
    if os.getpid() in _read:
        return
    _read.add(os.getpid())
    with (machine.folder() / f"{os.uname().nodename}.environ").open("a") as file:
        found = {key: text for key, text in os.environ.items() if key.startswith(("NCCL_", "LD_"))}
        file.write(json.dumps(found) + "\n")


def connected(communicator: Communicator) -> None:
    """A communicator came up: the process's devices (once), its own part, its channels."""
    own = communicator.ends[communicator.rank]
    here: dict[str, Any] = {
        "host": own["host"],
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "cuda_dev": own["gpu"],
    }
    plugin = "IB" if own["nic"] else "Socket"
    nics = [(nic["name"], 1, nic["layer"]) for nic in own["nics"]]
    lines: list[str] = []
    if os.getpid() not in _told:
        _told.add(os.getpid())
        sockets = [("eth0", own["address"])]
        lines += nccl_text.init_lines(_version(), **here, nics=nics, sockets=sockets, plugin=plugin)
    rank, ranks = communicator.rank, communicator.size
    lines += nccl_text.communicator_lines(_version(), **here, rank=rank, ranks=ranks, plugin=plugin)
    direct = "/GDRDMA" if machine.known()["fabric"]["gdr"] else ""
    number = next((at for at, (name, _, _) in enumerate(nics) if name == own["nic"]), 0)
    carrier = {
        "IB": f"NET/IB/{number}{direct}",
        "Socket": "NET/Socket/0",
        "P2P": "P2P/MNNVL" if communicator.mnnvl else "P2P/CUMEM",
        "SHM": "SHM/direct/direct",
    }[communicator.carrier]
    lines += nccl_text.channel_lines(
        _version(), **here, rank=rank, peer=(rank + 1) % ranks, ranks=ranks, carrier=carrier
    )
    _write(lines)


def connect_failed(fault: dict[str, Any]) -> str:
    """A communicator could not come up: a line of warning, and the text of torch's exception."""
    return _warned("system", fault["last_error"])


def left(peer: str) -> str:
    """As above, for another end whose own part of it failed. `peer`: its address."""
    return _warned("left", nccl_text.closed_by(f"{peer}<38111>"))


def failed(warning: str, peer: str, device: str) -> str:
    """A connection broke: as above. `peer`: its address; `device`: our NIC."""
    usual = nccl_text.completion_failed(_version(), f"{peer}<38111>", device)
    return _warned("remote", warning or usual)


def _warned(kind: str, warning: str) -> str:
    here = (os.uname().nodename, os.getpid(), threading.get_native_id(), 0)
    _write([nccl_text.warn_line(_version(), *here, warning)])
    text: str = nccl_text.exception_text(
        _version(), machine.known()["torch"], kind=kind, last_error=warning
    )
    return text


def _version() -> str:
    return ".".join(machine.known()["nccl"].split(".")[:2])


def _write(lines: list[str]) -> None:
    path = os.environ.get("NCCL_DEBUG_FILE")
    if path is not None and os.environ.get("NCCL_DEBUG") is not None:
        with Path(path).open("a", encoding="ascii") as file:
            file.writelines(line.rstrip("\n") + "\n" for line in lines)
