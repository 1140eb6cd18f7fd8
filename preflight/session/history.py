"""What one run leaves for the next, and what it takes from earlier ones.

The history never decides how a run ends: one that cannot be read or written costs a line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.coverage import after, coverage, pairs_tested
from preflight.history.coverage_file import read_coverage
from preflight.history.night import Covered, unswept
from preflight.history.place import SWEEP, in_words, make, place_of, there
from preflight.history.reading import reading
from preflight.history.trouble import HistoryError
from preflight.remembered import night_of
from preflight.report.files import open_folder
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from preflight.check import Tier
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Fleet
    from preflight.history.night import Swept
    from preflight.history.past import Past
    from preflight.history.place import Place
    from preflight.ledger import Entry
    from preflight.run import Run

_PAIR = 2
_BAD = (Outcome.FAIL, Outcome.FLAKY, Outcome.WAIVED)

FEW_NODES, MOST_NODES = 2, 32
"""A group of so few nodes may have parts without peers: only these need their own past, and of no
more nodes than that it is looked up."""


@dataclass
class Nightly:
    """A history and what it says of this fleet; afterwards, with this run in it."""

    place: Place
    nodes: tuple[str, ...]
    leaves: Mapping[str, str]
    past: Past | None
    """None where it could not be read."""
    trouble: str = ""
    """Why not."""

    def remember(self, run: Run, entries: Sequence[Entry], began_s: float) -> str:
        """Add a run that reached anybody; return what went wrong with that, if anything did.

        What is there is read again, as another run may have written it meanwhile.
        """
        if not run.judgement.measured.reach:
            return ""
        try:
            prepared(self.place)
            from preflight.history.writing import writing

            with writing(self.place) as writer:
                sweep = os.environ.get(SWEEP, "")[:64]
                past = writer.add(night_of(run, entries, began_s, sweep), _swept(run, self.nodes))
        except Exception as error:  # noqa: BLE001  no fault of ours here may cost the report
            return f"{_said(error)}; this run is not remembered"
        except KeyboardInterrupt:  # whoever has no patience with a lock still gets the report
            return "interrupted while it was written; this run is not remembered"
        self.past = past
        return ""


def prepared(place: Place) -> None:
    """Make the folder and the file of a history where they are missing; HistoryError if refused."""
    if place.file is None:
        return
    try:
        with open_folder(place.file.parent, make=True) as folder:
            make(place, folder)
    except OSError as error:
        raise HistoryError(in_words(place, error.strerror or str(error))) from error


def open_history(text: str, working: Path, fleet: Fleet, tier: Tier) -> Nightly:
    """Read what is known of a fleet.

    UsageError for what is neither a folder nor a database, and for a folder that others may write
    to; a history that cannot be read is a `trouble`, and the run goes on without it.
    """
    place = place_of(text, working)
    nodes = tuple(host.name for host in fleet.hosts)
    _refuse_unsafe(place)
    try:
        past = _past(place, nodes, fleet, tier)
    except Exception as error:  # noqa: BLE001  nor the run
        return Nightly(place, nodes, fleet.leaves, None, _said(error))
    return Nightly(place, nodes, fleet.leaves, past)


def _said(error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    return f"preflight's own fault ({type(error).__name__}: {error}): report it"


def _refuse_unsafe(place: Place) -> None:
    if place.file is None:
        return
    try:
        with open_folder(place.file.parent, make=False):
            pass
    except FileNotFoundError:
        pass  # it is made when there is something to remember
    except OSError as error:
        raise UsageError(
            f"--preflight-history={place.folder}: {error.strerror}: give a folder of your own"
        ) from error


def _past(place: Place, nodes: tuple[str, ...], fleet: Fleet, tier: Tier) -> Past:
    if place.folder is not None and not there(place):
        return read_coverage(place.folder).past(nodes, fleet.leaves)  # taken in by the first write
    from msgspec.structs import replace

    with reading(place) as history:
        past = history.past(nodes, fleet.leaves)
        return replace(past, units=history.units(_without_peers(fleet), tier))


def _without_peers(fleet: Fleet) -> list[str]:
    """The nodes of groups so small that a part of theirs may have no peers."""
    groups: dict[str, list[str]] = {}
    for host in fleet.hosts:
        groups.setdefault(host.group, []).append(host.name)
    few = [name for own in groups.values() if len(own) <= FEW_NODES for name in own]
    return few[:MOST_NODES]


def _swept(run: Run, nodes: tuple[str, ...]) -> Swept:
    """What this run adds to the rounds that are known."""
    sweep, planned = run.judgement.measured.sweep, run.judgement.measured.planned
    if sweep is None or planned is None or not sweep.pairs:
        return unswept
    tested = pairs_tested(sweep)
    bad = sorted(_suspected(run) & tested)

    def swept(past: Past) -> tuple[Past, Covered | None]:
        new = after(
            past, planned, sweep, nodes,
            bad=bad, tier=run.settings.tier, seconds=run.swept_s,
        )  # fmt: skip
        now = coverage(planned, tested, nodes, new)
        return new, Covered(
            pairs=now.pairs,
            pairs_run=now.pairs_run,
            pairs_known=now.pairs_known or 0,
            leaf_pairs=now.leaf_pairs,
            leaf_pairs_run=now.leaf_pairs_run,
            leaf_pairs_known=now.leaf_pairs_known or 0,
        )

    return swept


def _suspected(run: Run) -> set[Pairing]:
    """Pairs that were measured as bad, and those that a verdict condemns."""
    bad = {ends for ends, pair in run.judgement.sweep.pairs.items() if pair.bad}
    for (_, names), verdict in run.judgement.known().items():
        if len(names) == _PAIR and verdict.outcome in _BAD:
            bad.add((names[0], names[1]))
    return bad
