"""`python -m preflight.hang.watch.other_nodes NODES INVENTORY`: whether these can be a job's nodes.

The nodes of a job are looked at from the one where rank 0 is; the others look at themselves.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fleet.sources import Wish, resolve
from preflight.hang.look import look
from preflight.hang.watch.processes import ranks_of
from preflight.transport.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.model import Fleet
    from preflight.hang.diagnose.model import JobState, NodeState


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
