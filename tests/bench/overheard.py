"""A transport that is listened to: what goes to a node and comes back, and in how many turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from preflight.core.remote_command import OUTPUT_LIMIT, SEND_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.core.remote_command import Answer, Connection, Remote
    from preflight.fleet.model import Host
    from preflight.transport.ways import Transport


@dataclass(slots=True)
class Conversation:
    """Everything that was said on connections of one transport."""

    commands: int = 0
    sent: int = 0
    """Bytes to the node: what its command reads."""
    received: int = 0
    """Bytes of the lines that it answered."""
    lines: int = 0
    round_trips: int = 0
    """How often we spoke after we had listened: one that never did has one."""
    _speaking: bool = False

    def spoke(self, size: int) -> None:
        """So many bytes went out."""
        self.sent += size
        self.round_trips += not self._speaking
        self._speaking = True

    def heard(self, line: bytes) -> None:
        """A line came in."""
        self.received += len(line) + 1
        self.lines += 1
        self._speaking = False


class Overheard:
    """Passes everything on to the transport behind it."""

    def __init__(self, inner: Transport) -> None:
        self.name = inner.name
        self.said = Conversation()
        self._inner = inner

    def connect(self, host: Host, timeout_s: float) -> _Connection:
        """Log in."""
        return _Connection(self._inner.connect(host, timeout_s), self.said)

    def close(self) -> None:
        """Leave."""
        self._inner.close()


class _Connection:
    def __init__(self, inner: Connection, said: Conversation) -> None:
        self._inner, self._said = inner, said

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        self._said.commands += 1
        remote = self._inner.start(argv, timeout_s=timeout_s, limit=limit)
        return cast("Remote", _Remote(remote, self._said))

    def close(self) -> None:
        self._inner.close()


class _Remote:
    def __init__(self, inner: Remote, said: Conversation) -> None:
        self._inner, self._said = inner, said

    def send(self, data: bytes, deadline_s: float = SEND_S) -> None:
        self._said.spoke(len(data))
        self._inner.send(data, deadline_s)

    def finish_input(self) -> None:
        self._inner.finish_input()

    def read_line(self, deadline_s: float) -> bytes | None:
        line = self._inner.read_line(deadline_s)
        if line is not None:
            self._said.heard(line)
        return line

    def wait(self, deadline_s: float) -> Answer:
        return self._inner.wait(deadline_s)

    def kill(self) -> None:
        self._inner.kill()
