"""`python -m preflight.hang.watch.examine PID NUMBER FOLDER NODES INVENTORY`: why a launch stands.

A process of its own, so that what it loads is gone when it ends, and so that the watch can end it.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.text import plain_json
from preflight.errors import PreflightError, UsageError
from preflight.fleet.sources import Wish, resolve
from preflight.hang.diagnose.judge import diagnose, lines
from preflight.hang.look import look, look_here
from preflight.hang.watch.folder import write
from preflight.hang.watch.processes import ranks_of
from preflight.transport.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fleet.model import Fleet
    from preflight.hang.diagnose.model import Diagnosis, JobState, NodeState


def wanted(launch: int, nodes: str, inventory: str, environ: Mapping[str, str]) -> bool:
    """Whether other nodes are known, and it is on us to ask them."""
    several = environ.get("SLURM_JOB_NUM_NODES", "1") not in ("", "1")
    return bool(nodes or inventory or several) and any(seat.rank == 0 for seat in ranks_of(launch))


def refused(nodes: str, inventory: str, environ: Mapping[str, str]) -> str:
    """Why these cannot be the job's nodes, before it hangs; empty where they can."""
    try:
        _fleet(nodes, inventory, environ)
    except UsageError as error:
        return str(error)
    return ""


def _fleet(nodes: str, inventory: str, environ: Mapping[str, str]) -> Fleet:
    return resolve(Wish(nodes=nodes or None, inventory=inventory or None, environ=dict(environ)))


def look_everywhere(
    launch: int, nodes: str, inventory: str, environ: Mapping[str, str]
) -> JobState | None:
    """All nodes of this launch's job; None where none of the others let us in.

    UsageError where the nodes cannot be resolved.
    """
    fleet = _fleet(nodes, inventory, environ)
    ways = Ways(fleet.hosts)
    try:
        state = look(fleet.hosts, ways, secrets.token_hex(16))
    finally:
        ways.close()
    own = own_node(state, socket.gethostname())
    if own is None or not any(node.look for node in state.nodes if node is not own):
        # A login from node to node is not set up, which says nothing of the nodes.
        return None
    return replace(state, job=job_of(own, {seat.pid for seat in ranks_of(launch)}))


def own_node(state: JobState, host: str) -> NodeState | None:
    """The node that we are on, by the name that it calls itself."""
    return next((one for one in state.nodes if one.look and one.look.host == host), None)


def job_of(node: NodeState, pids: set[int]) -> str:
    """The job of these processes; empty where the look does not know them."""
    ranks = node.look.ranks if node.look else ()
    return next((rank.job for rank in ranks if rank.pid in pids), "")


if __name__ == "__main__":
    sys.exit(refused(sys.argv[1], sys.argv[2], os.environ) or 0)


FOUND, PROGRESSES, NOBODY = 0, 3, 5
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
            sys.stdout.write(f"the other nodes were not looked at: {error}\n")
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
        sys.stdout.write(f"not all of it could be written to {folder}: {error.strerror}\n")


def _json(value: Diagnosis | JobState) -> str:
    return plain_json(value, indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
