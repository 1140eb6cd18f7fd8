"""Started by srun on every node: calls the controller back, then does what that one says."""

from __future__ import annotations

import ctypes
import os
import socket

from . import dial, frames
from .serve import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Read = Callable[[], "dict[str, Any] | None"]
    Emit = Callable[["dict[str, Any]"], None]

# linux/prctl.h
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one run of preflight; `start` ends whatever is left when this returns."""
    del read_line
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"preflight-relay", 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # Where Slurm itself reaches the launching host is the likeliest way for us too.
        slurms = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
        offered = [each for each in request["addresses"] if each != slurms]
        connection = dial.dial([*([slurms] if slurms else []), *offered], request["port"])
        sealer, opener = dial.meet(connection, name, bytes.fromhex(request["secret"]))
    except (dial.NoWay, frames.Refused, OSError) as error:
        emit({"node": name, "trouble": str(error) or type(error).__name__})
        return
    Server(connection, sealer, opener).run()
