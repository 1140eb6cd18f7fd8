"""Nodes reached through the job's own rendezvous store: no login, each rank answers for itself."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Protocol

from preflight import __version__
from preflight.errors import PreflightError
from preflight.torchrun.board import StoreLostError
from preflight.torchrun.child import Child, start_child
from preflight.torchrun.notes import CHUNK, End, Ended, Feed, Said, Start, Unable
from preflight.transport.protocol import OUTPUT_LIMIT, ReachError, Shortfall
from preflight.transport.streams import StreamRemote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fleet.model import Host
    from preflight.torchrun.crew import Crew, Member
    from preflight.torchrun.hub import Hub
    from preflight.torchrun.notes import Order, Reply
    from preflight.transport.bundle import Beside
    from preflight.transport.protocol import Connection, Remote

    Sink = Callable[[Reply | str], None]

ROLL_CALL_S = 10.0
"""For a rank to say that it is there; a healthy one needs milliseconds."""


class TorchrunTransport:
    """The way to nodes on which torchrun has started ranks."""

    name = "torchrun"

    def __init__(self, crew: Crew, hub: Hub, beside: Beside = ()) -> None:
        self._crew = crew
        self._hub = hub
        self._beside = beside

    def connect(self, host: Host, timeout_s: float) -> TorchrunConnection:
        """Call the roll of a node's ranks; ReachError("answer") if none of them answers."""
        members = self._crew.groups[host.group_rank or 0]
        others = [m.rank for m in members if m.present and m.rank != self._crew.place.rank]
        silent = set(self._hub.roll_call(others, min(timeout_s, ROLL_CALL_S)))
        silent |= {m.rank for m in members if m.present is None}
        strange = [m for m in members if m.present and m.present.version != __version__]
        if strange:
            theirs = strange[0].present.version if strange[0].present else ""
            raise ReachError(
                "answer",
                f"{self._crew.words(strange[0])} has preflight {theirs[:40]}, "
                f"rank 0 has {__version__}",
                "install the same pytest-preflight for the job's Python on all nodes",
            )
        there = [member for member in members if member.rank not in silent]
        shortfall = self._shortfall([m for m in members if m.rank in silent])
        if not there:
            said = shortfall or Shortfall("none of its ranks answers", f"look at {host.name}")
            raise ReachError("answer", said.sentence, said.advice)
        seats = [self._seat(member) for member in members]
        return TorchrunConnection(self._seat(there[0]), seats, shortfall)

    def close(self) -> None:
        """Nothing to leave: the ranks stay until rank 0 lets all go together."""

    def _seat(self, member: Member) -> RankSeat:
        if member.rank == self._crew.place.rank:
            return RankSeat(Own(self._beside), member.rank, self._crew.words(member))
        return RankSeat(self._hub, member.rank, self._crew.words(member))

    def _shortfall(self, silent: Sequence[Member]) -> Shortfall | None:
        """Name the ranks that do not answer; those that their torchrun ended come second."""
        if not silent:
            return None
        ended = [m for m in silent if self._hub.told_to_leave(m.rank)]
        mute = [m for m in silent if m not in ended]
        first = (mute or ended)[0]
        count = f", and {len(mute) - 1} more of its ranks" if len(mute) > 1 else ""
        how = "started and fell silent" if mute else "was ended by its own torchrun"
        sentence = f"{self._crew.words(first)}{count} {how}"
        if mute and ended:
            sentence += f"; its torchrun then ended {_ranks(ended)}"
        pid = f" (pid {first.present.pid})" if first.present else ""
        return Shortfall(
            sentence,
            f"look at that process{pid}: dead, stopped, or in D state? dmesg, py-spy dump; "
            "exclude its node if it comes again",
        )


class TorchrunConnection:
    """A node by its first rank that answers; `seats` are all of its ranks."""

    def __init__(
        self,
        speaker: RankSeat,
        seats: Sequence[RankSeat],
        shortfall: Shortfall | None,
    ) -> None:
        self.shortfall = shortfall
        self._speaker = speaker
        self._seats = tuple(seats)

    @property
    def seats(self) -> Sequence[Connection]:
        """A connection to each rank of the node."""
        return self._seats

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Have the node's first rank start an entry of the payload."""
        return self._speaker.start_entry(entry, timeout_s=timeout_s, limit=limit)

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Refuse: ranks run preflight's own entries and nothing else."""
        return self._speaker.start(argv, timeout_s=timeout_s, limit=limit)

    def close(self) -> None:
        """Nothing to leave."""


class _Seat:
    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Refuse: ranks run preflight's own entries and nothing else."""
        del timeout_s, limit
        raise ReachError(
            "answer",
            f"a rank runs no command from outside ({argv[0][:40] if argv else ''})",
            "use the SSH or srun way for this",
        )

    def close(self) -> None:
        """Nothing to leave."""


