"""User stories run the installed plugin in a real subprocess, from an empty folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests import warm
from tests.frozen.store import KEPT, keep
from tests.lab.fixtures import cluster, lab, slurm, slurm_cluster
from tests.stories.here import here
from tests.stories.hooked import emulator, hooked
from tests.stories.recorded import Recorded, disagreement, paired, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["cluster", "emulator", "here", "hooked", "lab", "slurm", "slurm_cluster"]

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json").read_text()
)

AT_MOST = 6
"""Kinds of run that are judged again by four workers, which costs a session of pytest each.

Shared among the processes of one test session; `make parity` judges every run of every story again.
"""

WITHOUT_OTHERS = "-p no:hypothesispytest -p no:pytest11.testinfra"
"""Without the plugins that only development has: they take a third of each run's start."""

LONGEST_S = 300
"""Only so that a hang ends the test; nothing is asserted about time."""


@dataclass(frozen=True)
class Told:
    """What the operator saw: the exit code, the screen, and the report if there is one."""

    exit: int
    out: str
    err: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        """The decoded report.json, held to its schema."""
        content: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        jsonschema.validate(content, SCHEMA)
        return content

    def outcomes(self, *wanted: str) -> set[tuple[str, str, str]]:
        """(check, subject, outcome) of every verdict, or of those with a wanted outcome."""
        return {
            (v["check"], v["subject"], v["outcome"])
            for v in self.report["verdicts"]
            if not wanted or v["outcome"] in wanted
        }

    def found(self) -> set[tuple[str, str]]:
        """(check, subject) of every verdict that a person has to look at."""
        bad = ("fail", "flaky", "unknown", "broken", "missing", "warn")
        return {(check, subject) for check, subject, _ in self.outcomes(*bad)}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Recorded]]:
    """Every run of every story; in the end four workers judge the same measurements again."""
    runs: list[Recorded] = []
    yield runs
    folder = tmp_path_factory.mktemp("four-workers")
    for number, one in enumerate(_again(runs)):
        assert not (said := disagreement(one, folder / str(number), clean_environment())), said


def _again(runs: list[Recorded]) -> list[Recorded]:
    """Of runs that came to the same outcomes by the same kinds of check one is enough."""
    if os.environ.get("PREFLIGHT_TEST_PARITY") == "all":
        return runs
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return list({one.kind: one for one in runs}.values())[: -(-AT_MOST // processes)]


@pytest.fixture
def preflight(
    tmp_path: Path, recorded: list[Recorded], request: pytest.FixtureRequest
) -> Callable[..., Told]:
    """Run `pytest --preflight ...` as a person would."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> Told:
        folder = tmp_path / "report"
        working = tmp_path / "empty"
        working.mkdir(exist_ok=True)
        done = warm.run(
            "pytest",
            [
                *("-p", "no:cacheprovider", "--preflight"),
                f"--preflight-report={folder}",
                *paired(arguments),
            ],
            cwd=working,
            env={**clean_environment(), **(env or {})},
            timeout=LONGEST_S,
        )
        told = Told(done.returncode, done.stdout, done.stderr, folder)
        if env is not None and KEPT is None:
            return told
        if kept := record(request.node.name, told, arguments, working):
            keep(kept, env)
            if env is None:
                recorded.append(kept)
        return told

    return run


def clean_environment() -> dict[str, str]:
    """Drop what would make this machine look like an allocation or a running job."""
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return {
        **kept,
        "COLUMNS": "80",
        "PYTEST_ADDOPTS": WITHOUT_OTHERS,
    }
