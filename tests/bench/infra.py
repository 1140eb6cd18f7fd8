"""Twelve facts per host by pytest-testinfra's paramiko backend, as its users read them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tests.bench.probing import probe, some
from tests.bench.ratio import Bound, Row, extremes, faster, in_turns, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from preflight.facts import Facts
    from preflight.fleet.model import Host
    from tests.lab.cluster import Lab

_BOUND = Bound("at least", 5)
_HOSTS, _RUNS = 4, 3
_NIC = "/sys/class/infiniband/mlx5_0/ports/1"

READ: dict[str, Callable[[Any], object]] = {
    "name": lambda host: host.check_output("uname -n"),
    "kernel": lambda host: host.check_output("uname -r"),
    "user": lambda host: host.user().name,
    "root": lambda host: host.user().uid == 0,
    "boot": lambda host: bool(_boot_s(host.file("/proc/stat").content_string)),
    "GPUs": lambda host: host.check_output("nvidia-smi -L").count("(UUID: "),
    "topology": lambda host: host.check_output("nvidia-smi topo -m").count("NV18"),
    "NICs": lambda host: sorted(host.file("/sys/class/infiniband").listdir()),
    "link": lambda host: host.file(f"{_NIC}/state").content_string.strip(),
    "rate": lambda host: host.file(f"{_NIC}/rate").content_string.strip(),
    "processes": lambda host: len(host.process.filter()) > 0,
    "Python": lambda host: host.check_output("%s -I -V", sys.executable).removeprefix("Python "),
}
"""Their side; each entry is a round trip or two."""

HAVE: dict[str, Callable[[Facts], object]] = {
    "name": lambda facts: facts.host,
    "kernel": lambda facts: facts.kernel,
    "user": lambda facts: facts.user,
    "root": lambda facts: facts.root,
    "boot": lambda facts: facts.boot_s > 0,
    "GPUs": lambda facts: len(facts.gpus or ()),
    "topology": lambda facts: (facts.topo_text or "").count("NV18"),
    "NICs": lambda facts: sorted(nic.name for nic in facts.nics or ()),
    "link": lambda facts: facts.nics[0].ports[0].state if facts.nics else None,
    "rate": lambda facts: facts.nics[0].ports[0].rate if facts.nics else None,
    "processes": lambda facts: facts.processes is not None and facts.processes.seen > 0,
    "Python": lambda facts: facts.python.version,
}
"""Our side: all of it is in one answer, with much else."""


def measure(lab: Lab) -> Iterator[Row]:
    """Four hosts, one after the other as testinfra goes through them, against ours."""
    inventory = lab.inventory()
    hosts = some(inventory, _HOSTS)
    config = _ssh_config(inventory.parent, hosts)
    _same(probe(hosts), {host.name: _read(host, config) for host in hosts})
    ours, theirs = in_turns(
        _RUNS, seconds(lambda: probe(hosts)), seconds(lambda: [_read(one, config) for one in hosts])
    )
    yield Row(
        id="facts.testinfra",
        what=f"{len(READ)} facts of {_HOSTS} hosts: testinfra / ours",
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=faster(ours, theirs),
        value_unit="times faster",
        runs=_RUNS,
        bound=_BOUND,
    )


def _ssh_config(folder: Path, hosts: Sequence[Host]) -> Path:
    """How testinfra is told the way in; it never reads known_hosts, so it must be told not to."""
    path = folder / "testinfra.ssh"
    path.write_text(
        "".join(
            f"Host {host.name}\n  HostName {host.address}\n  User {host.user}\n"
            f"  IdentityFile {host.identity_file}\n  StrictHostKeyChecking no\n"
            for host in hosts
        )
    )
    return path


def _read(host: Host, config: Path) -> dict[str, object]:
    """Log in anew, past testinfra's cache of hosts, and read everything."""
    from testinfra.backend import get_backend  # type: ignore[import-untyped]
    from testinfra.host import Host as TestinfraHost  # type: ignore[import-untyped]

    backend: Any = get_backend(f"paramiko://{host.name}", ssh_config=str(config))
    there = TestinfraHost(backend)
    backend.set_host(there)
    try:
        return {name: read(there) for name, read in READ.items()}
    finally:
        backend.client.close()


def _same(ours: dict[str, Facts], theirs: dict[str, dict[str, object]]) -> None:
    """Refuse to compare the speed of reading different things."""
    for name, facts in ours.items():
        mine = {what: have(facts) for what, have in HAVE.items()}
        if mine != theirs[name]:
            raise RuntimeError(f"testinfra read other facts of {name}: {theirs[name]} / {mine}")


def _boot_s(stat: str) -> int:
    found = re.search(r"^btime (\d+)$", stat, re.MULTILINE)
    return int(found[1]) if found else 0
