"""What a GPU counts while its links lose bits or its clocks are held down; asked in a child only.

What a driver or a GPU does not know is absent; nothing is made of that. A reading of a GPU is two
calls: all counters as numbered fields in one, what holds its clocks down in the other.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from probe.nvml import Nvml

LIBRARY = "libnvidia-ml.so.1"

# nvml.h: nvmlClocksEventReason*, those that hardware or heat force upon a GPU.
_THROTTLE = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
_LINK_COUNT = 91  # nvml.h: NVML_FI_DEV_*, as all numbers below
_FIELDS = {"pcie_replay": 94, "ecc_corrected": 3, "ecc_uncorrected": 4}
_LINK_FIELDS = {
    # up to NVLink 4
    "dl_replay": 161,
    "dl_recovery": 162,
    "crc": 163,
    # from NVLink 5 on, where those are not supported
    "rcv_errors": 208,
    "recovery_failed": 214,
    "recovery": 215,
}
_LINK_TOTALS = {"crc_flit": 38, "crc_data": 45, "dl_replay": 52, "dl_recovery": 59}
"""Of all links: for drivers that do not know the fields of one link."""

_CALLS: dict[str, tuple[Any, ...]] = {
    "pcie_replay": ("PcieReplayCounter",),
    "ecc_corrected": ("TotalEccErrors", 0, 0),  # nvmlMemoryErrorType_t; volatile
    "ecc_uncorrected": ("TotalEccErrors", 1, 0),
}
"""For drivers that do not know the field."""

_MOST_LINKS = 36
_MOST = 2**53
"""Beyond it is no count: a driver that fails may answer all ones."""
_EXCLUSIVE_PROCESS = 3  # nvmlComputeMode_t


class Gpus:
    """The GPUs of this node, or one of them; none where the driver is not there or refuses."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._known: dict[str | int, _Gpu] = {}
        try:
            import ctypes

            ctypes.CDLL(LIBRARY)
            import pynvml
            from probe.nvml import Nvml

            pynvml.nvmlInit()
            self._nvml = Nvml(pynvml)
        except Exception:  # noqa: BLE001 - no library, no module, NVML's own errors: no counters
            return

    def read(self, bus_id: str | None) -> tuple[dict[str, float], list[str]]:
        """Return the counters, and the throttle reasons that hold now, of one GPU or of all."""
        counters: dict[str, float] = {}
        throttled: list[str] = []
        for gpu in self._gpus(bus_id):
            name = f"GPU {gpu.index} "
            counters.update({name + each: float(value) for each, value in gpu.counters().items()})
            throttled += [f"{name}throttle {reason}" for reason in gpu.throttled()]
        return counters, throttled

    def sole_holders(self, index: int) -> tuple[bool | None, list[int]]:
        """Whether a GPU, by NVML's number, takes one process at a time, and those on it then.

        None where NVML does not tell.
        """
        gpu = None if self._nvml is None else _found(self._nvml, index)
        return (None, []) if gpu is None else gpu.sole_holders()

    def bus_ids(self, visible: list[Any]) -> list[str]:
        """PCI addresses of the GPUs that answer, of those with these NVML indices or UUIDs.

        NVML numbers GPUs by PCI address (nvml.h, nvmlDeviceGetHandleByIndex), as CUDA does with
        CUDA_DEVICE_ORDER=PCI_BUS_ID; a UUID may be cut short, as in CUDA_VISIBLE_DEVICES. Nothing
        where one is not known.
        """
        nvml = self._nvml
        if nvml is None:
            return []
        count = nvml.ask_by_name("nvmlDeviceGetCount") or 0
        every = {at: nvml.ask_by_name("nvmlDeviceGetHandleByIndex", at) for at in range(count)}
        uuids = {
            at: _text(nvml.ask_by_name("nvmlDeviceGetUUID", one))
            for at, one in every.items()
            if one
        }
        found: list[Any] = []
        for wanted in visible:
            at = wanted if isinstance(wanted, int) else _only(uuids, wanted)
            if at is None:
                return []
            if every.get(at) is not None:  # a lost GPU is counted, and CUDA passes over it
                found.append(nvml.ask_by_name("nvmlDeviceGetPciInfo", every[at]))
        return [] if None in found else [_text(pci.busId).lower() for pci in found]

    def bus_id(self, uuid: str) -> str | None:
        """The PCI address of the GPU with this UUID ("GPU-..."), as sysfs spells it."""
        from probe import sysfs

        if self._nvml is None:
            return None
        handle = self._nvml.ask_by_name("nvmlDeviceGetHandleByUUID", uuid.encode("ascii"))
        if handle is None:
            return None
        info = self._nvml.ask_by_name("nvmlDeviceGetPciInfo", handle)
        return None if info is None else sysfs.bus_id(_text(info.busId)) or None

    def _gpus(self, bus_id: str | None) -> list[_Gpu]:
        """Find handles once: they hold for as long as the library does."""
        if self._nvml is None:
            return []
        count = 0 if bus_id is not None else self._nvml.ask_by_name("nvmlDeviceGetCount")
        keys: list[str | int] = list(range(count or 0)) if bus_id is None else [bus_id]
        for key in keys:
            if key not in self._known:
                gpu = _found(self._nvml, key)
                if gpu is not None:
                    self._known[key] = gpu
        return [self._known[key] for key in keys if key in self._known]


