"""Asks torch's worker server of a rank for its flight recorder: HTTP over a socket file.

torch.distributed.elastic.control_plane opens it where TORCH_WORKER_SERVER_SOCKET is set. Its C++
threads answer while the rank hangs. A server on a TCP port is not asked: its port is known only
from the job's store, and a try of another port may reach a listener of NCCL or gloo.
"""

from __future__ import annotations

import base64
import os
import socket
import stat
import time
import zlib

from probe.bounded_text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

VARIABLE = b"TORCH_WORKER_SERVER_SOCKET"
_HANDLERS = ("dump_nccl_trace_pickle", "fr_trace_json")
"""Of NCCL's groups; of all other groups and of an NCCL-free torch."""

_LARGEST, _PACKED, _TOGETHER = 32 << 20, 2 << 20, 12 << 20
_RANK_S = 1.0


def read(wanted: list[Document], until: float) -> dict[str, Document]:
    """Return a `Dump` by pid (as text) for each of `wanted` that answers: "pid", "uid", "socket".

    Only in a child: a server may hang.
    """
    found: dict[str, Document] = {}
    room = _TOGETHER
    for one in wanted:
        body = b""
        for handler in _HANDLERS:
            ends = min(until, time.monotonic() + _RANK_S)
            try:
                body = body or _ask(one, handler, ends)
            except (OSError, ValueError):
                break
        content = base64.b64encode(zlib.compress(body)).decode("ascii")
        if body and len(content) <= min(room, _PACKED):
            room -= len(content)
            path, size = clean(one["socket"]), len(body)
            now_s = round(time.time(), 3)
            found[str(one["pid"])] = {
                "path": path, "written_s": now_s, "size": size, "content": content,
            }  # fmt: skip
    return found


def _ask(one: Document, handler: str, until: float) -> bytes:
    """Return the body of the answer; b"" if the server does not know the handler."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(max(0.01, until - time.monotonic()))
        _connect(link, f"/proc/{one['pid']}/root{one['socket']}", int(one["uid"]))
        link.sendall(b"POST /handler/%s HTTP/1.0\r\nContent-Length: 0\r\n\r\n" % handler.encode())
        answer = bytearray()
        while True:
            link.settimeout(max(0.01, until - time.monotonic()))
            chunk = link.recv(1 << 16)
            if not chunk:
                break
            answer += chunk
            if len(answer) > _LARGEST or time.monotonic() >= until:
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
