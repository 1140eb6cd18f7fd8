"""Who besides root could change a file: root must not run what another user can write.

Each question returns the first risk as a sentence, or "":

- `who_may_change`: a file that root is about to use, with all folders above it;
- `who_may_plant`: the same, except in preflight's own installation;
- `who_may_add`: a folder into which this account, root or not, is about to put files;
- `who_may_write`: one open folder or file alone; the others are built of it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

NAMES_CODE = (
    r"\A(?:LD_|\w*(?:FILE|DUMP(?!_ON_TIMEOUT)|LOG(?!_?LEVEL)|DEST|DIR(?!ECT)|PATH|PLUGIN|COMMAND|MAIL|VFS"
    r"|_RAS_|DRIVERS|MODULES|TRACE(?!_BUFFER_SIZE)|PREFIX|HANDLE_ERRORS))"
)
"""Names of variables of the loader, or of the libraries under NCCL, that name a file or code: UCX
runs UCX_GDB_COMMAND, writes UCX_PROFILE_FILE, and sends mail to UCX_ERROR_MAIL_TO. torch's
TORCH_NCCL_DUMP_ON_TIMEOUT and TORCH_NCCL_TRACE_BUFFER_SIZE only switch, and count.

Not compiled: that takes 4 ms, and few importers need it."""

_CODE = ("*.py", "*.pyc", "*.so", "__pycache__", "__pycache__/*.pyc", "pyvenv.cfg")
_PACKAGES = "lib*/python*/*-packages"
_CODE_ABOVE = ("pyvenv.cfg", _PACKAGES, f"{_PACKAGES}/*.pth", f"{_PACKAGES}/*custom*.py")
"""site runs the lines of a *.pth, and sitecustomize.py."""

_PATH_LISTS = {"PATH": ":", "LD_LIBRARY_PATH": "[:;]"}
"""Variables that hold several paths, and their separators; the loader (ld.so) accepts two."""
_PATH_NAMES = (*_PATH_LISTS, "TMPDIR", "XDG_RUNTIME_DIR", "SLURM_CONF")
"""Variables whose value is always a path; any other value is one if it holds a slash."""
_PLAIN_PATH = re.compile(r"/[^\s:;,$\"'`\\]*")
"""The loader expands $ORIGIN, and other programs split a list at other characters."""
_ZONE = re.compile(r"[A-Za-z][\w+-]*(/[A-Za-z][\w+-]*)*")
"""Europe/Berlin."""

_PROCESS_FILES = re.compile(r"/+(proc|dev/(fd|std\w+))(/|\Z)")
"""Each program finds another file there."""

_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_USER, _OWN_GROUP, _GROUP, _MASK, _OTHER, _MAY_WRITE = 2, 4, 8, 16, 32, 2
"""Tags and permission of access lists (linux/posix_acl.h)."""
_MOST_LINKS = 40
"""The kernel's own limit on symbolic links in one path (MAXSYMLINKS)."""


def who_may_change(path: Path, trusted: Path | None = None, *, and_slurm: bool = False) -> str:
    """Say who besides root could change a file or replace a folder above it; empty if no user can.

    `and_slurm`: the user `slurm` may; he starts programs as root on every node anyway. `trusted`:
    a folder whose owner is trusted, with all folders above. A sticky folder above that every user
    can write to, such as /tmp, is harmless: only root can move root's files there. A missing
    file belongs to any user who can make it.
    """
    handles: list[int] = []
    try:
        for place, status, is_last in walk(path, handles):
            if _is_on_way(place, trusted):
                continue
            if and_slurm and _belongs_to_slurm(status):
                listed = _who_is_listed(place, handles[-1], "access") or ""
                risk = _who_mounted(place, status) or listed
            else:
                risk = who_may_write(place, handles[-1], sticky_too=is_last)
            if risk:
                return risk
    except (FileNotFoundError, NotADirectoryError):
        folder = place.parent if stat.S_ISLNK(status.st_mode) else place
        if _is_on_way(folder, trusted):
            return ""
        risk = who_may_write(folder, handles[-1], sticky_too=True)
        return risk and f"it is missing, and {risk}"
    except OSError as error:
        return f"{path} cannot be checked ({error.strerror})"
    finally:
        close_handles(handles)
    return ""


