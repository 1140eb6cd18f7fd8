"""Nodes over SSH without an ssh process each: one connection per node, many commands on it."""

from __future__ import annotations

import shlex
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preflight.transport.legible import legible
from preflight.transport.protocol import OUTPUT_LIMIT, ReachError
from preflight.transport.sshask import Asked
from preflight.transport.sshauth import log_in
from preflight.transport.sshconfig import route_to
from preflight.transport.sshdial import dial, hang_up
from preflight.transport.streams import StreamRemote, deadlined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import paramiko

    from preflight.fleet.model import Host
    from preflight.transport.sshask import Effective

CHUNK = 1 << 21
"""paramiko's window: it drops what was read from the front of an array, at a cost of all behind."""

PACKET = 1 << 15
OPEN_S = 15.0
"""For the node to open a channel and start a command on it."""

ROOM_TICK_S = 0.005
"""How often room to write is looked for: paramiko tells nobody when the node grants more."""


class ParamikoTransport:
    """Logs in with keys to hosts whose keys are known; see `sshdial` and `sshauth`."""

    name = "paramiko"

    def __init__(self, asked: Asked | None = None) -> None:
        self._asked = asked or Asked()

    def connect(self, host: Host, timeout_s: float) -> ParamikoConnection:
        """Log in within that time; ReachError says at which step it failed."""
        ends = time.monotonic() + timeout_s
        config = self._asked.of(host, timeout_s)
        refuse_jump_hosts(config)
        route = route_to(host, config)
        transport = dial(route, ends)
        try:
            log_in(transport, route, ends)
        except BaseException:
            hang_up(transport)
            raise
        return ParamikoConnection(transport)

    def close(self) -> None:
        """Nothing is shared between nodes."""


class ParamikoConnection:
    """One login; each command gets a channel of its own."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> ParamikoRemote:
        """Start it through the user's shell, every word quoted; ReachError if the node will not."""
        import paramiko

        try:
            channel = self._transport.open_session(timeout=OPEN_S)
            with _closed_after(channel, OPEN_S):
                channel.exec_command(shlex.join(deadlined(argv, timeout_s)))
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ReachError(
                "answer",
                f"the node runs no command for this login: {legible(str(error)) or 'line lost'}",
                "look at sshd's log on the node (MaxSessions, ForceCommand, the login shell)",
            ) from error
        return ParamikoRemote(channel, timeout_s, limit)

    def close(self) -> None:
        """Hang up; commands that still run lose their channels."""
        hang_up(self._transport)


class ParamikoRemote(StreamRemote):
    """One command on one channel."""

    def __init__(self, channel: paramiko.Channel, timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self._channel = channel
        self._news = threading.Event()
        self._left = False
        self._status: int | None = None
        channel.settimeout(0.0)
        channel.in_buffer.set_event(self._news)
        channel.in_stderr_buffer.set_event(self._news)

    def finish_input(self) -> None:
        """Send an end of file, once everything sent before has gone out."""
        with suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def _write(self, data: memoryview) -> int:
        try:
            if not self._channel.send_ready():
                return 0
            sent = self._channel.send(bytes(data[:PACKET]))
        except TimeoutError:
            return 0
        except EOFError as error:
            raise BrokenPipeError from error
        if not sent:
            raise BrokenPipeError
        return sent

    def _move(self, wait_s: float, *, writing: bool) -> bool:
        if self._drained():
            return True
        if writing:
            time.sleep(min(wait_s, ROOM_TICK_S))
        elif not self._intake.ended:
            self._news.wait(wait_s)
        return self._drained()

    def _drained(self) -> bool:
        """Take all there is of both outputs; whether there was any."""
        channel, intake = self._channel, self._intake
        over = bool(channel.eof_received or channel.closed)  # looked at first: no data after it
        moved = False
        with suppress(OSError, EOFError):
            while channel.recv_ready() and not intake.overflow:
                intake.add_stdout(channel.recv(CHUNK))
                moved = True
            while channel.recv_stderr_ready() and not intake.overflow:
                intake.add_stderr(channel.recv_stderr(CHUNK))
                moved = True
        intake.ended = intake.ended or over
        return moved

    def _exited(self, wait_s: float) -> bool:
        return self._channel.status_event.wait(wait_s)

    def _leave(self) -> int | None:
        if not self._left:
            self._left = True
            told = self._channel.exit_status
            # -1 is paramiko's "none came": a signal if the node closed in order, else a lost line.
            ended_there = told >= 0 or (self._channel.closed and bool(self._channel.eof_received))
            self._status = told if ended_there else None
            self._close()
            self._intake.ended = True
        return self._status

    def _close(self) -> None:
        import paramiko

        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


def refuse_jump_hosts(config: Effective) -> None:
    """Say of a node behind another what would reach it, rather than try it directly."""
    for way in ("proxyjump", "proxycommand"):
        through = config.one(way)
        if through not in ("", "none"):
            raise ReachError(
                "route",
                f"ssh's configuration reaches it by {way} {legible(through, 80)}, "
                "which the paramiko transport cannot",
                'write transport = "openssh" in the inventory, or leave it out (needs ssh here)',
            )


@contextmanager
def _closed_after(channel: paramiko.Channel, seconds: float) -> Iterator[None]:
    """Give `exec_command` the deadline it lacks: closing its channel makes it raise."""
    watch = threading.Timer(seconds, channel.close)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
