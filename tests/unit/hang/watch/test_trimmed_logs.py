"""Debug files keep to their size, whoever writes them and however fast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from preflight.hang.watch import output
from preflight.hang.watch.output import Cap, Trimmer

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LINES = """\
import sys
with open(sys.argv[1], "w", buffering=1) as log:  # by its own position and line by line, as NCCL
    for number in range(int(sys.argv[2])):
        log.write(f"{number:09d} gpu001:4000:4001 [0] NCCL INFO AllReduce: opCount 0 sendbuff\\n")
"""
LINE_BYTES = len("000000000 gpu001:4000:4001 [0] NCCL INFO AllReduce: opCount 0 sendbuff\n")
WRITTEN, MOST = 40 * MIB, 24 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("holes", [True, False])
def test_a_fast_writer(tmp_path: Path, holes: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """It writes 40 MiB as fast as it can; 24 are never passed, and its last line is kept.

    Both where the file system makes holes and where it does not.
    """
    if not holes:
        monkeypatch.setattr(output, "_punch", lambda *_: False)
    log, lines = tmp_path / "gpu001.4000.log", WRITTEN // LINE_BYTES
    looks_after, most = Trimmer(tmp_path, Cap(MOST)), 0
    with subprocess.Popen([sys.executable, "-c", LINES, str(log), str(lines)]) as writer:
        while writer.poll() is None:
            looks_after.sweep()
            most = max(most, sum(one.stat().st_blocks for one in tmp_path.iterdir()) * 512)
            time.sleep(looks_after.every_s / 5)
    assert most <= MOST
    # Without holes it may have been emptied after its last line, which is in the copy then.
    assert log.stat().st_size in {lines * LINE_BYTES, lines * LINE_BYTES * holes}
    looks_after.sweep()
    looks_after.close()
    text = log.read_bytes()
    assert len(text) < MOST
    assert text.endswith(b"NCCL INFO AllReduce: opCount 0 sendbuff\n")
    assert text.count(b"bytes were given back here]\n") == 1
    assert b"\0" not in text
    if holes:
        assert text.startswith(b"000000000 ")


def test_small_files_are_left_alone(tmp_path: Path) -> None:
    """No byte of a file below its size is touched, nor one behind a link or of another kind."""
    (tmp_path / "a.log").write_bytes(b"x" * MIB)
    (tmp_path / "other.bin").write_bytes(b"x" * 9 * MIB)
    (tmp_path / "link.log").symlink_to(tmp_path / "other.bin")
    looks_after = Trimmer(tmp_path, Cap(8 * MIB))
    looks_after.sweep()
    looks_after.close()
    assert (tmp_path / "a.log").read_bytes() == b"x" * MIB
    assert os.stat(tmp_path / "other.bin").st_blocks * 512 >= 9 * MIB  # noqa: PTH116


def test_it_looks_seldom_once_all_is_calm(tmp_path: Path) -> None:
    """Often while something grows, at last once a second."""
    looks_after = Trimmer(tmp_path, Cap(8 * MIB))
    for _ in range(20):
        looks_after.sweep()
    assert looks_after.every_s == 1.0
    (tmp_path / "a.log").write_bytes(b"x" * MIB)
    looks_after.sweep()
    assert looks_after.every_s == 0.1


def test_a_file_that_was_emptied_after_its_last_line_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no holes, nothing may come behind what was taken away."""
    monkeypatch.setattr(output, "_punch", lambda *_: False)
    log = tmp_path / "gpu001.4000.log"
    log.write_bytes(b"x" * (13 * MIB) + b"the last line\n")
    looks_after = Trimmer(tmp_path, Cap(MOST))
    looks_after.sweep()
    assert log.stat().st_size == 0
    looks_after.close()
    text = log.read_bytes()
    assert text.endswith(b"the last line\n")
    missing = int(text.split(b"preflight: ")[1].split()[0])
    assert missing + len(text.partition(b"back here]\n")[2]) == 13 * MIB + 14
    assert [path.name for path in tmp_path.iterdir()] == [log.name]
