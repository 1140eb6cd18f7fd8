"""Asks the NVIDIA driver through its library; only in a guarded child, as any call may hang."""

from __future__ import annotations

import time

from . import gpus, pairs
from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
OURS = "preflight's own reader broke: "
"""Begins an error that says nothing of the driver: nobody may be drained for that."""


def survey(sysfs_root: str) -> dict[str, Any]:
    """Return `driver`, `gpus`, `gpu_pairs` of the document, and `problems` met on the way."""
    import ctypes  # only this child needs it

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = "cannot open shared object file" in str(error) and LIBRARY in str(error)
        return _without("absent" if missing else "error", "" if missing else words(error))
    try:
        import pynvml  # 20 ms, in vain without the library
    except ImportError as error:
        return _without("error", OURS + words(error))
    try:
        began = time.monotonic()
        pynvml.nvmlInit()
        init_s = round(time.monotonic() - began, 3)
        answered = _answered(pynvml, sysfs_root)
        answered["driver"]["init_s"] = init_s
        return answered  # noqa: TRY300 (an else would not see NVML's error in it)
    except pynvml.NVMLError as error:
        return _without("error", clean(str(error)))


def _without(state: str, error: str) -> dict[str, Any]:
    return {
        "driver": {"state": state, "error": error},
        "gpus": None,
        "gpu_pairs": None,
        "problems": [],
    }


def _answered(pynvml: Any, sysfs_root: str) -> dict[str, Any]:
    nvml = Nvml(pynvml)
    version = nvml.text(pynvml.nvmlSystemGetDriverVersion)
    handles = {}
    counted = pynvml.nvmlDeviceGetCount()
    for index in range(pynvml.nvmlDeviceGetCount()):
        nvml.subject = f"GPU {index}"
        handle = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            handles[index] = handle
        elif nvml.refusal == pynvml.NVML_ERROR_NO_PERMISSION:
            counted -= 1  # another job's: none of ours is missing for it
    found = []
    for index, handle in list(handles.items()):
        nvml.subject = f"GPU {index}"
        gpu = gpus.read(nvml, index, handle, sysfs_root)
        if gpu is None:
            del handles[index]
        else:
            found.append(gpu)
    nvml.subject = "GPU pairs"
    gpu_pairs = pairs.read(nvml, handles)
    driver = {"state": "answered", "version": version, "counted": counted}
    return {
        "driver": {**driver, "slowest_s": nvml.slowest_s, "slowest_call": nvml.slowest_call},
        "gpus": found,
        "gpu_pairs": gpu_pairs,
        "problems": nvml.problems,
    }


class Nvml:
    """pynvml with one answer for every call that fails: None, and a line unless it is harmless."""

    def __init__(self, pynvml: Any) -> None:
        self.lib = pynvml
        self.subject = "driver"
        self.problems: list[str] = []
        self.refusal: int | None = None
        """NVML's code for why the last call failed; None when it did not."""
        self.slowest_s, self.slowest_call = 0.0, ""
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
        began = time.monotonic()
        try:
            answer = call(*given)
        except self.lib.NVMLError as error:
            self._timed(began, call)
            self.refusal = error.value
            line = f"{self.subject}: {clean(str(error))}"
            if error.value not in self._harmless and line not in self.problems:
                self.problems.append(line)
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

    def harmless(self, code: int) -> bool:
        """Whether a refusal says that there is nothing to tell, not that something broke."""
        return code in self._harmless

    def fields(self, handle: Any, ids: list[Any]) -> list[tuple[int, int | None]]:
        """Return (value, None) or (0, NVML's code) for each numbered field, asked all at once."""
        answers = self.ask_by_name("nvmlDeviceGetFieldValues", handle, ids)
        if answers is None:
            return [(0, self.refusal)] * len(ids)
        return [(_value(one), one.nvmlReturn or None) for one in answers]

    def _timed(self, began: float, call: Any) -> None:
        took_s = round(time.monotonic() - began, 3)
        if took_s > self.slowest_s:
            self.slowest_s = took_s
            self.slowest_call = f"{getattr(call, '__name__', 'a call')} of {self.subject}"

    def text(self, call: Any, *given: Any) -> str:
        """Return the same as printable text; "" if it fails."""
        answer = self.ask(call, *given)
        return "" if answer is None else clean(answer)


def _value(field: Any) -> int:
    """Read the member of NVML's union that its type names."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(field.value, names[field.valueType])) if field.valueType < len(names) else 0