def _is_on_way(place: Path, trusted: Path | None) -> bool:
    """Whether a place lies in a trusted folder, or above it."""
    if trusted is None:
        return False
    return place.is_relative_to(trusted) or trusted.is_relative_to(place)


def _belongs_to_slurm(status: os.stat_result) -> bool:
    """Whether only the user `slurm` may write to it; of groups, only his own."""
    try:
        slurm = pwd.getpwnam("slurm")
    except KeyError:
        return False
    write_bits = stat.S_IWOTH if status.st_gid in (0, slurm.pw_gid) else stat.S_IWOTH | stat.S_IWGRP
    return status.st_uid == slurm.pw_uid and not status.st_mode & write_bits


def who_may_add(folder: Path) -> str:
    """Say who besides root and this account may put files into a folder; empty if no user can.

    For root also who may replace a folder above. A folder that is missing is safe. A group that
    has the account's name, as many systems make one for each user, counts as the account.
    """
    account = os.geteuid()
    if account == 0:
        return who_may_change(folder)
    try:
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return who_may_write(folder, opened, sticky_too=True, account=account)
    finally:
        os.close(opened)


def _own_group(user: int) -> int:
    """The id of the group that has this user's name and no other member; 0, root's, if none."""
    with suppress(KeyError):
        account = pwd.getpwuid(user)
        group = grp.getgrgid(account.pw_gid)
        if group.gr_name == account.pw_name and {*group.gr_mem} <= {account.pw_name}:
            return account.pw_gid
    return 0


def who_may_write(place: Path, opened: int, *, sticky_too: bool, account: int = 0) -> str:
    """Say who besides root may write to an open folder or file; empty if no user may.

    `sticky_too`: files will be made in it, so the access list that they inherit counts, too.
    `account`: a user who may write, and so may his own group.
    """
    status = os.fstat(opened)
    if status.st_uid not in (0, account):
        return f"{place} belongs to {user_name(status.st_uid)}"
    if mount_risk := _who_mounted(place, status):
        return mount_risk
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not sticky_too):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"every user may write to {place}"
    if status.st_mode & stat.S_IWGRP:  # for a file with an access list, these bits are its mask
        listed = _who_is_listed(place, opened, "access")
        if listed or (listed is None and status.st_gid not in (0, _own_group(account))):
            return listed or f"its group may write to {place}"
    inherits = sticky_too and stat.S_ISDIR(status.st_mode)
    return (inherits and _who_is_listed(place, opened, "default")) or ""


def _who_mounted(place: Path, status: os.stat_result) -> str:
    """Say which user has mounted it by FUSE: his program decides who owns each file."""
    user = _mount_of(status.st_dev).user
    return f"{place} lies in a file system that {user_name(user)} mounted (FUSE)" if user else ""


class _Mount(NamedTuple):
    kind: bytes
    user: int
    """The user who mounted it by FUSE; 0 for root, and for other file systems."""


@cache
def _mount_of(device: int) -> _Mount:
    """Read how a device is mounted. Every walk empties the cache: numbers are used again."""
    device_id = f"{os.major(device)}:{os.minor(device)}".encode()
    # The kernel escapes blank, tab and newline in a mount point, but not the other characters at
    # which splitlines() splits.
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        mount, _, rest = line.partition(b" - ")
        if device_id in mount.split(b" ")[2:3]:
            kind, _, options = rest.split(b" ")[:3]
            user = re.search(rb"(?:\A|,)user_id=(\d+)", options)
            return _Mount(kind, int(user[1]) if user and kind.startswith(b"fuse") else 0)
    return _Mount(b"", 0)


def _who_is_listed(place: Path, opened: int, kind: str) -> str | None:
    """Say who may write by a Linux access list (acl(5)); None if it has no such list."""
    try:
        listed = os.getxattr(f"/proc/self/fd/{opened}", f"system.posix_acl_{kind}")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        return f"the access list of {place} cannot be read ({error.strerror})"
    # After a version of 4 bytes, each entry: tag and permissions (u16 each), user or group (u32).
    cut = [listed[at : at + 8] for at in range(4, len(listed), 8)]
    entries = [(part[0], part[2] & _MAY_WRITE, int.from_bytes(part[4:], "little")) for part in cut]
    mask = next((allowed for tag, allowed, _ in entries if tag == _MASK), _MAY_WRITE)
    group = os.fstat(opened).st_gid
    what = f"what is made in {place} (setfacl -k ends it)" if kind == "default" else place
    for tag, allowed, number in entries:
        who = {
            _USER: number and f"user {user_name(number)}",
            _OWN_GROUP: group and "its group",
            _GROUP: number and f"group {number}",
            _OTHER: "every user",
        }.get(tag)
        if who and allowed & (_MAY_WRITE if tag == _OTHER else mask):
            return f"{who} may write to {what}"
    return ""


