"""Reads files that an operator names and writes files that a run leaves, both safely.

Another user who can write to a folder above could have replaced ours by a link or by a folder of
his own. The path is therefore walked step by step; each step stays open while the next is opened.

Files that decide what root does, or which hosts and users it trusts, must belong to root.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from preflight.core import trust
from preflight.core.text import decode_text
from preflight.errors import UsageError

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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

    Makes a missing folder; replaces a link of that name and does not follow it. Raises OSError
    (disk full, no permission, an unsafe folder, a device, pipe, socket or folder of that name)
    and leaves no temporary file behind.
    """
    with open_folder(path.parent, make=True) as folder:
        _refuse_irregular(folder, path.name, links=True)
        _write(folder, path.name, content)


def write_typed(
    path: Path,
    content: bytes,
    mode: int = FILE_MODE,
    *,
    make: bool = False,
    folders: int = FOLDER_MODE,
) -> None:
    """Write a path that the operator typed: replaces no link, makes folders only on `make`.

    Else as `write_atomically`. `folders`: the mode of new folders, before the umask.
    FileNotFoundError if the folder is missing.
    """
    with open_folder(path.parent, make=make, mode=folders) as folder:
        _refuse_irregular(folder, path.name, links=False)
        _write(folder, path.name, content, mode)


def refuse_typed(path: Path) -> None:
    """Raise the OSError of `write_typed` before a run; none if the folder is missing."""
    with suppress(FileNotFoundError), open_folder(path.parent, make=False) as folder:
        _refuse_irregular(folder, path.name, links=False)


def open_new(path: Path) -> int:
    """Open a new file for appending, as safely; an existing one is replaced. OSError."""
    with open_folder(path.parent, make=True) as folder:
        _refuse_irregular(folder, path.name, links=True)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        handle = os.open(path.name, NEW_FILE | os.O_APPEND, FILE_MODE, dir_fd=folder)
        os.fchmod(handle, FILE_MODE)
        return handle


def link_atomically(path: Path, target: str) -> None:
    """Make our link point to `target`; FileExistsError if the existing file is not a link."""
    with open_folder(path.parent, make=False) as folder:
        with suppress(FileNotFoundError):
            if not stat.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise FileExistsError(errno.EEXIST, "it is not a link, and is left as it is")
        with _replacing(folder, path.name) as temporary:
            os.symlink(target, temporary, dir_fd=folder)


def remove(path: Path) -> None:
    """Remove a file or link, as safely; OSError if it is missing or is not a file."""
    with open_folder(path.parent, make=False) as folder:
        _refuse_irregular(folder, path.name, links=True)
        os.unlink(path.name, dir_fd=folder)


def _write(folder: int, name: str, content: bytes, mode: int = FILE_MODE) -> None:
    with _replacing(folder, name) as temporary:
        handle = os.open(temporary, NEW_FILE, FILE_MODE, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)


