"""The evidence of a launch: the variables that make torch and NCCL write it, and its folder.

Variables that the user set never change. Names, defaults and effects are from torch 2.13's files
and NCCL's debug.cc. Two were renamed: torch 2.13 reads both names, prefers the newer, and warns
about the older; earlier versions read the older. The headers that torch installs show which holds;
without them both names are set, which costs at most a line of output.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from preflight import __version__
from preflight.core.files import read_regular, write_typed
from preflight.core.trust import who_may_change
from preflight.hang.watch.progress import Reading

DEBUGS = ("nccl", "dist")
"""Choices of `--debug`."""

NCCL_FOLDER, RECORDER_FOLDER, TORCHRUN_FOLDER = "nccl", "recorder", "torchrun"
FOLDERS = (NCCL_FOLDER, RECORDER_FOLDER, TORCHRUN_FOLDER)
LEFT = ("torchrun/**/error.json", "torchrun/**/*.log", "nccl/*.log")
"""Files of torchrun and NCCL in the folder of a watched launch."""
COPIES, TEES = ("output.log", "errors.log"), ("stdout.log", "stderr.log")
"""The launch's standard output and error: copied from the files where they went, or by `--tee`."""
RECORD, DIAGNOSIS = "watch.json", "diagnosis-{}.json"
"""Files of the watch itself in that folder: the launch, and why it hung the Nth time."""


def files_of(folder: Path, patterns: Iterable[str]) -> dict[Path, int]:
    """The regular files of these patterns in turn, with their sizes, without those just removed.

    OSError if the folders cannot be searched: others may write there.
    """
    sizes: dict[Path, int] = {}
    try:
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    sizes[path] = status.st_size
    except RecursionError as error:
        fault = "its folders are too deep within each other"
        raise OSError(errno.ELOOP, fault, str(folder)) from error
    return sizes


class Variable(NamedTuple):
    """One variable to set, unless the user set it or one of `settled_by`."""

    name: str
    value: str
    why: str
    settled_by: tuple[str, ...] = ()


class UserSetting(NamedTuple):
    """A variable that stays as it is, because the user or a file has set it."""

    name: str
    settled_by: str
    """The variable that is set, often the same."""
    value: str
    where: str
    """The environment, or a file of NCCL's settings."""

    @property
    def sentence(self) -> str:
        """What stays unset because of it."""
        own = f"{self.settled_by}={self.value} of {self.where} is left as it is"
        return own if self.name == self.settled_by else f"{own}, and {self.name} not set"


