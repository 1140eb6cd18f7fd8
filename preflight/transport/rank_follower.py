"""Every rank but rank 0: it describes itself, follows orders, and exits when all ranks do.

If a rank exits alone, torchrun holds the other nodes' agents for 300 s; a rank that stays alone
holds its own. So each rank watches rank 0, and ends with it.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from preflight import __version__
from preflight.core.remote_command import end_group, spawn, with_deadline
from preflight.errors import WireError
from preflight.fleet.job_environment import public_variables
from preflight.transport import job_store as notes
from preflight.transport import start_thread
from preflight.transport.bundle import boot_argv, bundle
from preflight.transport.relay import addresses_towards

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from preflight.transport.bundle import SiteCode
    from preflight.transport.job_store import Order, Place, Reply


_MOST_VARIABLES = 512
_LONGEST_VALUE = 32768


def describe_rank(place: Place, nonce: str) -> notes.Present:
    """Describe this rank."""
    variables = sorted(public_variables(os.environ).items())
    environ = {name: value for name, value in variables if len(value) <= _LONGEST_VALUE}
    return notes.Present(
        nonce=nonce,
        version=__version__,
        rank=place.rank,
        local_rank=place.local_rank,
        group=place.group_rank,
        per_node=place.local_world_size,
        hostname=socket.gethostname()[:255],
        address=next(addresses_towards(place.master_addr), ""),
        pid=os.getpid(),
        python=sys.executable[:4096],
        environ=dict(list(environ.items())[:_MOST_VARIABLES]),
    )


END_S = 0.5
"""Wait for the end and the last stderr of a child whose output has ended."""

SPAWN_ADVICE = "install coreutils' timeout; look at its limits"


def spawn_failure(error: OSError) -> str:
    """Return why a rank cannot start an entry."""
    return f"cannot start a process: {error.strerror or error}"


def spawn_entry(
    entry: str, timeout_s: float, modules: SiteCode
) -> tuple[subprocess.Popen[bytes], bytes]:
    """Start an entry of the payload here; return its process and what it must read first."""
    packed = bundle(entry, modules=modules if entry == "probe" else ())
    return spawn(with_deadline(boot_argv((sys.executable,), entry, len(packed)), timeout_s)), packed


class Child:
    """A process on this rank: a thread feeds its input, others pass its output to `send`."""

    def __init__(self, start: notes.Start, send: Callable[[Reply], None], code: SiteCode) -> None:
        self._number = start.child
        self._limit = start.limit
        self._send = send
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process, packed = spawn_entry(start.entry, start.timeout_s, code)
        self._input.put(packed)

    def run(self) -> None:
        """Start the threads that pass its input and output on."""
        start_thread(self._write)
        start_thread(self._read_all)

    def feed(self, data: bytes, *, last: bool) -> None:
        """Give it more input."""
        if data:
            self._input.put(data)
        if last:
            self._input.put(None)

    def end(self) -> None:
        """Ask its process group to end, then kill it. Never raises."""
        end_group(self._process)
        self._input.put(None)

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            while (data := self._input.get()) is not None:
                unsent = memoryview(data)
                while unsent:
                    unsent = unsent[os.write(self._process.stdin.fileno(), unsent) :]
        with suppress(OSError):
            self._process.stdin.close()

    def _read_all(self) -> None:
        """Pass its output and standard error on, then its end."""
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        stderr_reader = start_thread(self._pass_on, process.stderr.fileno(), "err")
        if not self._pass_on(process.stdout.fileno(), "out"):
            self.end()
        stderr_reader.join(END_S)
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(END_S)
        self._send(notes.Ended(self._number, status))

    def _pass_on(self, descriptor: int, output: str) -> bool:
        """Pass one of its outputs on; return whether it stayed within the limit."""
        remaining = self._limit
        with suppress(OSError):
            most = notes.CHUNK
            while remaining > 0 and (data := os.read(descriptor, min(most, remaining + 1))):
                remaining -= len(data)
                self._send(notes.Output(self._number, **{output: data}))
        return remaining >= 0


HELLO_S = 120.0
"""Wait for rank 0's first note: its Python may come from a cold network file system."""

BEAT_S = 2.0
SILENCE_S = 15.0
"""After this long without a beat a rank, or rank 0, counts as gone."""

LEAVE_S = 10.0
"""Wait for the other ranks to be ready to exit as well."""

BROKE, INTERRUPTED = 3, 2
_TICK_S = 0.5


class _Terminated(BaseException):
    """Not an error: torchrun's agent ended this rank by a signal."""


def follow(place: Place, modules: SiteCode = ()) -> int:
    """Serve rank 0 until the run is over; the exit code is that of all ranks.

    `modules`: the site's own modules for the probe, from this node.
    """
    watch = _Rank0Watch(place)
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    try:
        return Follower(place, watch, modules).serve()
    except _Terminated:
        return INTERRUPTED
    except (notes.StoreLostError, WireError) as error:
        watch.print_reason(str(error))
        return BROKE
    finally:
        # From here on SIGTERM only means that another rank of this node exited first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.end_children()


