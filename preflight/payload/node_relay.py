"""The relay that srun starts on every node: connects to the controller and runs its commands.

Frames are authenticated, and one loop serves all commands until the controller is gone. The
controller's half is `preflight.transport.relay`; docs/internals/wire.md specifies the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from typing import Iterator

import children
from start import Emit, Message, Read

START, STDIN, EOF, KILL, MORE_OUT = 1, 2, 3, 4, 5
OUT, ERR, OUT_END, EXIT, MORE_IN, DEAF = 16, 17, 18, 19, 20, 21
"""Frames of the controller, and of the node. DEAF: the command reads no more input."""

HEAD = struct.Struct("!BII")
NUMBER = struct.Struct("!i")
TAG = 16
FRAME = HEAD.size + TAG
"""Bytes of a frame besides its body."""

LARGEST = 256 << 10
"""Bytes of a body; a longer frame is refused before it is read."""


class Refused(Exception):  # noqa: N818 (the payload's endings are named for what happened)
    """The other side is not the controller, or breaks the protocol."""


class Sealer:
    """Makes authenticated frames of our messages."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, kind: int, channel: int, body: bytes = b"") -> bytes:
        """Return the bytes of our next frame."""
        plain = HEAD.pack(kind, channel, len(body)) + body
        tag = _tag(self._key, self._count, plain)
        self._count += 1
        return plain + tag


class Opener:
    """Verifies and splits received bytes into frames."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (kind, channel, body) of each complete frame.

        Refused if one is forged, replayed or too long.
        """
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, channel, length = HEAD.unpack_from(self._buffer)
            if length > LARGEST:
                raise Refused("a frame is too long")
            size = HEAD.size + length
            if len(self._buffer) < size + TAG:
                return
            frame = bytes(self._buffer[:size])
            tag = bytes(self._buffer[size : size + TAG])
            del self._buffer[: size + TAG]
            if not hmac.compare_digest(tag, _tag(self._key, self._count, frame)):
                raise Refused("a frame is not from the controller")
            self._count += 1
            yield kind, channel, frame[HEAD.size :]


def _tag(key: bytes, count: int, frame: bytes) -> bytes:
    return hmac.digest(key, count.to_bytes(8, "big") + frame, "sha256")[:TAG]


CHUNK = 64 << 10
OUT_ROOM = 1 << 20
IN_ROOM = 256 << 10
"""Bytes in flight: frames that the controller has not read, input that the command has not."""

ASK_S = 0.5
"""Time between SIGTERM and SIGKILL for a command."""