class Plan(NamedTuple):
    """The variables to add to the launch's environment."""

    added: tuple[Variable, ...]
    left: tuple[UserSetting, ...]

    def environ(self, before: Mapping[str, str]) -> dict[str, str]:
        """The launch's environment."""
        return {**before, **{variable.name: variable.value for variable in self.added}}


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

    `in_files`: the variables in NCCL's settings files, by name: (value, file). `folder`: the
    evidence folder, empty if there is none. `pipes`: whether ranks can certainly make pipes there;
    torch ends a rank that cannot. `outdated`: names that this torch has renamed.
    """
    added, left = [], []
    in_environ = {name: (value, "your environment") for name, value in environ.items()}
    for variable in _variables(folder, debug, pipes=pipes):
        if variable.name in outdated:
            continue
        names = (variable.name, *variable.settled_by)
        for source in (in_environ, in_files):
            if setting := next((name for name in names if name in source), ""):
                left.append(UserSetting(variable.name, setting, *source[setting]))
                break
        else:
            added.append(variable)
    return Plan(tuple(added), tuple(left))


def _variables(folder: str, debug: frozenset[str], *, pipes: bool) -> list[Variable]:
    keep, nccl, dist = bool(folder), "nccl" in debug, "dist" in debug
    sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    files = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size_words = "torch records the last 2000 collectives"
    # A rank's dump is `recorder/rank_3`; writing to `recorder/rank_3.pipe` requests one.
    prefix = f"{folder}/{RECORDER_FOLDER}/rank_"
    level_words = "NCCL logs everything" if nccl else "NCCL logs its warnings"
    to_file = folder.replace("%", "%%") + f"/{NCCL_FOLDER}/%h.%p.log"
    rows = [
        *((True, Variable(name, "2000", size_words, sizes)) for name in sizes),
        (True, Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "and writes them when one times out")),
        *((keep, Variable(name, prefix, "to here, a file for each rank", files)) for name in files),
        (keep and pipes, Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", prefix,
                              "or at once, on request through a pipe")),
        # Without a file NCCL writes into the launch's output. A user who has set a level reads
        # NCCL's lines there: moving them would hide them.
        (keep, Variable("NCCL_DEBUG", "INFO" if nccl else "WARN", level_words)),
        (keep, Variable("NCCL_DEBUG_FILE", to_file, "a file for each host and process",
                    ("NCCL_DEBUG",))),
        (keep and nccl, Variable("NCCL_DEBUG_SUBSYS", "ALL", "of all its parts", ("NCCL_DEBUG",))),
        # The same as --log-dir; an explicit --log-dir still wins.
        (keep, Variable("PET_LOG_DIR", f"{folder}/{TORCHRUN_FOLDER}",
                    "torchrun writes error files here")),
        (True, Variable("PYTHONFAULTHANDLER", "1", "a rank that crashes prints its Python stacks")),
        (dist, Variable("TORCH_DISTRIBUTED_DEBUG", "DETAIL",
                    "torch compares every collective between ranks")),
        (dist, Variable("TORCH_CPP_LOG_LEVEL", "INFO", "torch prints its own lines about it")),
        (dist and keep, Variable("PET_TEE", "2", "torchrun also writes ranks' stderr to files",
                             ("PET_REDIRECTS",))),
    ]  # fmt: skip
    return [variable for applies, variable in rows if applies]


_SETTINGS_BYTES = 64 << 10


def set_in_files(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Variables by name: (value, file). NCCL reads a user's file, then /etc/nccl.conf."""
    settings: dict[str, tuple[str, str]] = {}
    home = environ.get("HOME")
    users_file = environ.get("NCCL_CONF_FILE") or (home and f"{home}/.nccl.conf")
    for path in map(Path, filter(None, (users_file, "/etc/nccl.conf"))):
        text = ""
        with suppress(OSError):
            text = read_regular(path, _SETTINGS_BYTES).decode(errors="replace")
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                settings.setdefault(name.strip(), (value.strip(), str(path)))
    return settings


_HEADER = "torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
_OLD_SIZE, _OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_SIZE_BY_DEFAULT = f'"{_OLD_SIZE}"}}, 2000)'
"""Only a torch that records by default does not need the older name anywhere."""

_FILE_BY_NEW_NAME = "enable_dynamic_filename_"
"""This came after the newer name of the file."""

_HEADER_BYTES = 256 << 10


