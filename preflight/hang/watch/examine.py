"""Examines why a launch hangs or ended: `python -m preflight.hang.watch.examine WHAT ...`.

    stall PID NUMBER FOLDER NODES INVENTORY RAS   what its ranks wait for
    end FOLDER FILE...                            why it ended, by its files
    nodes NODES INVENTORY                         whether these can be the job's nodes

It is a separate process, so that its memory is freed at its end and the watch can end it. The node
of rank 0 looks at all nodes of the job; the others look only at themselves.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from preflight.core.text import plain_json, printable
from preflight.errors import PreflightError, UsageError
from preflight.hang.watch.evidence import DIAGNOSIS, FOUND, NO_RANKS, PROGRESSES, UNKNOWN, write
from preflight.hang.watch.progress import ranks_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fleet.model import Fleet
    from preflight.hang.diagnose.job_state import JobState, NodeState
    from preflight.hang.look import RasPolicy

_WIDTH = 69
"""Of 80 columns: the watch puts "preflight: " before each line."""


def main(words: Sequence[str]) -> int | str:
    """Run the command in the first word; return the exit status."""
    task, *rest = words
    if task == "stall":
        pid, number, folder, *request = rest
        return _why_it_hangs(int(pid), number, folder, request)
    if task == "end":
        return _why_it_ended(Path(rest[0]), [Path(file) for file in rest[1:]])
    nodes, inventory = rest
    return nodes_problem(nodes, inventory, os.environ) or 0


def _why_it_ended(folder: Path, files: Sequence[Path]) -> int:
    """Write explanation.json and .txt, and print the latter; 3 if the cause is unknown."""
    from preflight.hang.explain.explanation import lines
    from preflight.hang.explain.scan import Scanner
    from preflight.hang.explain.symptom import shipped
    from preflight.hang.explain.weigh import explain

    explanation = explain(Scanner(shipped()).read(files))
    text = "".join(f"{line}\n" for line in lines(explanation, _WIDTH))
    write(
        folder / "explanation.json", msgspec.json.format(msgspec.json.encode(explanation)).decode()
    )
    write(folder / "explanation.txt", text)
    sys.stdout.write(text)
    return UNKNOWN if explanation.category in ("unknown", "no_failure") else FOUND


def _why_it_hangs(launch: int, number: str, folder: str, request: Sequence[str]) -> int:
    """Look, judge, print, and write `state-N.json`, `diagnosis-N.json` and `.txt`."""
    from preflight.hang.diagnose.diagnosis import diagnose, lines

    nodes, inventory, ras = request
    state = _look(launch, nodes, inventory, cast("RasPolicy", ras))
    diagnosis = diagnose(state)
    if diagnosis.category == "progresses":
        return PROGRESSES
    if diagnosis.category == "no_job" or not (diagnosis.standings or diagnosis.culprits):
        return NO_RANKS  # not started yet, or just ended
    text = "".join(f"{line}\n" for line in lines(diagnosis, _WIDTH))
    sys.stdout.write(text)
    sys.stdout.flush()
    if not folder:
        return FOUND
    try:
        file = Path(folder, DIAGNOSIS.format(number))
        write(file.with_suffix(".txt"), text)
        write(file, plain_json(diagnosis, indent=2))
        write(Path(folder, f"state-{number}.json"), plain_json(state, indent=2))
    except OSError as error:
        sys.stdout.write(f"cannot write all files to {printable(folder)}: {error.strerror}\n")
    return FOUND


def _look(launch: int, nodes: str, inventory: str, ras: RasPolicy) -> JobState:
    """Look at all of the job's nodes if they are known and rank 0 is here, else at this machine."""
    from preflight.hang.look import look_here

    several = os.environ.get("SLURM_JOB_NUM_NODES", "1") not in ("", "1")
    if (nodes or inventory or several) and any(process.rank == 0 for process in ranks_of(launch)):
        try:
            if state := _look_everywhere(launch, nodes, inventory, ras):
                return state
        except PreflightError as error:
            sys.stdout.write(f"the other nodes were not checked: {printable(str(error))}\n")
    return look_here(pids=(launch,), ras=ras)


def nodes_problem(nodes: str, inventory: str, environ: Mapping[str, str]) -> str:
    """Why these cannot be the job's nodes, known before it hangs; empty if they can."""
    try:
        _fleet(nodes, inventory, environ)
    except UsageError as error:
        return str(error)
    return ""


def _fleet(nodes: str, inventory: str, environ: Mapping[str, str]) -> Fleet:
    from preflight.fleet.sources import FleetRequest, resolve

    request = FleetRequest(nodes=nodes or None, inventory=inventory or None, environ=dict(environ))
    return resolve(request)


def _look_everywhere(launch: int, nodes: str, inventory: str, ras: RasPolicy) -> JobState | None:
    """Look at all nodes of this launch's job; None if no other node accepts a login.

    UsageError if the nodes cannot be resolved.
    """
    from preflight.hang.look import LookRequest, look
    from preflight.transport.ways import Ways

    fleet = _fleet(nodes, inventory, os.environ)
    with closing(Ways(fleet.hosts)) as ways:
        state = look(fleet.hosts, ways, secrets.token_hex(16), wanted=LookRequest(ras=ras))
    own = own_node(state, socket.gethostname())
    if own is None or not any(node.look for node in state.nodes if node is not own):
        # Login from node to node is not set up, which means nothing about the nodes.
        return None
    return replace(state, job=job_of(own, {process.pid for process in ranks_of(launch)}))


def own_node(state: JobState, host: str) -> NodeState | None:
    """The node of this process, by its own host name."""
    return next((node for node in state.nodes if node.look and node.look.host == host), None)


def job_of(node: NodeState, pids: set[int]) -> str:
    """The job of these processes; empty if the look does not have them."""
    ranks = node.look.ranks if node.look else ()
    return next((rank.job for rank in ranks if rank.pid in pids), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
