"""What a run writes goes where the operator said, whatever somebody else put in its way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preflight.report.files import open_folder, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")


def test_folders_and_files_are_made_private(tmp_path: Path) -> None:
    """Every folder that is made is 0750, every file 0640, whatever the umask allows."""
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "runs" / "now" / "report.json", b"x")
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "runs").rglob("*")}
    assert modes == {"now": 0o750, "report.json": 0o640}
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o750


def test_a_link_in_a_files_place_is_replaced_not_followed(tmp_path: Path) -> None:
    """A planted report.json that points at a victim leaves the victim as it was."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").symlink_to(victim)
    (folder / "ready.hosts").hardlink_to(victim)
    for name in ("report.json", "ready.hosts"):
        write_atomically(folder / name, b"new")
        assert (folder / name).read_bytes() == b"new"
    assert victim.read_bytes() == b"precious"


@root_only
def test_a_strangers_link_in_a_folders_place_is_refused(tmp_path: Path) -> None:
    """A link on the way that somebody else made is named; the operator's own is followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "runs" / "a", b"x")
    assert (tmp_path / "real" / "a").exists()
    os.lchown(tmp_path / "runs", STRANGER, STRANGER)
    with pytest.raises(OSError, match=r"is a symbolic link of .*, which is not followed"):
        write_atomically(tmp_path / "runs" / "b", b"x")
    assert not (tmp_path / "real" / "b").exists()


@root_only
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_strangers_folder_where_all_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Somebody who made our folder before us, in /tmp for one, could swap what we leave there."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "runs").mkdir()
    os.chown(shared / "runs", STRANGER, STRANGER)
    with pytest.raises(OSError, match="neither ours nor root's"):
        write_atomically(shared / "runs" / "now" / "report.json", b"x")
    assert list((shared / "runs").iterdir()) == []
    write_atomically(shared / "mine" / "report.json", b"x")


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    """Files in it could be replaced at any time; a sticky one keeps them."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OSError, match="everybody may replace what is in"):
        write_atomically(folder / "report.json", b"x")
    folder.chmod(0o1777)
    write_atomically(folder / "report.json", b"x")


def test_a_swap_in_between_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that turns into a link after it was looked at fails: nothing lands behind it."""
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    folder.mkdir()

    def swapped(path: Path) -> str:
        folder.rmdir()
        folder.symlink_to(victim)
        return str(path)

    monkeypatch.setattr("os.path.realpath", swapped)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        write_atomically(folder / "report.json", b"x")
    assert list(victim.iterdir()) == []


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A folder is only made when the first file needs it."""
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "runs", make=False):
        pass
    assert list(tmp_path.iterdir()) == []
