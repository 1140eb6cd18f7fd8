"""Which GPU works and which waits: utilisation, power and clocks at one moment, from NVML."""

from __future__ import annotations

import time

from probe import gpu_health
from probe.nvml import LIBRARY, Nvml
from probe.text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_IDLE = "idle"
MOST_PIDS = 256
MIB = 1 << 20


def read(at: float) -> dict[str, Any]:
    """Return `gpus` and `problems` as of that moment (monotonic); in a child only.

    `gpus` is None where there is no driver, or it refuses; the time until then is for its start.
    """
    import ctypes  # only this child needs it

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = "cannot open shared object file" in str(error)
        return {"gpus": None, "problems": [] if missing else ["GPUs: " + words(error)]}
    try:
        import pynvml

        pynvml.nvmlInit()
        time.sleep(max(0.0, at - time.monotonic()))
        nvml = Nvml(pynvml)
        gpus = [_gpu(nvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except ImportError as error:
        return {"gpus": None, "problems": ["GPUs: " + words(error)]}
    except pynvml.NVMLError as error:
        return {"gpus": None, "problems": ["GPUs: " + clean(str(error))]}
    return {"gpus": [gpu for gpu in gpus if gpu], "problems": nvml.problems}


def _gpu(nvml: Nvml, index: int) -> dict[str, Any] | None:
    nvml.subject = f"GPU {index}"
    handle = nvml.ask(nvml.lib.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    memory = nvml.ask_by_name("nvmlDeviceGetMemoryInfo", handle)
    rates = nvml.ask_by_name("nvmlDeviceGetUtilizationRates", handle)
    milliwatts = nvml.ask_by_name("nvmlDeviceGetPowerUsage", handle)
    return {
        "index": index,
        "uuid": nvml.text(nvml.lib.nvmlDeviceGetUUID, handle),
        "busy_percent": _bounded(None if rates is None else rates.gpu, 100),
        "power_w": None if milliwatts is None else round(milliwatts / 1000, 1),
        "clock_mhz": nvml.ask_by_name("nvmlDeviceGetClockInfo", handle, nvml.lib.NVML_CLOCK_SM),
        "clock_max_mhz": nvml.ask_by_name(
            "nvmlDeviceGetMaxClockInfo", handle, nvml.lib.NVML_CLOCK_SM
        ),
        "memory_used_mib": None if memory is None else memory.used // MIB,
        "memory_mib": None if memory is None else memory.total // MIB,
        "throttled": _throttled(nvml, handle),
        "pids": _pids(nvml, handle),
    }


def _bounded(value: int | None, most: int) -> int | None:
    return value if value is not None and 0 <= value <= most else None


def _throttled(nvml: Nvml, handle: Any) -> list[str]:
    bits = nvml.ask_by_name("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # before R535 it has another name
        bits = nvml.ask_by_name("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return [name for name in gpu_health.reasons(int(bits or 0)) if name != _IDLE]


def _pids(nvml: Nvml, handle: Any) -> list[int]:
    listed = nvml.ask_by_name("nvmlDeviceGetComputeRunningProcesses", handle) or []
    return sorted({one.pid for one in listed if 0 <= one.pid < 1 << 31})[:MOST_PIDS]
