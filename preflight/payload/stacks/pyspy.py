"""py-spy at work: which one of this node may be run, and what it said of each process."""

from __future__ import annotations

import os
import re
import signal
import stat
import time

from probe import guard
from probe.text import clean

from . import spoken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

EACH_S = 4.0
"""For one process; it takes 20 ms where nothing else runs, and seconds on a loaded node."""

NATIVE_EACH_S = 6.0
"""The symbols of torch are hundreds of MB to read."""

AT_ONCE = 4
SAMPLES_A_SECOND = 20
"""Of each rank: 0.1 ms of CPU time for one look, that pauses nobody."""

LATE_S = 1.0
"""What a sampler may need beyond its time, to start and to end."""
_LIMIT = 4 << 20
_MOST_FRAMES, _ALL_FRAMES = 1024, 32768
"""Of one process, and of all that are looked at together: the answer has an upper size."""
_PLACES = ("/usr/local/bin", "/usr/bin", "/opt/conda/bin", os.path.expanduser("~/.local/bin"))
_VERSION = re.compile(r"py-spy (\d[\w.]{0,30})")
_STOPPED = "T"


class Spy:
    """One py-spy that can be run here."""

    def __init__(self, path: str, by: str) -> None:
        self._path = path
        self.by = by
        """What the document calls it."""

    def dump(
        self, pids: Iterable[int], until: float, *, native: bool = False, at_once: int = AT_ONCE
    ) -> dict[int, Any]:
        """Return for each process its threads, or as text why there are none.

        Without `native` nothing is paused. With it each is stopped by ptrace for as long as its
        stack is walked; should py-spy have to be killed meanwhile, the process is let go on.
        """
        waiting = list(pids)
        room = min(_MOST_FRAMES, max(1, _ALL_FRAMES // max(1, len(waiting))))
        told: dict[int, Any] = {}
        running: list[tuple[int, float, guard.Child]] = []
        while waiting or running:
            while waiting and len(running) < at_once:
                pid = waiting.pop(0)
                each_s = NATIVE_EACH_S if native else EACH_S
                ends = min(until, time.monotonic() + each_s)
                running.append((pid, ends, self._start(pid, native=native)))
            pid, ends, child = running.pop(0)
            answered = child.listen(ends, _LIMIT)
            child.dismiss(kill=not answered or len(child.said) > _LIMIT)
            if native and not answered:
                _let_go(pid)
            told[pid] = _heard(child, pid, room) if answered else "py-spy did not answer in time"
        return told

    def sample(self, pids: Iterable[int], seconds: int) -> dict[int, guard.Child]:
        """Look at processes often for so long, each by a child of its own; without a pause."""
        argv = [self._path, "record", "--nonblocking", "--idle", "--threads", "--full-filenames"]
        argv += ["--format", "raw", "--output", "/dev/stdout", "--rate", str(SAMPLES_A_SECOND)]
        argv += ["--duration", str(seconds), "--pid"]
        return {pid: guard.spawn_program([*argv, str(pid)], _environ()) for pid in pids}

    def _start(self, pid: int, *, native: bool) -> guard.Child:
        how = "--native" if native else "--nonblocking"
        argv = [self._path, "dump", how, "--json", "--full-filenames", "--pid", str(pid)]
        return guard.spawn_program(argv, _environ(), errors=True)


def sampled(samplers: dict[int, guard.Child], until: float) -> dict[int, list[dict[str, Any]]]:
    """Return the `Sighting`s of each process whose sampler is done by then; end the others."""
    told = {}
    for pid, child in samplers.items():
        answered = child.listen(until, _LIMIT) and len(child.said) <= _LIMIT
        child.dismiss(kill=not answered)
        if answered:
            told[pid] = spoken.parse_samples(bytes(child.said), pid)
    return told


def _environ() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}


def _heard(child: guard.Child, pid: int, room: int) -> Any:
    threads = spoken.parse(bytes(child.said), pid, room)
    if threads:
        return threads
    lines = [line for line in bytes(child.said).splitlines() if line.strip()]
    said = clean(lines[0], 200) if lines else f"exit {child.status}"
    return said.replace("Error: ", "")


def _let_go(pid: int) -> None:
    """Continue a process that a py-spy which we had to kill may have left stopped."""
    for _ in range(20):
        time.sleep(0.01)
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                state = file.read(4096).rpartition(b") ")[2][:1].decode("ascii")
            if state == _STOPPED:
                os.kill(pid, signal.SIGCONT)
        except OSError:
            return


def installed(bins: Iterable[str], until: float) -> Spy | None:
    """Return the first py-spy that runs: beside the ranks' Python, on PATH, in common places."""
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    for folder in dict.fromkeys([*bins, *on_path, *_PLACES]):
        path = os.path.join(folder, "py-spy")
        if folder.startswith("/") and os.access(path, os.X_OK) and trusted(path):
            version = version_of(path, until)
            if version:
                return Spy(path, f"py-spy {version} of this node")
    return None


def version_of(path: str, until: float) -> str:
    """Return what version it says it is; "" for what cannot be run or is no py-spy."""
    child = guard.spawn_program([path, "--version"], _environ())
    answered = child.listen(min(until, time.monotonic() + EACH_S), 4096)
    child.dismiss(kill=not answered)
    found = _VERSION.search(bytes(child.said).decode("ascii", "replace"))
    return found.group(1) if answered and found else ""


def trusted(path: str) -> bool:
    """Whether we may run a file: root runs only what nobody but root can have put there."""
    if os.geteuid() != 0:
        return True
    real = os.path.realpath(path)
    places = [real]
    while places[-1] != "/":
        places.append(os.path.dirname(places[-1]))
    return all(map(_of_root, places))


def _of_root(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return status.st_uid == 0 and (not status.st_mode & others or bool(sticky))
