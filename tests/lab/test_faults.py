"""Each fault does to a job what LAB.md's table says: effects and their side, never exact times."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import impostors, processes, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab
    from tests.lab.host import Host

pytestmark = pytest.mark.lab

_ECHO = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while got := peer.recv(1 << 16):
                peer.sendall(got)
"""

_PING = """
import json, socket, statistics, sys, time
with socket.create_connection((sys.argv[1], 7000), 10) as peer:
    peer.settimeout(30)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(int(sys.argv[2])):
        start = time.monotonic()
        for block in range(0, int(sys.argv[3]), 1 << 16):
            left = min(1 << 16, int(sys.argv[3]) - block)
            peer.sendall(b"x" * left)
            while left:
                left -= len(peer.recv(left))
        times.append((time.monotonic() - start) * 1e3)
print(json.dumps({"median": statistics.median(times), "worst": max(times)}))
"""


@contextmanager
def echo(host: Host) -> Iterator[None]:
    """Let a host send back what it receives on port 7000."""
    server = host.spawn([sys.executable, "-u", "-c", _ECHO])
    server.wait_for_word("listening")
    try:
        yield
    finally:
        server.kill()


def ping(source: Host, target: Host, times: int, size: int = 4) -> Any:
    """Median and worst round trip in ms between two hosts, over one connection."""
    words = [sys.executable, "-c", _PING, target.address, str(times), str(size)]
    return json.loads(source.run(words).stdout)


def connect(source: Host, target: Host, port: int, timeout_s: int = 2) -> str:
    """Try a connection and say how it went, in Python's word for it."""
    code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {})"
    argv = [sys.executable, "-c", code.format(timeout_s), target.address, str(port)]
    done = source.run(argv, check=False)
    return done.stderr.splitlines()[-1].split(":")[0] if done.returncode else "ok"


def test_a_slow_link_slows_volume_not_latency(lab: Lab) -> None:
    """A capped rate shows on megabytes and stays invisible on four bytes."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    with echo(two):
        before = ping(one, two, 3, 2 << 20)["median"]
        with wire.slow_link(two, "20mbit"):
            slow = ping(one, two, 1, 2 << 20)["median"]
            small = ping(one, two, 50)["median"]
        after = ping(one, two, 3, 2 << 20)["median"]
    assert 5 * max(before, after, small) < slow


def test_a_lossy_link_moves_the_tail_not_the_median(lab: Lab) -> None:
    """A lost packet costs TCP's retransmission timer, some 200 ms; most packets are not lost."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    with echo(two), wire.lossy_link(two, per_mille=50, source=one):
        lossy = ping(one, two, 200)
    assert lossy["worst"] > 10 * lossy["median"]


def test_a_spiking_cable_moves_the_tail_not_the_median(lab: Lab) -> None:
    """The cable still carries everything, also big volumes, only some frames late."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    with echo(two):
        with wire.spiking_cable(two, per_mille=20, low_ms=60, high_ms=80):
            spiky = ping(one, two, 300)
            assert ping(one, two, 1, 1 << 20)["worst"] > 0
            assert connect(two, lab.hosts["h3"], 22) == "ok"
        assert connect(one, two, 7000) == "ok"
    assert spiky["worst"] > 10 * spiky["median"]


def test_a_dead_link_lets_connects_hang(lab: Lab) -> None:
    """Nobody refuses: there is no answer at all until the link is back."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    with wire.dead_link(two):
        assert connect(one, two, 22) in ("TimeoutError", "OSError")
        assert two.run(["cat", "/sys/class/net/eth0/carrier"]).stdout == "1\n"
    assert connect(one, two, 22, 20) == "ok"


def test_an_unplugged_cable_shows_no_carrier(lab: Lab) -> None:
    """The host itself can see this one."""
    two = lab.hosts["h2"]
    with wire.unplugged(two):
        assert two.run(["cat", "/sys/class/net/eth0/carrier"], check=False).stdout != "1\n"
    assert connect(lab.hosts["h1"], two, 22, 20) == "ok"


