"""The evidence of a launch: the variables that make it leave some, and the folder that holds it.

What the user set is never changed. Names, defaults and effects as in torch 2.13's own files and
NCCL's debug.cc. Two were renamed: torch 2.13 reads both names, prefers the newer, and warns of the
older; earlier ones read the older. Which holds is read from the headers that torch itself installs;
where none are found, both names are set, which costs a line of output at most.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight import __version__
from preflight.core.files import read_regular
from preflight.core.trust import who_may_change
from preflight.hang.watch.progress import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


DEBUGS = ("nccl", "dist")
"""What `--debug` can be given."""

NCCL_FOLDER, RECORDER_FOLDER, TORCHRUN_FOLDER = "nccl", "recorder", "torchrun"
FOLDERS = (NCCL_FOLDER, RECORDER_FOLDER, TORCHRUN_FOLDER)
LEFT = ("torchrun/**/error.json", "torchrun/**/*.log", "nccl/*.log")
"""What torchrun and NCCL leave in the folder of a launch under watch."""


def files_of(folder: Path, patterns: Iterable[str]) -> dict[Path, int]:
    """The regular files of these patterns in turn, with their sizes; what goes meanwhile is none.

    OSError where the folders could not be looked through: others may write there.
    """
    found: dict[Path, int] = {}
    try:
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    found[path] = status.st_size
    except RecursionError as error:
        said = "its folders are too deep within each other"
        raise OSError(errno.ELOOP, said, str(folder)) from error
    return found


RECORDER_PREFIX = "rank_"
"""A rank's dump is `recorder/rank_3`, and the pipe that asks for one `recorder/rank_3.pipe`."""


class Wish(NamedTuple):
    """One variable, and the others that say the same: any of them set by the user settles it."""

    name: str
    value: str
    why: str
    settled_by: tuple[str, ...] = ()


class Left(NamedTuple):
    """A variable that somebody else has set, and that was therefore left as it is."""

    name: str
    settled_by: str
    """The variable that was found, often the same."""
    value: str
    where: str
    """The environment, or a file of NCCL's settings."""

    @property
    def sentence(self) -> str:
        """What is missing because of it."""
        own = f"{self.settled_by}={self.value} of {self.where} is left as it is"
        return own if self.name == self.settled_by else f"{own}, and {self.name} not set"


class Plan(NamedTuple):
    """What is added to the launch's environment."""

    added: tuple[Wish, ...]
    left: tuple[Left, ...]

    def environ(self, before: Mapping[str, str]) -> dict[str, str]:
        """The launch's environment."""
        return {**before, **{wish.name: wish.value for wish in self.added}}


def plan(
    environ: Mapping[str, str],
    in_files: Mapping[str, tuple[str, str]],
    folder: str,
    debug: frozenset[str] = frozenset(),
    *,
    pipes: bool = False,
    outdated: frozenset[str] = frozenset(),
) -> Plan:
    """Decide on every variable.

    `in_files`: what NCCL's own files of settings hold, by name: (value, file). `folder`: where
    evidence goes, empty where there is none. `pipes`: whether a rank can surely make a pipe there;
    torch ends a rank that cannot. `outdated`: names that this torch has newer ones for.
    """
    added, left = [], []
    mine = {name: (value, "your environment") for name, value in environ.items()}
    for wish in _wishes(folder, debug, pipes=pipes):
        if wish.name in outdated:
            continue
        names = (wish.name, *wish.settled_by)
        for given in (mine, in_files):
            if found := next((one for one in names if one in given), ""):
                left.append(Left(wish.name, found, *given[found]))
                break
        else:
            added.append(wish)
    return Plan(tuple(added), tuple(left))


