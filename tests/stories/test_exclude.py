"""The bad nodes reach the next launch without a person: in a file, or as all that -qq prints."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.stories.here import UNFIT_N2
from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stories.conftest import Told
    from tests.stories.here import Here

GPUS = ("--preflight-checks", "host.driver_hung,gpu.count")


@pytest.fixture
def lacking(tmp_path: Path) -> str:
    """An inventory that expects more GPUs of this machine than any has."""
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
    assert (told.exit, told.out, file.read_text()) == (5, "", "")


def test_a_file_that_cannot_be_written(preflight: Callable[..., Told], tmp_path: Path) -> None:
    """It is said before anything is measured, on standard error also with -qq."""
    told = preflight("-qq", f"--preflight-exclude-file={tmp_path}/none/bad", env={})
    assert (told.exit, told.out) == (4, "")
    assert f"--preflight-exclude-file: cannot write into {tmp_path}/none" in told.err


def test_a_run_that_stopped_early_says_that_its_line_is_not_whole(here: Here) -> None:
    """Nodes after a fail-fast stop are not judged: exit 1, and one line on standard error."""
    for name, stage, body in (
        ("site.bent", "facts", UNFIT_N2),
        ("site.later", "net", "conclude(ok('fine'))"),
    ):
        write_check(here.folder / "site", name, body, stage=stage)
    stopped = here.judge("-qq", "--preflight-fail-fast=first")
    assert (stopped.exit, stopped.out) == (1, "n2\n")
    assert "not judged and not in this list; to judge all nodes: " in stopped.err
    assert "--preflight-fail-fast=never" in stopped.err
    whole = here.judge("-qq", "--preflight-fail-fast=never")
    assert (whole.exit, whole.out) == (1, "n2\n")
    assert "not judged" not in whole.err
