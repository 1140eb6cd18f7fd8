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

_left: dict[CodeType, set[int]] = {}
"""Lines that have not run; a function that has none left is no longer followed."""
_folder = ""


def start(folder: str) -> None:
    """Trace this process, its threads and its forked children into files of that folder."""
    global _folder  # noqa: PLW0603  # one trace in a process
    _folder = folder
    threading.settrace(_calls)
    sys.settrace(_calls)


def _calls(frame: FrameType, *_: Any) -> Any:
    code = frame.f_code
    if code not in _left:
        ours = _PAYLOAD.fullmatch(code.co_filename) is not None
        _left[code] = {line for _, _, line in code.co_lines() if line} if ours else set()
        _left[code].discard(code.co_firstlineno if code.co_name != "<module>" else 0)
    return _lines if _left[code] else None


def _lines(frame: FrameType, event: str, _: Any) -> Any:
    code, line = frame.f_code, frame.f_lineno
    if event == "line" and line in _left[code]:
        _left[code].remove(line)
        file = code.co_filename
        # Opened each time: the payload closes descriptors that it does not know.
        out = os.open(f"{_folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(out, "{1}:{0}\n".format(line, *_PAYLOAD.findall(file)).encode("ascii"))
        os.close(out)
    return _lines
