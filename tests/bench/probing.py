"""Facts of some lab hosts by the real stage, as a run gets them.

    python -m tests.bench.probing INVENTORY NUMBER

does it once in a fresh process: with the imports, as the first command of the day.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.fleet.inventory import read_inventory
from preflight.run.probe_stage import probe_fleet
from preflight.transport.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.core.remote_command import Connection
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host

DEADLINE_S = 60.0
AT_MOST = 64


def some(inventory: Path, number: int) -> tuple[Host, ...]:
    """The first hosts of an inventory."""
    read = read_inventory(inventory)
    return tuple(read.host(name) for name in read.names[:number])


def connected(hosts: Sequence[Host]) -> tuple[dict[str, Facts], dict[str, Connection]]:
    """Log in, read the facts, and keep the connections; RuntimeError if a host fails."""
    reached = probe_fleet(
        hosts,
        Ways(hosts),
        secrets.token_hex(16),
        deadline_s=DEADLINE_S,
        at_most=AT_MOST,
        progress=lambda *_: None,
    )
    facts: dict[str, Facts] = {}
    connections: dict[str, Connection] = {}
    for name, one in reached.items():
        if one.facts is None or one.connection is None or one.facts.gpus is None:
            raise RuntimeError(f"{name} gave no facts: {one.reach.sentence or one.facts}")
        facts[name], connections[name] = one.facts, one.connection
    return facts, connections


def probe(hosts: Sequence[Host]) -> dict[str, Facts]:
    """Log in, read the facts, and leave."""
    facts, connections = connected(hosts)
    for connection in connections.values():
        connection.close()
    return facts


if __name__ == "__main__":
    probe(some(Path(sys.argv[1]), int(sys.argv[2])))
