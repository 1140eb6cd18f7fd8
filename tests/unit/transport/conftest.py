"""Hands out real ways to a node: processes of this machine, and an sshd of the test's own."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.transport.srun import SrunTransport
from preflight.transport.ways import transport_for
from tests.unit.transport.launcher import StandIn
from tests.unit.transport.sshd import PATIENCE_S, Sshd, why_no_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.core.remote_command import Connection
    from preflight.transport.ways import Transport


@pytest.fixture
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Start an sshd that lets this user in with one key."""
    if reason := why_no_sshd():
        pytest.skip(reason)
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listen on loopback without ever speaking SSH."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def openssh() -> Iterator[Transport]:
    """Reach hosts by the ssh binary, and leave nothing of it behind."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh on this machine")
    transport = transport_for("openssh")
    yield transport
    transport.close()


@pytest.fixture(params=["local", "paramiko", "openssh", "srun"])
def node(request: pytest.FixtureRequest) -> Host:
    """Describe a node that can be reached, once for each transport."""
    if request.param in ("local", "srun"):
        return Host(name="here", address="localhost", transport=request.param)
    server: Sshd = request.getfixturevalue("sshd")
    return server.host(transport=request.param)


@pytest.fixture
def connection(node: Host) -> Iterator[Connection]:
    """Log in to that node."""
    by_relay = node.transport == "srun"
    transport = SrunTransport([node], StandIn()) if by_relay else transport_for(node.transport)
    there = transport.connect(node, PATIENCE_S)
    yield there
    there.close()
    transport.close()
