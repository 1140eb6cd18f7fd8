"""The job's own Pythons, as files tell of them: one odd node, and a plugin that is not there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stories.here import Here

CHECKS = "--preflight-checks=software.drift,software.nccl_plugin,software.driver"


def _python(folder: Path, torch: str) -> Path:
    """A Python with a torch of that version, which nobody could import."""
    home = folder / torch
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=120)
    package = next(home.glob("lib/python*/site-packages")) / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    (package / "version.py").write_text(f"__version__ = '{torch}'\ncuda = '12.4'\n")
    return home / "bin" / "python"


@pytest.mark.proves("software.drift", finds="another torch on one of three nodes, end to end")
@pytest.mark.proves("software.nccl_plugin", finds="a named plugin that no node has, end to end")
def test_an_odd_torch_and_a_missing_plugin(here: Here, tmp_path: Path) -> None:
    """The odd node is excluded by name; the plugin is missing on all, which is one finding."""
    usual, odd = _python(tmp_path, "2.6.0+cu124"), _python(tmp_path, "2.5.1+cu124")
    tables = "".join(
        f'[node.{name}]\naddress = "127.0.0.1"\npython = "{python}"\n'
        for name, python in (("n1", usual), ("n2", usual), ("n3", odd))
    )
    here.inventory.write_text(
        f'[defaults]\ntransport = "local"\n[group.train]\nnodes = "n[1-3]"\n{tables}'
    )
    told = here.judge_all(CHECKS)
    assert told.exit == 1
    assert told.found() == {("software.drift", "fleet:all")}
    assert "torch 2.5.1+cu124 on n3, 2.6.0+cu124 on 2 of 3 nodes" in " ".join(told.out.split())
    assert told.report["fleet"]["not_ready"] == ["n3"]
    (tmp_path / "job.env").write_text("NCCL_NET_PLUGIN=nosuch\n")
    told = here.judge_all(CHECKS, f"--preflight-env-file={tmp_path / 'job.env'}",
                          "--preflight-exclude=n3")  # fmt: skip
    assert told.found() == {("software.nccl_plugin", "n1"), ("software.nccl_plugin", "n2")}
    assert "libnccl-net-nosuch.so is not where the loader looks" in " ".join(told.out.split())
    assert told.out.count("FAIL   n[1-2]  software.nccl_plugin\n") == 1


def test_plugins_are_looked_for_where_the_job_s_loader_does(here: Here, tmp_path: Path) -> None:
    """Its LD_LIBRARY_PATH travels with the question."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl-net-own.so").touch()
    (tmp_path / "job.env").write_text(
        f"NCCL_NET_PLUGIN=own\nLD_LIBRARY_PATH=relative:{tmp_path}/lib\n"
    )
    told = here.judge_all(
        "--preflight-checks=software.nccl_plugin", f"--preflight-env-file={tmp_path / 'job.env'}"
    )
    assert told.exit == 0, told.out
    sentences = {v["sentence"] for v in told.report["verdicts"]}
    assert sentences == {f"NCCL_NET_PLUGIN=own: {tmp_path}/lib/libnccl-net-own.so"}
