"""One number of a pair beside that of its peers."""

from __future__ import annotations

from msgspec import Struct

_AS_PEERS = 1.1


class Against(Struct, frozen=True):
    """One number of one pair, and the same number of its peers."""

    value: float
    peers: float | None
    ratio: float | None
    """How many times as long (or as often) as the peers; None where there are none.

    At most 1 where it is no more than what healthy pairs scatter by, and nobody is blamed for it.
    """
    size_bytes: int = 0
    of: int = 0
    """Operations, of a count."""
    longest_us: float = 0.0

    @property
    def stands_out(self) -> bool:
        """Whether it is worse than its peers, so that theirs is worth a word in a full page."""
        return self.ratio is not None and self.ratio > _AS_PEERS
