"""Writing what a run leaves: whole files, never through a link or into a folder of a stranger's.

Whoever may write to a folder above could have put a link or a folder of his own in the place of
ours. The way is therefore walked step by step, and each step is held open while the next is taken.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preflight.trust import close, entry, user_name, walk, who_may_write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER_MODE, FILE_MODE = 0o750, 0o640
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_atomically(path: Path, content: bytes) -> None:
    """Write a sibling file and rename it, so that a reader sees the old or the new, never half.

    Makes the folder where it is missing; a link in the file's place is replaced, not followed.
    Raises OSError (disk full, no permission, a folder that is not safe, a device, pipe, socket or
    folder in the file's place) and leaves no temporary file behind.
    """
    with open_folder(path.parent, make=True) as folder:
        _refuse_irregular(folder, path.name, links=True)
        _write(folder, path.name, content)


def write_typed(path: Path, content: bytes, mode: int = FILE_MODE, *, make: bool = False) -> None:
    """The same for a path that somebody typed: no link is replaced, and folders only on `make`.

    FileNotFoundError where the folder is missing.
    """
    with open_folder(path.parent, make=make) as folder:
        _refuse_irregular(folder, path.name, links=False)
        _write(folder, path.name, content, mode)


def refuse_typed(path: Path) -> None:
    """OSError for what `write_typed` would refuse; none where the folder is missing."""
    with suppress(FileNotFoundError), open_folder(path.parent, make=False) as folder:
        _refuse_irregular(folder, path.name, links=False)


def open_new(path: Path) -> int:
    """Begin a file that grows, by the same safe way; one of that name is replaced. OSError."""
    with open_folder(path.parent, make=True) as folder:
        _refuse_irregular(folder, path.name, links=True)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        handle = os.open(path.name, _NEW | os.O_APPEND, FILE_MODE, dir_fd=folder)
        os.fchmod(handle, FILE_MODE)
        return handle


def link_atomically(path: Path, target: str) -> None:
    """Let a link of ours lead to `target` instead; FileExistsError where no link has that name."""
    temporary = f".{path.name}.{secrets.token_hex(8)}"
    with open_folder(path.parent, make=False) as folder:
        with suppress(FileNotFoundError):
            if not stat.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise FileExistsError(errno.EEXIST, "it is no link, and is left as it is")
        os.symlink(target, temporary, dir_fd=folder)
        try:
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise


def remove(path: Path) -> None:
    """Remove a file or link, by the same safe way; OSError if it is not there or is no file."""
    with open_folder(path.parent, make=False) as folder:
        _refuse_irregular(folder, path.name, links=True)
        os.unlink(path.name, dir_fd=folder)


def _write(folder: int, name: str, content: bytes, mode: int = FILE_MODE) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}"
    handle = os.open(temporary, _NEW, FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _refuse_irregular(folder: int, name: str, *, links: bool) -> None:
    """Whatever else bears that name is somebody's: renaming over it would take it from the machine.

    `links`: whether a link may be replaced.
    """
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISREG(mode) or (links and stat.S_ISLNK(mode)):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    what = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    raise OSError(errno.EINVAL, f"it is {what}, which is not replaced")


@contextmanager
def open_folder(path: Path, *, make: bool) -> Iterator[int]:
    """Hold a folder open; OSError says in words why it is not safe to write there.

    FileNotFoundError if it is not there yet and is not to be made.
    """
    held: list[int] = []
    try:
        for place, found, _ in walk(path, held, _entered if make else entry):
            _refuse_planted(place, found, [os.fstat(handle) for handle in held[:-1]])
        found = os.fstat(held[-1])
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if _open_to_all(found) and not found.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, f"everybody may replace what is in {place}")
        yield held[-1]
    finally:
        close(held)


def _entered(folder: int, name: str) -> int:
    """Open what has that name; where there is nothing, make a folder and open just that."""
    with suppress(FileNotFoundError):
        return entry(folder, name)
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)
    except FileExistsError:
        return entry(folder, name)
    handle = os.open(name, _STEP, dir_fd=folder)
    # On some shared file systems all that is made belongs to the owner of the folder.
    if os.fstat(handle).st_uid not in (os.geteuid(), os.fstat(folder).st_uid):
        os.close(handle)
        raise OSError(errno.EPERM, f"somebody swapped the folder {name} while it was made")
    return handle


def _refuse_planted(place: Path, found: os.stat_result, above: list[os.stat_result]) -> None:
    """Refuse a step that somebody else has put there, or could have."""
    ours = found.st_uid in (0, os.geteuid())
    if stat.S_ISLNK(found.st_mode):
        if not ours:
            said = f"a symbolic link of {user_name(found.st_uid)}"
            raise OSError(errno.ELOOP, f"{place} is {said}, which is not followed")
        # A link of root's can be moved: into any folder that whoever moves it may write to.
        for folder, seen in zip(reversed(place.parents), above, strict=True):
            whose = who_may_write(folder, seen, sticky_too=folder == place.parent)
            if whose and os.geteuid() == 0:
                said = f"a symbolic link, which is not followed where {whose}"
                raise OSError(errno.ELOOP, f"{place} is {said}")
    elif above and _open_to_all(above[-1]) and not ours:
        raise OSError(errno.EPERM, f"{place} is neither ours nor root's, where everybody may write")


def _open_to_all(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH)
