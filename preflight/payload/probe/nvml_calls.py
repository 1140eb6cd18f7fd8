"""The NVIDIA driver's library: how it is loaded, asked and read, for all that ask it.

Only in a process that can be done without, as any call may hang.
"""

from __future__ import annotations

import time

from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


LIBRARY = "libnvidia-ml.so.1"
OURS = "preflight's own reader broke: "
"""Begins an error that says nothing of the driver: nobody may be drained for that."""

CLOCK_REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}
"""nvmlClocksEventReason*, by bit."""

FORCED = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
"""Of these what hardware or heat force upon a GPU."""

MOST = 2**53
"""Beyond it is no count: a driver that fails may answer all ones."""


class NoDriver(Exception):  # noqa: N818 (most nodes without a GPU have none)
    """Nobody can be asked; `state` is "absent" or "error", the text says why."""

    def __init__(self, state: str, why: str = "") -> None:
        super().__init__(why)
        self.state = state


def load() -> Any:
    """Return pynvml; NoDriver without the driver's library."""
    import ctypes  # a reader of something else has no use for it

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = "cannot open shared object file" in str(error) and LIBRARY in str(error)
        raise (NoDriver("absent") if missing else NoDriver("error", words(error))) from None
    try:
        import pynvml  # 20 ms, in vain without the library
    except ImportError as error:
        raise NoDriver("error", OURS + words(error)) from None
    return pynvml


def text(raw: bytes | str | None) -> str:
    """Return the same as text: pynvml before 11.515 answers in bytes."""
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw or ""


def reasons(bits: int) -> list[str]:
    """Name what holds a GPU's clocks where they are."""
    return [name for bit, name in CLOCK_REASONS.items() if bits & bit]


_LONG_S = 0.1
"""Any call from here on could be the slowest one, once pauses are left out."""


