"""NCCL reads two files that no launch script names: a stale line there rules a whole fleet.

Which they are: NVIDIA/nccl, src/misc/param.cc initEnvFunc. The home is the one of the user
database, whatever HOME says. Only settings leave the node, and no value of a strange name.
"""

from __future__ import annotations

import errno
import os
import pwd

from . import guard, named_file
from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 65536
MOST = 512
LONGEST = 1023
"""Characters of a value: NCCL's own buffer."""

_TOLD = ("NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "CUDA_", "OMP_NUM_THREADS", "FI_", "UCX_")
_SECRET = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_KEY", "_PSK")


def start(request: dict[str, Any]) -> guard.Child:
    """Start reading: `nccl_conf_file` is what NCCL_CONF_FILE of the job names on this node."""
    etc, named = str(request.get("etc", "/etc")), str(request.get("nccl_conf_file", ""))
    return guard.spawn(read, etc, named)


def read(etc: str, named: str) -> list[dict[str, Any]]:
    """Return the files that exist: `named` (NCCL_CONF_FILE) or ~/.nccl.conf, then etc/nccl.conf.

    Runs in a guarded child: a home on a dead file server, or a dead directory, never answers.
    """
    home = _home()
    user = named or (home + "/.nccl.conf" if home else "")
    files = [_file(user, "user") if user else None, _file(etc + "/nccl.conf", "system")]
    return [file for file in files if file is not None]


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _file(path: str, kind: str) -> dict[str, Any] | None:
    found = {"path": clean(path), "kind": kind}
    try:
        with open(path, "rb", buffering=0, opener=_opener) as file:
            raw = file.read(LIMIT + 1) or b""
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return None if absent else dict(found, error=words(error))
    if len(raw) > LIMIT:
        return dict(found, error="it is larger than %d bytes" % LIMIT)
    return dict(found, **_settings(raw))


def _opener(path: str, flags: int) -> int:
    del flags  # always "rb"
    return named_file.opened(path)[0]


def _settings(raw: bytes) -> dict[str, Any]:
    """Split it as NCCL does: at the first =, nothing trimmed, # only in the first column."""
    told, odd = [], 0
    for line in raw.split(b"\n"):
        if not line.strip() or line.startswith(b"#"):
            continue
        name, equals, value = line.partition(b"=")
        if not equals:
            odd += 1
            continue
        told.append({"name": clean(name, 256), "value": _told(name, value)})
    return {"settings": told[:MOST], "without_equals": odd}


def _told(name: bytes, value: bytes) -> str:
    plain = clean(name).strip()
    plain = plain[len("export ") :].strip() if plain.startswith("export ") else plain
    public = plain.startswith(_TOLD) and not any(word in plain.upper() for word in _SECRET)
    return clean(value, LONGEST) if public else "***"
