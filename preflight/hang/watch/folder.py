"""The folder that a watch leaves, or not: what was set, what was seen, how it ended."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight import __version__
from preflight.core.trust import who_may_change
from preflight.hang.watch.processes import Reading
from preflight.hang.watch.settings import FOLDERS, RECORDER_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.hang.watch.settings import Plan


_MODE = 0o750
_AS_MANY = 100


def name() -> str:
    """What a folder made now is called, before somebody else's of that name."""
    host = os.uname().nodename.partition(".")[0]
    return f"watch-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{host}"


def settled(base: Path) -> Path:
    """The folder itself. OSError where root's could be swapped: torch writes there by its name."""
    if os.geteuid() == 0 and (said := who_may_change(base)):
        raise PermissionError(errno.EPERM, said)
    return Path(os.path.realpath(base))


def make(base: Path) -> Path:
    """Make a new one there, named by the time and this host; OSError where that cannot be.

    Two nodes of one job start within a second, often in one shared folder.
    """
    stem, real = name(), settled(base)
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


def remove(folder: Path) -> None:
    """Take it away; what cannot be removed stays."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Take away what says nothing: pipes, and folders in which nothing is."""
    for path in (folder / RECORDER_FOLDER).glob("*.pipe"):
        path.unlink(missing_ok=True)
    for place, _, _ in sorted(os.walk(folder), reverse=True):
        if place != str(folder):
            with suppress(OSError):
                Path(place).rmdir()


STALLED_AFTER_S = 300.0
"""Before any of torch's own limits ends the job and its evidence: 480 s (NCCL's heartbeat), 10 min
(a collective of NCCL's), 30 min (of gloo's)."""

SHORTEST_S = 2.0
CAP_MIB = 256


class Options(NamedTuple):
    """As typed."""

    command: tuple[str, ...]
    base: Path
    """The folder in which the evidence's own folder is made."""
    debug: frozenset[str] = frozenset()
    cap_mib: int = CAP_MIB
    """Of each debug file."""
    stalled_after_s: float | None = None
    tee: bool = False
    keep: bool = False
    nodes: str = ""
    """The job's nodes, or `inventory`: looked at too, from the node of rank 0."""
    inventory: str = ""
    environ: Mapping[str, str] = os.environ
    """What the launch is started in. As root our own holds less (`preflight.commands.run`)."""


COLUMNS = ("at_s", "rank", "pid", *Reading._fields[1:])
"""Of the table of samples: a row is one look at one rank."""

FOUND, PROGRESSES, UNKNOWN, NOBODY = 0, 3, 3, 5
"""Exit codes of `preflight.hang.watch.examine` and `explaining`."""

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

    def samples(self, seen: Iterable[tuple[object, ...]]) -> None:
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


def say(text: str) -> None:
    """Say it; where nobody can hear it, nothing happens: the launch goes on.

    Control characters, which names of files and processes can hold, do not reach the terminal.
    """
    lines = (
        "".join(char if char.isprintable() else " " for char in line) for line in text.splitlines()
    )
    shown = "".join(f"preflight: {line}".rstrip() + "\n" for line in lines)
    if os.isatty(2):
        shown = "\n" + shown  # behind a progress bar
    with suppress(OSError):
        os.write(2, shown.encode("utf-8", "replace"))


class Once:
    """Says each kind of trouble one time."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, kind: str, text: str) -> None:
        """Say it, unless something of that kind was said."""
        if kind not in self._said:
            self._said.add(kind)
            say(text)
