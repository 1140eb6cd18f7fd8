"""One sweep at a time in a folder, and no lock outlives its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from preflight.commands.nightly.wave_runner import WaveProcess, locked
from preflight.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_HOLD = """
import sys, pathlib
from preflight.commands.nightly.wave_runner import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_sweep_is_refused_and_a_dead_ones_lock_is_none(tmp_path: Path) -> None:
    """Who holds it is named; after SIGKILL the next one has it at once, whatever the file says."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, tmp_path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            UsageError, match=rf"another nightly run is active \(process {holder.pid} on "
        ):
            locked(tmp_path).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with locked(tmp_path, wait_s=5):
            assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize("mode", [None, 0o664])
def test_no_other_user_can_hold_the_lock(tmp_path: Path, mode: int | None) -> None:
    """Who can open a file to read it can lock it, and no nightly run would begin any more."""
    if mode is not None:
        (tmp_path / "lock").touch()
        (tmp_path / "lock").chmod(mode)
    with locked(tmp_path):
        assert (tmp_path / "lock").stat().st_mode & 0o7777 == 0o600


def test_a_folder_of_no_use_is_refused(tmp_path: Path) -> None:
    """A file in the folder's place, or a link in the lock's: one line that says what to give."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="give a folder of your own"):
        locked(tmp_path / "file").__enter__()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "lock").hardlink_to(tmp_path / "file")
    with pytest.raises(UsageError, match="is a hard link to another file: remove it"):
        locked(tmp_path).__enter__()
    assert (tmp_path / "file").read_text() == "precious"
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "file")
    with pytest.raises(UsageError, match="give a folder of your own"):
        locked(tmp_path).__enter__()


@pytest.mark.slow
def test_a_waves_screen_is_a_file_of_its_own(tmp_path: Path) -> None:
    """What bears its name already, perhaps another file by a hard link, is left as it is."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "wave").mkdir()
    (tmp_path / "wave" / "terminal.txt").hardlink_to(tmp_path / "file")
    with locked(tmp_path) as lock:
        wave = WaveProcess(["--version"], tmp_path / "wave", str(tmp_path), lock, "id")
        try:
            assert wave.ended(60) is not None
        finally:
            wave.kill()
    assert (tmp_path / "file").read_text() == "precious"
    assert wave.last_line != "nothing"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_root_sweeps_into_no_other_users_folder(tmp_path: Path) -> None:
    """Its owner could write the verdicts that root reads back from each wave."""
    os.chown(tmp_path, 65534, 65534)
    with (
        pytest.raises(UsageError, match="belongs to nobody: give a folder"),
        locked(tmp_path / "nights"),
    ):
        pass
