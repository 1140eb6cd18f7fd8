"""`preflight diagnose`: a job that hangs now, and the rank that the others wait for.

Asks every node at once, as a run does: under 30 s, and nothing of the job is stopped or ended.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from msgspec.structs import replace

from preflight.commands import add_json, add_targets, fleet_of, print_lines, remark
from preflight.core.files import read_regular, write_atomically
from preflight.core.text import plain_json, printable
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.hang.diagnose.judge import diagnose, lines
from preflight.hang.diagnose.model import Diagnosis, JobState
from preflight.hang.look import LookRequest, look, look_here
from preflight.transport.ways import Ways

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


_ROOM = 76
_ANEW = "\r\x1b[K"


class Waited:
    """Writes over its own line on a terminal; into a file, a line each time it tells."""

    def __init__(self, stream: TextIO, nodes: int) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._open = False
        if nodes > 1:
            self._write(f"asking {nodes} nodes")

    def tell(self, done: int, total: int, waiting: Sequence[str]) -> None:
        """Say how many have answered, and who has not."""
        if total > 1 and waiting:
            self._write(f"{done} of {total} nodes answered, waiting for {fold(waiting)}")

    def end(self) -> None:
        """Clear the line."""
        if self._open:
            self._stream.write(_ANEW)
            self._stream.flush()
            self._open = False

    def _write(self, words: str) -> None:
        said = printable(f"preflight: {words}")
        if self._live:
            said = said if len(said) <= _ROOM else said[: _ROOM - 3] + "..."
            self._stream.write(_ANEW + said)
            self._open = True
        else:
            self._stream.write(said + "\n")
        self._stream.flush()


PROGRESSES, NAMED, INTERRUPTED, UNKNOWN, NOTHING = 0, 1, 2, 3, 5
STATE = "state.json"
"""What `--save` keeps in its folder."""

LARGEST = 1 << 30
SHORTEST_S, LONGEST_S = 0.2, 10.0
_EXITS = {"progresses": PROGRESSES, "unknown": UNKNOWN, "no_job": NOTHING}


def run(arguments: argparse.Namespace) -> int:
    """Print who the job waits for: 0 nobody, it progresses; 1 a rank is named; 3 unknown; 5 no job.

    UsageError (exit 4) for targets that name nobody, and for a folder that keeps no look.
    """
    if not SHORTEST_S <= arguments.look_s <= LONGEST_S:
        raise UsageError(f"--look-s takes {SHORTEST_S:g} to {LONGEST_S:g} seconds")
    try:
        state = _stored(arguments) if arguments.folder else _seen(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\npreflight: interrupted: nothing is known yet\n")
        return INTERRUPTED
    told = diagnose(state)
    if arguments.json:
        sys.stdout.write(plain_json(told, indent=2))
    else:
        print_lines(lambda width: lines(told, width))
    if arguments.save is not None:
        sys.stdout.flush()  # the answer first: it may be all that there is room for
        _keep(state, arguments.save.expanduser())
    return exit_of(told)


def exit_of(told: Diagnosis) -> int:
    """The exit code of a diagnosis."""
    return _EXITS.get(told.category, NAMED)


def _seen(arguments: argparse.Namespace) -> JobState:
    if arguments.pid:
        return _here(arguments)
    fleet = fleet_of(arguments)
    ways = Ways(fleet.hosts)
    waited = Waited(sys.stderr, len(fleet.hosts))
    try:
        return look(
            fleet.hosts, ways, secrets.token_hex(16), wanted=LookRequest(look_s=arguments.look_s),
            job=arguments.job, progress=waited.tell,
        )  # fmt: skip
    finally:
        waited.end()
        ways.close()


def _here(arguments: argparse.Namespace) -> JobState:
    if arguments.nodes or arguments.inventory:
        raise UsageError("--pid names processes of this machine: leave out --nodes and --inventory")
    for pid in arguments.pid:
        if not Path(f"/proc/{pid}").is_dir():
            raise UsageError(f"no process {pid} here; see: pgrep -af python")
    return look_here(arguments.pid, look_s=arguments.look_s, job=arguments.job)


def _stored(arguments: argparse.Namespace) -> JobState:
    path: Path = arguments.folder.expanduser()
    path = path / STATE if path.is_dir() else path
    try:
        state = msgspec.json.decode(read_regular(path, LARGEST), type=JobState)
    except FileNotFoundError as error:
        meant = f"; a process is asked about with --pid={path}" if path.name.isdecimal() else ""
        raise UsageError(
            f"there is no {path}: give a folder that --save has made{meant}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        why = printable(str(error))[:200]
        raise UsageError(
            f"cannot read what was seen, {path}: {why}; give a folder that --save has made"
        ) from error
    return replace(state, job=arguments.job or state.job)


def _keep(state: JobState, folder: Path) -> None:
    path = folder / STATE
    try:
        write_atomically(path, msgspec.json.encode(state))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; give another") from error
    remark(f"kept in {folder}")


def add_options(diagnose: argparse.ArgumentParser) -> None:
    """Declare its arguments; targets are those of a run."""
    diagnose.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path,
        help="judge again what --save has kept, and ask nobody",
    )  # fmt: skip
    add_targets(diagnose)
    diagnose.add_argument("--pid", metavar="N", type=int, nargs="+", help="only these processes "
                          "here, what is below them, and the rest of a rank's job")  # fmt: skip
    diagnose.add_argument("--job", metavar="ID", default="", help="which one, where several run: "
                          "its run id, or MASTER_ADDR:MASTER_PORT")  # fmt: skip
    diagnose.add_argument("--look-s", metavar="N", type=float, default=3.0, help="seconds between "
                          "the two looks: 3; longer for a job with slow steps")  # fmt: skip
    add_json(diagnose)
    diagnose.add_argument("--save", metavar="DIR", type=Path, help="keep all that was seen there")
