"""A process's own context on its GPU: made before anybody waits for it, or refused with the reason.

Making it takes 1 to 15 s on a node without persistence mode, and may hang in the driver.
"""

from __future__ import annotations

import time

from . import gpu_counters, lifeline
from .account import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BUSY = "busy or unavailable"  # cudaErrorDevicesUnavailable, as cudaGetErrorString has it
_AGAIN_S = 1.0


class NoCuda(Exception):  # noqa: N818 - it may be no error of this node's
    """There is no context to be had; `held`: another process has the GPU to itself."""

    def __init__(self, error: str, *, held: bool = False) -> None:
        super().__init__(error)
        self.held = held


def initialise(torch: Any, index: int, patience_s: float = lifeline.EXIT_S) -> None:
    """Make this process's context on that GPU; NoCuda if there is none to be had.

    A GPU in exclusive-process mode may still be held by the process before this one, which exits:
    it is waited for.
    """
    ends = time.monotonic() + patience_s
    while True:
        try:
            torch.cuda.set_device(index)
            torch.zeros(1, device=torch.device("cuda", index))
            torch.cuda.synchronize(index)
        except Exception as error:
            if _BUSY not in str(error):
                raise NoCuda(f"CUDA did not initialise: {short(error)}") from error
            if time.monotonic() > ends:
                holder = _holder(torch, index)
                why = holder or f"CUDA did not initialise: {short(error)}"
                raise NoCuda(why, held=bool(holder)) from error
            time.sleep(_AGAIN_S)
        else:
            return


def _holder(torch: Any, index: int) -> str:
    """Who has this GPU to itself; "" where its mode lets several in, so that it is broken.

    Where NVML does not tell the mode, nothing is proven: the words say so.
    """
    try:
        at = torch.cuda._get_nvml_device_index(index)  # noqa: SLF001 - heeds CUDA_VISIBLE_DEVICES
    except (AttributeError, RuntimeError, ValueError):
        at = index
    alone, pids = gpu_counters.Gpus().sole_holders(at)
    if alone is None:
        return f"GPU {at} is busy or unavailable; NVML does not tell whether a process holds it"
    if not alone:
        return ""
    who = ", ".join(f"pid {pid}{_name(pid)}" for pid in pids) or "another process"
    return f"exclusive process: {who} holds GPU {at}"


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return f" ({file.read().strip()})"
    except OSError:  # in a container NVML may count by the host's numbers
        return ""