class Command:
    """A command in its own session, whose processes all end together."""

    def __init__(self, argv: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        self.pid = process.pid
        pipes = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream]
        self.stdin, self.stdout, stderr = (stream.fileno() for stream in pipes)
        for stream in pipes:
            os.set_blocking(stream.fileno(), False)
        self._input, *_ = pipes
        self.outputs = dict(zip((self.stdout, stderr), pipes[1:]))  # noqa: B905 (Python 3.8)
        """Outputs that have not ended, by descriptor."""
        self.pending = bytearray()
        """Input that the command has not taken yet."""
        self.input_ends = False
        self.room = OUT_ROOM - 5 * FRAME  # for the frame that uses it up, and for the last frames
        self.has_exited = False
        self.kill_at: float | None = None
        """When SIGKILL is due, after SIGTERM."""

    def write(self) -> int:
        """Write as much input as the command takes now; -1 if it reads no more."""
        if self._input.closed:
            return -1
        sent = 0
        try:
            while self.pending and (count := os.write(self.stdin, self.pending[:CHUNK])):
                del self.pending[:count]
                sent += count
        except BlockingIOError:
            pass
        except OSError:
            self.close_input()
            return -1
        if self.input_ends and not self.pending:
            self.close_input()
        return sent

    def close_input(self) -> None:
        """Close the command's input."""
        self.pending.clear()
        self._input.close()

    @property
    def wants_input(self) -> bool:
        """Whether there is input to write to it."""
        return bool(self.pending) and not self._input.closed

    def read(self, descriptor: int) -> bytes:
        """Read one output; empty at its end, which closes it."""
        data = os.read(descriptor, max(1, min(CHUNK, self.room)))
        self.room -= FRAME + len(data)
        if not data:
            self.outputs.pop(descriptor).close()
        return data

    def status(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs.

        This does not reap it: until `kill`, no other process group can get its number.
        """
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return -1
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def terminate(self) -> None:
        """Send SIGTERM first: timeout(1) would leave its command behind after SIGKILL."""
        if self.kill_at is None:
            self._signal(signal.SIGTERM)
            self.kill_at = time.monotonic() + ASK_S

    def kill(self) -> None:
        """Kill its process group, and close its pipes."""
        self._signal(signal.SIGKILL)
        self.close_input()
        while self.outputs:
            self.outputs.popitem()[1].close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._process.returncode = 0  # keeps subprocess from waiting for a pid that is not ours now

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


READ = 256 << 10
KILL_TICK_MS = 50
NOT_FOUND = 127
ARGUMENTS = 4096
COMMANDS = 256
"""Most words of a command, and most commands at once; our controller never sends more."""


class Server:
    """Serves one connection and the commands that it starts."""

    def __init__(self, connection: socket.socket, sealer: Sealer, opener: Opener) -> None:
        self._connection = connection
        self._sealer = sealer
        self._opener = opener
        self._outgoing = bytearray()
        self._commands: dict[int, Command] = {}
        self._child_ended, into = os.pipe()
        os.set_blocking(self._child_ended, False)
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        connection.settimeout(0.0)

    def run(self) -> None:
        """Serve until the controller closes the connection, or a frame is invalid."""
        while True:
            ready = self._ready()
            if self._connection.fileno() in ready and not self._receive():
                return
            for channel, command in list(self._commands.items()):
                self._serve(channel, command, ready)
            self._reap_orphans()
            if not self._flush():
                return

    def _ready(self) -> set[int]:
        """Wait for events; return the descriptors that are ready."""
        poll = select.poll()  # a new one each time: descriptors' numbers are reused
        poll.register(self._child_ended, select.POLLIN)
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        for command in self._commands.values():
            for descriptor in command.outputs if command.room > 0 else ():
                poll.register(descriptor, select.POLLIN)
            if command.wants_input:
                poll.register(command.stdin, select.POLLOUT)
        killing = any(c.kill_at is not None for c in self._commands.values())
        return {descriptor for descriptor, _ in poll.poll(KILL_TICK_MS if killing else None)}

    def _receive(self) -> bool:
        """Handle the controller's frames; False when it is gone."""
        try:
            data = self._connection.recv(READ)
            for kind, channel, body in self._opener.feed(data):
                self._handle(kind, channel, body)
        except BlockingIOError:
            return True
        except (OSError, Refused):
            return False
        return bool(data)

    def _handle(self, kind: int, channel: int, body: bytes) -> None:
        if kind == START:
            self._start(channel, body)
            return
        command = self._commands.get(channel)
        if command is None:
            return  # it ended while the frame was on its way
        if kind == STDIN:
            command.pending += body
            if len(command.pending) > IN_ROOM:
                raise Refused("more input than there is room for")
        elif kind == EOF:
            command.input_ends = True
            command.write()
        elif kind == KILL:
            command.terminate()
        elif kind == MORE_OUT:
            command.room += NUMBER.unpack(body)[0]

    def _start(self, channel: int, body: bytes) -> None:
        argv = json.loads(body.decode())
        if channel in self._commands or len(argv) > ARGUMENTS or len(self._commands) >= COMMANDS:
            raise Refused("an invalid command")
        try:
            self._commands[channel] = Command([str(word) for word in argv])
        except (OSError, ValueError) as error:
            text = "%s: %s\n" % (argv[0], getattr(error, "strerror", None) or error)
            self._send(ERR, channel, text.encode("utf-8", "replace"))
            self._send(OUT_END, channel)
            self._send(EXIT, channel, NUMBER.pack(NOT_FOUND))

    def _serve(self, channel: int, command: Command, ready: set[int]) -> None:
        for descriptor in [d for d in command.outputs if d in ready and command.room > 0]:
            kind = OUT if descriptor == command.stdout else ERR
            with contextlib.suppress(BlockingIOError):
                if data := command.read(descriptor):
                    self._send(kind, channel, data)
                elif not command.outputs:
                    self._send(OUT_END, channel)
        if command.wants_input:
            written = command.write()
            if written < 0:
                self._send(DEAF, channel)
            elif written:
                self._send(MORE_IN, channel, NUMBER.pack(written))
        if not command.has_exited and (status := command.status()) is not None:
            command.has_exited = True
            self._send(EXIT, channel, NUMBER.pack(status))
        kill_at = command.kill_at
        if kill_at is not None and (command.has_exited or time.monotonic() >= kill_at):
            command.kill()
            del self._commands[channel]

    def _reap_orphans(self) -> None:
        """Reap processes that commands left behind: we are their parent now."""
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._child_ended, 4096):
                return
            pids = {command.pid for command in self._commands.values()}
            for pid in children.children_of(os.getpid()):
                if pid not in pids:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def _send(self, kind: int, channel: int, body: bytes = b"") -> None:
        self._outgoing += self._sealer.seal(kind, channel, body)

    def _flush(self) -> bool:
        try:
            while self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing[:READ])]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


