"""The bad nodes reach the next launch without a person: in a file, or as all that -qq prints."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stories.conftest import Told

GPUS = ("--preflight-checks", "host.driver_hung,gpu.count")


@pytest.fixture
def lacking(tmp_path: Path) -> str:
    """Expectations this machine more GPUs than anybody has."""
    path = tmp_path / "fleet.toml"
    path.write_text('[group.g]\nnodes = "here1"\ngpus = 99\ntransport = "local"\n')
    return f"--preflight-inventory={path}"


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_nothing_but_the_bad_nodes(
    preflight: Callable[..., Told], lacking: str, workers: tuple[str, ...], tmp_path: Path
) -> None:
    """-qq: one line, no blank one before it, as the shell puts it behind `--exclude=`."""
    file = tmp_path / "bad"
    told = preflight("-qq", lacking, *GPUS, *workers, f"--preflight-exclude-file={file}", env={})
    assert (told.exit, told.out, file.read_text()) == (1, "here1\n", "here1\n")
    shell = subprocess.run(
        ["sh", "-c", f'echo --exclude=$(cat {file}) --exclude=$(printf "{told.out}")'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout == "--exclude=here1 --exclude=here1\n"


def test_nobody_to_leave_out(preflight: Callable[..., Told], tmp_path: Path) -> None:
    """Nothing is printed, and what an earlier run left in the file is gone."""
    file = tmp_path / "bad"
    file.write_text("h7\n")
    told = preflight(
        "-qq", "--preflight-checks=host.clock", f"--preflight-exclude-file={file}", env={}
    )
    assert (told.exit, told.out, file.read_text()) == (0, "", "")


def test_a_file_that_cannot_be_written(preflight: Callable[..., Told], tmp_path: Path) -> None:
    """It is said before anything is measured, on standard error also with -qq."""
    told = preflight("-qq", f"--preflight-exclude-file={tmp_path}/none/bad", env={})
    assert (told.exit, told.out) == (4, "")
    assert f"--preflight-exclude-file: cannot write into {tmp_path}/none" in told.err
