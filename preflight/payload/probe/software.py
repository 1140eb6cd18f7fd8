"""Finds the torch, CUDA, NCCL and cuDNN of a job by their files: an import takes seconds.

Runs in a child: the job's Python is often on a shared file system, which may hang.

The ELF section .nv_fatbin has one container per compiled source, which lists its images: code for
one architecture (kind 2), or PTX (kind 1), which the driver compiles for later ones.

The files of NCCL settings: NVIDIA/nccl, src/misc/param.cc initEnvFunc. The home is that of the user
database, not HOME. Only settings leave the node, and only values of known names.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import site
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Iterable, Iterator

from .node_files import clean, names, open_regular, words

MAGIC = 0xBA55ED50
MOST = 64
"""Containers to read: nearly all sources of a build are compiled for the same architectures."""

MOST_S = 0.3
"""Time limit, for a library on a slow file system."""

_KINDS = {1: "compute", 2: "sm"}
_ALIGNED = 8


def architectures(path: str) -> list[str] | None:
    """Return the targets of most of a library's kernels; None if not known."""
    errors = (OSError, struct.error, ValueError, LookupError, OverflowError)
    with suppress(*errors), open(path, "rb", buffering=0) as file:
        section = _section(file.fileno(), b".nv_fatbin")
        return section and _common_targets(list(_containers(file.fileno(), *section)))
    return None


def _section(handle: int, section: bytes) -> tuple[int, int] | None:
    """Return start and end of a section of a 64-bit ELF file."""
    header = os.pread(handle, 64, 0)
    if header[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", header, 40)
    size, number, names_at = struct.unpack_from("<HHH", header, 58)
    rows = os.pread(handle, size * number, table)
    sections = [struct.unpack_from("<IIQQQQ", rows, size * i) for i in range(number)]
    _, _, _, _, where, length = sections[names_at]
    names = os.pread(handle, min(length, 1 << 20), where)
    for name, _, _, _, offset, length in sections:
        if names[name : names.index(b"\0", name)] == section:
            return offset, offset + length
    return None


def _containers(handle: int, start: int, end: int) -> Iterator[frozenset[str]]:
    """Yield the images that each container lists, without reading their contents."""
    offset, deadline = start, time.monotonic() + MOST_S
    for _ in range(MOST):
        if offset + 16 > end or time.monotonic() > deadline:
            return
        magic, _, head, size = struct.unpack("<IHHQ", os.pread(handle, 16, offset))
        if magic != MAGIC:
            offset += _ALIGNED  # there may be padding between containers
            continue
        yield frozenset(_images(handle, offset + head, min(offset + head + size, end)))
        offset += head + size


def _images(handle: int, offset: int, end: int) -> Iterator[str]:
    for _ in range(MOST):
        if offset + 32 > end:
            return
        row = os.pread(handle, 32, offset)
        kind, _, head, size = struct.unpack_from("<HHIQ", row)
        (arch,) = struct.unpack_from("<I", row, 28)
        if not head:
            raise ValueError("not a list of images")
        if kind in _KINDS:
            yield "{}_{}".format(_KINDS[kind], arch)
        offset += head + size


def _common_targets(containers: list[frozenset[str]]) -> list[str] | None:
    """Keep the targets of at least half of them: some kernels are for one architecture only."""
    if not containers:
        return None
    counts = Counter(arch for targets in containers for arch in targets)
    common = [arch for arch, count in counts.items() if 2 * count >= len(containers)]
    return sorted(common, key=lambda arch: (arch.split("_")[0], int(arch.split("_")[1])))[:MOST]


_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
              "/usr/local/lib", "/usr/local/lib64", "/usr/local/cuda/lib64")  # fmt: skip
_PLUGINS = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
            "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
            "/opt/hpcx/ncclnet_plugin/lib", "/usr/local/nccl-rdma-sharp-plugins/lib")  # fmt: skip
_COMPAT = tuple("/usr/local/cuda/compat" + suffix for suffix in ("", "/lib", "/lib.real"))
_CACHE = "/etc/ld.so.cache"
_MOST_PLUGINS = 64

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
    variable = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    loader = [*libraries, *(folder_name for folder_name in variable if folder_name[:1] == "/")]
    document: dict[str, Any] = {"torch": torch, "nccl": None, "cudnn": None}
    if folder is not None and torch is not None and torch["cuda"] is not None:
        major = torch["cuda"].partition(".")[0]
        packages = dict(_packages([os.path.dirname(folder), *sys.path], major))
        inside = [folder + "/lib", sys.prefix + "/lib"]
        files = dict(_files(_LIBRARY, [*inside, *loader, *_LIBRARIES]))
        for name in ("nccl", "cudnn"):
            document[name] = packages.get(name) or files.get(name)
    compat = [name for name, _ in _matches(_DRIVER, _COMPAT)]
    document["cuda_compat"] = compat[0] if compat else None
    document["net_plugins"] = list(_plugins([*loader, *_PLUGINS, *_LIBRARIES]))
    return document