class Line(Protocol):
    """The way of orders to a rank and of its replies."""

    def attach(self, rank: int, sink: Sink) -> int:
        """Number a new child; `sink` hears what comes of it, or why its rank is lost."""

    def detach(self, rank: int, child: int) -> None:
        """Hear no more of a child."""

    def send(self, rank: int, order: Order) -> None:
        """Give an order; never blocks for long."""

    def why_lost(self, rank: int) -> str:
        """Why the rank says no more, "" while it does."""


class Own:
    """Rank 0's line to itself: what it orders runs as processes below it."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._sinks: dict[int, Sink] = {}
        self._children: dict[int, Child] = {}

    def attach(self, rank: int, sink: Sink) -> int:
        """Number a new child."""
        del rank
        child = len(self._sinks) + 1
        self._sinks[child] = sink
        return child

    def detach(self, rank: int, child: int) -> None:
        """Hear no more of a child."""

    def why_lost(self, rank: int) -> str:
        """We are here."""
        del rank
        return ""

    def send(self, rank: int, order: Order) -> None:
        """Do it at once."""
        del rank
        if isinstance(order, Start):
            started = start_child(order, self._sinks[order.child], self._beside)
            if started is not None:
                self._children[order.child] = started
        elif isinstance(order, Feed) and order.child in self._children:
            self._children[order.child].feed(order.data, last=order.last)
        elif isinstance(order, End) and order.child in self._children:
            self._children.pop(order.child).end()


class RankSeat(_Seat):
    """One rank: it starts entries when told so."""

    def __init__(self, line: Line, rank: int, words: str) -> None:
        self._line, self._rank, self._words = line, rank, words

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Tell the rank to start an entry."""
        return RelayRemote(
            self._line, self._rank, self._words, entry, timeout_s=timeout_s, limit=limit
        )


class RelayRemote(StreamRemote):
    """A process below another rank; its input and output travel as notes."""

    def __init__(
        self, line: Line, rank: int, words: str, entry: str, *, timeout_s: float, limit: int
    ) -> None:
        super().__init__(timeout_s, limit)
        self._line, self._rank, self._words = line, rank, words
        self._said: queue.SimpleQueue[Reply | str] = queue.SimpleQueue()
        self._ended: Ended | None = None
        self._left = False
        self._child = line.attach(rank, self._said.put)
        self._tell(Start(self._child, entry, timeout_s, limit))

    def finish_input(self) -> None:
        """Say that there will be no more input."""
        try:
            self._line.send(self._rank, Feed(self._child, last=True))
        except StoreLostError:
            return

    def _tell(self, order: Start | Feed) -> None:
        try:
            self._line.send(self._rank, order)
        except StoreLostError as error:
            raise self._gone(str(error)) from error

    def _write(self, data: memoryview) -> int:
        if self._left or self._ended or self._line.why_lost(self._rank):
            raise BrokenPipeError
        chunk = bytes(data[:CHUNK])
        self._tell(Feed(self._child, chunk))
        return len(chunk)

    def _move(self, wait_s: float, *, writing: bool) -> bool:
        del writing  # the store takes whatever there is
        try:
            reply = self._said.get(timeout=wait_s)
        except queue.Empty:
            return False
        if isinstance(reply, str):
            self._left = True
            raise self._gone(reply)
        if isinstance(reply, Unable):
            raise ReachError("answer", f"{self._words}: {reply.sentence}", reply.advice)
        if isinstance(reply, Ended):
            self._ended = reply
            self._intake.ended = True
        elif isinstance(reply, Said):
            self._intake.add_stdout(reply.out)
            self._intake.add_stderr(reply.err)
        return True

    def _gone(self, why: str) -> ReachError:
        return ReachError(
            "answer",
            f"{self._words} {why}",
            "look at that process: dead, stopped, or in D state? dmesg, py-spy dump",
        )

    def _exited(self, wait_s: float) -> bool:
        if self._ended is None and wait_s > 0:
            self._move(wait_s, writing=False)
        return self._ended is not None

    def _leave(self) -> int | None:
        if not self._left:
            self._left = True
            self._line.detach(self._rank, self._child)
            if self._ended is None:
                self._end()
            self._intake.ended = True
        return self._ended.status if self._ended else None

    def _end(self) -> None:
        try:
            self._line.send(self._rank, End(self._child))
        except PreflightError:
            return


def _ranks(members: Sequence[Member]) -> str:
    numbers = ", ".join(str(member.rank) for member in members)
    return f"rank {numbers}" if len(members) == 1 else f"ranks {numbers}"
