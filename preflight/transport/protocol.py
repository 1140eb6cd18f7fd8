"""How a node is reached, whatever lies between: one seam, one file per way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from msgspec import Struct

from preflight.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host

Step = Literal["name", "route", "hostkey", "login", "python", "answer"]
"""How far a connection attempt came: each step is the `reach.*` check of the same name."""

OUTPUT_LIMIT = 8 << 20
"""Bytes of standard output after which a command is cut off, unless its caller says otherwise."""

SEND_S = 30.0
"""How long a command may leave its input unread before we give it up."""


class ReachError(PreflightError):
    """A node could not be used: `step` says how far we came, `advice` what to do about it."""

    def __init__(self, step: Step, sentence: str, advice: str, *, blame: str = "") -> None:
        super().__init__(sentence)
        self.step: Step = step
        self.sentence = sentence
        self.advice = advice
        self.blame = blame
        """What stands between us and the node and is at fault in its place ("jump host b")."""


class Answer(Struct, frozen=True):
    """What a finished remote command left: its status and its bounded output."""

    status: int | None
    """Exit status; negative for a signal (-1 where SSH does not say which).

    None when nobody told: our deadline passed, or the line was lost.
    """
    stdout: bytes
    """What no `read_line` has taken, an unfinished last line included."""
    stderr: bytes
    """Its last 64 KiB."""
    overflow: bool = False
    """It wrote more than the limit; the rest was dropped and the command ended."""
    seconds: float = 0.0


class Remote(Protocol):
    """One running remote command whose input and output are ours."""

    def send(self, data: bytes, deadline_s: float = SEND_S) -> None:
        """Write to its standard input, while its output is taken off its hands.

        ReachError("answer") if it is gone; TimeoutError if it does not read for that long.
        """

    def finish_input(self) -> None:
        """Close its standard input. Never raises."""

    def read_line(self, deadline_s: float) -> bytes | None:
        """Next line of standard output without its newline; None at its end.

        Raises TimeoutError when the deadline (seconds from now) passes first, and
        ReachError("answer") when the output exceeds the limit.
        """

    def wait(self, deadline_s: float) -> Answer:
        """Collect what is left and the exit status; ends the command when the deadline passes."""

    def kill(self) -> None:
        """Stop caring: close the channel, and end the process where we can. Never raises."""


class Connection(Protocol):
    """A login on a node that can run several commands, one after another or at once."""

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Start a command, every word quoted, under a remote deadline of its own."""

    def close(self) -> None:
        """Leave. Never raises."""


@runtime_checkable
class Furnished(Protocol):
    """A connection to a node that has the payload already: it need not travel there."""

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Start an entry of the payload; what it reads first is its request."""


class Shortfall(Struct, frozen=True):
    """What a node that answers lacks all the same: some of the processes that the job has there."""

    sentence: str
    advice: str


@runtime_checkable
class Manned(Protocol):
    """A connection to a node on which the job's own ranks answer, one per rail."""

    shortfall: Shortfall | None
    """Ranks of the node that do not answer; None when all do."""

    @property
    def seats(self) -> Sequence[Connection]:
        """A connection to each rank of the node, in the order of its rails."""


class Transport(Protocol):
    """A way to reach nodes."""

    name: str

    def connect(self, host: Host, timeout_s: float) -> Connection:
        """Log in; raises ReachError that says which step failed."""

    def close(self) -> None:
        """Leave what was set up for the fleet as a whole. Never raises."""
