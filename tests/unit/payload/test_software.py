"""The probe tells what a job's Python would load, from files alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.facts.machine import Torch
from tests.lab.rehearsal.torch_files import container, image, library

from .node import Remote
from .test_probe import probe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

VERSION = """
from typing import Optional
__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
git_version = 'abc'
hip: Optional[str] = None
"""


ALL = container(image(2, 80), image(2, 90), image(1, 90))
ONE = container(image(2, 90))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python of its own, with a torch in it that cannot be imported."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=120)
    folder = next(home.glob("lib/python*/site-packages"))
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    (folder / "torch" / "version.py").write_text(VERSION)
    (folder / "torch" / "lib" / "libtorch_cuda.so").write_bytes(library(ALL, ALL, ONE))
    for name in (
        "nvidia_nccl_cu12-2.21.5",
        "nvidia_nccl_cu11-2.14.3",
        "nvidia_cudnn_cu12-9.1.0.70",
    ):
        (folder / f"{name}.dist-info").mkdir()
    return home / "bin" / "python"


def test_the_job_s_own_torch_is_described_without_importing_it(
    python: Path, tmp_path: Path
) -> None:
    """Version and CUDA, its wheels for that CUDA, and what its kernels are compiled for."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "libnccl-net-ofi.so").touch()
    facts = probe(Remote("probe", python=str(python)), libraries=[str(plugins)])
    assert facts.software is not None
    assert facts.software.torch == Torch(
        "2.6.0+cu124", cuda="12.4", archs=("compute_90", "sm_80", "sm_90")
    )
    assert (facts.software.nccl, facts.software.cudnn) == ("2.21.5", "9.1.0.70")
    assert f"{plugins}/libnccl-net-ofi.so" in facts.software.net_plugins
    assert facts.problems == ()


def test_without_wheels_the_files_tell_and_without_torch_nothing(python: Path) -> None:
    """Images of vendors carry NCCL as a library; a Python without torch has none."""
    folder = next(python.parents[1].glob("lib/python*/site-packages"))
    for wheel in folder.glob("*.dist-info"):
        wheel.rmdir()
    (folder / "torch" / "lib" / "libnccl.so.2.23.4").touch()
    software = probe(Remote("probe", python=str(python))).software
    assert software is not None
    assert software.nccl == "2.23.4"
    for path in (folder / "torch").rglob("*"):
        if path.is_file():
            path.unlink()
    software = probe(Remote("probe", python=str(python))).software
    assert software is not None
    assert (software.torch, software.nccl) == (None, None)


def test_a_python_on_a_folder_that_hangs_is_unreadable_not_empty(
    python: Path, tmp_path: Path
) -> None:
    """A pipe in the place of version.py never answers: the rest of the probe does."""
    folder = next(python.parents[1].glob("lib/python*/site-packages"))
    (folder / "torch" / "version.py").unlink()
    os.mkfifo(folder / "torch" / "version.py")
    facts = probe(Remote("probe", python=str(python)), driver_deadline_s=1, sysfs=str(tmp_path))
    assert facts.software is None
    assert "software: no answer in time" in facts.problems
    assert facts.driver.state == "absent"


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_broken_library_tells_nothing_and_breaks_nothing(noise: bytes, cut: int) -> None:
    """Truncated, overwritten, or no library at all."""
    from probe import software

    whole = library(ALL, ALL)
    for content in (noise, whole[:cut], whole[:cut] + noise + whole[cut + len(noise) :]):
        handle = os.memfd_create("library")
        os.write(handle, content)
        try:
            archs = software.architectures(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        assert archs is None or all("_" in arch for arch in archs)