def _wishes(folder: str, debug: frozenset[str], *, pipes: bool) -> list[Wish]:
    kept, loud, dist = bool(folder), "nccl" in debug, "dist" in debug
    sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    files = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    last = "the last 2000 collectives are remembered"
    prefix = f"{folder}/{RECORDER_FOLDER}/{RECORDER_PREFIX}"
    told = "NCCL tells everything" if loud else "NCCL's warnings are written down"
    to_file = folder.replace("%", "%%") + f"/{NCCL_FOLDER}/%h.%p.log"
    rows = [
        *((True, Wish(name, "2000", last, sizes)) for name in sizes),
        (True, Wish("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "and are written down when one times out")),
        *((kept, Wish(name, prefix, "to here, a file for each rank", files)) for name in files),
        (kept and pipes, Wish("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", prefix,
                              "or at once, when asked through a pipe")),
        # Without a file NCCL would speak into the launch's own output. Who has set a level reads
        # NCCL's lines where they are now: moving them would hide them.
        (kept, Wish("NCCL_DEBUG", "INFO" if loud else "WARN", told)),
        (kept, Wish("NCCL_DEBUG_FILE", to_file, "a file for each host and process",
                    ("NCCL_DEBUG",))),
        (kept and loud, Wish("NCCL_DEBUG_SUBSYS", "ALL", "of all its parts", ("NCCL_DEBUG",))),
        # As if --log-dir had been typed; a --log-dir that was typed still wins.
        (kept, Wish("PET_LOG_DIR", f"{folder}/{TORCHRUN_FOLDER}",
                    "torchrun keeps error files here")),
        (True, Wish("PYTHONFAULTHANDLER", "1", "a rank that crashes prints its Python stacks")),
        (dist, Wish("TORCH_DISTRIBUTED_DEBUG", "DETAIL",
                    "every collective is compared between ranks")),
        (dist, Wish("TORCH_CPP_LOG_LEVEL", "INFO", "torch's own lines about it are shown")),
        (dist and kept, Wish("PET_TEE", "2", "torchrun keeps each rank's stderr in a file too",
                             ("PET_REDIRECTS",))),
    ]  # fmt: skip
    return [wish for holds, wish in rows if holds]


_LARGEST = 64 << 10


def set_in_files(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Variables by name: (value, file). NCCL reads one of a user, then /etc/nccl.conf."""
    found: dict[str, tuple[str, str]] = {}
    for path in _places(environ):
        try:
            text = read_regular(path, _LARGEST).decode(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                found.setdefault(name.strip(), (value.strip(), str(path)))
    return found


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("NCCL_CONF_FILE"):
        yield Path(named)
    elif home := environ.get("HOME"):
        yield Path(home) / ".nccl.conf"
    yield Path("/etc/nccl.conf")


_HEADER = "torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
_OLD_SIZE, _OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_SIZE_BY_DEFAULT = f'"{_OLD_SIZE}"}}, 2000)'
"""Only where it records by default do all parts of torch go without the older name."""

_FILE_BY_NEW_NAME = "enable_dynamic_filename_"
"""Came after the newer name of the file."""

_LONGEST = 256 << 10


def outdated(command: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Names that need not be set for this launcher's torch; empty where that is not known."""
    for packages in _packages(command, environ):
        if not (packages / "torch").is_dir():
            continue
        try:
            with (packages / _HEADER).open(encoding="utf-8", errors="replace") as header:
                text = header.read(_LONGEST)
        except OSError:
            return frozenset()
        if _SIZE_BY_DEFAULT not in text:
            return frozenset()
        return frozenset({_OLD_SIZE} | ({_OLD_FILE} if _FILE_BY_NEW_NAME in text else set()))
    return frozenset()


def _packages(command: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the launcher's Python keeps its packages."""
    found = shutil.which(command, path=environ.get("PATH"))
    if found is None:
        return
    python = Path(found)
    if not python.name.startswith("python"):
        named = _interpreter(python)
        if named is None:
            return
        python = named
    for folder in (python.parent.parent, python.resolve().parent.parent):
        yield from sorted(folder.glob("lib/python3*/*-packages"))


def _interpreter(script: Path) -> Path | None:
    """The Python in a script's first line; None for anything else."""
    try:
        with script.open("rb") as file:
            first = file.readline(1024)
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split()
    if not first.startswith(b"#!") or not words or "python" not in words[0]:
        return None
    return Path(words[0])


_MODE = 0o750
_AS_MANY = 100


def folder_name() -> str:
    """What a folder made now is called, before somebody else's of that name."""
    host = os.uname().nodename.partition(".")[0]
    return f"watch-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{host}"


def settled(base: Path) -> Path:
    """The folder itself. OSError where root's could be swapped: torch writes there by its name."""
    if os.geteuid() == 0 and (said := who_may_change(base)):
        raise PermissionError(errno.EPERM, said)
    return Path(os.path.realpath(base))


def make_folder(base: Path) -> Path:
    """Make a new one there, named by the time and this host; OSError where that cannot be.

    Two nodes of one job start within a second, often in one shared folder.
    """
    stem, real = folder_name(), settled(base)
    real.mkdir(parents=True, exist_ok=True)
    for number in range(_AS_MANY):
        folder = real / (f"{stem}-{number + 1}" if number else stem)
        try:
            folder.mkdir(_MODE)
        except FileExistsError:
            continue
        for below in FOLDERS:
            (folder / below).mkdir(_MODE)
        return folder
    raise FileExistsError(f"there are {_AS_MANY} of {stem}")


def makes_pipes(folder: Path) -> bool:
    """Whether its file system has named pipes: torch ends a rank that cannot make its own."""
    pipe = folder / RECORDER_FOLDER / ".try"
    try:
        os.mkfifo(pipe)
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        pipe.unlink()
    except OSError:
        return False
    return True


def ask_for_dumps(folder: Path) -> int:
    """Ask every rank that listens; how many do."""
    asked = 0
    for pipe in (folder / RECORDER_FOLDER).glob("*.pipe"):
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its rank has gone
        try:
            os.write(handle, b"1\n")
            asked += 1
        except OSError:
            continue
        finally:
            os.close(handle)
    return asked


def tidy(folder: Path) -> None:
    """Take away what says nothing: pipes, and folders in which nothing is."""
    for path in (folder / RECORDER_FOLDER).glob("*.pipe"):
        path.unlink(missing_ok=True)
    for place, _, _ in sorted(os.walk(folder), reverse=True):
        if place != str(folder):
            with suppress(OSError):
                Path(place).rmdir()


FOUND, PROGRESSES, UNKNOWN, NOBODY = 0, 3, 3, 5
"""Exit codes of `preflight.hang.watch.examine`; the second of a stall, the third of an end."""

COLUMNS = ("at_s", "rank", "pid", *Reading._fields[1:])
"""Of the table of samples: a row is one look at one rank."""

_RECORD_MODE = 0o640


_SCRIPT = re.compile(r"[\w./+][\w./+-]*\.(?:py|sh)")


def _program(command: Sequence[str]) -> list[str]:
    """A launch's program and its script: any other word may hold a secret."""
    return [command[0], *filter(_SCRIPT.fullmatch, command[1:])][:2]


class Record:
    """`watch.json`, written when the launch starts and again whenever it says more."""

    def __init__(self, folder: Path | None, command: Sequence[str], plan: Plan) -> None:
        self._folder = folder
        self._said: dict[str, Any] = {
            "preflight": __version__,
            "host": os.uname().nodename,
            "command": _program(command),
            "started": _time(),
            "set": {wish.name: {"value": wish.value, "why": wish.why} for wish in plan.added},
            "left": [one.sentence for one in plan.left],
            "stalls": [],
        }

    def stall(self, answer: str) -> None:
        """One more stall was found; `answer`: the file that tells of it."""
        self._said["stalls"].append({"at": _time(), "answer": answer})
        self.write()

    def ended(self, status: int) -> None:
        """How the launch ended."""
        self._said["ended"] = _time()
        if os.WIFSIGNALED(status):
            self._said["signal"] = os.WTERMSIG(status)
        else:
            self._said["exit"] = os.waitstatus_to_exitcode(status)
        self.write()

    def write(self) -> None:
        """Write it; OSError where the folder takes nothing."""
        if self._folder is not None:
            text = json.dumps(self._said, indent=1) + "\n"
            write(self._folder / "watch.json", text)

    def write_samples(self, seen: Iterable[tuple[object, ...]]) -> None:
        """Write what was seen, a line for each look at each rank. OSError as above."""
        if self._folder is None:
            return
        lines = ["\t".join(COLUMNS)]
        lines += ["\t".join(map(str, row)) for row in seen]
        write(self._folder / "samples.tsv", "\n".join(lines) + "\n")


def write(path: Path, text: str) -> None:
    """Write a file of the folder, which is ours alone: whole, or not at all."""
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _RECORD_MODE)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # on a full disk half of it would stay
        raise


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
