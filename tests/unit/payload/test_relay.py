"""A relay's frames: both halves agree, nothing forged gets in, and no node's talk keeps us busy."""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import node_relay as nodes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.core.remote_command import ReachError
from preflight.transport import relay as ours
from preflight.transport.relay import RelayHub
from preflight.transport.srun import RelayConnection
from tests.unit.transport.sshd import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from selectors import SelectorKey

KEY = b"k" * 32
BODIES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=200)), max_size=8
)
CUTS = st.lists(st.integers(1, 40), max_size=60)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes up as a network might."""
    found = []
    for cut in cuts:
        found.append(data[:cut])
        data = data[cut:]
    return [*found, data]


@given(BODIES, CUTS)
def test_frames_arrive_however_they_are_cut(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    """What one side says the other hears, in both directions, whatever the network makes of it."""
    down, up = ours.Sealer(KEY), nodes.Sealer(KEY)
    there, here = nodes.Opener(KEY), ours.Opener(KEY)
    sent = b"".join(down.seal(*frame) for frame in frames)
    assert [f for piece in pieces(sent, cuts) for f in there.feed(piece)] == frames
    sent = b"".join(up.seal(*frame) for frame in frames)
    assert [tuple(f) for piece in pieces(sent, cuts) for f in here.feed(piece)] == frames


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_changed_bit_is_refused(body: bytes, data: st.DataObject) -> None:
    """A frame that was touched on its way, or made with another key, is no frame."""
    sealed = bytearray(ours.Sealer(KEY).seal(ours.STDIN, 1, body))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(nodes.Refused):
        # A longer length now reads into what follows.
        list(nodes.Opener(KEY).feed(bytes(sealed) + bytes(nodes.LARGEST + 64)))


@pytest.mark.parametrize(("module", "error"), [(ours, ours.RefusedError), (nodes, nodes.Refused)])
def test_lies_are_refused_on_both_sides(module: object, error: type[Exception]) -> None:
    """Another key, the same frame twice, a frame left out, and one that is too long are refused."""
    sealer = ours.Sealer(KEY)
    first, second = sealer.seal(1, 1, b"first"), sealer.seal(1, 1, b"second")
    opener = module.Opener  # type: ignore[attr-defined]
    with pytest.raises(error):
        list(opener(b"x" * 32).feed(first))
    with pytest.raises(error):
        list(opener(KEY).feed(first + first))
    with pytest.raises(error):
        list(opener(KEY).feed(second))
    with pytest.raises(error):  # refused by its head: the rest is not awaited
        list(opener(KEY).feed(ours.HEAD.pack(ours.OUT, 1, ours.LARGEST + 1)))


def test_both_halves_are_one_protocol() -> None:
    """The numbers of the controller's half and the node's are the same."""
    names = [name for name in vars(nodes) if name.isupper() and hasattr(ours, name)]
    assert len(names) > 12
    for name in names:
        theirs, mine = getattr(nodes, name), getattr(ours, name)
        assert getattr(theirs, "format", theirs) == getattr(mine, "format", mine)


SECRET = b"s" * 32


@pytest.fixture
def hub() -> Iterator[RelayHub]:
    """Listen for one relay."""
    made = RelayHub(["h1"], SECRET)
    yield made
    made.close()


def relay_of(hub: RelayHub, line: socket.socket) -> tuple[RelayConnection, nodes.Sealer]:
    """Prove to be h1 on a connection, which is then started on and may say frames."""
    line.settimeout(PATIENCE_S)
    sealer, _ = nodes.authenticate(line, "h1", SECRET)
    wait_until(lambda: "h1" in hub.links, "h1 is let in")
    return RelayConnection(hub.links["h1"]), sealer


NONSENSE = {
    "a command that was not started": [(ours.OUT, 2, b"x")],
    "a kind that there is not": [(99, 1, b"")],
    "a kind that only we send": [(ours.KILL, 1, b"")],
    "output of no bytes": [(ours.OUT, 1, b"")],
    "errors of no bytes": [(ours.ERR, 1, b"")],
    "more room than it has": [(ours.MORE_IN, 1, ours.NUMBER.pack(1))],
    "no room": [(ours.MORE_IN, 1, ours.NUMBER.pack(0))],
    "frames beyond the room": [(ours.OUT, 1, b"x")] * (ours.OUT_ROOM // 26 + 1),
    "ends without end": [(ours.OUT_END, 1, b"")] * (ours.OUT_ROOM // 25 + 1),
    "ends of a command that we left": [(ours.OUT_END, 3, b"")] * (ours.OUT_ROOM // 12 + 1),
}


@pytest.mark.parametrize("frames", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.slow
def test_a_relay_that_talks_nonsense_is_cut_off(
    hub: RelayHub, frames: list[tuple[int, int, bytes]]
) -> None:
    """A proven node's relay says what none says, or without end: the line ends, and it is named."""
    with socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S) as line:
        there, sealer = relay_of(hub, line)
        running = there.start(["true"], timeout_s=PATIENCE_S)
        number = frames[0][1]
        if number == 3:
            there.start(["true"], timeout_s=PATIENCE_S).kill()
            there.start(["true"], timeout_s=PATIENCE_S).kill()
        with suppress(OSError):
            line.sendall(b"".join(sealer.seal(*frame) for frame in frames))
        wait_until(lambda: hub.links["h1"].lost, "it is cut off")
    assert b"cut off" in running.wait(PATIENCE_S).stderr
    with pytest.raises(ReachError, match="its relay was cut off: "):
        there.start(["true"], timeout_s=1)


