"""Loads NVML and wraps its calls, for all its users.

Only in a disposable process, as any call may hang.
"""

from __future__ import annotations

import time
from typing import Any, Callable

from .node_files import clean, words

LIBRARY = "libnvidia-ml.so.1"
OWN_ERROR = "preflight's own reader broke: "
"""Prefix of an error that is not the driver's: no node may be drained for it."""

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
"""The reasons that hardware or heat force upon a GPU."""

_DEPRECATED = 26
"""NVML_ERROR_DEPRECATED, which older pynvml does not name: a driver has given up the reading."""

MOST = 2**53
"""A larger value is no count: a failing driver may answer all ones."""


class NoDriver(Exception):  # noqa: N818 (most nodes without a GPU have none)
    """NVML cannot be used; `state` is "absent" or "error", the text has the reason."""

    def __init__(self, state: str, reason: str = "") -> None:
        super().__init__(reason)
        self.state = state


def load() -> Any:
    """Return pynvml; NoDriver without the driver's library."""
    import ctypes  # other readers do not need it

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = "cannot open shared object file" in str(error) and LIBRARY in str(error)
        raise (NoDriver("absent") if missing else NoDriver("error", words(error))) from None
    try:
        import pynvml  # takes 20 ms, useless without the library
    except ImportError as error:
        raise NoDriver("error", OWN_ERROR + words(error)) from None
    return pynvml


def as_text(raw: bytes | str | None) -> str:
    """Return NVML's string as text: pynvml before 11.515 returns bytes."""
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw or ""


def reasons(bits: int) -> list[str]:
    """Return the names of a GPU's clock event reasons."""
    return [name for bit, name in CLOCK_REASONS.items() if bits & bit]


_LONG_S = 0.1
"""Any longer call could be the slowest one, once pauses are excluded."""


