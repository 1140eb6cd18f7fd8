"""What a watch leaves in its folder: what was set, what was seen, how it ended."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from preflight import __version__
from preflight.watching.model import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from preflight.watching.settings import Plan

_MODE = 0o640


class Record:
    """`watch.json`, written when the launch starts and again whenever it says more."""

    def __init__(self, folder: Path | None, command: Sequence[str], plan: Plan) -> None:
        self._folder = folder
        self._said: dict[str, Any] = {
            "preflight": __version__,
            "host": os.uname().nodename,
            "command": list(command),
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

    def samples(self, seen: Iterable[Seen]) -> None:
        """Write what was seen, a line for each look at each rank. OSError as above."""
        if self._folder is None:
            return
        lines = ["\t".join(Seen._fields)]
        lines += ["\t".join(map(str, row)) for row in seen]
        write(self._folder / "samples.tsv", "\n".join(lines) + "\n")


def write(path: Path, text: str) -> None:
    """Write a file of the folder, which is ours alone: whole, or not at all."""
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # on a full disk half of it would stay
        raise


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
