"""Which torch, CUDA, NCCL and cuDNN a job would get here, from files: an import takes seconds.

Runs in a child: the job's Python is often on a shared file system, which may hang.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys

from . import fatbin
from .text import LINE_LIMIT, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Optional

_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
              "/usr/local/lib", "/usr/local/lib64", "/usr/local/cuda/lib64")  # fmt: skip
_PLUGINS = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
            "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
            "/opt/hpcx/ncclnet_plugin/lib", "/usr/local/nccl-rdma-sharp-plugins/lib")  # fmt: skip
_COMPAT = (
    "/usr/local/cuda/compat",
    "/usr/local/cuda/compat/lib",
    "/usr/local/cuda/compat/lib.real",
)
_CACHE = "/etc/ld.so.cache"
_MOST = 64

_ASSIGNED = re.compile(
    r"^(__version__|cuda|hip)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]{1,100})['\"]", re.MULTILINE
)
_PACKAGE = re.compile(r"nvidia_(nccl|cudnn)(?:_cu(\d+))?-(\d[\w.]*)\.dist-info")
_LIBRARY = re.compile(r"lib(nccl|cudnn)\.so\.(\d+\.\d+\.\d[\w.]*)")
_DRIVER = re.compile(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)")
_PLUGIN = re.compile(r"libnccl-net[\w.+-]{0,200}\.so[\w.]{0,40}")
_CACHED = re.compile(rb"(?<![\x21-\x7e])/[\x21-\x7e]*/libnccl-net[\x21-\x7e]*")


def read(libraries: Iterable[str] = ()) -> dict[str, Any]:
    """Return one `Software` of the document. `libraries`: the job's own LD_LIBRARY_PATH."""
    folder = _torch_folder()
    torch = None if folder is None else _torch(folder)
    loader = [*libraries, *_own_libraries()]
    found: dict[str, Any] = {"torch": torch, "nccl": None, "cudnn": None}
    if folder is not None and torch is not None and torch["cuda"] is not None:
        major = torch["cuda"].partition(".")[0]
        packages = dict(_packages([os.path.dirname(folder), *sys.path], major))
        inside = [folder + "/lib", sys.prefix + "/lib"]
        files = dict(_files(_LIBRARY, [*inside, *loader, *_LIBRARIES]))
        for name in ("nccl", "cudnn"):
            found[name] = packages.get(name) or files.get(name)
    compat = [name for name, _ in _matches(_DRIVER, _COMPAT)]
    found["cuda_compat"] = compat[0] if compat else None
    found["net_plugins"] = list(_plugins([*loader, *_PLUGINS, *_LIBRARIES]))
    return found


def _torch_folder() -> Optional[str]:
    """Find the package that `import torch` would take, also an editable one; imports nothing."""
    kept = list(sys.path)
    if sys.prefix == sys.base_prefix:
        # -I leaves out the user's own packages, which the job would see.
        sys.path.insert(0, site.getusersitepackages())
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        return None
    finally:
        sys.path[:] = kept
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def _torch(folder: str) -> Optional[dict[str, Any]]:
    try:
        with open(folder + "/version.py", encoding="utf-8", errors="replace") as file:
            said = dict(_ASSIGNED.findall(file.read(65536)))
    except OSError:
        return None
    if "__version__" not in said:
        return None
    archs = None
    if "cuda" in said:
        archs = fatbin.architectures(folder + "/lib/libtorch_cuda.so")
    return {
        "version": clean(said["__version__"], LINE_LIMIT),
        "cuda": clean(said["cuda"], LINE_LIMIT) if "cuda" in said else None,
        "hip": clean(said["hip"], LINE_LIMIT) if "hip" in said else None,
        "archs": archs,
    }


def _packages(folders: Iterable[str], major: str) -> Iterator[tuple[str, str]]:
    """Name and version of NVIDIA's wheels for that CUDA; the nearest folder's come last."""
    for folder in reversed(list(dict.fromkeys(folders))):
        for name in _names(folder):
            match = _PACKAGE.fullmatch(name)
            if match and match.group(2) in (None, major):
                yield match.group(1), clean(match.group(3), LINE_LIMIT)


def _files(pattern: re.Pattern[str], folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The same from file names such as libnccl.so.2.21.5; the first folder's come last."""
    found = [match.groups() for _, match in _matches(pattern, folders)]
    for name, version in reversed(found):
        yield name, clean(version, LINE_LIMIT)


def _matches(
    pattern: re.Pattern[str], folders: Iterable[str]
) -> Iterator[tuple[str, re.Match[str]]]:
    for folder in dict.fromkeys(folders):
        for name in _names(folder):
            match = pattern.fullmatch(name)
            if match:
                yield (match.group(1) if pattern.groups else folder + "/" + name), match


def _plugins(folders: Iterable[str]) -> Iterator[str]:
    paths = [path for path, _ in _matches(_PLUGIN, folders)]
    try:
        with open(_CACHE, "rb") as file:
            paths += [path.decode("ascii") for path in _CACHED.findall(file.read(8 << 20))]
    except OSError:
        pass
    there = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    yield from (clean(path, LINE_LIMIT) for path in there[:_MOST])


def _own_libraries() -> list[str]:
    return [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part[:1] == "/"]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
