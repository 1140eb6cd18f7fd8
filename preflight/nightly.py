"""What one run leaves for the next: the rounds it measured, so that nights add up to all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.coverage import after, pairs_tested
from preflight.history.coverage_file import NAME, Coverage, read_coverage
from preflight.report.files import open_folder, write_atomically
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preflight.fabric.schedule import Pairing
    from preflight.history.past import Past
    from preflight.run import Run

_PAIR = 2


@dataclass
class Nightly:
    """A history folder and what it says of this fleet; afterwards, with this run in it."""

    folder: Path
    nodes: tuple[str, ...]
    leaves: Mapping[str, str]
    past: Past

    def remember(self, run: Run) -> str:
        """Add what a run has measured; return what went wrong with writing it, if anything did.

        The file is read again, as another fleet's run may have written it meanwhile.
        """
        sweep, planned = run.judgement.measured.sweep, run.judgement.measured.planned
        if sweep is None or planned is None or not sweep.pairs:
            return ""
        bad = _suspected(run) & pairs_tested(sweep)
        tier, seconds = run.settings.tier, run.swept_s
        try:
            known = read_coverage(self.folder)
            self.past = after(
                known.past(self.nodes, self.leaves), planned, sweep, self.nodes,
                bad=sorted(bad), tier=tier, seconds=seconds,
            )  # fmt: skip
            content = known.having(self.nodes, self.leaves, self.past).encode()
            write_atomically(self.folder / NAME, content)
        except OSError as error:
            reason = f"cannot write {self.folder / NAME}: {error.strerror}"
        except UsageError as error:
            reason = str(error)
        else:
            return ""
        return f"{reason}; this run is not remembered"


def _suspected(run: Run) -> set[Pairing]:
    """Pairs that were measured as bad, and those that a verdict condemns."""
    bad = {ends for ends, pair in run.judgement.sweep.pairs.items() if pair.bad}
    for (_, names), verdict in run.judgement.known().items():
        if len(names) == _PAIR and verdict.outcome in (Outcome.FAIL, Outcome.FLAKY):
            bad.add((names[0], names[1]))
    return bad


def open_history(folder: Path, nodes: tuple[str, ...], leaves: Mapping[str, str]) -> Nightly:
    """Read what is known of a fleet, and see that more could be written; UsageError if not."""
    known: Coverage = read_coverage(folder)
    try:
        with open_folder(folder, make=False):
            pass
    except FileNotFoundError:
        pass  # it is made when there is something to remember
    except OSError as error:
        raise UsageError(
            f"--preflight-history {folder}: {error.strerror}: give a folder of your own"
        ) from error
    return Nightly(folder, nodes, leaves, known.past(nodes, leaves))