GREETING = b"preflight relay 1\n"
RANDOM = 32
PROOF = 32
DIAL_S = 4.0
"""Time limit for one address; the controller waits for longer than two of them."""

_KEEPALIVE = (
    ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000),
)  # fmt: skip
"""Seconds, seconds, a number, milliseconds."""


def dial(addresses: list[str], port: int) -> socket.socket:
    """Connect to the first address that answers; OSError, with every attempt, if none does."""
    failures = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=DIAL_S)
        except OSError as error:
            failures.append("%s port %d: %s" % (address, port, _reason(error)))
        else:
            _tune(connection)
            return connection
    raise OSError("; ".join(failures) or "the controller gave no address")


def authenticate(connection: socket.socket, name: str, secret: bytes) -> tuple[Sealer, Opener]:
    """Authenticate both sides by the run's secret; Refused if the controller does not know it."""
    connection.settimeout(DIAL_S)
    hello = _receive_exactly(connection, len(GREETING) + RANDOM)
    their_random = hello[len(GREETING) :]
    if not hello.startswith(GREETING):
        raise Refused("another program than the controller answered")
    own_random, node = os.urandom(RANDOM), name.encode()
    proof = hmac.digest(secret, b"relay\0" + node + their_random + own_random, "sha256")
    connection.sendall(bytes([len(node)]) + node + own_random + proof)
    expected = hmac.digest(secret, b"controller\0" + node + own_random + their_random, "sha256")
    if not hmac.compare_digest(_receive_exactly(connection, PROOF), expected):
        raise Refused("the program that answered does not know this run's secret")
    sending_key = hmac.digest(secret, b"from relay\0" + their_random + own_random, "sha256")
    receiving_key = hmac.digest(secret, b"from controller\0" + their_random + own_random, "sha256")
    return Sealer(sending_key), Opener(receiving_key)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    deadline = time.monotonic() + DIAL_S
    data = b""
    while len(data) < size:
        if time.monotonic() > deadline:
            raise Refused("the controller's greeting took too long")
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise Refused("the controller hung up")
        data += chunk
    return data


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A controller that vanishes without closing (power, cable) must end us, too.
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return "no answer in %g s" % DIAL_S
    return error.strerror or type(error).__name__


def run(request: Message, lines: Read, emit: Emit) -> None:
    """Serve one run of preflight; `start` ends all that is left when this returns."""
    del lines
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    children.set_name("preflight-relay")
    children.adopt_orphans()
    try:
        # The address by which Slurm reaches the launching host most likely works for us, too.
        slurm_address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
        offered = [address for address in request["addresses"] if address != slurm_address]
        connection = dial([*([slurm_address] if slurm_address else []), *offered], request["port"])
        sealer, opener = authenticate(connection, name, bytes.fromhex(request["secret"]))
    except (Refused, OSError) as error:
        emit({"node": name, "trouble": str(error) or type(error).__name__})
        return
    Server(connection, sealer, opener).run()
