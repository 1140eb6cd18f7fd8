"""What xdist's workers must know to judge as one process would: the measurements, and the stop."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from preflight.check import STAGES
from preflight.core.files import read_regular
from preflight.errors import WireError
from preflight.fabric.planner import Planned
from preflight.fleet.sources import Found
from preflight.run.measured import LARGEST, Measured
from preflight.run.run import STOPPED_AT_FIRST, Run
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    import pytest

    from preflight.report.outputs import Outputs


_MEASURED = "preflight_measured"
_DIGEST = "preflight_measured_sha256"
_SKIPPED = "preflight_skipped"
_FOUND = "preflight_found"
_PLANNED = "preflight_planned"


def give(luggage: dict[str, Any], run: Run, outputs: Outputs, found: Found | None) -> None:
    """Name the file of the measurements; where it could not be written, send what it would hold."""
    path = outputs.path / "measured.json"
    written = path.name in outputs.written
    content = run.judgement.measured.encode()
    luggage[_MEASURED] = str(path) if written else content
    luggage[_DIGEST] = hashlib.sha256(content).hexdigest()
    luggage[_FOUND] = msgspec.json.encode(found)
    luggage[_PLANNED] = msgspec.json.encode(run.planned)
    luggage[_SKIPPED] = [[check, list(nodes)] for check, nodes in run.stopped]


def found(luggage: dict[str, Any]) -> Found | None:
    """Tell a worker which nodes the site's plugins named: only the controller asks them."""
    return msgspec.json.decode(luggage[_FOUND], type=Found | None)


def planned(luggage: dict[str, Any]) -> Planned:
    """Tell a worker which pairs there are: its own seed and clock would choose others."""
    return msgspec.json.decode(luggage[_PLANNED], type=Planned)


def take(luggage: dict[str, Any], run: Run) -> None:
    """Put a worker's run where the controller's run is."""
    try:
        measured = Measured.decode(_content(luggage))
    except (WireError, OSError) as error:
        broken = Verdict(
            outcome=Outcome.BROKEN,
            sentence=f"its worker could not read what was measured: {error}",
            advice="give a folder that nobody else may write to: --preflight-report=DIR",
        )
        measured = Measured(nonce=run.nonce, skipped=dict.fromkeys(STAGES, broken))
    run.judgement.advance(measured)
    for check, nodes in luggage[_SKIPPED]:
        run.judgement.skip(check, tuple(nodes), STOPPED_AT_FIRST)


def _content(luggage: dict[str, Any]) -> bytes:
    """What the controller measured, and not what somebody put in the file's place since."""
    content = luggage[_MEASURED]
    if isinstance(content, bytes):
        return content
    read = read_regular(Path(content), LARGEST)
    if hashlib.sha256(read).hexdigest() != luggage[_DIGEST]:
        raise WireError(f"somebody changed {content} while the run went on")
    return read


Version = tuple[int, int, int]

FIRST_BAD_PYTEST: Final[Version] = (9, 2, 0)
LAST_BAD_XDIST: Final[Version] = (3, 8, 0)
"""With the one or newer beside the other or older, groups are lost (pytest-xdist issue 1386)."""


def warnings(config: pytest.Config) -> list[str]:
    """Lines for the header, none if all is well; each says which versions and what to do."""
    if getattr(config.option, "dist", "no") != "loadgroup" or not config.option.tx:
        return []
    said = {name: importlib.metadata.version(name) for name in ("pytest", "pytest-xdist")}
    if not misgroups(said["pytest"], said["pytest-xdist"]):
        return []
    line = (
        f"warning  --dist loadgroup does not group with pytest {said['pytest']} and pytest-xdist "
        f"{said['pytest-xdist']}: tests of one xdist_group run at the same time in several "
        "workers; to have them one after another, leave -n out, or: pip install 'pytest<9.2'"
    )
    return [line]


def misgroups(pytest_version: str, xdist_version: str) -> bool:
    """Whether `--dist loadgroup` is known to lose the groups with these two."""
    return _read(pytest_version) >= FIRST_BAD_PYTEST and _read(xdist_version) <= LAST_BAD_XDIST


def _read(version: str) -> Version:
    """Read the first three numbers; what comes behind them (rc1, .dev2) does not matter here."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third
