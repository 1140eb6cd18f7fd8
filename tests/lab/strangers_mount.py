"""A file system of another user, whose server calls all that is in it root's.

    python strangers_mount.py FOLDER [USER_ID]

As with `user_allow_other` in /etc/fuse.conf. In the folder is a program, py-spy, and `slow`, a file
that can be opened and never closed; it refuses to be listed, and to say its size (statfs). Who
looks for a name that begins with `never` gets no answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("IIQQ")  # length, opcode, unique, node of fuse_in_header
_GETATTR, _INIT, _FORGETS, _LOOKUP, _FLUSH = 3, 26, (2, 42), 1, 25
_HEADER_BYTES = 40
_LONGEST = 1 << 20
_FOLDER, _FILE = (0o040755, 2), (0o100755, 1)  # mode, links
_NODES = {b"py-spy\0": 2, b"slow\0": 3}
"""By name; 1 is the folder's."""


@contextmanager
def mounted(folder: Path, user: int) -> Iterator[IO[bytes]]:
    """Have it mounted by a user, and yield the server's words; skip the test where none can be."""
    argv = [sys.executable, __file__, str(folder), str(user)]
    server = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        if server.stdout is None or not server.stdout.readline():
            pytest.skip("no FUSE file system can be mounted here")
        yield server.stdout
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        server.kill()
        server.wait()


@contextmanager
def starting_a_program(user: int, many: int = 1) -> Iterator[list[int]]:
    """Processes of a user that never get through execve(), in which the file `slow` is closed.

    Newer kernels hold a lock meanwhile, for which readers of /proc/PID/stat wait.
    """
    pids: list[int] = []
    with TemporaryDirectory(dir="/tmp") as reachable, ExitStack() as stack:
        Path(reachable).chmod(0o755)
        stack.callback(_end, pids)  # after their file system: until it is gone no signal ends them
        words = stack.enter_context(mounted(Path(reachable) / "his", user))
        pids += [_start(Path(reachable) / "his" / "slow", user) for _ in range(many)]
        for _ in pids:
            assert words.readline() == b"closing\n"
        yield pids


def _end(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _start(slow: Path, user: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            os.setgid(user)
            os.setuid(user)
            os.open(slow, os.O_RDONLY)
            os.execv("/bin/sleep", ["sleep", "600"])  # noqa: S606
        finally:
            os._exit(1)
    return pid


def main(folder: str, user: str = "65534") -> None:
    """Mount it, say so, and answer until it is unmounted."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={user},group_id={user},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"user_id=0", folder.encode(), b"fuse.his", 6, options.encode()):
        raise OSError(ctypes.get_errno(), "mount of a FUSE file system")
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    while True:
        try:
            request = os.read(fuse, _LONGEST)
        except OSError:
            return  # unmounted
        _, opcode, unique, node = _HEADER.unpack_from(request)
        if opcode in _FORGETS or request[_HEADER_BYTES:].startswith(b"never"):
            continue
        if opcode == _FLUSH and node == _NODES[b"slow\0"]:
            sys.stdout.write("closing\n")
            sys.stdout.flush()
            continue
        answer, error = _answer(opcode, node, request)
        os.write(fuse, struct.pack("IiQ", 16 + len(answer), -error, unique) + answer)


def _attributes(node: int) -> bytes:
    mode, links = _FOLDER if node == 1 else _FILE
    return struct.pack("QQQQQQIIIIIIIIII", node, *[0] * 5, *[0] * 3, mode, links, *[0] * 5)


def _answer(opcode: int, node: int, request: bytes) -> tuple[bytes, int]:
    if opcode == _INIT:
        (readahead,) = struct.unpack_from("I", request, 48)
        return struct.pack("IIIIHHI", 7, 31, readahead, 0, 12, 10, 1 << 17).ljust(64, b"\0"), 0
    if opcode == _GETATTR:
        return struct.pack("QII", 1, 0, 0) + _attributes(node), 0
    if opcode == _LOOKUP and (found := _NODES.get(request[_HEADER_BYTES:])):
        return struct.pack("QQQQII", found, 0, 1, 1, 0, 0) + _attributes(found), 0
    return b"", errno.ENOENT if opcode == _LOOKUP else errno.ENOSYS


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(*sys.argv[1:])
