"""The port stage as nodes meet it: real listeners, real connections, and who is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from preflight.facts.model import Ports, decode_document

from .node import NONCE, Remote, system_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack


pytestmark = pytest.mark.slow

NOBODY = 65534
ABORT = struct.pack("ii", 1, 0)


class Node(Remote):
    """One node in the port stage."""

    def __init__(self, name: str, master_port: int | None = None, **how: Any) -> None:
        super().__init__("ports", **how)
        self.ask(nonce=NONCE, name=name, deadline_s=40, master_port=master_port, data_ports=2)
        hello = json.loads(self.answer())
        self.listening: list[int] = hello["listening"]
        self.master_bound: bool = hello["master_bound"]

    def connect(self, *targets: tuple[str, int], address: str = "127.0.0.1") -> None:
        """Let it try (node, port) pairs."""
        asked = [
            {"node": node, "address": address, "port": port, "kind": "data"}
            for node, port in targets
        ]
        self.ask(targets=asked)
        assert json.loads(self.answer()) == {"tried": len(targets)}

    def finish(self) -> Ports:
        """Let it close its listeners, and take its document."""
        self.ask(finish=True)
        ports = decode_document(Ports, self.answer(), NONCE)
        assert self.leave() == 0
        return ports


@pytest.fixture
def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of a program that accepts and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def outcome(ports: Ports) -> list[str]:
    """Return what came of each attempt."""
    return [attempt.result for attempt in ports.attempts]


def test_nodes_reach_each_other_and_leave_the_ports_free(free_port: int) -> None:
    """Master and data ports answer the other node; afterwards the master port binds once more."""
    master, worker = Node("h1", free_port), Node("h2")
    assert master.master_bound
    assert len(master.listening) == len(worker.listening) == 2
    worker.connect(("h1", free_port), *(("h1", port) for port in master.listening))
    master.connect(*(("h2", port) for port in worker.listening))
    theirs, ours = worker.finish(), master.finish()
    assert outcome(theirs) == ["ok"] * 3
    assert outcome(ours) == ["ok"] * 2
    assert ours.master is not None
    assert (ours.master.bound, ours.master.holder, ours.master.free_again) == (True, None, True)
    assert theirs.master is None


def test_two_runs_at_once_wait_for_each_other(free_port: int) -> None:
    """A run that tests the same port meanwhile is no program that keeps it from the job."""
    first = Node("h1", free_port)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Node, "h1", free_port)
        time.sleep(0.5)
        ended = first.finish()
        second = waiting.result()
    assert second.master_bound
    for ports in (ended, second.finish()):
        assert ports.master is not None
        assert (ports.master.bound, ports.master.free_again) == (True, True)


def test_both_families_are_answered(free_port: int) -> None:
    """The master listens as torch's store does: IPv4 and IPv6 at one port."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    master, worker = Node("h1", free_port), Node("h2")
    worker.connect(("h1", free_port), address="::1")
    worker.connect(("h1", free_port), address="localhost")
    assert outcome(worker.finish()) == ["ok", "ok"]
    master.finish()


def test_hundreds_may_knock_at_once(free_port: int) -> None:
    """A fleet that connects in one instant is answered in full."""
    master, worker = Node("h1", free_port), Node("h2")
    worker.connect(*[("h1", free_port)] * 400)
    assert set(outcome(worker.finish())) == {"ok"}
    ports = master.finish()
    assert ports.master is not None
    assert ports.master.free_again


def test_strangers_neither_block_the_listener_nor_its_port(free_port: int) -> None:
    """Silent, babbling and rude peers do not keep this run's nodes out, nor the port taken."""
    master, worker = Node("h1", free_port), Node("h2")
    with contextlib.ExitStack() as strangers:
        for number in range(600):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", free_port)))
            if number % 3 == 1:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
            if number % 3 == 2:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        worker.connect(("h1", free_port))
        ports = master.finish()
        assert outcome(worker.finish()) == ["ok"]
    assert ports.master is not None
    assert ports.master.free_again


def test_the_holder_of_a_taken_port_is_named(free_port: int, cleanup: ExitStack) -> None:
    """Address in use, with its holder: pid, user, command, age, and that it listens."""
    code = "import socket, sys; s = socket.create_server(('', int(sys.argv[1]))); print(); input()"
    squatter = cleanup.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", code, str(free_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    assert squatter.stdout
    squatter.stdout.readline()
    node = Node("h1", free_port)
    assert not node.master_bound
    master = node.finish().master
    assert master is not None
    assert (master.bound, master.error, master.free_again) == (
        False,
        "Address already in use",
        None,
    )
    assert master.holder is not None
    assert (master.holder.pid, master.holder.ours) == (squatter.pid, False)
    assert str(free_port) in master.holder.command
    assert master.holder.listens == (free_port,)


