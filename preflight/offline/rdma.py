"""Captured outputs about RDMA ports become the facts that the `ib.*` checks judge."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from preflight.facts.network_model import Network
from preflight.offline import perfquery, port_text, sysfs_tree
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.plain import plain

KINDS: Final = ("ibstat", "ibstatus", "rdma link", "perfquery", "a tree of /sys as JSON")
_CHECKS: Final = {
    "ibstat": ("ib.count", "ib.port", "ib.rate", "ib.firmware"),
    "ibstatus": ("ib.count", "ib.port", "ib.rate"),
    "rdma link": ("ib.count", "ib.port"),
}
_ONE_PORT: Final = ("ib.port", "ib.rate")


def read(text: str) -> Captured | None:
    """Take the ports that a text tells of; None where it tells of none."""
    if tree := sysfs_tree.parse(text):
        return _of_tree(tree)
    text = plain(text)
    if queried := perfquery.parse(text):
        facts = replace(bare_facts(), nics=queried.nics)
        return Captured(
            kind="perfquery", facts=facts, checks=("ib.errors",), damaged=queried.damaged
        )
    if printed := port_text.parse(text):
        return Captured(
            kind=printed.kind,
            facts=replace(
                bare_facts(),
                nics=printed.nics,
                problems=_missing(printed.damaged, one_port=printed.one_port),
            ),
            checks=_ONE_PORT if printed.one_port else _CHECKS[printed.kind],
            damaged=printed.damaged,
        )
    return None


def _of_tree(tree: sysfs_tree.Tree) -> Captured:
    counted = any(port.counters for nic in tree.nics or () for port in nic.ports)
    checks = ("ib.count", "ib.port", "ib.rate", "ib.firmware", *(("ib.errors",) if counted else ()))
    return Captured(
        kind="a tree of /sys as JSON",
        facts=replace(
            bare_facts(),
            nics=tree.nics,
            network=Network(interfaces=tree.interfaces or None),
            problems=_missing(tree.damaged),
        ),
        checks=checks,
        damaged=tree.damaged,
    )


def _missing(damaged: str, *, one_port: bool = False) -> tuple[str, ...]:
    """Of half a listing nobody can say that no port at all was up."""
    missing = damaged or ("one port was asked for" if one_port else "")
    return (f"nics: {missing}",) if missing else ()