def _found(nvml: Nvml, key: str | int) -> _Gpu | None:
    if isinstance(key, int):
        handle = nvml.ask_by_name("nvmlDeviceGetHandleByIndex", key)
        return None if handle is None else _Gpu(nvml, key, handle)
    handle = nvml.ask_by_name("nvmlDeviceGetHandleByPciBusId", key.encode("ascii"))
    index = None if handle is None else nvml.ask_by_name("nvmlDeviceGetIndex", handle)
    return None if index is None else _Gpu(nvml, index, handle)


class _Gpu:
    """One GPU; its first reading learns which counters it has, and no other is asked for later."""

    def __init__(self, nvml: Nvml, index: int, handle: Any) -> None:
        self.index = index
        self._nvml = nvml
        self._handle = handle
        self._fields: dict[str, tuple[int, int]] = {}
        self._calls: dict[str, tuple[Any, ...]] = {}
        self._reasons = "CurrentClocksEventReasons"
        if not nvml.has("nvmlDeviceGet" + self._reasons):
            self._reasons = "CurrentClocksThrottleReasons"  # before R535

    def counters(self) -> dict[str, int]:
        """Return what it counts now, by name: "pcie_replay", "nvlink3_crc"."""
        if not self._fields and not self._calls:
            self._learn()
        found = self._read(self._fields)
        for name, call in self._calls.items():
            value = self._ask(*call)
            if value is not None:
                found[name] = value
        return found

    def throttled(self) -> list[str]:
        """Name what holds its clocks down now."""
        bits = int(self._ask(self._reasons) or 0)
        return [name for bit, name in _THROTTLE.items() if bits & bit]

    def sole_holders(self) -> tuple[bool | None, list[int]]:
        """Whether it takes one process at a time (None: NVML does not tell), and those on it."""
        mode = self._ask("ComputeMode")
        if mode != _EXCLUSIVE_PROCESS:
            return None if mode is None else False, []
        return True, [int(one.pid) for one in self._ask("ComputeRunningProcesses") or ()]

    def _learn(self) -> None:
        links = self._read({"links": (_LINK_COUNT, 0)}).get("links", _MOST_LINKS)
        each = {
            f"nvlink{link}_{kind}": (number, link)
            for link in range(min(links, _MOST_LINKS))
            for kind, number in _LINK_FIELDS.items()
        }
        totals = {f"nvlink_{kind}": (number, 0) for kind, number in _LINK_TOTALS.items()}
        asked = {name: (number, 0) for name, number in _FIELDS.items()}
        found = self._read({**asked, **each, **totals})
        if not each.keys().isdisjoint(found):
            asked.update(each)
        else:
            asked.update(totals)
        self._fields = {name: field for name, field in asked.items() if name in found}
        self._calls = {
            name: call
            for name, call in _CALLS.items()
            if name not in found and self._ask(*call) is not None
        }

    def _read(self, fields: dict[str, tuple[int, int]]) -> dict[str, int]:
        """Ask for numbered fields (number, link) in one call; each has an answer of its own."""
        answers = self._nvml.fields(self._handle, list(fields.values())) if fields else []
        return {
            name: value
            for name, (value, refusal) in zip(fields, answers)  # noqa: B905 - Python 3.8
            if refusal is None and 0 <= value <= _MOST
        }

    def _ask(self, what: str, *given: Any) -> Any:
        return self._nvml.ask_by_name("nvmlDeviceGet" + what, self._handle, *given)


def _only(uuids: dict[int, str], start: str) -> int | None:
    """The one GPU whose UUID begins so."""
    found = [index for index, uuid in uuids.items() if uuid.startswith(start)]
    return found[0] if len(found) == 1 else None


def _text(said: Any) -> str:
    """Return the same as text: pynvml before 11.515 answers in bytes."""
    return said.decode("ascii", "replace") if isinstance(said, bytes) else str(said or "")