@contextmanager
def _replacing(folder: int, name: str) -> Iterator[str]:
    """Yield a temporary name; what the body makes there takes the place of `name`."""
    temporary = f".{name}.{os.urandom(8).hex()}"
    try:
        yield temporary
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _refuse_irregular(folder: int, name: str, *, links: bool) -> None:
    """Refuse to replace a device, pipe, socket or folder: other programs use it by that name.

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
def open_folder(path: Path, *, make: bool, mode: int = FOLDER_MODE) -> Iterator[int]:
    """Hold a folder open; OSError says why it is not safe to write there.

    `mode` is that of the folders it makes. FileNotFoundError if it is missing and `make` is false.
    """
    handles: list[int] = []
    try:
        step = partial(_enter, mode) if make else trust.open_step
        for place, status, _ in trust.walk(path, handles, step):
            _refuse_planted(place, status, handles[:-1])
        status = os.fstat(handles[-1])
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if _is_world_writable(status) and not status.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, f"every user may replace the files in {place}")
        yield handles[-1]
    finally:
        trust.close_handles(handles)


def _enter(mode: int, folder: int, name: str) -> int:
    """Open the entry of that name; if there is none, make a folder and open that very folder."""
    with suppress(FileNotFoundError):
        return trust.open_step(folder, name)
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return trust.open_step(folder, name)
    handle = os.open(name, _STEP, dir_fd=folder)
    # On some shared file systems a new folder belongs to the owner of the folder above.
    if os.fstat(handle).st_uid not in (os.geteuid(), os.fstat(folder).st_uid):
        os.close(handle)
        raise OSError(errno.EPERM, f"another user replaced the folder {name} while it was made")
    return handle


def _refuse_planted(place: Path, status: os.stat_result, folders: list[int]) -> None:
    """Refuse a step that another user has put there, or could have; `folders`: the open folders."""
    is_ours = status.st_uid in (0, os.geteuid())
    if stat.S_ISLNK(status.st_mode):
        if not is_ours:
            link = f"a symbolic link of {trust.user_name(status.st_uid)}"
            raise OSError(errno.ELOOP, f"{place} is {link}, which is not followed")
        # Another user can move a link of root's into any folder that he can write to.
        for folder, handle in zip(reversed(place.parents), folders, strict=True):
            writer = trust.who_may_write(folder, handle, sticky_too=folder == place.parent)
            if writer and os.geteuid() == 0:
                link = f"a symbolic link, which is not followed where {writer}"
                raise OSError(errno.ELOOP, f"{place} is {link}")
    elif folders and not is_ours and _is_world_writable(os.fstat(folders[-1])):
        raise OSError(
            errno.EPERM,
            f"{place} belongs neither to us nor to root, and every user may write there",
        )


def _is_world_writable(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH)


_MOST_DOTS = 64
_TOML_QUOTED_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+"{0,5}|"(?:[^"\\\n]|\\[^\n])*+"?|#[^\n]*'''
    r"""|'''(?:[^']|'(?!''))*+'{0,5}|'[^'\n]*+'?""",
    re.DOTALL,
)

_READABLE_IN_PROC = re.compile(r"/proc/\d+/(task/\d+/)?environ")
"""The one generated file of /proc that commands read: see docs/reference/read.md."""

PIPE_S = 60
"""Time for a program to open the other end of a named pipe."""


def read_regular(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes; OSError says what is wrong."""
    try:
        path_handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name holds a NUL byte or is no text") from error
    try:
        status = os.fstat(path_handle)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
            return b""  # ssh is often given /dev/null as its known_hosts
        _refuse_irregular_input(status.st_mode)
        handle = _reopen(path_handle, path)
    finally:
        os.close(path_handle)
    with open(handle, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        opened = os.fstat(handle)
        _refuse_generated(handle)
        # A file may grow meanwhile or show no size (/proc), so one byte more is read; read() is
        # None if no data are there yet.
        content = b"" if opened.st_size > largest else file.read(largest + 1) or b""
    if max(opened.st_size, len(content)) > largest:
        most = f"{largest >> 20} MiB" if largest >> 20 else f"{largest >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {most}")
    return content


def _reopen(path_handle: int, path: Path) -> int:
    """Open for reading the very file that was checked, not what lies at its path by now.

    Another user may have put a device there: opening and closing /dev/watchdog0 restarts a machine.
    """
    try:
        return os.open(f"/proc/self/fd/{path_handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_text(path: Path, largest: int, what: str, advice: str) -> str:
    """Read a UTF-8 file; UsageError "cannot read WHAT: why; ADVICE"."""
    try:
        return decode_text(read_regular(path, largest))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {what}: {unreadable(error)}; {advice}") from error


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """The reason why a file cannot be read as text, for a sentence."""
    return getattr(error, "strerror", None) or "not UTF-8 text"


def reason_of(error: Exception) -> str:
    """Why a file cannot be read or written, for a sentence."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def file_errors(what: str, advice: str) -> Iterator[None]:
    """Raise UsageError "WHAT: why; ADVICE" for a file that cannot be read, decoded or written."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{what}: {reason_of(error)}; {advice}") from error


def is_folder(path: Path) -> bool:
    """Whether it is a folder; UsageError if that cannot be read."""
    with file_errors(f"cannot read {path}", "give another one"):
        return path.is_dir()


UNPACKED_ALWAYS, UNPACK_RATIO = 32 << 20, 100
"""Bytes that any file may unpack to, and how many times its size a larger one may."""


def unpacked_limit(packed: int) -> int:
    """The most bytes that `packed` bytes of gzip may unpack to: more is a decompression bomb."""
    return UNPACKED_ALWAYS + UNPACK_RATIO * packed


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError or RecursionError if it is not TOML.

    tomllib's time and memory grow with the square of a dotted key's parts: 20 KB took 420 MB.
    """
    import tomllib

    unquoted = _TOML_QUOTED_OR_COMMENT.sub(lambda quoted: "\n" * quoted[0].count("\n"), text)
    for number, line in enumerate(unquoted.split("\n"), 1):
        if line.count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots outside of quotes")
    return tomllib.loads(text)


def shipped_table(module: str, name: str) -> dict[str, Any]:
    """Read the TOML file that is shipped beside a module, given its `__file__`.

    importlib.resources would load tempfile, random and hashlib into every prolog.
    """
    import tomllib

    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


class _SparseFile(io.FileIO):
    """Reads a regular file and skips its holes: a file of 7 EiB may take no disk space at all.

    OSError (EFBIG) if it yields more than its disk space can hold: not every file system reports
    holes, and the file's owner may make some meanwhile.
    """

    _position = _next_hole = _bytes_read = 0

    def readinto(self, buffer: Any) -> int | None:
        """Read data up to the next hole."""
        if self._position >= self._next_hole and not self._skip_hole():
            return 0
        count = super().readinto(memoryview(buffer)[: self._next_hole - self._position]) or 0
        self._position += count
        self._bytes_read += count
        if self._bytes_read > unpacked_limit(os.fstat(self.fileno()).st_blocks * 512):
            why = f"it holds over {UNPACK_RATIO} times its disk space; if that is right, use a pipe"
            raise OSError(errno.EFBIG, why)
        return count

    def _skip_hole(self) -> bool:
        """Seek to the next data, and find their end; False if no data are left."""
        try:
            self._position = os.lseek(self.fileno(), self._position, os.SEEK_DATA)
            self._next_hole = os.lseek(self.fileno(), self._position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO and self._position < os.fstat(self.fileno()).st_size:
                return False
            self._next_hole = sys.maxsize  # the file system reports no holes, or no size (/proc)
        os.lseek(self.fileno(), self._position, os.SEEK_SET)
        return True


def open_stream(path: Path) -> io.FileIO:
    """Open a regular file, or a pipe to which a program writes within PIPE_S; read it to its end.

    OSError says why it cannot be read.
    """
    path_handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kind = os.fstat(path_handle).st_mode
        is_pipe = stat.S_ISFIFO(kind)
        if not is_pipe:
            _refuse_irregular_input(kind, "it is neither a file nor a pipe")
        handle = _reopen(path_handle, path)
    finally:
        os.close(path_handle)
    try:
        if is_pipe:
            _await_data(handle)
            os.set_blocking(handle, True)
        else:
            _refuse_generated(handle)
    except OSError:
        os.close(handle)
        raise
    return io.FileIO(handle) if is_pipe else _SparseFile(handle)


def _await_data(pipe: int) -> None:
    """Wait for data: until a program has opened the other end, read() would report the end."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if not waiting.poll(PIPE_S * 1000):
        raise OSError(errno.ETIMEDOUT, f"nothing was written into this pipe in {PIPE_S} s")


def refuse_untrusted(path: Path, *, is_run: bool = False) -> Path:
    """As root, raise UsageError if another user could change a file.

    Returns the path that was checked: open that one, or give it to another program. `is_run`: also
    refuse it if he could put code beside it that Python loads by itself.
    """
    path = trust.path_without_dots(path)
    if os.geteuid() != 0:
        return path
    reason = trust.who_may_plant(path)
    if not reason and "$" in str(path.absolute()):
        reason = "its path holds a $, after which Ansible and shells expand a variable"
    if is_run and not reason and path.is_file():
        try:
            reason = next(filter(None, map(trust.who_may_plant, trust.code_loaded_with(path))), "")
        except OSError as error:
            reason = f"the files beside it cannot be checked ({error})"
    if reason:
        raise UsageError(f"{path} is not used: {reason}; {_advice_on(path)}")
    return path


def _advice_on(path: Path) -> str:
    """Say how root may use a file; never to change a device, a link that leads nowhere, or /tmp."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError:
        mode = 0
    if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not mode & stat.S_ISVTX):
        advice = "chown root: and chmod go-w it, with the folders above, or copy it to a folder of"
        return f"{advice} root's"
    return "give a regular file of root's"


def refuse_untrusted_folder(top: Path) -> None:
    """Refuse a folder as `refuse_untrusted` does, with everything in it."""
    if os.geteuid() != 0:
        return
    checked: set[tuple[Path, str]] = set()
    what = f"{top} is not used: not every file in it could be checked"
    with file_errors(what, "name another folder, or try again"):
        for file in (top, *(file for _, inside in trust.folders_below(top) for file in inside)):
            folders = (file.parent, os.path.dirname(os.path.realpath(file)))  # noqa: PTH120  loops
            is_run = folders not in checked and os.access(file, os.X_OK) and file.is_file()
            refuse_untrusted(file, is_run=is_run)
            checked |= {folders} if is_run else set()


def _refuse_irregular_input(
    mode: int, reason: str = "it is not a regular file (a pipe or a device is not read)"
) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, reason)


def _refuse_generated(handle: int) -> None:
    """OSError for a file that the kernel generates as it is read (/proc, /sys).

    Reading may block for ever, take messages from their reader (/proc/kmsg), or yield petabytes.
    """
    path = str(Path(f"/proc/self/fd/{handle}").readlink())
    on_no_disk = os.fstat(handle).st_blocks == 0 == os.fstatvfs(handle).f_blocks
    if on_no_disk and not _READABLE_IN_PROC.fullmatch(path):
        raise OSError(errno.EINVAL, "it is not a file on a disk: the kernel generates its text")


_LONGEST_NAME = 255


def typed_path(text: str | Path, *, is_printed: bool = False) -> Path:
    """Return a path that a user typed, with `~` replaced; UsageError if there can be none.

    `is_printed`: it becomes part of lines for a shell or of files that are shown.
    """
    path = Path(text)
    if is_printed and not str(text).isprintable():
        raise UsageError(f"{str(text)!a:.80} holds control characters; give another path")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        start = f"{str(text)[:40]}..."
        raise UsageError(f"{start!a} has a name of over {_LONGEST_NAME} bytes; give a shorter path")
    try:
        return path.expanduser()
    except RuntimeError:
        user = path.parts[0]
        raise UsageError(
            f"{str(text)!a:.80}: no user {user[1:]!a} is known; type ./{user} for "
            "a file or folder of that name"
        ) from None


def write_output(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Write a file, or to standard output for `-`; UsageError (exit 4) says what to type."""
    if str(path) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        write_typed(typed_path(path).absolute(), content, mode)
    except FileNotFoundError as error:
        why = f"there is no folder {path.parent}; make it, or give another file"
        if path.parent.is_dir():
            why = f"{path.parent} takes no new file; give another file"
        raise UsageError(f"cannot write {path}: {why}") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give another file") from error