class Nvml:
    """pynvml whose failed calls return None, and add a problem unless the error is harmless."""

    def __init__(self, pynvml: Any, begin: Callable[[], float] = time.monotonic) -> None:
        """Call through `pynvml`; `begin` returns the time, and may note that a call begins."""
        self.lib, self._begin = pynvml, begin
        self.subject = "driver"
        self.problems: list[str] = []
        self.refusal: int | None = None
        """NVML's error code of the last call; None if it succeeded."""
        self.doubts: list[int] = []
        """Error codes that are not harmless, of calls and fields: see `Reader.sure`."""
        self.timed: list[tuple[float, float, str]] = []
        """(start, seconds, description) of each call that could be the slowest."""
        self._slowest_s = 0.0
        # The binding raises this where only a version of the call is missing, as before R510.
        self._newer = getattr(pynvml, "NVMLLibraryMismatchError", ())
        self._harmless = {
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_NO_PERMISSION,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            _DEPRECATED,
        }

    def ask(self, call: Any, *arguments: Any) -> Any:
        """Return the result of a call; None if it fails."""
        began = self._begin()
        try:
            answer = call(*arguments)
        except self.lib.NVMLError as error:
            self._note_time(began, call)
            self._refused(error.value)
            line = f"{self.subject}: {clean(str(error))}"
            if error.value not in self._harmless and line not in self.problems:
                self.problems.append(line)
            return None
        except self._newer:
            self.refusal = self.lib.NVML_ERROR_FUNCTION_NOT_FOUND
            return None
        self._note_time(began, call)
        self.refusal = None
        return answer

    def ask_by_name(self, name: str, *arguments: Any) -> Any:
        """Return the result of a call by its name; "not found" where an older pynvml lacks it."""
        call = getattr(self.lib, name, None)
        if call is None:
            self.refusal = self.lib.NVML_ERROR_FUNCTION_NOT_FOUND
            return None
        return self.ask(call, *arguments)

    def has(self, name: str) -> bool:
        """Whether both the binding and the driver know a function."""
        try:
            return bool(hasattr(self.lib, name) and self.lib._nvmlGetFunctionPointer(name))  # noqa: SLF001
        except self.lib.NVMLError:
            return False

    def reasons_call(self) -> str:
        """Return the name of the function that reads the clock event reasons."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        return name if self.has(name) else "nvmlDeviceGetCurrentClocksThrottleReasons"  # till R530

    def harmless(self, code: int) -> bool:
        """Whether an error code only means that there is nothing to read."""
        return code in self._harmless

    @property
    def failed(self) -> bool:
        """Whether the last call failed with an error that is not harmless: it proves nothing."""
        return self.refusal is not None and not self.harmless(self.refusal)

    def fields(self, handle: Any, ids: list[Any]) -> list[tuple[int, int | None]]:
        """Return (value, None) or (0, NVML's code) for each numbered field, in one call."""
        answers = self.ask_by_name("nvmlDeviceGetFieldValues", handle, ids)
        if answers is None:
            return [(0, self.refusal)] * len(ids)
        for field in answers:
            if field.nvmlReturn:
                self._refused(field.nvmlReturn)
        return [(_value(field), field.nvmlReturn or None) for field in answers]

    def _refused(self, code: int) -> None:
        self.refusal = code
        if not self.harmless(code):
            self.doubts.append(code)

    def _note_time(self, began: float, call: Any) -> None:
        took_s = time.monotonic() - began
        if took_s > min(self._slowest_s, _LONG_S):
            self._slowest_s = took_s
            name = getattr(call, "__name__", "a call")
            self.timed.append((began, took_s, f"{name} of {self.subject}"))

    def text(self, call: Any, *arguments: Any) -> str:
        """Return the result of a call as printable text; "" if it fails."""
        answer = self.ask(call, *arguments)
        return "" if answer is None else clean(answer)


def _value(field: Any) -> int:
    """Read the member of NVML's union that its type names."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(field.value, names[field.valueType])) if field.valueType < len(names) else 0


_HOTTEST_C, _MOST_SMALL, _MOST_WATTS = 200, 65535, 10**6
_SMALL_VALUES = ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max")


class Reader:
    """Reads one GPU; remembers which readings it lacks, was denied, or failed."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.values: dict[str, Any] = {}
        self._refused: dict[str, list[str]] = {"lacks": [], "denied": [], "errors": []}

    def take(self, field: str, call: str, *arguments: Any, via: Callable[[Any], Any] = int) -> None:
        """Read one value; `via` converts NVML's answer to the document's value."""
        answer = self.nvml.ask_by_name(call, self.handle, *arguments)
        if self.nvml.refusal is not None:
            self.refuse(field, self.nvml.refusal)
        elif field.startswith("pcie_width") and answer == 0:  # as some virtual machines answer
            self._refused["lacks"].append(field)
        else:
            self.values[field] = via(answer)

    def checked(self, field: str, work: Callable[[], Any]) -> Any:
        """Return the result of `work`; None, and a refused field, if any of its calls failed."""
        doubts = len(self.nvml.doubts)
        value = work()
        if len(self.nvml.doubts) == doubts:
            return value
        self.refuse(field, self.nvml.doubts[-1])
        return None

    def derive(self, field: str, work: Callable[[], Any]) -> None:
        """Fill one reading from several calls; with None, the GPU lacks the reading."""
        value = self.checked(field, work)
        if value is not None:
            self.values[field] = value
        elif not self.failed(field):
            self.refuse(field, self._as_unsupported(self.nvml.refusal or 0))

    def _as_unsupported(self, code: int) -> int:
        """Convert a code: an old driver calls a new field's number an invalid argument."""
        lib = self.nvml.lib
        unknown = code in (0, lib.NVML_ERROR_INVALID_ARGUMENT)
        return int(lib.NVML_ERROR_NOT_SUPPORTED if unknown else code)

    def refuse(self, field: str, code: int) -> None:
        """Note why a reading is missing."""
        lib = self.nvml.lib
        if code == lib.NVML_ERROR_NO_PERMISSION:
            self._refused["denied"].append(field)
        elif code in (
            lib.NVML_ERROR_NOT_SUPPORTED,
            lib.NVML_ERROR_FUNCTION_NOT_FOUND,
            _DEPRECATED,
        ):
            self._refused["lacks"].append(field)
        elif not self.nvml.harmless(code):
            words = clean(str(lib.NVMLError(code)))
            self._refused["errors"].append(f"{field}: {words}")

    def failed(self, field: str) -> bool:
        """Whether the reading failed, so that no other reading may replace it."""
        return any(error.startswith(field + ":") for error in self._refused["errors"])

    def fields(self, by_name: dict[str, tuple[int, float]]) -> None:
        """Read several of NVML's numbered fields at once: (id, factor) by name."""
        ids = [number for number, _ in by_name.values()]
        answers = self.nvml.fields(self.handle, ids)
        for (name, (_, factor)), (value, code) in zip(by_name.items(), answers):  # noqa: B905 - 3.8
            if code is None:
                self.values[name] = value if factor == 1 else round(value * factor, 3)
            else:
                self.refuse(name, self._as_unsupported(code))

    def document(self) -> dict[str, Any]:
        """Return one `GpuHealth`: the readings, and those that are missing."""
        for name in [name for name, value in self.values.items() if _absurd(name, value)]:
            self._refused["errors"].append(f"{name}: absurd value {self.values.pop(name)}")
        return {**self.values, **{kind: names for kind, names in self._refused.items() if names}}


def _absurd(name: str, value: Any) -> bool:
    """Whether the value is impossible: a failing driver may answer all ones."""
    if not isinstance(value, (int, float)):
        return False
    if name.endswith("_c"):
        return abs(value) > _HOTTEST_C
    is_small = name.endswith("_pct") or name in _SMALL_VALUES
    largest = _MOST_SMALL if is_small else _MOST_WATTS if name.endswith("_w") else MOST
    return not 0 <= value <= largest
