"""Hands out real ways to a node: processes of this machine, and an sshd of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.transport import transport_for
from tests.unit.transport.sshd import PATIENCE_S, Sshd, why_no_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.transport.protocol import Connection


@pytest.fixture
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Start an sshd that lets this user in with one key."""
    if reason := why_no_sshd():
        pytest.skip(reason)
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture(params=["local", "paramiko"])
def node(request: pytest.FixtureRequest) -> Host:
    """Describe a node that can be reached, once for each transport."""
    if request.param == "local":
        return Host(name="here", address="localhost", transport="local")
    server: Sshd = request.getfixturevalue("sshd")
    return server.host(transport="paramiko")


@pytest.fixture
def connection(node: Host) -> Iterator[Connection]:
    """Log in to that node."""
    there = transport_for(node.transport).connect(node, PATIENCE_S)
    yield there
    there.close()
