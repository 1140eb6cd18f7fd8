"""The sockets of a node: /proc/net/tcp, and the connections of ranks in any namespace."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe import guard, network, procfs
from stacks import sockets

if TYPE_CHECKING:
    from collections.abc import Iterator


@given(st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.booleans())
def test_port_owner_and_inode_are_read(port: int, uid: int, inode: int, six: bool) -> None:  # noqa: FBT001 (drawn)
    """Both families' lines give local port, uid and inode."""
    address = "0" * 32 if six else "0100007F"
    line = (
        f"   3: {address}:{port:04X} {address}:0000 0A 00000000:00000000 00:00000000 00000000 "
        f"{uid:5d}        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
    )
    one = procfs.Socket(line)
    assert (one.port, one.uid, one.inode, one.state) == (port, uid, str(inode), procfs.LISTEN)


@given(st.text(max_size=120))
def test_any_other_line_is_refused(line: str) -> None:
    """The heading, or garbage, raises ValueError and nothing else."""
    with contextlib.suppress(ValueError):
        assert procfs.Socket(line).port >= 0


def test_a_real_listener_is_in_the_table() -> None:
    """A socket that listens in this process is listed under its port, as ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = [one for one in procfs.tcp() if one.port == server.getsockname()[1]]
    assert [(one.state, one.uid) for one in mine] == [(procfs.LISTEN, os.geteuid())]


@pytest.mark.slow
def test_sockets_of_others_without_number_hide_no_connection_of_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user has so many that reading each of them would take more time than there is."""
    parse, parsed = sockets.parse, 0

    def more(protocol: int, kind: int, ask: bytes) -> Iterator[list[bytes]]:
        yield from network.answers(protocol, kind, ask)
        if protocol == sockets._SOCK_DIAG:
            yield from itertools.repeat([bytes(sockets._MESSAGE.size)] * 4096)

    def counted(body: bytes) -> dict[str, Any] | None:
        nonlocal parsed
        parsed += 1
        return parse(body)

    monkeypatch.setattr(sockets, "answers", more)
    monkeypatch.setattr(sockets, "parse", counted)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        found = sockets.look([os.getpid()])
        name = "{}:{}".format(*ours.getsockname())
    assert name in [one["local"] for one in found["wires"][str(os.getpid())]]
    assert parsed < 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace")
def test_a_rank_in_a_network_of_its_own_hides_no_connection_of_another() -> None:
    """A container's, or one that any user makes: the node's own network is read first."""
    with (
        subprocess.Popen(["unshare", "--net", "sleep", "60"]) as alone,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        until = time.monotonic() + 30
        while sockets.namespace(alone.pid) == sockets.namespace(os.getpid()):
            assert time.monotonic() < until
            time.sleep(0.01)
        here = ":".join(map(str, server.getsockname()))
        asked = guard.spawn(sockets.look, [alone.pid, os.getpid()])
        assert asked.listen(until)
        asked.dismiss(kill=False)
        alone.kill()
    seen = asked.value()
    assert here in [one["peer"] for one in seen["wires"][str(os.getpid())]]
    assert seen["wires"][str(alone.pid)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace")
def test_an_interface_that_a_user_makes_in_a_network_of_his_own_is_no_port_of_the_node() -> None:
    """He can break it, and the node is not to be blamed for it."""
    made = "ip link add theirs0 type veth peer name theirs1 && echo made && exec sleep 60"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", made], stdout=subprocess.PIPE) as alone:
        assert alone.stdout is not None
        assert alone.stdout.readline() == b"made\n"
        asked = guard.spawn(sockets.look, [alone.pid, os.getpid()])
        assert asked.listen(time.monotonic() + 30)
        asked.dismiss(kill=False)
        alone.kill()
    assert set(asked.value()["ports"]) == set(sockets.look_interfaces())