def who_may_plant(path: Path) -> str:
    """Say who could change a file that is not preflight's own; see `who_may_change`.

    Files of preflight's installation or checkout are exempt: a user who can write there (the owner
    of a folder that a container mounts) already has his code run by this very process.
    """
    return who_may_change(path, _users_installation(__file__))


@cache
def _users_installation(module: str) -> Path | None:
    """The installation or checkout that holds this module if another user can write there."""
    package = Path(module).resolve().parent.parent
    checkout = package.parent if (package.parent / "checks").is_dir() else package
    return checkout if who_may_change(package / "__init__.py") else None


def safe_paths_for_root(name: str, value: str) -> tuple[str, list[str]]:
    """Return the paths in an environment variable that root may use, and why not the others.

    A path is safe if it is absolute and plain, exists, and no other user can change it.
    """
    if name not in _PATH_NAMES and ("/" not in value or (name == "TZ" and _ZONE.fullmatch(value))):
        return value, []
    parts = re.split(_PATH_LISTS[name], value) if name in _PATH_LISTS else [value]
    risks = {part: _path_risk(part, name) for part in parts}
    if name not in _PATH_LISTS and not (risks[value] or Path(value).exists()):
        return "", [f"{value} is missing"]
    safe = (part for part, risk in risks.items() if not risk and Path(part).exists())
    return os.pathsep.join(safe), [risk for risk in risks.values() if risk]


def _path_risk(part: str, name: str) -> str:
    """Say why root must not use a path; "" if it is safe, or missing."""
    if part == str(Path(sys.executable).parent):
        return ""  # this process runs the code that lies there
    is_plain = _PLAIN_PATH.fullmatch(part) and not _PROCESS_FILES.match(str(Path(part)))
    if not is_plain or ".." in Path(part).parts:
        return f"{part!a:.80} is not a plain absolute path"
    if name != "SLURM_CONF":
        return who_may_change(Path(part))
    # The plugins that plugstack.conf names, beside it, are code.
    places = (Path(part), Path(part).parent)
    return next(filter(None, (who_may_change(place, and_slurm=True) for place in places)), "")


def path_without_dots(path: Path) -> Path:
    """Return the same file by a path without `..`, which all programs resolve alike.

    Ansible, pytest and others remove `..` from the text, even after a link that leads elsewhere.
    """
    if ".." not in path.parts:
        return path
    return Path(os.path.realpath(path.parent), path.name) if path.name != ".." else path.resolve()


MOST_BELOW = 100_000
"""Files in a folder and all folders below it; a link may lead from there anywhere."""


