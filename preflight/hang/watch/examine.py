"""`python -m preflight.hang.watch.examine PID NUMBER FOLDER NODES INVENTORY`: why a launch stands.

A process of its own, so that what it loads is gone when it ends, and so that the watch can end it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.core.text import plain_json, printable
from preflight.errors import PreflightError
from preflight.hang.diagnose.judge import diagnose, lines
from preflight.hang.look import look_here
from preflight.hang.watch.folder import FOUND, NOBODY, PROGRESSES, write
from preflight.hang.watch.other_nodes import look_everywhere, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hang.diagnose.model import Diagnosis, JobState

_WIDTH = 100


def main(words: Sequence[str]) -> int:
    """Look, judge, print, and write `state-N.json`, `diagnosis-N.json` and `.txt`."""
    pid, number, folder, nodes, inventory = words
    state = _look(int(pid), nodes, inventory)
    told = diagnose(state)
    if told.category == "progresses":
        return PROGRESSES
    if told.category == "no_job" or not (told.standings or told.culprits):
        return NOBODY  # its ranks are not up yet, or have just ended
    text = "".join(f"{line}\n" for line in lines(told, _WIDTH))
    sys.stdout.write(text)
    sys.stdout.flush()
    if folder:
        _keep(Path(folder), number, state, told, text)
    return FOUND


def _look(launch: int, nodes: str, inventory: str) -> JobState:
    if wanted(launch, nodes, inventory, os.environ):
        try:
            state = look_everywhere(launch, nodes, inventory, os.environ)
        except PreflightError as error:
            sys.stdout.write(f"the other nodes were not looked at: {printable(str(error))}\n")
            state = None
        if state is not None:
            return state
    return look_here(pids=(launch,))


def _keep(folder: Path, number: str, state: JobState, told: Diagnosis, text: str) -> None:
    try:
        write(folder / f"diagnosis-{number}.txt", text)
        write(folder / f"diagnosis-{number}.json", _json(told))
        write(folder / f"state-{number}.json", _json(state))
    except OSError as error:
        place = printable(str(folder))
        sys.stdout.write(f"not all of it could be written to {place}: {error.strerror}\n")


def _json(value: Diagnosis | JobState) -> str:
    return plain_json(value, indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
