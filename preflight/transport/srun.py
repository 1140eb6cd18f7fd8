"""Reach the nodes of a Slurm allocation by one srun step, whose relays connect back to us.

A step per node would overload slurmctld, and srun's own pipes give every node the same input. So
one srun starts a small relay on each node; the relays connect back, and commands run over their
connections. srun ends a whole step if one node cannot start it: preflight then starts the step
again without that node, before any command has run.

The step's output is used only to explain why a node did not connect. Any node of the step can fake
Slurm's messages about another: srun passes on what a task writes, and trusts slurmd's task number.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.core.remote_command import (
    OUTPUT_LIMIT,
    ReachError,
    Remote,
    signal_group,
    with_deadline,
)
from preflight.core.text import excerpt
from preflight.transport import reach_error, relay, start_thread
from preflight.transport import slurm_allocation as slurm
from preflight.transport.bundle import BOOT, bundle
from preflight.transport.relay import RelayHub, own_addresses
from preflight.transport.slurm_allocation import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.relay import Link


CHUNK = 64 << 10
GRANT_AFTER = 128 << 10
"""Bytes read after which we grant the node as much room again."""


class RelayConnection:
    """The connection to one node's relay; each command gets its own channel."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> RelayRemote:
        """Start it there, without a shell; ReachError if the relay is gone."""
        if self._link.claimants:
            raise reach_error("rivals", rivals=self._link.claimants)
        if self._link.fault:
            raise reach_error("relay_fault", fault=self._link.fault)
        if self._link.lost:
            raise reach_error("relay_gone")
        return RelayRemote(self._link, with_deadline(argv, timeout_s), timeout_s, limit)

    def close(self) -> None:
        """Do nothing: the relay serves this node until the run is over."""


