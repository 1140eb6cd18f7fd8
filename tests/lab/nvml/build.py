"""The emulator is compiled where it is used: no binary lies in the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("nvml.c", "scenario.c"))


def build(into: Path) -> Path:
    """Compile `libnvidia-ml.so.1` into a folder (made if missing) and return the library.

    Its scenarios are looked up in the folder `scenarios` beside it, by the name of the host.
    """
    (into / "scenarios").mkdir(parents=True, exist_ok=True)
    library = into / SONAME
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
    subprocess.run(["gcc", *flags, "-o", library, *_SOURCES], check=True)
    return library
