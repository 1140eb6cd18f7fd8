"""Why a launch stands, or ended: `python -m preflight.hang.watch.examine WHAT ...`.

    stall PID NUMBER FOLDER NODES INVENTORY   whom its ranks wait for
    end FOLDER FILE...                        why it ended, by its files
    nodes NODES INVENTORY                     whether these can be the job's nodes

A process of its own, so that what it loads is gone when it ends, and so that the watch can end it.
The nodes of a job are looked at from the one where rank 0 is; the others look at themselves.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from preflight.core.text import plain_json, printable
from preflight.errors import PreflightError, UsageError
from preflight.hang.watch.evidence import FOUND, NOBODY, PROGRESSES, UNKNOWN, write
from preflight.hang.watch.progress import ranks_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fleet.model import Fleet
    from preflight.hang.diagnose.model import JobState, NodeState

_WIDTH = 100


def main(words: Sequence[str]) -> int | str:
    """Do what the first word says; what to exit with."""
    what, *rest = words
    if what == "stall":
        pid, number, folder, nodes, inventory = rest
        return _why_it_stands(int(pid), number, folder, nodes, inventory)
    if what == "end":
        return _why_it_ended(Path(rest[0]), [Path(file) for file in rest[1:]])
    nodes, inventory = rest
    return refused(nodes, inventory, os.environ) or 0


def _why_it_ended(folder: Path, files: Sequence[Path]) -> int:
    """Write explanation.json and .txt, and print the latter; 3 where it is unknown."""
    from preflight.hang.explain.scan import Scanner
    from preflight.hang.explain.symptom import shipped
    from preflight.hang.explain.weigh import explain, lines

    told = explain(Scanner(shipped()).read(files))
    text = "".join(f"{line}\n" for line in lines(told, _WIDTH))
    write(folder / "explanation.json", msgspec.json.format(msgspec.json.encode(told)).decode())
    write(folder / "explanation.txt", text)
    sys.stdout.write(text)
    return UNKNOWN if told.category == "unknown" else FOUND


def _why_it_stands(launch: int, number: str, folder: str, nodes: str, inventory: str) -> int:
    """Look, judge, print, and write `state-N.json`, `diagnosis-N.json` and `.txt`."""
    from preflight.hang.diagnose.judge import diagnose, lines

    state = _look(launch, nodes, inventory)
    told = diagnose(state)
    if told.category == "progresses":
        return PROGRESSES
    if told.category == "no_job" or not (told.standings or told.culprits):
        return NOBODY  # its ranks are not up yet, or have just ended
    text = "".join(f"{line}\n" for line in lines(told, _WIDTH))
    sys.stdout.write(text)
    sys.stdout.flush()
    if not folder:
        return FOUND
    try:
        write(Path(folder, f"diagnosis-{number}.txt"), text)
        write(Path(folder, f"diagnosis-{number}.json"), plain_json(told, indent=2))
        write(Path(folder, f"state-{number}.json"), plain_json(state, indent=2))
    except OSError as error:
        place = printable(folder)
        sys.stdout.write(f"not all of it could be written to {place}: {error.strerror}\n")
    return FOUND


def _look(launch: int, nodes: str, inventory: str) -> JobState:
    """At all of the job's nodes where they are known and we have rank 0, else at this machine."""
    from preflight.hang.look import look_here

    several = os.environ.get("SLURM_JOB_NUM_NODES", "1") not in ("", "1")
    ours = nodes or inventory or several
    if ours and any(one.rank == 0 for one in ranks_of(launch)):
        try:
            state = _look_everywhere(launch, nodes, inventory)
        except PreflightError as error:
            sys.stdout.write(f"the other nodes were not looked at: {printable(str(error))}\n")
            state = None
        if state is not None:
            return state
    return look_here(pids=(launch,))


def refused(nodes: str, inventory: str, environ: Mapping[str, str]) -> str:
    """Why these cannot be the job's nodes, before it hangs; empty where they can."""
    try:
        _fleet(nodes, inventory, environ)
    except UsageError as error:
        return str(error)
    return ""


def _fleet(nodes: str, inventory: str, environ: Mapping[str, str]) -> Fleet:
    from preflight.fleet.sources import FleetRequest, resolve

    return resolve(
        FleetRequest(nodes=nodes or None, inventory=inventory or None, environ=dict(environ))
    )


def _look_everywhere(launch: int, nodes: str, inventory: str) -> JobState | None:
    """All nodes of this launch's job; None where none of the others let us in.

    UsageError where the nodes cannot be resolved.
    """
    from preflight.hang.look import look
    from preflight.transport.ways import Ways

    fleet = _fleet(nodes, inventory, os.environ)
    ways = Ways(fleet.hosts)
    try:
        state = look(fleet.hosts, ways, secrets.token_hex(16))
    finally:
        ways.close()
    own = own_node(state, socket.gethostname())
    if own is None or not any(node.look for node in state.nodes if node is not own):
        # A login from node to node is not set up, which says nothing of the nodes.
        return None
    return replace(state, job=job_of(own, {one.pid for one in ranks_of(launch)}))


def own_node(state: JobState, host: str) -> NodeState | None:
    """The node that we are on, by the name that it calls itself."""
    return next((one for one in state.nodes if one.look and one.look.host == host), None)


def job_of(node: NodeState, pids: set[int]) -> str:
    """The job of these processes; empty where the look does not know them."""
    ranks = node.look.ranks if node.look else ()
    return next((rank.job for rank in ranks if rank.pid in pids), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
