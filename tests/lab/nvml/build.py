"""The emulator is compiled where it is used: no binary lies in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SONAME = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
_HERE = Path(__file__).parent


def build(into: Path, without: Iterable[str] = ()) -> Path:
    """Compile `libnvidia-ml.so.1` into a folder (made if missing) and return the library.

    Its scenarios are looked up in the folder `scenarios` beside it, by the name of the host.
    `without`: functions that an older driver's library does not have.
    """
    return _compiled(into, SONAME, "nvml.c", without)


def functions() -> tuple[str, ...]:
    """What the whole library exports."""
    text = (_HERE / "nvml.c").read_text()
    return tuple(sorted(set(re.findall(r"\b(nvml[A-Z]\w+)\(", text))))


def build_cuda(into: Path) -> Path:
    """Compile a `libcuda.so.1` that tells where the GPUs of the same scenarios sit, and no more."""
    return _compiled(into, CUDA, "cuda.c")


def _compiled(into: Path, soname: str, source: str, without: Iterable[str] = ()) -> Path:
    (into / "scenarios").mkdir(parents=True, exist_ok=True)
    library = into / soname
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{soname}"]
    sources = [_HERE / source, _HERE / "scenario.c"]
    flags += [f"-D{name}=gone_{name}" for name in without]
    subprocess.run(["gcc", *flags, "-o", library, *sources], check=True)
    return library
