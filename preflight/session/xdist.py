"""What xdist's workers must know to judge as one process would: the measurements, and the stop."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from preflight.check import STAGES
from preflight.core.files import read_regular
from preflight.errors import WireError
from preflight.fabric.planner import Planned
from preflight.fleet.sources import SiteNodes
from preflight.run.judgement import Key
from preflight.run.measured import LARGEST, Measured
from preflight.run.run import STOPPED_AT_FIRST, Run
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    import pytest

    from preflight.report.outputs import Outputs


_KEY = "preflight"


class Handoff(Struct, frozen=True, kw_only=True):
    """What the controller tells a worker when it starts."""

    path: str
    """The file of the measurements; empty where it could not be written."""
    content: bytes
    """What it would hold then."""
    sha256: str
    found: SiteNodes | None
    """The nodes that the site's plugins named: only the controller asks them."""
    planned: Planned
    """Which pairs there are: a worker's own seed and clock would choose others."""
    skipped: tuple[Key, ...]
    """What is not judged since the run stopped."""

    @classmethod
    def to(cls, config: pytest.Config) -> Handoff | None:
        """What this process was told; None where it is the controller."""
        if not hasattr(config, "workerinput"):
            return None
        return msgspec.msgpack.decode(config.workerinput[_KEY], type=cls)

    def take(self, run: Run) -> None:
        """Put a worker's run where the controller's run is."""
        try:
            measured = Measured.decode(self._content())
        except (WireError, OSError) as error:
            broken = Verdict(
                outcome=Outcome.BROKEN,
                sentence=f"its worker could not read what was measured: {error}",
                advice="give a folder that nobody else may write to: --preflight-report=DIR",
            )
            measured = Measured(nonce=run.nonce, skipped=dict.fromkeys(STAGES, broken))
        run.judgement.advance(measured)
        for key in self.skipped:
            run.judgement.skip(*key, STOPPED_AT_FIRST)

    def _content(self) -> bytes:
        """What the controller measured, and not what somebody put in the file's place since."""
        if not self.path:
            return self.content
        read = read_regular(Path(self.path), LARGEST)
        if hashlib.sha256(read).hexdigest() != self.sha256:
            raise WireError(f"somebody changed {self.path} while the run went on")
        return read


def give(workerinput: dict[str, Any], run: Run, outputs: Outputs, found: SiteNodes | None) -> None:
    """Tell a worker."""
    path = outputs.path / "measured.json"
    content = run.judgement.measured.encode()
    written = path.name in outputs.written
    handoff = Handoff(
        path=str(path) if written else "",
        content=b"" if written else content,
        sha256=hashlib.sha256(content).hexdigest(),
        found=found,
        planned=run.planned,
        skipped=tuple(run.stopped),
    )
    workerinput[_KEY] = msgspec.msgpack.encode(handoff)


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
