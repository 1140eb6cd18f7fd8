"""What judging stored samples comes to, whichever form they were stored in."""

from __future__ import annotations

from msgspec import Struct

from preflight.fabric.blame import Blame
from preflight.ledger import Entry
from preflight.report.picture.accused import Accused


class Judged(Struct, frozen=True, kw_only=True):
    """Verdicts, and what they rest on."""

    entries: tuple[Entry, ...] = ()
    blames: tuple[Blame, ...] = ()
    accused: tuple[Accused, ...] = ()
    """The same for the picture."""
    systemic: dict[str, str] = {}
    """Check → why so many nodes at once are likelier one cause, so that none is to be drained."""
    notes: tuple[str, ...] = ()
