"""Flight recorder dumps that torch has left: taken along as they are, and never opened here."""

from __future__ import annotations

import base64
import errno
import os
import stat
import zlib

from probe import named_file
from probe.text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST = 32 << 20
"""Bytes of a file: 2000 entries with stacks take two or three MiB."""

_PACKED, _TOGETHER = 2 << 20, 12 << 20
"""Bytes of what travels, of one and (as base64) of all of a node: a child's answer takes 16 MiB."""

_AGE_SLACK_S = 5.0
_NOT_THEIRS = "it is no regular file of the rank's own user"


def read(wanted: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a `Dump` by pid (as text) for each of `wanted`: "pid", "uid", "paths", "began_s".

    In a child only: they may be on a file server. Of several places the newest file counts.
    """
    found: dict[str, dict[str, Any]] = {}
    room = _TOGETHER
    for one in wanted:
        seen = [dump for path in one["paths"] for dump in _newest(one, path)]
        if seen:
            dump = max(seen, key=lambda each: float(each["written_s"]))
            if len(dump["content"]) > room:
                dump.update(content="", why="the dumps of this node are too large together")
            room -= len(dump["content"])
            found[str(one["pid"])] = dump
    return found


def _newest(one: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return it as the process sees it, in its own container, else as this login does."""
    for place in (f"/proc/{one['pid']}/root{path}", path):
        dump = _dump(place, path, one["uid"], one["began_s"])
        if dump is not None:
            return [dump]
    return []


def _dump(place: str, path: str, uid: int | None, began_s: float) -> dict[str, Any] | None:
    """Return the file, or why it is not; None where there is none of this job."""
    try:
        file, status = named_file.opened(place, follow=False)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return _refused(path, _NOT_THEIRS)
        absent = isinstance(error, (FileNotFoundError, NotADirectoryError, ProcessLookupError))
        return None if absent or place != path else _refused(path, words(error))
    try:
        if stat.S_ISREG(status.st_mode) and status.st_uid == uid:
            earlier = status.st_mtime + _AGE_SLACK_S < began_s
            return None if earlier else _content(file, path, status)
        return _refused(path, _NOT_THEIRS)
    except OSError as error:
        return _refused(path, words(error))
    finally:
        os.close(file)


def _content(file: int, path: str, status: os.stat_result) -> dict[str, Any]:
    told = {"path": clean(path), "written_s": max(0.0, status.st_mtime), "size": status.st_size}
    if status.st_size > LARGEST:
        return {**told, "why": f"it has {status.st_size >> 20} MiB", "content": ""}
    with open(file, "rb", closefd=False) as stream:
        packed = zlib.compress(stream.read(LARGEST), 6)
    if len(packed) > _PACKED:
        return {**told, "why": f"it has {len(packed) >> 20} MiB compressed", "content": ""}
    return {**told, "content": base64.b64encode(packed).decode("ascii")}


def _refused(path: str, why: str) -> dict[str, Any]:
    return {"path": clean(path), "written_s": 0.0, "size": 0, "content": "", "why": clean(why)}
