"""The TCP connections between a job's ranks, both ends of each held together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.facts.look_model import Connection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.look_model import RankLook

_MAPPED = "::ffff:"
_RAS = "28028"
"""The port of NCCL's own roll call (NCCL_RAS_ADDR), which speaks at any time."""


class Wire(Struct, frozen=True, kw_only=True):
    """One rank's end of a connection to another rank."""

    rank: int
    node: str
    peer_rank: int | None
    """None where the other end is on a node that was not looked at."""
    peer_node: str
    """Its address, where its node is not known."""
    end: Connection

    @property
    def stuck(self) -> bool:
        """Whether its kernel sends again what the other end does not acknowledge."""
        return self.end.unacked > 0 and (self.end.retries > 0 or self.end.resent > 0)


def wires_of(ranks: Iterable[tuple[int, str, RankLook]], *, complete: bool) -> tuple[Wire, ...]:
    """Keep the connections between ranks, leave out the store's and strangers'.

    `complete`: every rank was seen, so that an end which is nobody's is no rank's.
    """
    every = [(*one, end) for one in ranks for end in one[2].connections]
    owners = {(_end(end.local), _end(end.peer)): (rank, node) for rank, node, _, end in every}
    found = []
    for rank, node, look, end in every:
        local, peer = _end(end.local), _end(end.peer)
        if _RAS in (local[1], peer[1]) or look.master.rpartition(":")[2] in (local[1], peer[1]):
            continue
        other = owners.get((peer, local))
        if other is None and (complete or _loopback(peer[0])):
            continue
        found.append(
            Wire(
                rank=rank,
                node=node,
                peer_rank=other[0] if other else None,
                peer_node=other[1] if other else peer[0],
                end=end,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.rank, one.end.local, one.end.peer)))


def _end(text: str) -> tuple[str, str]:
    address, _, port = text.rpartition(":")
    address = address.strip("[]").lower()
    return address.removeprefix(_MAPPED), port


def _loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
