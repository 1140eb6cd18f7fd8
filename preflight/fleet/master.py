"""Which node hosts the job's rendezvous, as the launch line, the environment or the file says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.errors import UsageError
from preflight.fleet.nodeset import is_address
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fleet.model import Fleet, Host

_LOCAL = ("localhost", "127.0.0.1", "::1")
_A_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


def choose_master(
    hosts: Sequence[Host],
    *,
    launch: str | None,
    environ: str | None,
    table: str | None,
    elsewhere: Collection[str] = (),
) -> tuple[str | None, str]:
    """Return the node (None: the first) and a remark where an address had to be taken for one.

    The launch line wins over the environment, and both over the inventory, as for the port.
    `elsewhere`: nodes that the file knows and this run leaves out.
    """
    names = {host.name for host in hosts}
    rest = _node_of(environ, hosts) if environ else None
    rest = rest or (table if table in names else None)
    if not launch:
        return rest, ""
    named = _node_of(launch, hosts)
    if named:
        return named, ""
    taken = rest or hosts[0].name
    if launch in elsewhere:
        return rest, f", tried on {taken}: the master {launch} is not in this run"
    if launch in _LOCAL and len(hosts) == 1:
        return hosts[0].name, ""
    if launch not in _LOCAL and is_address(launch):
        return rest, f", tried on {taken}: {launch} is the address of no node known here"
    raise UsageError(_no_node(launch, hosts))


def master_names(fleet: Fleet) -> tuple[str, ...]:
    """The names under which the nodes look for the master: the job's own word, else our address.

    None in a fleet of one, where nobody looks. What a shell has yet to expand is no name.
    """
    if len(fleet.hosts) < len((fleet.master, "another")):
        return ()
    given = {environ.get("MASTER_ADDR", "") for environ in (fleet.job.environ or {}).values()}
    names = sorted(name for name in given if _A_NAME.fullmatch(name))
    return tuple(names[:3]) or (fleet.master.address,)


def _no_node(address: str, hosts: Sequence[Host]) -> str:
    said = f"--preflight-launch: the master address {address[:60]!a}"
    if "$" in address:
        return f"{said} is not expanded here: give the name of the node itself"
    if address in _LOCAL:
        return f"{said} is another machine on each of {len(hosts)} nodes: give one node's name"
    hint = did_you_mean(address, [host.name for host in hosts])
    return f"{said} names no node of this fleet{hint or '; give the name of one of its nodes'}"


def _node_of(address: str, hosts: Sequence[Host]) -> str | None:
    """The node of that name or address; of that short name if only one has it."""
    exact = next((host.name for host in hosts if address in (host.name, host.address)), None)
    if exact or is_address(address):
        return exact
    short = address.partition(".")[0]
    near = [host.name for host in hosts if _is_short_for(host.name, address, short)]
    return near[0] if len(near) == 1 else None


def _is_short_for(name: str, address: str, short: str) -> bool:
    """One of both is the bare name of the other: h1 and h1.cluster.example."""
    return name.partition(".")[0] == short and short in (name, address)
