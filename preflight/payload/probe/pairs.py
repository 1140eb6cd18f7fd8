"""How two GPUs of a node reach each other: the distance on PCIe, and whether peer access works."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .nvml import Nvml

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in nvidia-smi's words; 0 (two GPUs on one board) has none of its own."""

_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "IOH topology not supported",
    4: "disabled by regkey",
    5: "not supported",
}
"""nvmlGpuP2PStatus_t."""

_CAPS = {"p2p_read": 0, "p2p_write": 1, "p2p_nvlink": 2}
"""nvmlGpuP2PCapsIndex_t. Spelled out: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake."""


def read(nvml: Nvml, handles: dict[int, Any]) -> list[dict[str, Any]]:
    """Return one `GpuPair` for each two GPUs that answered, by index."""
    return [
        _pair(nvml, (a, handles[a]), (b, handles[b])) for a in handles for b in handles if a < b
    ]


def _pair(nvml: Nvml, one: tuple[int, Any], other: tuple[int, Any]) -> dict[str, Any]:
    (a, first), (b, second) = one, other
    level = nvml.ask(nvml.lib.nvmlDeviceGetTopologyCommonAncestor, first, second)
    pair = {"a": a, "b": b, "ancestor": _ANCESTORS.get(level, "unknown")}
    for name, caps in _CAPS.items():
        status = nvml.ask(nvml.lib.nvmlDeviceGetP2PStatus, first, second, caps)
        pair[name] = _P2P.get(status, "unknown")
    return pair
