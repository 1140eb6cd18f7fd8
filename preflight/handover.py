"""What xdist's workers must know to judge as one process would: the measurements, and the stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.run import STOPPED_AT_FIRST, Run
from preflight.stages.measured import Measured

if TYPE_CHECKING:
    from preflight.outcome import Outputs

_MEASURED = "preflight_measured"
_SKIPPED = "preflight_skipped"


def give(luggage: dict[str, Any], run: Run, outputs: Outputs) -> None:
    """Name the file of the measurements; where it could not be written, send what it would hold."""
    path = outputs.path / "measured.json"
    written = not outputs.trouble and path.is_file()
    luggage[_MEASURED] = str(path) if written else run.judgement.measured.encode()
    luggage[_SKIPPED] = [[check, list(nodes)] for check, nodes in run.stopped]


def take(luggage: dict[str, Any], run: Run) -> None:
    """Put a worker's run where the controller's run is."""
    content = luggage[_MEASURED]
    run.judgement.advance(
        Measured.decode(content if isinstance(content, bytes) else Path(content).read_bytes())
    )
    for check, nodes in luggage[_SKIPPED]:
        run.judgement.skip(check, tuple(nodes), STOPPED_AT_FIRST)