class Nvml:
    """pynvml with one answer for every call that fails: None, and a line unless it is harmless."""

    def __init__(self, pynvml: Any, begin: Callable[[], float] = time.monotonic) -> None:
        """Ask through `pynvml`; `begin` returns the moment, and may note that a call begins."""
        self.lib, self._begin = pynvml, begin
        self.subject = "driver"
        self.problems: list[str] = []
        self.refusal: int | None = None
        """NVML's code for why the last call failed; None when it did not."""
        self.doubts: list[int] = []
        """The codes of calls and fields that were refused for now: `Reader.sure`."""
        self.timed: list[tuple[float, float, str]] = []
        """When a call began, its seconds and its words: of each that could be the slowest."""
        self._slowest_s = 0.0
        # What the binding raises where only a version of the call is missing, as before R510.
        self._newer = getattr(pynvml, "NVMLLibraryMismatchError", ())
        self._harmless = {
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_NO_PERMISSION,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }

    def ask(self, call: Any, *given: Any) -> Any:
        """Return what a call answers; None if it fails."""
        began = self._begin()
        try:
            answer = call(*given)
        except self.lib.NVMLError as error:
            self._timed(began, call)
            self._refused(error.value)
            line = f"{self.subject}: {clean(str(error))}"
            if error.value not in self._harmless and line not in self.problems:
                self.problems.append(line)
            return None
        except self._newer:
            self.refusal = self.lib.NVML_ERROR_FUNCTION_NOT_FOUND
            return None
        self._timed(began, call)
        self.refusal = None
        return answer

    def ask_by_name(self, name: str, *given: Any) -> Any:
        """Return the same for a call that an older pynvml may not have: "not found" then."""
        call = getattr(self.lib, name, None)
        if call is None:
            self.refusal = self.lib.NVML_ERROR_FUNCTION_NOT_FOUND
            return None
        return self.ask(call, *given)

    def has(self, name: str) -> bool:
        """Whether both the binding and the driver know a function."""
        try:
            return bool(hasattr(self.lib, name) and self.lib._nvmlGetFunctionPointer(name))  # noqa: SLF001
        except self.lib.NVMLError:
            return False

    def reasons_call(self) -> str:
        """Name the function that says what holds a GPU's clocks where they are."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        return name if self.has(name) else "nvmlDeviceGetCurrentClocksThrottleReasons"  # till R530

    def harmless(self, code: int) -> bool:
        """Whether a refusal says that there is nothing to tell, not that something broke."""
        return code in self._harmless

    @property
    def failed(self) -> bool:
        """Whether the last call was refused for now: nothing may be concluded from that."""
        return self.refusal is not None and not self.harmless(self.refusal)

    def fields(self, handle: Any, ids: list[Any]) -> list[tuple[int, int | None]]:
        """Return (value, None) or (0, NVML's code) for each numbered field, asked all at once."""
        answers = self.ask_by_name("nvmlDeviceGetFieldValues", handle, ids)
        if answers is None:
            return [(0, self.refusal)] * len(ids)
        for one in answers:
            if one.nvmlReturn:
                self._refused(one.nvmlReturn)
        return [(_value(one), one.nvmlReturn or None) for one in answers]

    def _refused(self, code: int) -> None:
        self.refusal = code
        if not self.harmless(code):
            self.doubts.append(code)

    def _timed(self, began: float, call: Any) -> None:
        took_s = time.monotonic() - began
        if took_s > min(self._slowest_s, _LONG_S):
            self._slowest_s = took_s
            name = getattr(call, "__name__", "a call")
            self.timed.append((began, took_s, f"{name} of {self.subject}"))

    def text(self, call: Any, *given: Any) -> str:
        """Return the same as printable text; "" if it fails."""
        answer = self.ask(call, *given)
        return "" if answer is None else clean(answer)


def _value(field: Any) -> int:
    """Read the member of NVML's union that its type names."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(field.value, names[field.valueType])) if field.valueType < len(names) else 0


_HOTTEST_C, _MOST_SMALL, _MOST_WATTS = 200, 65535, 10**6
_SMALL = ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max")


class Reader:
    """Reads one GPU; remembers which readings it lacks, was denied, or answered with an error."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.values: dict[str, Any] = {}
        self._refused: dict[str, list[str]] = {"lacks": [], "denied": [], "errors": []}

    def take(self, field: str, call: str, *given: Any, via: Callable[[Any], Any] = int) -> None:
        """Ask for one reading; `via` turns NVML's answer into the document's value."""
        answer = self.nvml.ask_by_name(call, self.handle, *given)
        if self.nvml.refusal is not None:
            self.refuse(field, self.nvml.refusal)
        elif field.startswith("pcie_width") and answer == 0:  # as some virtual machines answer
            self._refused["lacks"].append(field)
        else:
            self.values[field] = via(answer)

    def sure(self, field: str, work: Callable[[], Any]) -> Any:
        """Return what several answers make; where any of them is refused for now, that is, too."""
        doubts = len(self.nvml.doubts)
        value = work()
        if len(self.nvml.doubts) == doubts:
            return value
        self.refuse(field, self.nvml.doubts[-1])
        return None

    def derive(self, field: str, work: Callable[[], Any]) -> None:
        """Fill one reading with what several answers make; None is a reading that it lacks."""
        value = self.sure(field, work)
        if value is not None:
            self.values[field] = value
        elif not self.failed(field):
            self.refuse(field, self._lacking(self.nvml.refusal or 0))

    def _lacking(self, code: int) -> int:
        """A number that is new to an old driver is an invalid argument to it."""
        lib = self.nvml.lib
        unknown = code in (0, lib.NVML_ERROR_INVALID_ARGUMENT)
        return int(lib.NVML_ERROR_NOT_SUPPORTED if unknown else code)

    def refuse(self, field: str, code: int) -> None:
        """Remember why a reading is missing."""
        lib = self.nvml.lib
        if code == lib.NVML_ERROR_NO_PERMISSION:
            self._refused["denied"].append(field)
        elif code in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND):
            self._refused["lacks"].append(field)
        elif not self.nvml.harmless(code):
            words = clean(str(lib.NVMLError(code)))
            self._refused["errors"].append(f"{field}: {words}")

    def failed(self, field: str) -> bool:
        """Whether it was refused for now, so that no other reading may stand in for it."""
        return any(error.startswith(field + ":") for error in self._refused["errors"])

    def fields(self, wanted: dict[str, tuple[int, float]]) -> None:
        """Ask for several of NVML's numbered fields at once: (id, factor) by name."""
        ids = [number for number, _ in wanted.values()]
        answers = self.nvml.fields(self.handle, ids)
        for (name, (_, factor)), (value, code) in zip(wanted.items(), answers):  # noqa: B905 - 3.8
            if code is None:
                self.values[name] = value if factor == 1 else round(value * factor, 3)
            else:
                self.refuse(name, self._lacking(code))

    def document(self) -> dict[str, Any]:
        """Return one `GpuHealth`: what was told, and what was refused."""
        for name in [name for name, value in self.values.items() if _absurd(name, value)]:
            self._refused["errors"].append(f"{name}: absurd value {self.values.pop(name)}")
        return {**self.values, **{kind: names for kind, names in self._refused.items() if names}}


def _absurd(name: str, value: Any) -> bool:
    """Say whether no GPU can be so: a driver that fails may answer all ones."""
    if not isinstance(value, (int, float)):
        return False
    if name.endswith("_c"):
        return abs(value) > _HOTTEST_C
    small = name.endswith("_pct") or name in _SMALL
    most = _MOST_SMALL if small else _MOST_WATTS if name.endswith("_w") else MOST
    return not 0 <= value <= most
