"""What a GPU's clocks, heat and power are right now, and what holds the clocks down."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .bench import Bench

# nvml.h: nvmlClocksEventReason*
_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


class Gauge:
    """NVML on one GPU, found by its PCI address; tells nothing where there is no NVML."""

    def __init__(self, bench: Bench) -> None:
        self._lib: Any = None
        self._handle: Any = None
        if bench.kind != "cuda":
            return
        address = bench.bus_id()
        if not address:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode("ascii"))
            self._lib = pynvml
        except Exception:  # noqa: BLE001 - no library, no module, NVML's own errors: no clocks
            return

    def look(self, at_s: float) -> dict[str, Any] | None:
        """One look, `at_s` seconds into the load; None without NVML, a value of it if refused."""
        if self._lib is None:
            return None
        lib = self._lib
        reasons = self._ask("CurrentClocksEventReasons")
        if reasons is None:  # the older name
            reasons = self._ask("CurrentClocksThrottleReasons")
        milliwatts = self._ask("PowerUsage")
        held = None if reasons is None else [n for bit, n in _REASONS.items() if reasons & bit]
        return {
            "at_s": round(at_s, 3),
            "sm_mhz": self._ask("ClockInfo", lib.NVML_CLOCK_SM),
            "memory_mhz": self._ask("ClockInfo", lib.NVML_CLOCK_MEM),
            "celsius": self._ask("Temperature", lib.NVML_TEMPERATURE_GPU),
            "watts": None if milliwatts is None else milliwatts / 1000,
            "reasons": held,
        }

    def _ask(self, what: str, *given: Any) -> Any:
        """Return what NVML answers; None for any refusal, and for a function it does not have."""
        try:
            return getattr(self._lib, "nvmlDeviceGet" + what)(self._handle, *given)
        except (self._lib.NVMLError, AttributeError):
            return None
