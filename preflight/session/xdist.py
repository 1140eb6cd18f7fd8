"""Hands pytest-xdist's workers what they need to judge as a single process would."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from preflight.check import STAGES
from preflight.core.files import read_regular
from preflight.errors import WireError
from preflight.fabric.schedule import Planned
from preflight.fleet.sources import SiteNodes
from preflight.run.judgement import Key
from preflight.run.measured import LARGEST, Measured
from preflight.run.run import STOPPED_AT_FIRST, Run
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    import pytest

    from preflight.report.outputs import Outputs


_KEY = "preflight"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist, which measures and reports nothing."""
    return hasattr(config, "workerinput")


class Handoff(Struct, frozen=True, kw_only=True):
    """What the controller gives a worker when it starts."""

    path: str
    """The file of the measurements; empty if it could not be written."""
    content: bytes
    """The measurements themselves in that case."""
    sha256: str
    site_nodes: SiteNodes | None
    """The nodes that the site's plugins named: only the controller calls these."""
    planned: Planned
    """The rounds of pairs: a worker's own seed and clock would choose others."""
    skipped: tuple[Key, ...]
    """Subjects that are not judged because the run stopped."""

    @classmethod
    def received(cls, config: pytest.Config) -> Handoff | None:
        """The handoff to this process; None in the controller."""
        given = getattr(config, "workerinput", None)
        return None if given is None else msgspec.msgpack.decode(given[_KEY], type=cls)

    def apply_to(self, run: Run) -> None:
        """Give a worker's run the measurements and skipped verdicts of the controller's run."""
        try:
            measured = Measured.decode(self._content())
        except (WireError, OSError) as error:
            broken = Verdict(
                outcome=Outcome.BROKEN,
                sentence=f"its worker could not read the measurements: {error}",
                advice="give a folder that no other user can write to: --preflight-report=DIR",
            )
            measured = Measured(nonce=run.nonce, skipped=dict.fromkeys(STAGES, broken))
        run.judgement.advance(measured)
        for key in self.skipped:
            run.judgement.skip(*key, STOPPED_AT_FIRST)

    def _content(self) -> bytes:
        """The controller's measurements; refuses a file that was replaced since."""
        if not self.path:
            return self.content
        content = read_regular(Path(self.path), LARGEST)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise WireError(f"{self.path} was changed during the run")
        return content


def send(workerinput: dict[str, Any], run: Run, outputs: Outputs, nodes: SiteNodes | None) -> None:
    """Put the handoff into a worker's input."""
    path = outputs.path / "measured.json"
    content = run.judgement.measured.encode()
    written = path.name in outputs.written
    handoff = Handoff(
        path=str(path) if written else "",
        content=b"" if written else content,
        sha256=hashlib.sha256(content).hexdigest(),
        site_nodes=nodes,
        planned=run.planned,
        skipped=tuple(run.stopped),
    )
    workerinput[_KEY] = msgspec.msgpack.encode(handoff)


def warnings(config: pytest.Config) -> list[str]:
    """Warnings for the header, none if all is well; each names the versions and what to do."""
    if getattr(config.option, "dist", "no") != "loadgroup" or not config.option.tx:
        return []
    pytest_version, xdist_version = map(importlib.metadata.version, ("pytest", "pytest-xdist"))
    if not ignores_groups(pytest_version, xdist_version):
        return []
    line = (
        f"warning  --dist loadgroup does not group with pytest {pytest_version} and pytest-xdist "
        f"{xdist_version}: tests of one xdist_group run at the same time in several "
        "workers; to have them one after another, leave -n out, or: pip install 'pytest<9.2'"
    )
    return [line]


def ignores_groups(pytest_version: str, xdist_version: str) -> bool:
    """Whether `--dist loadgroup` ignores groups with these versions (pytest-xdist issue 1386)."""
    from packaging.version import Version  # pytest requires it

    return Version(pytest_version) >= Version("9.2.dev0") and Version(xdist_version) < Version(
        "3.9"
    )
