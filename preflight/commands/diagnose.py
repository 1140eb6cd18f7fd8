"""`preflight diagnose`: names the rank that the others of a hanging job wait for.

Asks all nodes in parallel, in under 30 s, and neither stops nor ends any process of the job.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec.structs import replace

from preflight.commands import (
    add_json,
    add_nodes_or_folder,
    add_ras,
    add_targets,
    fleet_of,
    folder_among,
    print_answer,
    remark,
)
from preflight.core.command_line import (
    EMPTY,
    FINE,
    FOUND,
    INTERRUPTED,
    UNCLEAR,
    decimal_number,
    path_type,
    whole_number,
)
from preflight.core.files import file_errors, read_regular, typed_path, write_atomically
from preflight.core.text import natural, printable
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import THIS_MACHINE
from preflight.hang.diagnose.diagnosis import diagnose, lines
from preflight.hang.diagnose.job_state import JobState
from preflight.hang.look import LookRequest, look, look_here
from preflight.transport.ways import Ways

_LINE_WIDTH = 76
_CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """Shows how many nodes answered: rewrites one line on a terminal, adds lines to a file."""

    def __init__(self, stream: TextIO, nodes: int) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_shown = False
        if nodes > 1:
            self._write(f"asking {nodes} nodes")

    def update(self, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show how many nodes have answered, and which have not."""
        if total > 1 and waiting:
            self._write(f"{done} of {total} nodes answered, waiting for {fold(waiting)}")

    def close(self) -> None:
        """Clear the line."""
        if self._is_shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._is_shown = False

    def _write(self, words: str) -> None:
        line = printable(f"preflight: {words}")
        if self._is_terminal:
            line = line if len(line) <= _LINE_WIDTH else line[: _LINE_WIDTH - 3] + "..."
            self._stream.write(_CLEAR_LINE + line)
            self._is_shown = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


STATE = "state.json"
"""The file that `--save` writes into its folder."""

LARGEST = 1 << 30
SHORTEST_S, LONGEST_S, USUAL_S = 0.2, 10.0, 3.0
_EXITS = {"progresses": FINE, "unknown": UNCLEAR, "no_job": EMPTY}


def run(arguments: argparse.Namespace) -> int:
    """Print which ranks the job waits for: 0 none, it progresses; 1 named; 3 unknown; 5 no job.

    UsageError (exit 4) for targets that name no node, and for a folder without a saved state.
    """
    if not SHORTEST_S <= arguments.look_s <= LONGEST_S:
        raise UsageError(
            f"--look-s={arguments.look_s:g}: give seconds, {SHORTEST_S:g} to {LONGEST_S:g}"
        )
    saved = folder_among(arguments)
    live = {"--pid": arguments.pid, "--nodes": arguments.nodes, "--inventory": arguments.inventory,
            "--exclude": arguments.exclude, "--look-s": arguments.look_s != USUAL_S}  # fmt: skip
    for option in (name for name, value in live.items() if saved and value):
        raise UsageError(f"{saved} is judged as it was saved, no node is asked: leave out {option}")
    try:
        state = _read_saved(saved, arguments.job) if saved else _look(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\npreflight: interrupted before the nodes answered\n")
        return INTERRUPTED
    diagnosis = diagnose(state)
    print_answer(arguments, diagnosis, lambda width: lines(diagnosis, width), indent=2)
    if arguments.save is not None:
        sys.stdout.flush()  # the answer first: saving may fill the disk
        folder = typed_path(arguments.save)
        with file_errors(f"cannot write {folder / STATE}", "give another"):
            write_atomically(folder / STATE, msgspec.json.encode(state))
        remark(f"saved in {folder}")
    return _EXITS.get(diagnosis.category, FOUND)


def _look(arguments: argparse.Namespace) -> JobState:
    if arguments.pid:
        return _look_here(arguments)
    fleet, request = fleet_of(arguments), LookRequest(look_s=arguments.look_s, ras=arguments.ras)
    progress = ProgressLine(sys.stderr, len(fleet.hosts))
    with closing(Ways(fleet.hosts)) as ways, closing(progress):
        state = look(
            fleet.hosts, ways, secrets.token_hex(16),
            wanted=request, job=arguments.job, progress=progress.update,
        )  # fmt: skip
    return replace(state, here=fleet.origin == THIS_MACHINE)


def _look_here(arguments: argparse.Namespace) -> JobState:
    if arguments.nodes or arguments.inventory:
        raise UsageError("--pid names processes of this machine: leave out --nodes and --inventory")
    for pid in arguments.pid:
        if not Path(f"/proc/{pid}").is_dir():
            raise UsageError(f"no process {pid} here; see: pgrep -af python")
    return look_here(arguments.pid, look_s=arguments.look_s, job=arguments.job, ras=arguments.ras)


def _read_saved(path: Path, job: str) -> JobState:
    hint = f"; for a process use --pid={path}" if path.name.isdecimal() else ""
    advice = f"give a folder that --save made{hint}"
    with file_errors(f"cannot read the saved state {path}", advice):
        if path.is_dir():  # else the newest state of a watch
            looks = sorted(path.glob("state-*.json"), key=lambda look: natural(look.name))
            states = [path / STATE, *looks]
            path = states[0 if states[0].exists() else -1]
        state = msgspec.json.decode(read_regular(path, LARGEST), type=JobState)
    return replace(state, job=job or state.job)


_EXAMPLES = """\
examples:
  preflight diagnose                      on one of the job's nodes
  preflight diagnose 'gpu[001-064]'       all nodes of the job, over SSH
  preflight diagnose --pid=4711           one of several jobs on this machine
"""


def add_options(diagnose: argparse.ArgumentParser) -> None:
    """Declare the arguments; nodes are chosen as for a run."""
    diagnose.epilog, add = _EXAMPLES, diagnose.add_argument
    add_nodes_or_folder(diagnose, "DIR", "a state that --save wrote; then no node is asked")
    add_targets(diagnose)
    add("--pid", metavar="N", type=whole_number, nargs="+", help="only these processes of this "
        "machine, their children, and the rest of their job")  # fmt: skip
    add("--job", metavar="ID", default="", help="the job, if several run: its run id, or "
        "MASTER_ADDR:MASTER_PORT")  # fmt: skip
    add("--look-s", metavar="N", type=decimal_number, default=USUAL_S, help="seconds between the "
        "two looks, 0.2 to 10 (default: 3); more for a job with slow steps")  # fmt: skip
    add_ras(diagnose)
    add_json(diagnose)
    add("--save", metavar="DIR", type=path_type, help="save the job's state in this folder")