def outdated(command: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Names that this launcher's torch does not need; empty if unknown."""
    for packages in _package_folders(command, environ):
        if not (packages / "torch").is_dir():
            continue
        text = ""
        path = packages / _HEADER
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as header:
            text = header.read(_HEADER_BYTES)
        if _SIZE_BY_DEFAULT not in text:
            return frozenset()
        return frozenset({_OLD_SIZE} | ({_OLD_FILE} if _FILE_BY_NEW_NAME in text else set()))
    return frozenset()


def _package_folders(command: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """The package folders of the launcher's Python."""
    program = shutil.which(command, path=environ.get("PATH"))
    python = _interpreter(Path(program)) if program else None
    for folder in (python.parent.parent, python.resolve().parent.parent) if python else ():
        yield from sorted(folder.glob("lib/python3*/*-packages"))


def _interpreter(program: Path) -> Path | None:
    """A Python itself, or the one in a script's first line; None for anything else."""
    if program.name.startswith("python"):
        return program
    first = b""
    with suppress(OSError), program.open("rb") as script:
        first = script.readline(1024)
    words = os.fsdecode(first[2:]).split()
    is_python = first.startswith(b"#!") and words and "python" in words[0]
    return Path(words[0]) if is_python else None


_MODE = 0o750
_MOST_FOLDERS = 100


def folder_name() -> str:
    """The name for a folder made now, if it does not exist yet."""
    host = os.uname().nodename.partition(".")[0]
    return f"watch-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{host}"


def safe_base(base: Path) -> Path:
    """The real path. OSError if another user could replace a folder of root's."""
    if os.geteuid() == 0 and (problem := who_may_change(base)):
        raise PermissionError(errno.EPERM, problem)
    return Path(os.path.realpath(base))


def new_folders(base: Path) -> list[Path]:
    """The folders that are not there yet, of this one and those above it, the innermost first."""
    return [folder for folder in (base, *base.parents) if not os.path.lexists(folder)]


def discard(folder: Path, made_folders: Iterable[Path]) -> None:
    """Remove the evidence, and of the folders that were made for it those that are empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for parent in made_folders:
            parent.rmdir()


def make_folder(base: Path) -> Path:
    """Make a new folder, named by time and host; OSError if that fails.

    Two nodes of one job may start within a second in one shared folder.
    """
    stem, real = folder_name(), safe_base(base)
    for number in range(_MOST_FOLDERS):
        folder = real / (f"{stem}-{number + 1}" if number else stem)
        with suppress(FileExistsError):
            folder.mkdir(_MODE, parents=True)
            for below in FOLDERS:
                (folder / below).mkdir(_MODE)
            return folder
    raise FileExistsError(f"there are {_MOST_FOLDERS} of {stem}")


def makes_pipes(folder: Path) -> bool:
    """Whether the file system has named pipes: torch ends a rank that cannot make its pipe."""
    pipe = folder / RECORDER_FOLDER / ".try"
    with suppress(OSError):
        os.mkfifo(pipe)
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        pipe.unlink()
        return True
    return False


def ask_for_dumps(folder: Path) -> int:
    """Request a dump from every rank that listens; return how many do."""
    listeners = 0
    for pipe in (folder / RECORDER_FOLDER).glob("*.pipe"):
        with suppress(OSError):  # its rank has gone
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(handle, b"1\n")
                listeners += 1
            finally:
                os.close(handle)
    return listeners


def tidy(folder: Path) -> None:
    """Remove pipes and empty folders."""
    for path in (folder / RECORDER_FOLDER).glob("*.pipe"):
        path.unlink(missing_ok=True)
    for place, _, _ in sorted(os.walk(folder), reverse=True):
        if place != str(folder):
            with suppress(OSError):
                Path(place).rmdir()


FOUND, PROGRESSES, UNKNOWN, NO_RANKS = 0, 3, 3, 5
"""Exit codes of `preflight.hang.watch.examine`; the second of a stall, the third of an end."""

COLUMNS = ("at_s", "rank", "pid", *Reading._fields[1:])
"""Columns of samples.tsv: a row is one look at one rank."""

_SCRIPT = re.compile(r"[\w./+][\w./+-]*\.(?:py|sh)")
"""The only word beside the program that is written down: any other may contain a secret."""


class Record:
    """`watch.json`, written when the launch starts and after each change."""

    def __init__(self, folder: Path | None, command: Sequence[str], plan: Plan) -> None:
        self.folder = folder
        self._content: dict[str, Any] = {
            "preflight": __version__,
            "host": os.uname().nodename,
            "command": [command[0], *filter(_SCRIPT.fullmatch, command[1:])][:2],
            "started": _now_text(),
            "set": {
                variable.name: {"value": variable.value, "why": variable.why}
                for variable in plan.added
            },
            "left": [setting.sentence for setting in plan.left],
            "stalls": [],
        }

    def stall(self, answer: str) -> None:
        """Add a stall; `answer`: the file with its diagnosis."""
        self._content["stalls"].append({"at": _now_text(), "answer": answer})
        self.write()

    def ended(self, status: int, *, stalled: bool) -> None:
        """Add how the launch ended, and whether it failed in a stall."""
        code = os.waitstatus_to_exitcode(status)
        how = {"signal": -code} if code < 0 else {"exit": code}
        self._content |= {"ended": _now_text(), "stalled": stalled, **how}
        self.write()

    def write(self) -> None:
        """Write the file; OSError if that fails."""
        if self.folder is not None:
            write(self.folder / RECORD, json.dumps(self._content, indent=1) + "\n")

    def write_samples(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Write the samples, a line for each look at each rank. OSError as above."""
        if self.folder is not None:
            lines = ("\t".join(map(str, fields)) + "\n" for fields in (COLUMNS, *rows))
            write(self.folder / "samples.tsv", "".join(lines))


def end_words(code: int) -> str:
    """How a launch ended: `with exit code 1`; `by signal 9` for -9."""
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"


def write(path: Path, text: str) -> None:
    """Write a file into the folder, whole or not at all; OSError if that fails."""
    write_typed(path, text.encode("utf-8", "replace"))


def _now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