def test_a_port_held_above_us_is_ours(free_port: int) -> None:
    """The store of the launcher we run under is recognised as the run's own."""
    with socket.create_server(("127.0.0.1", free_port)):
        master = Node("h1", free_port).finish().master
    assert master is not None
    assert master.holder is not None
    assert (master.holder.pid, master.holder.ours) == (os.getpid(), True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_a_hidden_holder_still_has_a_user(free_port: int) -> None:
    """Where the login may not see whose socket it is, the kernel's table still says which user."""
    with socket.create_server(("127.0.0.1", free_port)):
        master = Node("h1", free_port, user=NOBODY, python=system_python()).finish().master
    assert master is not None
    assert master.holder is not None
    assert (master.holder.pid, master.holder.user, master.holder.command) == (0, "root", "")


def test_lingering_connections_are_counted(free_port: int) -> None:
    """A server that closed first leaves TIME_WAIT: no holder, and how many linger."""
    with socket.create_server(("127.0.0.1", free_port)) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", free_port)) as client:
                server.accept()[0].close()
                client.recv(1)
    master = Node("h1", free_port).finish().master
    assert master is not None
    assert (master.bound, master.holder, master.lingering) == (False, None, 3)


def test_each_way_to_fail_has_its_word(free_port: int, silent: int) -> None:
    """Refused, another program's silence, its close, a reset and a bad name differ in result."""
    with (
        socket.create_server(("127.0.0.1", 0)) as closing,
        socket.create_server(("127.0.0.1", 0)) as rude,
        ThreadPoolExecutor(2) as pool,
    ):
        pool.submit(_hang_up, closing, abruptly=False)
        pool.submit(_hang_up, rude, abruptly=True)
        worker = Node("h2")
        worker.connect(
            ("h1", free_port),
            ("h1", silent),
            ("h1", closing.getsockname()[1]),
            ("h1", rude.getsockname()[1]),
        )
        worker.connect(("h1", free_port), address="no such name")
        ports = worker.finish()
    assert outcome(ports) == ["refused", "wrong_answer", "wrong_answer", "reset", "error"]
    assert ports.attempts[0].error == "Connection refused"
    assert ports.attempts[1].error == "a program accepted, but gave no reply in 3 s"
    assert ports.attempts[2].error == "another program accepted and closed without a reply"
    assert ports.attempts[3].error == "Connection reset by peer"


def _hang_up(server: socket.socket, *, abruptly: bool) -> None:
    taken, _ = server.accept()
    with taken:
        taken.recv(4096)
        if abruptly:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)


def test_another_runs_listener_is_a_stranger(free_port: int) -> None:
    """A preflight of the same node with another nonce does not pass for this one."""
    other = Remote("ports")
    request = {"name": "h1", "deadline_s": 30, "master_port": free_port, "data_ports": 0}
    other.ask(nonce="another", **request)
    assert other.process.stdout
    other.process.stdout.readline()
    worker = Node("h2")
    worker.connect(("h1", free_port))
    other.hang_up()
    assert other.leave() == 0
    assert outcome(worker.finish()) == ["wrong_answer"]


def test_the_right_run_on_the_wrong_node_is_a_stranger(free_port: int) -> None:
    """An address that leads to another node of this run is found out."""
    master, worker = Node("h1", free_port), Node("h2")
    worker.connect(("h3", free_port))
    assert outcome(worker.finish()) == ["wrong_answer"]
    master.finish()


def test_a_port_that_drops_what_comes_times_out(cleanup: ExitStack) -> None:
    """With the backlog full the kernel drops the attempt, as a firewall would: timeout."""
    full = cleanup.enter_context(socket.socket())
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    for _ in range(4):
        waiting = cleanup.enter_context(socket.socket())
        waiting.settimeout(0)
        waiting.connect_ex(full.getsockname())
    worker = Node("h2")
    worker.connect(("h1", full.getsockname()[1]))
    attempt = worker.finish().attempts[0]
    assert (attempt.result, attempt.error) == ("timeout", "no connection within 3 s")
    assert attempt.ms >= 3000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_a_node_without_a_route_says_unreachable() -> None:
    """No network at all is `unreachable`, not `refused`."""
    worker = Node("h2", before=("unshare", "-n"))
    worker.connect(("h1", 29500))
    attempt = worker.finish().attempts[0]
    assert (attempt.result, attempt.error) == ("unreachable", "Network is unreachable")


def test_a_controller_that_goes_away_frees_the_ports(free_port: int) -> None:
    """End of input closes the listeners and ends the stage without a document."""
    node = Node("h1", free_port)
    node.hang_up()
    assert node.leave() == 0
    socket.create_server(("127.0.0.1", free_port)).close()


def test_a_reserved_port_is_an_error_without_holder(cleanup: ExitStack) -> None:
    """A port that this login may not bind is reported with the kernel's error."""
    lowest = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if os.geteuid() != 0 or int(lowest.read_text()) <= 1:
        pytest.skip("needs root to act as another user, and a kernel that reserves ports")
    node = Node("h1", 1, user=NOBODY, python=system_python())
    cleanup.callback(node.process.send_signal, signal.SIGKILL)
    master = node.finish().master
    assert master is not None
    assert (master.bound, master.error, master.holder) == (False, "Permission denied", None)
