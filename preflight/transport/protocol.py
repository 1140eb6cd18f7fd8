"""How a node is reached, whatever lies between: one seam, one file per way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from preflight.core.remote_command import OUTPUT_LIMIT, Remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.node import Shortfall
    from preflight.fleet.model import Host


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
