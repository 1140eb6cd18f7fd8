"""A command that a relay runs, behind the same face as one over SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.transport.protocol import OUTPUT_LIMIT, ReachError
from preflight.transport.relay import frames
from preflight.transport.streams import StreamRemote, deadlined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.transport.relay.link import Link

CHUNK = 64 << 10
THANKS = 128 << 10
"""Bytes read after which the node is told that there is room again."""


class RelayConnection:
    """One node's relay; each command gets a channel of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> RelayRemote:
        """Start it there, without a shell; ReachError if the relay is gone."""
        if self._link.rivals:
            raise ReachError(
                "answer",
                f"two relays called in as this node, from {self._link.rivals}: one poses as it",
                "look which address is this node's: the other one's node is not to be trusted",
            )
        if self._link.lost:
            raise ReachError(
                "answer",
                "its relay is gone: the connection to it broke",
                "look whether the Slurm job still runs, and at the node's kernel log",
            )
        return RelayRemote(self._link, deadlined(argv, timeout_s), timeout_s, limit)

    def close(self) -> None:
        """Nothing to leave: the relay serves this node until the whole run is over."""


class RelayRemote(StreamRemote):
    """One command on one channel of a relay's connection."""

    def __init__(self, link: Link, argv: Sequence[str], timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self._link = link
        self._number, self._channel = link.start(argv)
        self._finished = False
        self._left = False
        self._status: int | None = None
        self._thanks = 0

    def finish_input(self) -> None:
        """Send an end of file behind everything sent before."""
        if not self._finished:
            self._finished = True
            self._link.say(frames.EOF, self._number)

    def _write(self, data: memoryview) -> int:
        channel = self._channel
        if channel.deaf or self._finished or self._left:
            raise BrokenPipeError
        piece = bytes(data[: min(CHUNK, channel.granted - channel.sent)])
        if piece:
            channel.sent += len(piece)
            self._link.say(frames.STDIN, self._number, piece)
        return len(piece)

    def _move(self, wait_s: float, *, writing: bool) -> bool:
        channel = self._channel
        channel.news.clear()
        if self._drained():
            return True
        if not (writing and (channel.deaf or channel.granted > channel.sent)):
            channel.news.wait(wait_s)
        return self._drained()

    def _drained(self) -> bool:
        """Take all that has arrived; whether there was any."""
        channel, intake = self._channel, self._intake
        over = channel.ended  # looked at first: no data after it
        moved = False
        while channel.arrived and not intake.overflow:
            kind, data = channel.arrived.popleft()
            (intake.add_stdout if kind == frames.OUT else intake.add_stderr)(data)
            channel.taken += len(data)
            self._thanks += len(data)
            moved = True
        if self._thanks >= THANKS:
            self._link.say(frames.MORE_OUT, self._number, frames.NUMBER.pack(self._thanks))
            self._thanks = 0
        intake.ended = intake.ended or (over and not channel.arrived)
        return moved

    def _exited(self, wait_s: float) -> bool:
        return self._channel.exited.wait(wait_s)

    def _leave(self) -> int | None:
        if not self._left:
            self._left = True
            self._status = self._channel.status
            self._link.forget(self._number)
            self._intake.ended = True
        return self._status