def _torch_folder() -> str | None:
    """Find the package that `import torch` would take, also an editable one; imports nothing."""
    sys_path = list(sys.path)
    if sys.prefix == sys.base_prefix:
        # -I leaves out the user's own packages, which the job would see.
        sys.path.insert(0, site.getusersitepackages())
    try:
        # As importlib.util.find_spec, which takes a node a millisecond to load.
        specs = (finder.find_spec("torch", None) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
    except (ImportError, ValueError, AttributeError):
        return None
    finally:
        sys.path[:] = sys_path
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def _torch(folder: str) -> dict[str, Any] | None:
    try:
        with open(folder + "/version.py", encoding="utf-8", errors="replace") as file:
            assigned = {name: clean(value) for name, value in _ASSIGNED.findall(file.read(65536))}
    except OSError:
        return None
    if "__version__" not in assigned:
        return None
    cuda = assigned.get("cuda")
    return {
        "version": assigned["__version__"],
        "cuda": cuda,
        "hip": assigned.get("hip"),
        "archs": None if cuda is None else architectures(folder + "/lib/libtorch_cuda.so"),
    }


def _packages(folders: Iterable[str], major: str) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of NVIDIA's wheels for that CUDA; the first folder's come last."""
    for folder in reversed(list(dict.fromkeys(folders))):
        for name in names(folder):
            match = _PACKAGE.fullmatch(name)
            if match and match.group(2) in (None, major):
                yield match.group(1), clean(match.group(3))


def _files(pattern: re.Pattern[str], folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the same by file names such as libnccl.so.2.21.5; the first folder's come last."""
    versions = [match.groups() for _, match in _matches(pattern, folders)]
    for name, version in reversed(versions):
        yield name, clean(version)


def _matches(
    pattern: re.Pattern[str], folders: Iterable[str]
) -> Iterator[tuple[str, re.Match[str]]]:
    for folder in dict.fromkeys(folders):
        for name in names(folder):
            match = pattern.fullmatch(name)
            if match:
                yield (match.group(1) if pattern.groups else folder + "/" + name), match


def _plugins(folders: Iterable[str]) -> Iterator[str]:
    paths = [path for path, _ in _matches(_PLUGIN, folders)]
    with suppress(OSError), open(_CACHE, "rb") as file:
        paths += [path.decode("ascii") for path in _CACHED.findall(file.read(8 << 20))]
    existing = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    yield from map(clean, existing[:_MOST_PLUGINS])


LIMIT = 65536
MOST_SETTINGS = 512
LONGEST = 1023
"""Characters of a value: NCCL's own buffer."""

_PUBLIC = ("NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "CUDA_", "OMP_NUM_THREADS", "FI_", "UCX_")
"""Prefixes of names whose values may leave the node."""


def read_nccl_conf(etc: str, chosen: str) -> list[dict[str, Any]]:
    """Return the files that exist: `chosen` (NCCL_CONF_FILE) or ~/.nccl.conf, then etc/nccl.conf.

    Runs in a guarded child: a home on a file server that is down never answers.
    """
    home = _home()
    user = chosen or (home + "/.nccl.conf" if home else "")
    files = [_file(user, "user") if user else None, _file(etc + "/nccl.conf", "system")]
    return [file for file in files if file is not None]


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _file(path: str, kind: str) -> dict[str, Any] | None:
    document = {"path": clean(path), "kind": kind}
    try:
        with open(open_regular(path)[0], "rb", buffering=0) as file:
            raw = file.read(LIMIT + 1) or b""
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return None if absent else dict(document, error=words(error))
    if len(raw) > LIMIT:
        return dict(document, error="it is larger than %d bytes" % LIMIT)
    return dict(document, **_settings(raw))


def _settings(raw: bytes) -> dict[str, Any]:
    """Split the lines like NCCL: at the first =, without trimming, # only in the first column."""
    settings, odd = [], 0
    for line in raw.split(b"\n"):
        if not line.strip() or line.startswith(b"#"):
            continue
        name, equals, value = line.partition(b"=")
        if not equals:
            odd += 1
            continue
        settings.append({"name": clean(name, 256), "value": _setting_value(name, value)})
    return {"settings": settings[:MOST_SETTINGS], "without_equals": odd}


def _setting_value(name: bytes, value: bytes) -> str:
    from . import redact  # its patterns take milliseconds, and few nodes have the file

    setting = clean(name).strip()
    setting = setting[len("export ") :].strip() if setting.startswith("export ") else setting
    return redact.setting(setting, clean(value, LONGEST)) if setting.startswith(_PUBLIC) else "***"
