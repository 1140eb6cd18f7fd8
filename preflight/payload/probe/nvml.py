"""Asks the NVIDIA driver through its library; only in a guarded child, as any call may hang."""

from __future__ import annotations

from . import gpus, pairs
from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"


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
        return _without("error", words(error))
    try:
        pynvml.nvmlInit()
        return _answered(pynvml, sysfs_root)
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
    for index in range(pynvml.nvmlDeviceGetCount()):
        nvml.subject = f"GPU {index}"
        handle = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            handles[index] = handle
    found = []
    for index, handle in list(handles.items()):
        nvml.subject = f"GPU {index}"
        gpu = gpus.read(nvml, index, handle, sysfs_root)
        if gpu is None:
            del handles[index]
        else:
            found.append(gpu)
    nvml.subject = "GPU pairs"
    return {
        "driver": {"state": "answered", "version": version},
        "gpus": found,
        "gpu_pairs": pairs.read(nvml, handles),
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
        try:
            answer = call(*given)
        except self.lib.NVMLError as error:
            self.refusal = error.value
            line = f"{self.subject}: {clean(str(error))}"
            if error.value not in self._harmless and line not in self.problems:
                self.problems.append(line)
            return None
        self.refusal = None
        return answer

    def text(self, call: Any, *given: Any) -> str:
        """Return the same as printable text; "" if it fails."""
        answer = self.ask(call, *given)
        return "" if answer is None else clean(answer)
