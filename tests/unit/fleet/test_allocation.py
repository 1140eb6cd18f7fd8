"""Inside an allocation srun is the transport, unless an option or the inventory sets another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.fleet.sources import FleetRequest, resolve

if TYPE_CHECKING:
    from pathlib import Path

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "h[1-3]"}


@pytest.fixture(autouse=True)
def _srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program named srun on PATH."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def ways(environ: dict[str, str] | None = None, **options: str) -> list[str]:
    """Return each node's transport."""
    fleet = resolve(FleetRequest(environ=JOB if environ is None else environ, **options))  # type: ignore[arg-type]
    return [host.transport for host in fleet.hosts]


def test_the_allocation_is_reached_by_srun() -> None:
    """All of its nodes or some of them, as long as none lies outside."""
    assert ways() == ["srun"] * 3
    assert ways(nodes="h[2-3]") == ["srun"] * 2
    assert "srun" not in ways(nodes="h[2-4]")


def test_a_named_way_stands(tmp_path: Path) -> None:
    """An option, or the inventory for the nodes for which it says something, has the last word."""
    file = tmp_path / "fleet.toml"
    file.write_text('[group.all]\nnodes = "h[1-3]"\n[node.h2]\ntransport = "paramiko"\n')
    assert ways(inventory=str(file)) == ["srun", "paramiko", "srun"]
    assert ways(inventory=str(file), transport="local") == ["local"] * 3


def test_without_srun_or_allocation_it_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node, or a container without Slurm's programs, keeps SSH."""
    assert "srun" not in ways({}, nodes="h[1-3]")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "srun" not in ways()


def test_srun_outside_of_an_allocation_is_refused() -> None:
    """There it would queue for a job of its own."""
    with pytest.raises(UsageError, match="inside a Slurm allocation only: start with sbatch"):
        ways({}, nodes="h1", transport="srun")


def test_one_of_several_tasks_is_refused() -> None:
    """Each of them would judge, and load, the whole fleet; ranks of torchrun are no such tasks."""
    with pytest.raises(UsageError, match="one of 3 tasks of a Slurm step"):
        ways({**JOB, "SLURM_STEP_NUM_TASKS": "3"})
    assert ways({**JOB, "SLURM_STEP_NUM_TASKS": "1"}) == ["srun"] * 3
    assert ways({**JOB, "SLURM_STEP_NUM_TASKS": "3", "TORCHELASTIC_RUN_ID": "x"}) == ["srun"] * 3
