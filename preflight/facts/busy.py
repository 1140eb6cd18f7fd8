"""Nobody's job is disturbed: who is using the GPUs right now, told from facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.kinship import holds_memory, is_daemon
from preflight.facts.stale import find_stale
from preflight.facts.words import process

if TYPE_CHECKING:
    from preflight.facts.model import Facts

BUSY_WORD = "busy: "
"""How every reason begins for which a node is spared, in a sweep's `left_out`."""


def busy_with(facts: Facts) -> str:
    """Name the living process that works on a GPU here, or nothing if none does.

    Leftovers of dead jobs and the driver's own servers do not count: nobody waits for them.
    """
    if facts.processes is None:
        return ""
    stale = {
        one.pid
        for left in find_stale(facts.processes, facts.gpus or ())
        for one in left.culprits
        if left.grave
    }
    for one in facts.processes.notable:
        uses = one.holds_gpu or holds_memory(one)
        if uses and not one.ours and one.pid not in stale and not is_daemon(one):
            return process(one)
    return ""
