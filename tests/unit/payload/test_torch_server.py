"""torch's worker server of a rank gives its flight recorder while the rank hangs."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from probe import procfs
from stacks import rank_dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SERVER = """
import sys, time
from torch._C._distributed_c10d import _WorkerServer
server = _WorkerServer(sys.argv[1])
print("up", flush=True)
time.sleep(60)
"""


def asked(path: Path, *, pid: int | None = None, uid: int | None = None) -> dict[str, Any]:
    """Ask as a node does."""
    user = os.geteuid() if uid is None else uid
    wanted = {"pid": pid or os.getpid(), "uid": user, "socket": str(path)}
    return rank_dumps.ask_servers([wanted], time.monotonic() + 30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Start torch's own server in a process that does nothing else."""
    path = tmp_path / "w"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER, str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout
    process.stdout.readline()
    yield process.pid, path
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.slow
def test_torchs_own_server_answers(server: tuple[int, Path]) -> None:
    """The record is a document that the reader of dumps reads; others' sockets are not opened."""
    pid, path = server
    (dump,) = asked(path, pid=pid).values()
    record = msgspec.json.decode(zlib.decompress(base64.b64decode(dump["content"])))
    assert record["version"].startswith("2.")
    assert asked(path, pid=pid, uid=os.geteuid() + 1) == {}
    link = path.with_name("link")
    link.symlink_to(path)
    assert asked(link, pid=pid) == {}


def test_a_server_that_does_not_end_is_left(tmp_path: Path) -> None:
    """One rank costs a second, and gives nothing."""
    path = tmp_path / "w"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=listener.accept, daemon=True).start()
        assert asked(path) == {}


def test_a_file_that_is_no_socket_is_not_opened(tmp_path: Path) -> None:
    """A rank may name any path."""
    (tmp_path / "w").write_text("x")
    assert asked(tmp_path / "w") == {}
    assert asked(tmp_path / "none") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's socket")
@pytest.mark.slow
def test_one_users_silent_servers_keep_no_other_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user's servers are asked in turn."""
    monkeypatch.setattr(rank_dumps, "_RANK_S", 0.3)
    silent, talks = tmp_path / "silent", tmp_path / "talks"

    def answer(listener: socket.socket) -> None:
        link, _ = listener.accept()
        with link:
            link.recv(4096)
            link.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as listener:
        for one, path, uid in ((mute, silent, 65534), (listener, talks, 4321)):
            one.bind(str(path))
            one.listen()
            os.chown(path, uid, uid)
        threading.Thread(target=answer, args=[listener], daemon=True).start()
        parent = os.getppid()
        many = [{"pid": parent, "uid": 65534, "socket": str(silent)} for _ in range(100)]
        wanted = [*many, {"pid": os.getpid(), "uid": 4321, "socket": str(talks)}]
        found = rank_dumps.ask_servers(wanted, time.monotonic() + 10)
    assert [*found] == [str(os.getpid())]


def test_a_users_many_ids_are_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He has 65,536 for his containers: with each a reader of its own, none was left for others."""
    (tmp_path / "subuid").write_text("eve:100000:65536\n")
    monkeypatch.setattr(procfs, "SUBUIDS", str(tmp_path / "subuid"))
    posing = [{"pid": at, "uid": 100_000 + at} for at in range(9)]
    others = [{"pid": 100 + at, "uid": 1000 + at} for at in range(2)]
    assert rank_dumps.by_user(posing + others) == [posing, *([one] for one in others)]
    assert [one["pid"] for one in rank_dumps.in_turn(posing + others)][:3] == [0, 100, 101]
    crowd = [{"pid": at, "uid": 1000 + at} for at in range(20)]
    assert [len(some) for some in rank_dumps.by_user(crowd)] == [*[1] * 7, 13]


def _drip(link: socket.socket) -> None:
    while True:
        link.sendall(b"x")
        time.sleep(0.02)


def _flood(link: socket.socket) -> None:
    while True:
        link.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 65536)


OK = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("talk", "body"),
    [
        (_drip, None),
        (_flood, None),
        (lambda link: link.sendall(b"HTTP/1.0 302 Found\r\nLocation: http://[::1]/\r\n\r\n"), None),
        (lambda link: link.sendall(OK + b"A: b\r\n" * 1_000_000), None),
        (lambda link: link.sendall(OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b"), b"\x1f\x8b"),
    ],
    ids=["drip", "flood", "redirect", "headers", "gzip"],
)
def test_a_hostile_server_costs_its_own_second(
    tmp_path: Path, talk: Callable[[socket.socket], None], body: bytes | None
) -> None:
    """Nothing of its answer is followed or unpacked."""
    path = tmp_path / "w"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    with link, contextlib.suppress(OSError):
                        link.recv(4096)
                        talk(link)

        threading.Thread(target=answer, daemon=True).start()
        found = asked(path)
        listener.shutdown(socket.SHUT_RDWR)
    packed = [base64.b64decode(dump["content"]) for dump in found.values()]
    assert [zlib.decompress(one) for one in packed] == ([] if body is None else [body])