def _on_signal(number: int, frame: FrameType | None) -> None:
    del number, frame
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, signal.SIG_IGN)
    raise _Terminated


class _Rank0Watch:
    """Ends this rank when rank 0 is gone, even while a call to the store hangs."""

    def __init__(self, place: Place) -> None:
        self.children: dict[int, Child] = {}
        self._place = place
        self._last_beat = time.monotonic() + HELLO_S
        start_thread(self._run)

    def note_beat(self) -> None:
        """Note that rank 0 is alive."""
        self._last_beat = time.monotonic()

    def end_children(self) -> None:
        """End what runs here for rank 0."""
        for child in list(self.children.values()):
            child.end()

    def print_reason(self, reason: str) -> None:
        """Print one line per node, since rank 0 cannot report it."""
        if self._place.index_on_node == 0:
            with suppress(OSError):
                text = f"preflight: rank {self._place.rank} exits: {reason}\n"
                os.write(2, text.encode("ascii", "replace"))

    def _run(self) -> None:
        while time.monotonic() - self._last_beat < SILENCE_S:
            time.sleep(_TICK_S)
        self.print_reason(f"no beat from rank 0 for {SILENCE_S:g} s; look at its node's torchrun")
        self.end_children()
        os._exit(BROKE)


class Follower:
    """One rank, which follows rank 0's orders."""

    def __init__(self, place: Place, watch: _Rank0Watch, modules: SiteCode) -> None:
        self._place = place
        self._watch = watch
        self._modules = modules
        self._incoming = notes.JobStore.open(place)
        self._outgoing = notes.JobStore.open(place)
        note = self._incoming.read("hello", HELLO_S)
        if note is None:
            raise notes.StoreLostError(f"rank 0 wrote no note in {HELLO_S:g} s: look at its node")
        self._nonce = notes.decode_note(note, notes.Hello).nonce
        self._watch.note_beat()
        self._number = 0
        self._lock = threading.Lock()

    def serve(self) -> int:
        """Follow orders until the one to leave."""
        rank = self._place.rank
        self._outgoing.write(f"beat/{rank}", b"0")
        note = describe_rank(self._place, self._nonce)
        self._outgoing.write(f"present/{rank}", msgspec.json.encode(note))
        start_thread(self._beat)
        try:
            # A method, since Python 3.11 does not count a loop's jump back as inside the `try`
            # around it: an exception that a signal raises there would not be caught.
            code = self._take_orders()
        except _Terminated:
            self._send(notes.Leaving("torchrun ended it (SIGTERM)"))
            raise
        return self._leave(code)

    def _take_orders(self) -> int:
        number = 0
        while True:
            note = self._incoming.take(f"to/{self._place.rank}/{number}", _TICK_S)
            if note is not None:
                number += 1
                order = notes.decode_note(note, notes.ToRank, self._nonce).order
                if isinstance(order, notes.Leave):
                    return order.code
                self._execute(order)

    def _execute(self, order: Order) -> None:
        if isinstance(order, notes.Start):
            try:
                child = Child(order, self._send, self._modules)
            except OSError as error:
                self._send(notes.Unable(order.child, spawn_failure(error)[:500], SPAWN_ADVICE))
                return
            self._watch.children[order.child] = child
            child.run()
        elif isinstance(order, notes.Ask):
            self._send(notes.Here(order.number))
        elif isinstance(order, notes.Feed) and order.child in self._watch.children:
            self._watch.children[order.child].feed(order.data, last=order.last)
        elif isinstance(order, notes.End) and order.child in self._watch.children:
            child = self._watch.children.pop(order.child)
            start_thread(child.end)

    def _leave(self, code: int) -> int:
        """Report ready, and return when rank 0 sees that all ranks are."""
        self._watch.end_children()
        with suppress(notes.StoreLostError):  # rank 0 and its torchrun may be gone already
            self._outgoing.write(f"ready/{self._place.rank}", b"1")
            self._incoming.wait(["go"], LEAVE_S)
        return code

    def _send(self, reply: Reply) -> None:
        """Put a reply into the queue that rank 0 reads; without a store, `serve` ends."""
        with self._lock, suppress(notes.StoreLostError):
            message = notes.FromRank(self._nonce, self._place.rank, self._number, reply)
            self._number += 1
            position = self._outgoing.add("from", 1) - 1
            self._outgoing.write(f"from/{position}", msgspec.json.encode(message))

    def _beat(self) -> None:
        beats, last_beat = 0, b""
        with suppress(notes.StoreLostError, WireError):
            while True:
                beats += 1
                self._outgoing.write(f"beat/{self._place.rank}", str(beats).encode())
                beat = self._outgoing.read("beat/0", 0.0)
                if beat is not None and beat != last_beat:
                    last_beat = beat
                    self._watch.note_beat()
                time.sleep(BEAT_S)
