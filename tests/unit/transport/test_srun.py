"""One step over a fleet, with a stand-in for srun: who takes part, who does not, and why."""

from __future__ import annotations

import hmac
import os
import signal
import socket
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.fleet.model import Host
from preflight.transport import srun
from preflight.transport.relay import RelayHub
from preflight.transport.srun import RelayConnection, SrunTransport
from tests.unit.transport.launcher import StandIn
from tests.unit.transport.sshd import PATIENCE_S, processes_with, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.core.remote_command import Connection

    Fleet = Callable[..., tuple[SrunTransport, StandIn]]

pytestmark = pytest.mark.slow


def host(name: str, python: str = sys.executable) -> Host:
    """Describe a node that is really this machine."""
    return Host(name=name, address="localhost", transport="srun", python=(python,))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Make a way to some nodes; its relays are gone after the test."""
    made: list[SrunTransport] = []

    def make(*names: str, launcher: StandIn | None = None) -> tuple[SrunTransport, StandIn]:
        launcher = launcher or StandIn()
        made.append(SrunTransport([host(name) for name in names], launcher))
        return made[-1], launcher

    yield make
    for way in made:
        way.close()


def says(connection: Connection) -> bytes:
    """Return the name that a node's commands see."""
    program = "import os; print(os.environ['SLURMD_NODENAME'])"
    remote = connection.start([sys.executable, "-c", program], timeout_s=PATIENCE_S)
    return remote.wait(PATIENCE_S).stdout.strip()


def refusal(way: SrunTransport, name: str) -> ReachError:
    """Return why a node does not take part."""
    with pytest.raises(ReachError) as caught:
        way.connect(host(name), PATIENCE_S)
    assert caught.value.advice
    return caught.value


def test_one_step_serves_all(fleet: Fleet) -> None:
    """Three nodes are started at once, and each connection leads to its own node."""
    way, launcher = fleet("h1", "h2", "h3")
    assert [says(way.connect(host(n), PATIENCE_S)) for n in ("h2", "h1", "h3")] == [
        b"h2", b"h1", b"h3",
    ]  # fmt: skip
    assert launcher.started == [["h1", "h2", "h3"]]


def test_a_node_that_cannot_be_started_costs_the_others_nothing(fleet: Fleet) -> None:
    """A whole step ends for one bad node; the others get another, and are not blamed."""
    way, launcher = fleet("h1", "h2", "h3", launcher=StandIn("fails=h2"))
    assert says(way.connect(host("h1"), PATIENCE_S)) == b"h1"
    assert says(way.connect(host("h3"), PATIENCE_S)) == b"h3"
    error = refusal(way, "h2")
    assert (error.step, "could not start our step on it: Refused" in str(error)) == ("route", True)
    assert launcher.started == [["h1", "h2", "h3"], ["h1", "h3"]]


def test_a_silent_node_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not start is named; who started and waits for that one's sake is not."""
    monkeypatch.setattr(srun, "PATIENCE_S", 1.5)
    way, launcher = fleet("h1", "h2", launcher=StandIn("absent=h2"))
    assert "no relay connected" in str(refusal(way, "h2"))
    assert says(way.connect(host("h1"), PATIENCE_S)) == b"h1"
    assert launcher.started[-1] == ["h1"]


def test_a_node_whose_task_ends_costs_the_others_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on without it, and the finding says where Slurm's words on it came from."""
    monkeypatch.setattr(srun, "PATIENCE_S", 6.0)
    way, launcher = fleet("h1", "h2", "h3", launcher=StandIn("exits=h2"))
    error = refusal(way, "h2")
    assert "our step ended there: Exited with exit code 2" in str(error)
    assert "the step's output, which any of its nodes can write" in str(error)
    assert says(way.connect(host("h3"), PATIENCE_S)) == b"h3"
    assert launcher.started == [["h1", "h2", "h3"]]


@pytest.mark.parametrize(
    "words",
    [
        (
            'stdout=@preflight NONCE {"node": "h2", "trouble": "no route to host"}',
            'stdout=@preflight NONCE {"node": "h3", "trouble": "no route to host"}',
        ),
        ("stderr=srun: error: h[2-3]: tasks 1-2: Exited with exit code 1",),
        ("stderr=srun: error: Task launch for StepId=1.0 failed on node h[2-3]: Refused",),
        (
            "stderr=slurmstepd: error: execve(): python: No such file or directory",
            "stderr=srun: error: h[2-3]: tasks 1-2: Exited with exit code 2",
        ),
    ],
    ids=["trouble", "exited", "not launched", "no python"],
)
def test_no_words_of_a_node_exclude_another(fleet: Fleet, words: tuple[str, ...]) -> None:
    """h1's task writes Slurm's own words on h2 and h3: all are reached, by one step."""
    way, launcher = fleet("h1", "h2", "h3", launcher=StandIn(*words))
    for name in ("h1", "h2", "h3"):
        assert says(way.connect(host(name), PATIENCE_S)) == name.encode()
    assert launcher.started == [["h1", "h2", "h3"]]


