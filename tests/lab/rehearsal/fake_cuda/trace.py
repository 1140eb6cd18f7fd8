"""Which lines of the payload's sweep and burn-in this host's processes run.

Each line is written the first time that a process comes to it, before it runs: a process may end by
SIGKILL or `os._exit` at any moment. Forked processes go on where their parent was.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FrameType

_PAYLOAD = re.compile(r"(?:/proc/self/fd/\d+/)?((?:sweep|burn)/\w+\.py)")
"""Where the code says that it is from: the payload's zip names files from its own root."""

_files: dict[CodeType, str | None] = {}
_seen: set[tuple[str, int]] = set()
_folder = ""


def start(folder: str) -> None:
    """Trace this process, its threads and its forked children into a file of that folder."""
    global _folder  # noqa: PLW0603  # one trace in a process
    _folder = folder
    threading.settrace(_calls)
    sys.settrace(_calls)


def _calls(frame: FrameType, event: str, value: Any) -> Any:
    code = frame.f_code
    if code not in _files:
        found = _PAYLOAD.fullmatch(code.co_filename)
        _files[code] = found[1] if found else None
    return _lines if _files[code] else None


def _lines(frame: FrameType, event: str, value: Any) -> Any:
    file = _files[frame.f_code]
    assert file is not None
    place = (file, frame.f_lineno)
    if event == "line" and place not in _seen:
        _seen.add(place)
        # Opened each time: the payload closes descriptors that it does not know.
        out = os.open(f"{_folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(out, f"{file}:{frame.f_lineno}\n".encode("ascii"))
        os.close(out)
    return _lines
