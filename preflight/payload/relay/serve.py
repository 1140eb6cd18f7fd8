"""The relay at work: one loop that runs the controller's commands until the controller is gone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time

import children

from . import frames
from .command import IN_ROOM, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Dict, Set

READ = 256 << 10
KILL_TICK_MS = 50
NOT_FOUND = 127
ARGUMENTS = 4096
COMMANDS = 256
"""Most words of a command, and most commands at once; more is no controller of ours."""


class Server:
    """Joins one connection with the commands that it started."""

    def __init__(
        self, connection: socket.socket, sealer: frames.Sealer, opener: frames.Opener
    ) -> None:
        self._connection = connection
        self._sealer = sealer
        self._opener = opener
        self._outgoing = bytearray()
        self._commands: Dict[int, Command] = {}
        self._child_ended, into = os.pipe()
        os.set_blocking(self._child_ended, False)
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        connection.settimeout(0.0)

    def run(self) -> None:
        """Serve until the controller hangs up or proves to be someone else."""
        while True:
            ready = self._ready()
            if self._connection.fileno() in ready and not self._hear():
                return
            for channel, command in list(self._commands.items()):
                self._serve(channel, command, ready)
            self._bury()
            if not self._flush():
                return

    def _ready(self) -> Set[int]:
        """Wait for something to do; which descriptors are ready for it."""
        poll = select.poll()  # made anew: a kept one would mistake a reused number for the old one
        poll.register(self._child_ended, select.POLLIN)
        poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        for command in self._commands.values():
            for descriptor in command.open if command.room > 0 else ():
                poll.register(descriptor, select.POLLIN)
            if command.wants_input:
                poll.register(command.stdin, select.POLLOUT)
        killing = any(c.kill_at is not None for c in self._commands.values())
        return {each for each, _ in poll.poll(KILL_TICK_MS if killing else None)}

    def _hear(self) -> bool:
        """Take what the controller says; False when it is gone."""
        try:
            data = self._connection.recv(READ)
            for kind, channel, body in self._opener.feed(data):
                self._obey(kind, channel, body)
        except BlockingIOError:
            return True
        except (OSError, frames.Refused):
            return False
        return bool(data)

    def _obey(self, kind: int, channel: int, body: bytes) -> None:
        if kind == frames.START:
            self._start(channel, body)
            return
        command = self._commands.get(channel)
        if command is None:
            return  # its last words and our order crossed
        if kind == frames.STDIN:
            command.waiting += body
            if len(command.waiting) > IN_ROOM:
                raise frames.Refused("more input than there is room for")
        elif kind == frames.EOF:
            command.input_ends = True
            command.write()
        elif kind == frames.KILL:
            command.ask()
        elif kind == frames.MORE_OUT:
            command.room += frames.NUMBER.unpack(body)[0]

    def _start(self, channel: int, body: bytes) -> None:
        argv = json.loads(body.decode())
        if channel in self._commands or len(argv) > ARGUMENTS or len(self._commands) >= COMMANDS:
            raise frames.Refused("an order that makes no sense")
        try:
            self._commands[channel] = Command([str(word) for word in argv])
        except (OSError, ValueError) as error:
            text = "%s: %s\n" % (argv[0], getattr(error, "strerror", None) or error)
            self._say(frames.ERR, channel, text.encode("utf-8", "replace"))
            self._say(frames.OUT_END, channel)
            self._say(frames.EXIT, channel, frames.NUMBER.pack(NOT_FOUND))

    def _serve(self, channel: int, command: Command, ready: Set[int]) -> None:
        for descriptor in [d for d in command.open if d in ready and command.room > 0]:
            kind = frames.OUT if descriptor == command.stdout else frames.ERR
            with contextlib.suppress(BlockingIOError):
                if data := command.read(descriptor):
                    self._say(kind, channel, data)
                elif not command.open:
                    self._say(frames.OUT_END, channel)
        if command.wants_input:
            written = command.write()
            if written < 0:
                self._say(frames.DEAF, channel)
            elif written:
                self._say(frames.MORE_IN, channel, frames.NUMBER.pack(written))
        if not command.exited and (status := command.status()) is not None:
            command.exited = True
            self._say(frames.EXIT, channel, frames.NUMBER.pack(status))
        asked = command.kill_at
        if asked is not None and (command.exited or time.monotonic() >= asked):
            command.forget()
            del self._commands[channel]

    def _bury(self) -> None:
        """Reap orphans: what our commands left behind became our children."""
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._child_ended, 4096):
                return
            own = {command.pid for command in self._commands.values()}
            for pid in children.of(os.getpid()):
                if pid not in own:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def _say(self, kind: int, channel: int, body: bytes = b"") -> None:
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
