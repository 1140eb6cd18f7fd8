"""A disk that fills up costs a file's place, never the verdicts or what was measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stories.hooked import PREFLIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.stories.conftest import Told
    from tests.stories.here import Here

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@contextmanager
def disk(here: Here, size: str) -> Iterator[Path]:
    """A disk of its own, so small."""
    folder = here.folder / "disk"
    folder.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    if subprocess.run(small, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def judged(here: Here, folder: Path, *arguments: str) -> tuple[Told, Path]:
    """Judge three nodes; also return where the files are that the folder did not take."""
    elsewhere = here.folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    told = here.judge(f"--preflight-report={folder}", *arguments, env={"TMPDIR": str(elsewhere)})
    said = "".join(line.strip() for line in told.out.splitlines())
    assert told.exit == 3, told.out
    assert "3 ok, 0 failed, 0 missing" in told.out
    assert " everything was judged, but not saved where it belongs " in told.out
    assert "No space left on device" in " ".join(told.out.split())
    kept = re.search(rf"kept in ?({elsewhere}/preflight-\w+);", said)
    assert kept, told.out
    return told, Path(kept[1])


def test_a_report_that_does_not_fit_is_kept_elsewhere(here: Here) -> None:
    """The line says where; what fits stays in its place; no half file is left."""
    here.check("site.a", "conclude(ok('fine', padding='x' * 100_000))")
    with disk(here, "size=128k") as folder:
        _, kept = judged(here, folder)
        left = {path.name for path in folder.iterdir()}
        assert left == {"events.jsonl", "measured.json", "ready.hosts", "report.html"}
    assert kept.stat().st_mode & 0o777 == 0o700
    assert json.loads((kept / "report.json").read_text())["counts"]["ok"] == 3


def test_no_report_of_an_earlier_run_is_left_in_the_place_of_this_ones(here: Here) -> None:
    """No inodes left: whoever reads the folder next must not take last night's nodes as ready."""
    here.check("site.a", "conclude(ok('fine'))")
    with disk(here, "nr_inodes=5") as folder:
        (folder / "report").mkdir()
        (folder / "report" / "ready.hosts").write_text("gpu001\n")
        _, kept = judged(here, folder / "report")
        left = {path.name for path in (folder / "report").iterdir()}
    assert left == {"events.jsonl", "measured.json", "report.json"}
    assert (kept / "ready.hosts").read_text() == "n1\nn2\nn3\n"


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["serial", "xdist"])
def test_measurements_that_do_not_fit_can_be_judged_again(
    here: Here, workers: Sequence[str]
) -> None:
    """No room for a single file: workers judge all the same, and a replay of what was kept does."""
    here.check("site.a", "conclude(ok('fine'))")
    with disk(here, "nr_inodes=2") as folder:
        _, kept = judged(here, folder / "report", *workers)
    names = {path.name for path in kept.iterdir()}
    assert names == {"measured.json", "ready.hosts", "report.html", "report.json"}
    again = here.judge(f"--preflight-replay={kept / 'measured.json'}")
    assert again.exit == 0, again.out
    assert "3 ok, 0 failed, 0 missing" in again.out


def test_a_disk_of_a_few_kib_is_not_full(here: Here) -> None:
    """A page of data can be written there, and less than 1 MiB is all that it ever has."""
    with disk(here, "size=64k") as folder:
        words = ("--checks=host.disk", "--tier=prolog", f"--report={here.folder / 'report'}")
        done = subprocess.run([PREFLIGHT, "check", *words], cwd=folder, capture_output=True,
                              text=True, check=False)  # fmt: skip
    assert "is full" not in done.stdout
    assert done.returncode == 0, done.stdout


def test_a_disk_that_is_full_already_is_refused(here: Here) -> None:
    """Before minutes of a fleet are spent, and in one line."""
    here.check("site.a", "conclude(ok('fine'))")
    with disk(here, "size=16k") as folder:
        told = here.judge(f"--preflight-report={folder / 'report'}")
    assert told.exit == 4
    assert f"the disk of {folder} is full: make room, or give --preflight-report" in told.err