def folders_below(top: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A folder and all folders below it, each once, with its entries; nothing if it is no folder.

    Follows links, as pytest and Ansible do. OSError if a folder cannot be listed, or there are
    more than MOST_BELOW files.
    """
    todo, real_paths, room = [top] if top.is_dir() else [], set[str](), MOST_BELOW
    while todo:
        folder = todo.pop()
        real = os.path.realpath(folder)
        if real in real_paths:
            continue
        real_paths.add(real)
        with os.scandir(folder) as entries:
            inside = [Path(entry.path) for entry in islice(entries, room + 1)]
        room -= len(inside)
        if room < 0:
            raise OSError(errno.E2BIG, f"more than {MOST_BELOW} files lie in {top}")
        yield folder, inside
        todo += filter(os.path.isdir, inside)


def code_in(folder: Path, *, packages: bool = False) -> Iterator[Path]:
    """A folder, into which code could be put, and the code that Python finds directly in it.

    `packages`: also its folders, which a Python that imports from here takes for packages, and
    the code directly in them.
    """
    yield folder
    for pattern in (*_CODE, *(("*/", *(f"*/{name}" for name in _CODE)) if packages else ())):
        yield from folder.glob(pattern)


def code_loaded_with(file: Path) -> Iterator[Path]:
    """The code that a script loads from its folder, and a Python also from the folder above."""
    for path in (file.absolute(), file.resolve()):
        yield from code_in(path.parent, packages=True)
        if os.access(path, os.X_OK):
            yield path.parent.parent
            for pattern in _CODE_ABOVE:
                yield from path.parent.parent.glob(pattern)


class Step(NamedTuple):
    """A folder, link or file on a path, as it was opened."""

    place: Path
    status: os.stat_result
    is_last: bool


def open_step(folder: int, name: str) -> int:
    """Open an entry of a folder, whatever it is, without following a link. OSError."""
    try:
        return os.open(name, _ENTRY | os.O_DIRECTORY, dir_fd=folder)  # has autofs mount it
    except NotADirectoryError:
        return os.open(name, _ENTRY, dir_fd=folder)


def walk(path: Path, fds: list[int], step: Callable[[int, str], int] = open_step) -> Iterator[Step]:
    """Walk a path as the kernel does, so that no user can replace a step that was checked.

    Each step is opened relative to the folder before it, and only when the caller asks for it.
    `fds` receives the steps from / to the last one; the caller must close them (`close_handles`).
    `step` opens the next step. OSError, also for what another process shows in /proc.
    """
    _mount_of.cache_clear()
    todo, links = deque(_absolute(path).parts[1:]), 0
    names: list[str] = []
    fds.append(os.open("/", _ENTRY))
    yield Step(Path("/"), os.fstat(fds[0]), not todo)
    while todo:
        part = todo.popleft()
        if part == "..":
            close_handles(fds, len(names) or 1)
            del names[-1:]
            continue
        names.append(part)
        if part.isdecimal():
            _refuse_other_process(fds[-1], part, Path("/", *names))
        fds.append(step(fds[-1], part))
        status = os.fstat(fds[-1])
        yield Step(Path("/", *names), status, not todo)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = Path(os.readlink("", dir_fd=fds[-1]))
            _refuse_false_text(fds[-2], part, target, Path("/", *names))
            depth = 0 if target.is_absolute() else len(names) - 1
            close_handles(fds, depth + 1)
            del names[depth:]
            todo.extendleft(part for part in reversed(target.parts) if part != "/")


def _absolute(path: Path) -> Path:
    """OSError unless the path of the working folder leads to it: `cd /proc/PID/cwd` may not."""
    if path.is_absolute():
        return path
    with suppress(FileNotFoundError):
        here = Path.cwd()
        if os.path.samestat(here.stat(), Path().stat()):
            return here / path
    raise OSError(errno.ESTALE, "the working folder was deleted, or its path leads to another one")


_PROC_ROOT = 1
"""The inode of the top folder of every proc file system."""


def _refuse_other_process(folder: int, name: str, place: Path) -> None:
    """OSError for the folder of another process in /proc, even if there is none yet.

    Its user writes what the files hold. The kernel does not follow its links by their text: they
    lead into the mount namespace of that process.
    """
    above = os.fstat(folder)
    if above.st_ino != _PROC_ROOT or _mount_of(above.st_dev).kind != b"proc":
        return
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(name, dir_fd=folder), Path("/proc/self").stat()):
            return
    raise OSError(errno.EPERM, f"{place} is of another process, whose user decides what is there")


def _refuse_false_text(folder: int, name: str, target: Path, place: Path) -> None:
    """OSError for a link of this process in /proc that leads to another file than its text."""
    above = os.fstat(folder)
    if _mount_of(above.st_dev).kind != b"proc" or above.st_ino == _PROC_ROOT:
        return
    reached = os.stat(name, dir_fd=folder)
    if stat.S_ISREG(reached.st_mode) or stat.S_ISDIR(reached.st_mode):
        with suppress(FileNotFoundError, NotADirectoryError):
            if target.is_absolute() and os.path.samestat(reached, target.stat()):
                return
        raise OSError(errno.EPERM, f"{place} leads to another file than its text says")


def close_handles(fds: list[int], depth: int = 0) -> None:
    """Close the descriptors of a walk, except the first `depth`."""
    while len(fds) > depth:
        os.close(fds.pop())


def user_name(uid: int) -> str:
    """The user's name, or "uid 1234" for an unknown one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