def test_a_node_that_started_is_not_blamed_by_words(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h2 never starts, so that no task gets its input; h1's output about h3 does not cost h3."""
    monkeypatch.setattr(srun, "PATIENCE_S", 6.0)
    lie = "stderr=srun: error: h3: task 2: Exited with exit code 1"
    way, launcher = fleet("h1", "h2", "h3", launcher=StandIn("absent=h2", lie))
    assert "no relay connected" in str(refusal(way, "h2"))
    assert says(way.connect(host("h3"), PATIENCE_S)) == b"h3"
    assert launcher.started == [["h1", "h2", "h3"], ["h1", "h3"]]


def test_output_without_end_takes_no_memory(fleet: Fleet) -> None:
    """A task writes 12,288 lines with as many names, 48 MiB, before any relay calls in."""
    way, _ = fleet("h1", "h2", launcher=StandIn("flood=4096"))
    tracemalloc.start()
    try:
        assert says(way.connect(host("h2"), PATIENCE_S)) == b"h2"
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()


def test_what_slurm_knows_to_be_down_is_not_tried(fleet: Fleet) -> None:
    """Its state and reason are the finding, and the step is started without it."""
    states = "h1|mixed|none\nh2|down*|Not responding\nh3|draining|bad fan\n"
    way, launcher = fleet("h1", "h2", "h3", launcher=StandIn(states=states))
    assert says(way.connect(host("h3"), PATIENCE_S)) == b"h3"
    error = refusal(way, "h2")
    assert str(error) == "Slurm says it is down, does not respond: Not responding"
    assert launcher.started == [["h1", "h3"]]


def test_no_srun_is_a_finding_of_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that cannot be run ends in a sentence per node, not in a traceback."""
    launcher = StandIn()
    monkeypatch.setattr(launcher, "command", lambda _nodes: ["/nowhere/srun"])
    way, _ = fleet("h1", launcher=launcher)
    assert "srun cannot be run here: No such file" in str(refusal(way, "h1"))


def test_a_launcher_that_gives_up_is_quoted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where srun blames no node, its own first error is what all of them show."""
    words = "srun: error: Unable to create step for job 4: Invalid job id"
    launcher = StandIn()
    monkeypatch.setattr(launcher, "command", lambda _: ["sh", "-c", f"echo '{words}' >&2; exit 1"])
    way, _ = fleet("h1", "h2", launcher=launcher)
    assert "Unable to create step for job 4: Invalid job id" in str(refusal(way, "h1"))
    assert refusal(way, "h2").step == "route"


def test_a_node_that_cannot_connect_back_is_reported(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that cannot call us back says so over srun's own line, with the address it tried."""
    way, _ = fleet("h1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(RelayHub, "port", property(lambda _: port, lambda *_: None), raising=False)
    error = refusal(way, "h1")
    assert error.step == "route"
    assert f"cannot call back: 127.0.0.1 port {port}: Connection refused" in str(error)


def test_relays_die_with_their_controller() -> None:
    """After SIGKILL no process closes anything; commands and relays are gone all the same."""
    program = (
        "import sys, time\nfrom tests.unit.transport.test_srun import *\n"
        "way = SrunTransport([host('h1')], StandIn())\n"
        "there = way.connect(host('h1'), 20)\n"
        "there.start(['sh', '-c', 'sleep 600 & sleep 600', sys.argv[1]], timeout_s=600)\n"
        "print('begun', flush=True)\ntime.sleep(600)"
    )
    token = f"preflight-token-{os.getpid()}"
    argv = [sys.executable, "-c", program, token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        wait_until(lambda: len(processes_with(token)) > 1, "the command runs")
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_with(token), "the command is gone")


SECRET = b"s" * 32


@pytest.fixture
def hub() -> Iterator[RelayHub]:
    """Listen for one relay."""
    made = RelayHub(["h1"], SECRET)
    yield made
    made.close()


def call(
    hub: RelayHub,
    hello: bytes | None = None,
    *,
    name: str = "h1",
    secret: bytes = SECRET,
    source: str = "127.0.0.1",
) -> bytes:
    """Greet as a relay of that name and secret, or with the bytes of an old greeting.

    Returns the answer, if it was accepted.
    """
    there, here = ("127.0.0.1", hub.port), (source, 0)
    with socket.create_connection(there, PATIENCE_S, here) as line:
        return greeted(line, hello, name, secret)


def greeted(
    line: socket.socket, hello: bytes | None = None, name: str = "h1", secret: bytes = SECRET
) -> bytes:
    """Greet on a connection; return the answer, if it was accepted."""
    opening = b""
    while len(opening) < 50:
        opening += (part := line.recv(50 - len(opening)))
        if not part:
            return b""
    word, ours = name.encode(), b"r" * 32
    proof = hmac.digest(secret, b"relay\0" + word + opening[-32:] + ours, "sha256")
    answer = hello or bytes([len(word)]) + word + ours + proof
    line.sendall(answer)
    return answer if line.recv(32) else b""


def test_only_this_runs_relays_are_let_in(hub: RelayHub) -> None:
    """A wrong secret, an unknown name, an overheard greeting and a second relay are hung up on."""
    assert not call(hub, secret=b"t" * 32)
    assert not call(hub, name="h2")
    assert not hub.links
    overheard = call(hub)
    assert overheard
    assert list(hub.links) == ["h1"]
    assert not call(hub, overheard)
    assert not call(hub)
    assert not call(hub, b"\xff" * 400)


def test_who_fills_the_port_shuts_out_only_himself(hub: RelayHub) -> None:
    """A user of another node holds 400 calls open and says half a greeting in each: h1 gets in."""
    with ExitStack() as held:
        for _ in range(400):
            stranger = held.enter_context(socket.socket())
            stranger.bind(("127.0.0.9", 0))
            stranger.connect(("127.0.0.1", hub.port))
            stranger.send(b"\x02h")
        assert call(hub)
    assert list(hub.links) == ["h1"]


def test_a_node_that_poses_as_another_is_seen(hub: RelayHub) -> None:
    """All relays know the secret: where two are h1, neither is believed, and both are named."""
    with socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S) as line:
        assert greeted(line)
        there = RelayConnection(hub.links["h1"])
        assert not call(hub, source="127.0.0.9")
        assert line.recv(1) == b""
    with pytest.raises(ReachError, match=r"as this node, from 127\.0\.0\.1 and 127\.0\.0\.9"):
        there.start(["true"], timeout_s=1)