def test_a_firewall_is_silent_or_rude_and_knows_whom_it_hits(lab: Lab) -> None:
    """Drop times out, reject refuses, another port or peer passes."""
    one, two, three = (lab.hosts[name] for name in ("h1", "h2", "h3"))
    with echo(two):
        with wire.firewall(two, "7000", source=one):
            assert connect(one, two, 7000) == "TimeoutError"
            assert connect(three, two, 7000) == "ok"
            assert connect(one, two, 22) == "ok"
        with wire.firewall(two, "6999-7001", "reject"):
            assert connect(one, two, 7000) == "ConnectionRefusedError"
        assert connect(one, two, 7000) == "ok"


def test_a_stalled_process_goes_on_afterwards(lab: Lab) -> None:
    """Stopped is neither dead nor gone: its port still accepts, and later it works."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    server = two.spawn([sys.executable, "-u", "-c", _ECHO])
    server.wait_for_word("listening")
    with server.stalled():
        assert server.state == "T"
        assert connect(one, two, 7000) == "ok"
    assert ping(one, two, 1)["median"] > 0


def test_a_stale_rank_is_an_orphan_with_port_and_memory(lab: Lab) -> None:
    """Its agent is gone, it has the master port, a GPU open, and NVML charges memory to it."""
    host = lab.hosts["h2"]
    with processes.stale_rank(host, port=29555, environ={"HF_TOKEN": "secret"}) as rank:
        assert host.run(["ps", "-o", "ppid=", "-p", str(rank.pid)]).stdout.strip() == "1"
        environ = host.run(["cat", f"/proc/{rank.pid}/environ"]).stdout.split("\0")
        assert {"RANK=0", "MASTER_PORT=29555", "WORLD_SIZE=16", "HF_TOKEN=secret"} <= set(environ)
        assert "train.py --config llama.yaml" in host.run(["ps", "ax", "-o", "args"]).stdout
        assert "/dev/nvidia0" in host.run(["ls", "-l", f"/proc/{rank.pid}/fd"]).stdout
        assert connect(lab.hosts["h1"], host, 29555) == "ok"
        assert list(host.scenario.gpus[0].processes) == [(rank.pid, 41_234)]
    assert connect(lab.hosts["h1"], host, 29555) == "ConnectionRefusedError"
    assert list(host.scenario.gpus[0].processes) == []


@pytest.mark.parametrize("lasting", [True, False])
def test_a_zombie_has_a_living_parent(lab: Lab, *, lasting: bool) -> None:
    """The child is dead and not buried, because its parent lives and does not wait."""
    host = lab.hosts["h1"]
    with processes.zombie(host, lasting=lasting) as parent:
        states = host.run(["ps", "--ppid", str(parent.pid), "-o", "state="], check=False)
        assert states.stdout.strip() in (("Z",) if lasting else ("Z", ""))
    assert "Z" not in host.run(["ps", "axo", "state="]).stdout


def test_a_process_in_d_state_is_there(lab: Lab) -> None:
    """The kernel itself shows the letter D."""
    with processes.d_state(lab.hosts["h1"]) as process:
        assert process.state == "D"
    assert process.state == ""


@pytest.mark.parametrize("kind", ["garbage", "control_characters", "empty", "fails"])
def test_an_impostor_is_no_python(lab: Lab, kind: str) -> None:
    """What should be a Python answers something else, whatever it is asked."""
    path = impostors.python_that(lab, kind)
    argv = lab.hosts["h1"].command([path, "-I", "-c", "print(42)"])
    assert subprocess.run(argv, check=False, capture_output=True).stdout != b"42\n"


def test_two_hosts_hold_a_gloo_all_reduce(lab: Lab) -> None:
    """The fabric that preflight measures is really there: torch.distributed over the veths."""
    pytest.importorskip("torch")
    code = (
        "import sys, torch, torch.distributed as d;"
        "d.init_process_group('gloo', rank=int(sys.argv[1]), world_size=2,"
        " init_method=f'tcp://{sys.argv[2]}:29500');"
        "t = torch.ones(1000); d.all_reduce(t); print(int(t.sum()), flush=True);"
        "d.destroy_process_group()"
    )
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    environ = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    other = two.spawn([sys.executable, "-c", code, "1", one.address], env=environ)
    answer = one.run([sys.executable, "-c", code, "0", one.address], env=environ, check=False)
    assert answer.stdout == "2000\n", answer.stderr
    other.wait_for("")
    assert "2000\n" in other.log.read_text()