class RelayRemote(Remote):
    """One command on one channel of a relay's connection."""

    def __init__(self, link: Link, argv: Sequence[str], timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self._link = link
        self._number, self._channel = link.start(argv)
        self._finished = False
        self._ungranted = 0

    def finish_input(self) -> None:
        """Send an end of file after everything sent before."""
        if not self._finished:
            self._finished = True
            self._link.send(relay.EOF, self._number)

    def _write(self, data: memoryview) -> int:
        channel = self._channel
        if channel.input_closed or self._finished or self._is_released:
            raise BrokenPipeError
        piece = bytes(data[: min(CHUNK, channel.granted - channel.sent)])
        if piece:
            channel.sent += len(piece)
            self._link.send(relay.STDIN, self._number, piece)
        return len(piece)

    def _transfer(self, wait_s: float, *, writing: bool) -> bool:
        channel = self._channel
        channel.changed.clear()
        if self._drain():
            return True
        if not (writing and (channel.input_closed or channel.granted > channel.sent)):
            channel.changed.wait(wait_s)
        return self._drain()

    def _drain(self) -> bool:
        """Take all that has arrived; return whether there was any."""
        channel, buffer = self._channel, self._buffer
        at_end = channel.ended  # read first: no data follows it
        moved = False
        while channel.output and not buffer.overflow:
            kind, data = channel.output.popleft()
            (buffer.add_stdout if kind == relay.OUT else buffer.add_stderr)(data)
            channel.consumed += relay.FRAME + len(data)
            self._ungranted += relay.FRAME + len(data)
            moved = True
        if self._ungranted >= GRANT_AFTER:
            self._link.send(relay.MORE_OUT, self._number, relay.NUMBER.pack(self._ungranted))
            self._ungranted = 0
        buffer.ended = buffer.ended or (at_end and not channel.output)
        return moved

    def _exited(self, wait_s: float) -> bool:
        return self._channel.exited.wait(wait_s)

    def _release(self) -> int | None:
        status = self._channel.status
        self._link.forget(self._number)
        return status


LONGEST_S = 7 * 86400
"""Last deadline of a relay, which otherwise exits with its controller."""

LEAVE_S = 3.0
"""Wait for srun to see its tasks end, and again after SIGTERM."""

LINE_BYTES = 4096
_STARTED = "@preflight here "
_BOOT = (
    "import os;os.write(1,('"
    + _STARTED
    + "'+os.environ.get('SLURMD_NODENAME','')+chr(10)).encode());"
    + BOOT
)
"""Reports that the task runs before it reads: srun sends no input until all nodes connected."""

MOST_LINES = 200
READ_BYTES, READ_BYTES_PER_NODE = 64 << 10, 4 << 10
"""Bytes of each output of the step that are parsed; the rest is read and dropped."""


class _TaskReport(Struct, frozen=True):
    node: str
    trouble: str


class SrunStep:
    """A running srun. `errors` has one by node name, from its output."""

    def __init__(
        self,
        names: Sequence[str],
        command: Sequence[str],
        python: str,
        request: Mapping[str, object],
        environ: Mapping[str, str],
        *,
        changed: Callable[[], None],
    ) -> None:
        self.errors: dict[str, ReachError] = {}
        self.started: set[str] = set()
        """Nodes whose task runs, though it may wait for its input."""
        self._names = frozenset(names)
        self._is_failing = False
        """srun could not start a node: it is about to end the others too."""
        self.ended = threading.Event()
        """srun has ended, and all its output has been read."""
        self._no_python: ReachError | None = None
        self._lines: list[str] = []
        self._changed = changed
        self._python = python
        self._mark = f"@preflight {request['nonce']} ".encode()
        packed = bundle("relay")
        argv = [*command, python, "-I", "-c", _BOOT, str(len(packed)), "relay"]
        self._process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # The secret goes through stdin: other users of the node can read argv and environment.
        opening = packed + msgspec.json.encode(request) + b"\n"
        readers = [
            start_thread(self._read, self._process.stdout, self._read_output),
            start_thread(self._read, self._process.stderr, self._read_error),
        ]
        start_thread(self._send_input, opening)
        start_thread(self._wait_for_end, readers)

    @property
    def reason(self) -> ReachError | None:
        """Why srun gave up, if it did and named no node."""
        if not self.ended.is_set():
            return None
        why = slurm.first_error(self._lines) or excerpt("".join(self._lines[-1:])) or "nothing"
        return reach_error("srun_gave_up", complaint=why)

    def close(self) -> None:
        """Wait until srun ends with its relays, then terminate and kill it. Never raises."""
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if not self.ended.wait(LEAVE_S):
            signal_group(self._process, signal.SIGTERM)
        if not self.ended.wait(LEAVE_S):
            self.kill()

    def kill(self) -> None:
        """End srun at once. Never raises."""
        signal_group(self._process, signal.SIGKILL)

    def _send_input(self, opening: bytes) -> None:
        stdin = self._process.stdin
        with suppress(OSError, ValueError):  # srun's own output says why it reads nothing
            if stdin is not None:
                stdin.write(opening)
                stdin.flush()

    def _wait_for_end(self, readers: Sequence[threading.Thread]) -> None:
        self._process.wait()
        for reader in readers:
            reader.join(LEAVE_S)
        self.ended.set()
        self._changed()

    def _read(self, pipe: IO[bytes], handle: Callable[[bytes], None]) -> None:
        remaining = READ_BYTES + READ_BYTES_PER_NODE * len(self._names)
        with suppress(OSError, ValueError):
            while remaining > 0 and (line := pipe.readline(LINE_BYTES)):
                remaining -= len(line)
                handle(line.rstrip(b"\n"))
            while pipe.read(READ_BYTES):
                pass

    def _read_output(self, line: bytes) -> None:
        """Read the messages of tasks that have started, or that cannot connect to us."""
        if line.startswith(_STARTED.encode()):
            self.started |= self._names & {line[len(_STARTED) :].decode("utf-8", "replace")}
        if not line.startswith(self._mark):
            return
        with suppress(msgspec.DecodeError, RecursionError):
            report = msgspec.json.decode(line[len(self._mark) :], type=_TaskReport)
            why = reach_error("no_way_back", trouble=excerpt(report.trouble, 150))
            self._explain({report.node: why})

    def _read_error(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if len(self._lines) < MOST_LINES:
            self._lines.append(text)
        self._no_python = self._no_python or slurm.missing_python(text, self._python)
        not_started = slurm.failed_launches(text)
        self._explain(not_started)
        self._is_failing = self._is_failing or bool(not_started)
        if not self._is_failing:  # else srun ends the others' tasks too
            exited = slurm.exited_nodes(text)
            self._explain({name: self._no_python or reason for name, reason in exited.items()})

    def _explain(self, reasons: Mapping[str, ReachError]) -> None:
        """Keep the first error of each node of the step, and say where it comes from."""
        for name in self._names & reasons.keys():
            why = reasons[name]
            sentence = (
                "it did not call back; the step's output, which any of its nodes can write, says: "
                f"{why.sentence}"
            )
            self.errors.setdefault(name, ReachError(why.step, sentence, why.advice))


PATIENCE_S = 12.0
"""How long a node may take to connect back: longer than two addresses take to time out there."""

PER_NODE_S = 0.005
"""Added to that for each node."""

ATTEMPTS = 4
"""Most steps that are started; each leaves out the nodes that failed the one before."""

START_S = 45.0
"""Deadline of all attempts together."""


class SrunTransport:
    """Starts one step for all its nodes on the first `connect`; each node then has a relay."""

    name = "srun"

    def __init__(self, hosts: Sequence[Host], launcher: Launcher | None = None) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._launcher = launcher or Launcher(os.environ)
        self._lock = threading.Lock()
        self._has_started = self._closed = False
        self._decided = threading.Event()
        self._errors: dict[str, ReachError] = {}
        self._hub: RelayHub | None = None
        self._steps: list[SrunStep] = []
        """All steps that were started; the one that is used comes last."""

    def connect(self, host: Host, timeout_s: float) -> RelayConnection:
        """Wait until all relays have connected; ReachError says why this node's has not.

        The start of the whole fleet has its own deadline, not this node's `timeout_s`: no command
        may run before it is known that the step stays.
        """
        with self._lock:
            if not self._has_started:
                self._has_started = True
                atexit.register(self.close)
                start_thread(self._start_steps)
        self._decided.wait(max(timeout_s, START_S))
        hub = self._hub
        link = hub.links.get(host.name) if hub is not None and self._decided.is_set() else None
        if link is None:
            raise self._errors.get(host.name) or reach_error("no_relay", seconds=START_S)
        return RelayConnection(link)

    def close(self) -> None:
        """End the relays, then srun. Never raises."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()
        for step in self._steps[-1:]:
            step.close()
        for step in self._steps:
            step.kill()

    def _start_steps(self) -> None:
        """Start the step, again without the nodes that fail it, until all the others connect."""
        try:
            names = list(self._hosts)
            down = slurm.down_nodes(self._launcher.states(names))
            self._errors |= {name: why for name, why in down.items() if name in self._hosts}
            deadline = time.monotonic() + START_S
            for _ in range(ATTEMPTS):
                remaining = [name for name in names if name not in self._errors]
                if not remaining or self._closed or self._start_step(remaining, deadline):
                    break
        except OSError as error:
            trouble = reach_error("no_srun", why=error.strerror or str(error))
            self._errors = {**dict.fromkeys(self._hosts, trouble), **self._errors}
        finally:
            self._decided.set()

    def _start_step(self, names: list[str], deadline: float) -> bool:
        """Start one step on these nodes; return whether it stays up with those that connected.

        If not, the nodes at fault are in `_errors`, and the step is closed.
        """
        hub, step = self._open_step(names)
        absent = _await_relays(hub, step, names, deadline)
        # srun sends no input before all tasks are connected: a relay that connected has its input.
        stays_up = bool(hub.links) and not step.ended.is_set()
        if not stays_up:
            absent = [name for name in absent if name not in step.started] or absent
            absent = [name for name in absent if name in step.errors] or absent
        silence = step.reason or reach_error("no_relay", seconds=PATIENCE_S)
        self._errors |= {name: step.errors.get(name, silence) for name in absent}
        if stays_up:
            return True
        with self._lock:
            self._hub = None
        hub.close()
        start_thread(step.close)
        return False

    def _open_step(self, names: list[str]) -> tuple[RelayHub, SrunStep]:
        secret = secrets.token_bytes(32)
        hub = RelayHub(names, secret, self._launcher.ports)
        request = {
            "nonce": secrets.token_hex(16),
            "deadline_s": LONGEST_S,
            "addresses": own_addresses(self._hosts[name].address for name in names),
            "port": hub.port,
            "secret": secret.hex(),
        }
        python = _python([self._hosts[name] for name in names])
        command = self._launcher.command(names)
        try:
            with self._lock:
                if self._closed:
                    raise InterruptedError("the run is over")
                environ = self._launcher.environ
                step = SrunStep(names, command, python, request, environ, changed=hub.notify)
                self._hub = hub
                self._steps.append(step)
        except OSError:
            hub.close()
            raise
        return hub, step


def _await_relays(hub: RelayHub, step: SrunStep, names: Sequence[str], latest: float) -> list[str]:
    """Wait for all relays to connect; return the nodes whose relay has not at the deadline."""
    deadline = min(latest, time.monotonic() + PATIENCE_S + PER_NODE_S * len(names))
    with hub.changed:
        while waiting := [name for name in names if name not in hub.links]:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or step.ended.is_set():
                break
            hub.changed.wait(left_s)
    return waiting


def _python(hosts: Sequence[Host]) -> str:
    """Choose the Python of the relays: the nodes' most common one, unless it is a container's."""
    [(python, number)] = Counter(host.python for host in hosts).most_common(1)
    return python[0] if len(python) == 1 and number * 2 > len(hosts) else "python3"