def test_no_relay_waits_for_one_that_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 callers all are let in at once, while one node says as much as it may.

    Between two turns of the hub at most 16 KiB of it are read.
    """
    turns: list[int] = []
    """How many frames were read in each."""
    let_in: list[int] = []
    """In which turn each caller was."""
    go, stopped = threading.Event(), threading.Event()
    go.set()

    class Counted(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
            if not go.is_set():
                stopped.set()
                go.wait(PATIENCE_S)
            turns.append(0)
            return super().select(timeout)

    class Heard(ours.Opener):
        def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
            for frame in super().feed(data):
                turns[-1] += 1
                yield frame

    class Met(ours.Hello):
        def __init__(self, secret: bytes, expected: Container[str]) -> None:
            super().__init__(secret, expected)
            let_in.append(len(turns))

    monkeypatch.setattr(ours, "Opener", Heard)
    monkeypatch.setattr(ours, "Hello", Met)
    monkeypatch.setattr(selectors, "DefaultSelector", Counted)
    hub = RelayHub([f"h{number}" for number in range(1, 300)], SECRET)
    with ExitStack() as held:
        held.callback(hub.close)
        line = held.enter_context(socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S))
        there, sealer = relay_of(hub, line)
        there.start(["true"], timeout_s=PATIENCE_S)
        go.clear()
        there.start(["true"], timeout_s=PATIENCE_S)  # wakes the hub
        assert stopped.wait(PATIENCE_S)
        line.sendall(b"".join(sealer.seal(ours.OUT, 1, b"x") for _ in range(5000)))
        callers = [
            held.enter_context(socket.create_connection(("127.0.0.1", hub.port), PATIENCE_S))
            for _ in range(200)
        ]
        turns.clear()
        let_in.clear()
        go.set()
        for caller in callers:
            assert caller.recv(50, socket.MSG_WAITALL)
        wait_until(lambda: sum(turns) == 5000, "all is read")
    assert let_in == [1] * 200
    assert max(turns) <= (16 << 10) // 26 + 1


@pytest.mark.parametrize("size", [1, 5000])
def test_a_node_counts_whole_frames_as_we_do(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Output that is not read stops where the room ends, also in small frames, with its ends."""
    monkeypatch.setattr(nodes, "OUT_ROOM", 4096)
    sealer, sent = nodes.Sealer(KEY), 0
    command = nodes.Command(["cat"])
    while command.room > 0:
        os.write(command.stdin, b"x" * size)
        select.select([command.stdout], [], [])
        sent += len(sealer.seal(nodes.OUT, 1, command.read(command.stdout)))
    command.kill()
    for kind, body in ((nodes.OUT_END, b""), (nodes.EXIT, b"1234"), (nodes.DEAF, b"")):
        sent += len(sealer.seal(kind, 1, body))
    assert 4000 < sent <= 4096
