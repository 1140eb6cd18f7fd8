"""What a run writes goes where the operator said, whatever somebody else put in its way."""

from __future__ import annotations

import os
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from preflight.core.files import open_folder, read_regular, remove, write_atomically, write_typed

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


def irregular(folder: Path) -> dict[str, str]:
    """What may bear a file's name and is none, and what is said of it."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    said = {"pipe": "it is a pipe", "folder": "it is a folder", "socket": "it is a socket"}
    if os.geteuid() == 0:
        try:
            os.mknod(folder / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:  # root of a container
            return said
        said["device"] = "it is a device"
    return said


def test_what_is_no_file_is_neither_replaced_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe, device, socket or folder in a file's place is refused, and nothing is left beside."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    expected = irregular(tmp_path)
    before = {one.name: one.lstat().st_mode for one in tmp_path.iterdir()}
    for name, said in expected.items():
        for write in (write_atomically, write_typed):
            with pytest.raises(OSError, match=said):
                write(tmp_path / name, b"x")
        with pytest.raises(OSError, match=said):
            remove(tmp_path / name)
    assert {one.name: one.lstat().st_mode for one in tmp_path.iterdir()} == before


def test_a_typed_path_makes_no_folder_and_replaces_no_link(tmp_path: Path) -> None:
    """Such as /dev/stdout, which is a link: what an operator mistypes costs nothing."""
    with pytest.raises(FileNotFoundError):
        write_typed(tmp_path / "new" / "page.html", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="it is a symbolic link, which is not replaced"):
        write_typed(tmp_path / "link", b"x")
    assert [one.name for one in tmp_path.iterdir()] == ["link"]
    assert (tmp_path / "link").is_symlink()
    write_typed(tmp_path / "page.html", b"old")
    write_typed(tmp_path / "page.html", b"new")
    assert (tmp_path / "page.html").read_bytes() == b"new"


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
    with pytest.raises(OSError, match="belongs neither to us nor to root"):
        write_atomically(shared / "runs" / "now" / "report.json", b"x")
    assert list((shared / "runs").iterdir()) == []
    write_atomically(shared / "mine" / "report.json", b"x")


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    """Files in it could be replaced at any time; a sticky one keeps them."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OSError, match="every user may replace the files in"):
        write_atomically(folder / "report.json", b"x")
    folder.chmod(0o1777)
    write_atomically(folder / "report.json", b"x")


@root_only
@pytest.mark.parametrize("whose", ["a stranger's", "everybody's"])
def test_roots_own_link_is_refused_where_somebody_else_could_have_put_it(
    tmp_path: Path, whose: str
) -> None:
    """Whoever may write to a folder can move a link of root's into it, or within it."""
    (tmp_path / "real").mkdir()
    above = tmp_path / "above"
    (above / "mine").mkdir(parents=True)
    (above / "link").symlink_to(tmp_path / "real")
    (above / "mine" / "link").symlink_to(tmp_path / "real")
    if whose == "everybody's":
        above.chmod(0o1777)
        said = f"{above}/link is a symbolic link, which is not followed where every user may"
        write_atomically(above / "mine" / "link" / "a", b"x")  # in a sticky one mine stays mine
    else:
        os.chown(above, STRANGER, STRANGER)
        said = f"{above}/link is a symbolic link, which is not followed where {above} belongs to"
        with pytest.raises(OSError, match="which is not followed where"):
            write_atomically(above / "mine" / "link" / "b", b"x")
    with pytest.raises(OSError, match=said):
        write_atomically(above / "link" / "b", b"x")
    assert not (tmp_path / "real" / "b").exists()


def test_the_way_is_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, relative and absolute, and `..` behind them lead where the kernel leads."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "relative").symlink_to("../a/./b")
    (tmp_path / "absolute").symlink_to(tmp_path / "c" / "relative")
    (tmp_path / "soon").symlink_to("not/yet")
    monkeypatch.chdir(tmp_path / "c")
    for typed, real in {
        "relative/1": "a/b/1",
        "../absolute/2": "a/b/2",
        "relative/../3": "a/3",
        "../../../../../../../../../../.." + str(tmp_path / "4"): "4",
        "../soon/5": "not/yet/5",
    }.items():
        write_atomically(Path(typed), b"x")
        assert (tmp_path / real).read_bytes() == b"x"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "loop" / "6", b"x")
    with pytest.raises(OSError, match="Not a directory"):
        write_atomically(tmp_path / "4" / "7", b"x")


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A folder is only made when the first file needs it."""
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "runs", make=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_device_is_opened_that_takes_the_place_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/watchdog0 acts when it is opened. A folder's owner may swap file and link any time."""
    path = tmp_path / "key"
    (tmp_path / "file").write_text("ssh-ed25519 AAAA")
    path.hardlink_to(tmp_path / "file")
    if not (swaps := os.fork()):
        while True:
            (tmp_path / "a").symlink_to("/dev/zero")
            (tmp_path / "a").replace(path)
            (tmp_path / "b").hardlink_to(tmp_path / "file")
            (tmp_path / "b").replace(path)
    opens, opened = os.open, []

    def spied(*how: Any, **more: Any) -> int:
        handle = opens(*how, **more)
        if not how[1] & os.O_PATH and stat.S_ISCHR(os.fstat(handle).st_mode):
            opened.append(how[0])
        return handle

    monkeypatch.setattr(os, "open", spied)
    try:
        for _ in range(3000):
            with suppress(OSError):
                assert read_regular(path, 64) == b"ssh-ed25519 AAAA"
    finally:
        os.kill(swaps, signal.SIGKILL)
        os.waitpid(swaps, 0)
    assert opened == []
