"""When the launch has ended: what of the folder is worth keeping, and what its files say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from preflight.watching import folder as folders
from preflight.watching import signals
from preflight.watching.errand import Errand
from preflight.watching.output import logs
from preflight.watching.saying import say
from preflight.watching.settings import RECORDER_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.watching.children import Children
    from preflight.watching.janitor import Janitor
    from preflight.watching.model import Options
    from preflight.watching.output import Output
    from preflight.watching.record import Record
    from preflight.watching.watcher import Watcher

EXPLAIN_S = 60.0
FOUND, UNKNOWN = 0, 3
"""Exit codes of `preflight.watching.explaining`."""


class Closing:
    """The end of a watch that has a folder."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        record: Record,
        output: Output,
        children: Children,
    ) -> None:
        self._options, self._folder, self._record = options, folder, record
        self._output, self._children = output, children

    def close(self, status: int, watcher: Watcher, janitor: Janitor | None, *, asked: bool) -> None:
        """Keep what a person may want, take away the rest. OSError where the disk is full.

        `asked`: whether somebody ended the launch on purpose, who need not be told why it ended.
        """
        if janitor is not None:
            janitor.close()
        failed = status != 0 and not asked
        if not (failed or watcher.stalls or self._wanted()):
            folders.remove(self._folder)
            return
        self._record.ended(status)
        kept = self._output.keep(self._folder)
        if failed:
            watcher.keep_samples()
            self._tell(status, logs(self._folder, kept), in_a_stall=watcher.in_a_stall)
        folders.tidy(self._folder)

    def _wanted(self) -> bool:
        told = self._options
        return bool(
            told.keep or told.debug or told.tee
            or any((self._folder / RECORDER_FOLDER).glob("*[0-9]"))
        )  # fmt: skip

    def _tell(self, status: int, files: list[Path], *, in_a_stall: bool) -> None:
        """`in_a_stall`: it was found, and told; the end is its echo in all likelihood."""
        said = self._explained(files) if files else ""
        ended, see = f"the launch ended {_words(status)}", f"see {self._folder}"
        if in_a_stall:
            say(f"{ended}, after the stall that is told above; {see}")
        elif files:
            say(f"{ended}; {see}\n{said}".rstrip())
        else:
            say(f"{ended}; {see}\nwhat it said went past us: with --tee it is kept, and explained")

    def _explained(self, files: list[Path]) -> str:
        """What the files say of its end; empty where that is unknown."""
        words = ["preflight.watching.explaining", str(self._folder), *map(str, files)]
        errand = Errand(self._children, words, EXPLAIN_S)
        while not errand.over():
            came = signals.wait(1.0)
            if came is not None and came.number in signals.ENDING:
                break
        code, said = errand.conclude()
        return said.rstrip() if code == FOUND else ""


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"
