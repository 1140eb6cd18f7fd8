"""One GPU's stream: work, events and collectives, in order, on a simulated clock.

Rule (CUDA C++ Programming Guide, "Streams" and "Events"): an item starts when the one before it has
ended *and* the host has enqueued it; an event is stamped at that moment and takes no time. So an
event that is recorded on an idle stream is stamped at once, before what the host enqueues next.

A collective also needs the other ends. Its kernel starts by the same rule, spins until all ends
have reached it, and ends for all of them together. What happens between two collectives is, as a
function of when the first one ended, `max(end + work, earliest)`: two numbers that ends exchange.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .clock import real_sleep

if TYPE_CHECKING:
    from .clock import HostClock
    from .communicator import Communicator

NEVER = -1.0


class Work(NamedTuple):
    """A kernel or a copy."""

    host_us: float
    takes_us: float


class Mark(NamedTuple):
    """An event's place in the stream."""

    host_us: float
    event: Event


class Collective(NamedTuple):
    """One all-reduce of a communicator over a tensor of this GPU."""

    host_us: float
    communicator: Communicator
    tensor: Any
    operator: str

    def continues_with(self, other: Collective) -> bool:
        """Whether one exchange is enough for both."""
        return (
            other.tensor is self.tensor
            and other.communicator is self.communicator
            and other.operator == self.operator
        )


class Reached(NamedTuple):
    """When a stream reaches its next collective: `max(end of the one before + work, earliest)`."""

    work_us: float
    earliest_us: float

    def at(self, end_us: float) -> float:
        """The moment, given when the one before ended."""
        return max(end_us + self.work_us, self.earliest_us)


class Event:
    """torch.cuda.Event of a stream."""

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self.stream: Stream | None = None
        self.at_us: float | None = None
        self.least_us = 0.0
        """It cannot come earlier."""


class Stream:
    """What one process has enqueued on one GPU."""

    def __init__(self, clock: HostClock) -> None:
        self.clock = clock
        self.end_us = clock.now_us
        """When all that is resolved has ended."""
        self.spins = False
        """A kernel on it never ends."""
        self._queue: deque[Work | Mark | Collective] = deque()
        self._least_us = self.end_us
        self._collectives = 0

    def enqueue(self, item: Work | Mark | Collective) -> None:
        """Put one item at the end."""
        self._queue.append(item)
        least_us = max(self._least_us, item[0], self.end_us)
        if isinstance(item, Mark):
            item.event.least_us = least_us
        elif isinstance(item, Work):
            self._least_us = least_us + item.takes_us
        else:
            self._least_us = least_us
            self._collectives += 1

    @property
    def pending(self) -> Collective | None:
        """The collective whose data have not come yet, if there is one."""
        if not self._collectives:
            return None
        return next(item for item in self._queue if isinstance(item, Collective))

    def resolve(self, upto: Event | None = None) -> None:
        """Find out when everything up to that event (all there is) ran; waits for the others."""
        while self._queue and (upto is None or upto.at_us is None):
            if self.spins:
                spin()
            if self._collectives and not self._leads_to(upto):
                self._run_together(self._batch())
            else:
                self._take(self._queue.popleft())

    def _leads_to(self, upto: Event | None) -> bool:
        """Whether that event comes before the first collective: then nobody is waited for."""
        for item in self._queue:
            if isinstance(item, Collective):
                return False
            if isinstance(item, Mark) and item.event is upto:
                return True
        return False

    def _take(self, item: Work | Mark | Collective) -> None:
        """Run one item that needs nobody else."""
        if isinstance(item, Mark):
            item.event.at_us = max(self.end_us, item.host_us)
        elif isinstance(item, Work):
            self.end_us = max(self.end_us, item.host_us) + item.takes_us

    def _batch(self) -> list[Collective]:
        """The next collectives in a row over the same tensor, which need one exchange only."""
        collectives = [item for item in self._queue if isinstance(item, Collective)]
        first = collectives[0]
        return list(itertools.takewhile(first.continues_with, collectives))

    def _run_together(self, batch: list[Collective]) -> None:
        first = batch[0]
        ends = first.communicator.run(
            self._reaching(len(batch)), self.end_us, first.tensor, first.operator
        )
        for end_us in ends:
            while not isinstance(item := self._queue.popleft(), Collective):
                self._take(item)
            self._collectives -= 1
            self.end_us = end_us

    def _reaching(self, count: int) -> list[Reached]:
        """For each of the next collectives when this stream reaches it."""
        found: list[Reached] = []
        work_us, earliest_us = 0.0, 0.0
        for item in self._queue:
            if not isinstance(item, Mark):
                earliest_us = max(earliest_us, item.host_us)
            if isinstance(item, Work):
                work_us += item.takes_us
                earliest_us += item.takes_us
            elif isinstance(item, Collective):
                found.append(Reached(work_us, earliest_us))
                work_us, earliest_us = 0.0, 0.0
                if len(found) == count:
                    break
        return found


def spin() -> None:
    """What a host sees of a kernel that never ends: it waits, and only SIGKILL helps."""
    while True:
        real_sleep(3600.0)
