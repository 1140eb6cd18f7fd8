"""Collects the flight recorders of a node's ranks: torch's dump files, and its worker servers.

torch.distributed.elastic.control_plane opens a server where TORCH_WORKER_SERVER_SOCKET is set: HTTP
over a socket file. Its C++ threads answer while the rank hangs. A server on a TCP port is not
asked: its port is known only from the job's store, and a try of another port may reach a listener
of NCCL or gloo.
"""

from __future__ import annotations

import base64
import errno
import os
import socket
import stat
import time
import zlib
from contextlib import suppress
from typing import Callable

from probe import processes, procfs
from probe.node_files import clean, open_regular, words

from . import Document

LARGEST = 32 << 20
"""Most bytes of a file: 2000 entries with stacks take two or three MiB."""

_PACKED, _ALL_BYTES = 2 << 20, 12 << 20
"""Most compressed bytes of one file, and (as base64) of all files of a node."""

_CHUNK = 1 << 20
_NO_TIME = "no time was left to read it"
_AGE_SLACK_S = 5.0
_LAST_S = 1e12
"""The latest time that a document may hold."""

_WRONG_OWNER = "it is no regular file of the rank's own user"


def read_files(ranks: list[Document], until: float, shares: int = 1) -> dict[str, Document]:
    """Return a `Dump` by pid (as text) for each of `ranks`: "pid", "uid", "dumps", "began_s".

    Only in a child: they may be on a file server. Of several paths the newest file counts.
    What is not read by `until` (monotonic clock) is left out, so that the others are returned.
    `shares`: among how many such readers the room is divided.
    """
    dump_of: dict[str, Document] = {}
    room = _ALL_BYTES // shares
    for rank in in_turn(ranks, _size):
        if time.monotonic() >= until:
            dump_of[str(rank["pid"])] = _document(why=_NO_TIME)
            continue
        newest = [_newest(rank, path, until) for path in rank["dumps"]]
        dumps = [dump for dump in newest if dump]
        if dumps:
            dump = max(dumps, key=lambda dump: float(dump["written_s"]))
            if len(dump["content"]) > room:
                dump.update(content="", why="the dumps of this node are too large together")
            room -= len(dump["content"])
            dump_of[str(rank["pid"])] = dump
    return dump_of


_MOST_READERS = 8


def by_user(ranks: list[Document]) -> list[list[Document]]:
    """Group the ranks by user; all users beyond the seventh share the last group."""
    groups: dict[int | None, list[Document]] = {}
    for rank in ranks:
        user = procfs.answering(rank["uid"])
        is_apart = user in groups or len(groups) < _MOST_READERS - 1
        groups.setdefault(user if is_apart else None, []).append(rank)
    return list(groups.values())


def in_turn(ranks: list[Document], size: Callable[[Document], int] = lambda _: 0) -> list[Document]:
    """Each user's smallest first, then each one's next: who poses as many ranks waits."""
    return processes.in_turn((procfs.answering(rank["uid"]), size(rank), rank) for rank in ranks)


def _size(rank: Document) -> int:
    total = 0
    for path in rank["dumps"]:
        for place in _places(rank, path):
            with suppress(OSError):
                total += os.lstat(place).st_size
    return total


def _places(rank: Document, path: str) -> tuple[str, str]:
    """The path in the process's own container, and at this login."""
    return f"/proc/{rank['pid']}/root{path}", path


def _newest(rank: Document, path: str, until: float) -> Document | None:
    """Return the file in the process's own container, else at this login's path."""
    dumps = (_dump(place, path, rank, until) for place in _places(rank, path))
    return next(filter(None, dumps), None)


def _dump(place: str, path: str, rank: Document, until: float) -> Document | None:
    """Return the file, or why it is not read; None where there is none of this job."""
    try:
        file, status = open_regular(place, follow=False)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return _document(why=_WRONG_OWNER)
        absent = isinstance(error, (FileNotFoundError, NotADirectoryError, ProcessLookupError))
        return None if absent or place != path else _document(why=words(error))
    try:
        if not stat.S_ISREG(status.st_mode) or status.st_uid != rank["uid"]:
            return _document(why=_WRONG_OWNER)
        if status.st_mtime + _AGE_SLACK_S < rank["began_s"]:
            return None  # of an earlier job
        content, why = _content(file, status.st_size, until)
        return _document(status.st_mtime, content, why)
    except OSError as error:
        return _document(why=words(error))
    finally:
        os.close(file)


def _content(file: int, size: int, until: float) -> tuple[str, str]:
    """Return a file's content, packed, and why there is none."""
    if size > LARGEST:
        return "", f"it has {size >> 20} MiB"
    packing, packed = zlib.compressobj(6), bytearray()
    with open(file, "rb", closefd=False) as stream:
        for _ in range(LARGEST // _CHUNK):
            packed += packing.compress(stream.read(_CHUNK) or b"")
            if len(packed) > _PACKED or stream.tell() >= size:
                break
            if time.monotonic() >= until:
                return "", _NO_TIME
    packed += packing.flush()
    if len(packed) > _PACKED:
        return "", f"it has over {_PACKED >> 20} MiB compressed"
    return base64.b64encode(packed).decode("ascii"), ""


def _document(written_s: float = 0.0, content: str = "", why: str = "") -> Document:
    """Return one `Dump` of the document. The user may set any time of his file."""
    written_s = min(max(0.0, written_s), _LAST_S)
    return {"written_s": written_s, "content": content, "why": clean(why)}


VARIABLE = b"TORCH_WORKER_SERVER_SOCKET"
_HANDLERS = ("dump_nccl_trace_pickle", "fr_trace_json")
"""Of NCCL's groups; of all other groups and of an NCCL-free torch."""

_RANK_S = 1.0


def ask_servers(ranks: list[Document], until: float, shares: int = 1) -> dict[str, Document]:
    """Return a `Dump` by pid (as text) for each of `ranks` that answers: "pid", "uid", "socket".

    Only in a child: a server may hang. `shares`: as for files.
    """
    dump_of: dict[str, Document] = {}
    room = _ALL_BYTES // shares
    for rank in in_turn(ranks):
        body = b""
        with suppress(OSError, ValueError):
            for handler in _HANDLERS:
                body = body or _ask(rank, handler, min(until, time.monotonic() + _RANK_S))
        content = base64.b64encode(zlib.compress(body)).decode("ascii")
        if body and len(content) <= min(room, _PACKED):
            room -= len(content)
            now_s = round(time.time(), 3)
            dump_of[str(rank["pid"])] = _document(now_s, content)
    return dump_of


def _ask(rank: Document, handler: str, until: float) -> bytes:
    """Return the body of the answer; b"" if the server does not know the handler."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(max(0.01, until - time.monotonic()))
        _connect(link, f"/proc/{rank['pid']}/root{rank['socket']}", int(rank["uid"]))
        link.sendall(b"POST /handler/%s HTTP/1.0\r\nContent-Length: 0\r\n\r\n" % handler.encode())
        answer = bytearray()
        while True:
            link.settimeout(max(0.01, until - time.monotonic()))
            chunk = link.recv(1 << 16)
            if not chunk:
                break
            answer += chunk
            if len(answer) > LARGEST or time.monotonic() >= until:
                raise ValueError("too much")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return body if head.split(b" ", 2)[1:2] == [b"200"] else b""


def _connect(link: socket.socket, path: str, uid: int) -> None:
    """Connect to a socket file of the rank's own user; OSError or ValueError for any other."""
    file = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(file)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
            raise ValueError("it is no socket of the rank's own user")
        link.connect(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
