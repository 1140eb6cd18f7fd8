"""Creates a process's CUDA context before its partners wait for it, or reports why it cannot.

That takes 1 to 15 s on a node without persistence mode, and may hang in the driver.
"""

from __future__ import annotations

import gc
import logging
import os
import time
import warnings
from typing import Any

import children
from probe import guard
from probe.node_files import attempt

from . import counters
from .plan import short

_BUSY = "busy or unavailable"  # cudaGetErrorString of cudaErrorDevicesUnavailable
_AGAIN_S = 1.0


class NoCuda(Exception):  # noqa: N818 - it may be no error of this node's
    """A context cannot be created; `held`: another process uses the GPU exclusively."""

    def __init__(self, error: str, *, held: bool = False) -> None:
        super().__init__(error)
        self.held = held


def initialise(torch: Any, index: int, patience_s: float = children.EXIT_S) -> None:
    """Create this process's context on a GPU; NoCuda if that fails.

    In exclusive-process mode the previous process may still hold the GPU until it exits: wait for
    up to `patience_s`.
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
    """The process that uses this GPU exclusively; "" if its mode allows several: then it is broken.

    If NVML does not report the mode, the text says that nothing is proven.
    """
    try:
        at = torch.cuda._get_nvml_device_index(index)  # noqa: SLF001 - heeds CUDA_VISIBLE_DEVICES
    except (AttributeError, RuntimeError, ValueError):
        at = index
    alone, pids = counters.Gpus().sole_holders(at)
    if alone is None:
        return f"GPU {at} is busy or unavailable; NVML does not report whether a process holds it"
    if not alone:
        return ""
    holders = ", ".join(f"pid {pid}{_name(pid)}" for pid in pids) or "another process"
    return f"exclusive process: {holders} holds GPU {at}"


def _name(pid: int) -> str:
    name = attempt(f"/proc/{pid}/comm")  # in a container NVML may count by the host's numbers
    return f" ({name})" if name else ""


_CUDA_S = 20.0  # a cold driver without persistence mode takes several seconds per GPU
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
    # torch reads it when it loads; DETAIL makes ProcessGroupNCCL time and hash every operation.
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    # Query NVML, not the CUDA runtime, for GPUs: a fork must stay possible.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def describe() -> dict[str, Any]:
    """Return the agent's first event: `ready`, or `no_torch` with the reason."""
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        torch, dist = _load()
    except Exception as error:  # noqa: BLE001 - a half-installed torch raises all sorts of things
        return {"event": "no_torch", "error": f"{type(error).__name__}: {short(error)}"}
    if not (dist.is_available() and dist.is_gloo_available()):
        return {"event": "no_torch", "error": "this torch was built without gloo"}
    ready = {"event": "ready", "torch": str(torch.__version__), "cuda": False, "gpus": 0}
    ready["bus_ids"] = []
    if dist.is_nccl_available():
        ready.update(_cuda(torch))
    return ready


def _load() -> tuple[Any, Any]:
    """Import torch once for all rails, without the garbage collector.

    It would find nothing, and takes an eighth of the import. torch's objects are excluded from
    later collections, too, which would take tens of ms, perhaps during a timed operation.
    """
    gc.disable()
    try:
        import torch
        import torch.distributed as dist
    finally:
        gc.freeze()
        gc.enable()
    return torch, dist


def _cuda(torch: Any) -> dict[str, Any]:
    """Count the GPUs in a child: the CUDA runtime may hang, and spoils a process for forking."""
    counting = guard.spawn(_gpus, torch, os.getpid())
    until = guard.clock.now() + _CUDA_S
    answer: dict[str, Any] = guard.answer_of("CUDA", counting, until, lambda _: None) or {}
    return answer


def _gpus(torch: Any, agent: int) -> dict[str, Any]:
    """Count the GPUs, with their PCI addresses in CUDA's order if NVML has them.

    torch counts with NVML (torch/cuda/__init__.py, `device_count`), which counts a lost GPU, too.
    """
    children.die_with_parent(agent, "preflight-cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return {"cuda": False, "gpus": 0}
    parse = getattr(torch.cuda, "_parse_visible_devices", None)  # not public
    visible = parse()[:count] if parse is not None else []
    bus_ids = counters.Gpus().bus_ids(visible) if len(visible) == count else []
    return {"cuda": True, "gpus": len(bus_ids) or count, "bus_ids": bus_ids}
