"""A job of srun that hangs, asked about from its allocation with nothing else said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.lab.inside import until
from tests.lazy_torch import needs_torch
from tests.stories.conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.slurm import Slurm

pytestmark = [pytest.mark.lab, needs_torch]

JOB = """
import os, pathlib, sys, time
import torch
from torch import distributed as dist
rank = int(os.environ["SLURM_PROCID"])
os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), os.environ["SLURM_NTASKS"]
def evaluate():
    pathlib.Path(sys.argv[1]).write_text("there")
    while os.path.exists(sys.argv[1]):
        time.sleep(0.1)  # rank 2 hangs here
dist.init_process_group("gloo")
for step in range(2):
    if rank == 2 and step == 1:
        evaluate()
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
PREFLIGHT = (sys.executable, "-m", "preflight")


def test_the_rank_is_named_in_its_allocation(slurm: Slurm, tmp_path: Path) -> None:
    """`preflight diagnose` and not a word more: nodes and way are the allocation's."""
    line = next(n for n, text in enumerate(JOB.splitlines(), 1) if "hangs here" in text)
    with slurm.allocation() as environ, _hanging(slurm, environ, tmp_path):
        asked = subprocess.run(
            [*PREFLIGHT, "diagnose", "--json"],
            env=_environ(environ), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert asked.returncode == 1, asked.stderr
    told = json.loads(asked.stdout)
    assert (told["category"], told["culprits"]) == ("odd_rank", ["rank 2"])
    assert told["line"] == f"{tmp_path}/train.py:{line} in evaluate"
    until(lambda: not slurm.steps(), "the steps to end")


@contextmanager
def _hanging(slurm: Slurm, environ: dict[str, str], folder: Path) -> Iterator[None]:
    """One rank on each host; rank 2 is in its evaluation until this ends."""
    there, script = folder / "there", folder / "train.py"
    script.write_text(JOB)
    first = next(iter(slurm.lab.hosts.values())).address
    words = ["srun", "-N4", "-n4", sys.executable, str(script), str(there)]
    master = {"MASTER_ADDR": first, "MASTER_PORT": "29611"}
    with (
        (folder / "out").open("w") as out,
        subprocess.Popen(
            words, env={**_environ(environ), **master}, stdout=out, stderr=subprocess.STDOUT
        ) as job,
    ):
        try:
            until(there.exists, "rank 2 to evaluate", 60)
            yield
            there.unlink()
            assert job.wait(60) == 0, (folder / "out").read_text()
        finally:
            job.kill()


def _environ(environ: dict[str, str]) -> dict[str, str]:
    path = {"PATH": f"{environ['PATH']}:{os.environ['PATH']}"}
    return {**clean_environment(), **environ, **path}
