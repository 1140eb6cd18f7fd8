"""Waits for every rank to be there, for a bounded time, and names the stragglers meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from preflight import __version__
from preflight.errors import WireError
from preflight.torchrun.announce import present
from preflight.torchrun.crew import Crew, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.torchrun.board import Board
    from preflight.torchrun.notes import Decoder, Present
    from preflight.torchrun.place import Place

GATHER_S = 90.0
"""For the first half of the ranks: their Python may come from a cold network file system."""

STRAGGLER_S = 10.0
"""For the rest, and twice as long as the first half needed."""

_SAY_S = 5.0
_LOOK_S = 0.2


def gather(
    place: Place, board: Board, decoder: Decoder, nonce: str, tell: Callable[[str], None]
) -> Crew:
    """Return all ranks; those that never came have no `present`."""
    told: dict[int, Present] = {place.rank: present(place, nonce, __version__)}
    began = said = time.monotonic()
    patience = began + GATHER_S
    halved = False
    while len(told) < place.world:
        for rank in range(place.world):
            if rank not in told and board.has(f"present/{rank}"):
                _take(told, rank, board, decoder)
        now = time.monotonic()
        if not halved and len(told) * 2 >= place.world:
            halved, patience = True, now + STRAGGLER_S + 2 * (now - began)
        if len(told) == place.world or now > patience:
            break
        if now - said > _SAY_S:
            said = now
            tell(f"{len(told)} of {place.world} ranks are there; waiting for "
                 f"{missing(Crew.of(place, told))}")  # fmt: skip
        time.sleep(_LOOK_S)
    return Crew.of(place, told)


def _take(told: dict[int, Present], rank: int, board: Board, decoder: Decoder) -> None:
    """Read a rank's first note; one that lies about its number counts as not there."""
    try:
        note = board.read(f"present/{rank}")
        one = decoder.present(note) if note is not None else None
    except WireError:
        return
    if one is not None and one.rank == rank:
        told[rank] = one
