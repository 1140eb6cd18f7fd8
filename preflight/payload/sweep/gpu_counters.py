"""What a GPU counts while its links lose bits or its clocks are held down; asked in a child only.

What a driver or a GPU does not know is absent; nothing is made of that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"

# nvml.h: nvmlClocksEventReason*, those that hardware or heat force upon a GPU.
_THROTTLE = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
_NVLINK = ("dl_replay", "dl_recovery", "crc_flit", "crc_data")  # nvmlNvLinkErrorCounter_t 0 to 3
_ECC = ("ecc_corrected", "ecc_uncorrected")  # nvmlMemoryErrorType_t
_VOLATILE = 0


class Gpus:
    """The GPUs of this node, or one of them; none where the driver is not there or refuses."""

    def __init__(self) -> None:
        self._lib: Any = None
        try:
            import ctypes

            ctypes.CDLL(LIBRARY)
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
        except Exception:  # noqa: BLE001 - no library, no module, NVML's own errors: no counters
            return

    def read(self, bus_id: str | None) -> tuple[dict[str, float], list[str]]:
        """Return the counters, and the throttle reasons that hold now."""
        counters: dict[str, float] = {}
        throttled: list[str] = []
        if self._lib is None:
            return counters, throttled
        for index, handle in self._handles(bus_id):
            for name, value in self._counters(handle):
                counters[f"GPU {index} {name}"] = float(value)
            reasons = self._ask("CurrentClocksEventReasons", handle)
            if reasons is None:  # the older name
                reasons = self._ask("CurrentClocksThrottleReasons", handle)
            held = [name for bit, name in _THROTTLE.items() if int(reasons or 0) & bit]
            throttled += [f"GPU {index} throttle {name}" for name in held]
        return counters, throttled

    def _handles(self, bus_id: str | None) -> list[tuple[int, Any]]:
        if bus_id is not None:
            handle = self._ask("HandleByPciBusId", bus_id.encode("ascii"))
            index = None if handle is None else self._ask("Index", handle)
            return [] if index is None else [(index, handle)]
        count = self._ask("Count") or 0
        found = [(index, self._ask("HandleByIndex", index)) for index in range(count)]
        return [(index, handle) for index, handle in found if handle is not None]

    def _counters(self, handle: Any) -> list[tuple[str, int]]:
        found = [("pcie_replay", self._ask("PcieReplayCounter", handle))]
        for kind, name in enumerate(_ECC):
            found.append((name, self._ask("TotalEccErrors", handle, kind, _VOLATILE)))
        for link in range(self._lib.NVML_NVLINK_MAX_LINKS):
            first = self._ask("NvLinkErrorCounter", handle, link, 0)
            if first is None:
                break  # no such link, or none at all
            found.append((f"nvlink{link}_{_NVLINK[0]}", first))
            for kind, name in enumerate(_NVLINK[1:], 1):
                value = self._ask("NvLinkErrorCounter", handle, link, kind)
                found.append((f"nvlink{link}_{name}", value))
        return [(name, value) for name, value in found if value is not None]

    def _ask(self, what: str, *given: Any) -> Any:
        """Return what NVML answers; None for any refusal, and for a function it does not have."""
        try:
            return getattr(self._lib, "nvmlDeviceGet" + what)(*given)
        except (self._lib.NVMLError, AttributeError):
            return None
