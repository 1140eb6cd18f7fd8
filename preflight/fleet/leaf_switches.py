"""Which leaf switch each node is on, and the source that says so; preflight never guesses one.

It reads `SwitchName`, `Nodes` and `Switches`; a switch with other switches below it is no leaf.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.files import read_text, typed_path
from preflight.core.remote_command import run_here
from preflight.errors import UsageError, errors_about
from preflight.fleet.job_environment import slurm_environ
from preflight.fleet.nodeset import expand, fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.fleet.model import Fleet


LARGEST = 8 << 20
"""Bytes of a topology.conf."""

LEAF_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,64}")
"""A restricted alphabet: the name is shown on terminals and written into reports."""

_COMMENT = re.compile(r"(?<!\\)#.*")
_EXAMPLE = "write lines such as SwitchName=leaf1 Nodes=gpu[001-032]"


def read_switches(path: Path) -> dict[str, str]:
    """Read a topology.conf into node → leaf switch; UsageError names the file and the line."""
    text = read_text(path, LARGEST, f"the topology {path}", "give a topology.conf of Slurm")
    return parse_switches(text, str(path))


def parse_switches(text: str, source: str) -> dict[str, str]:
    """Parse the text of a topology.conf; `source` opens every error message."""
    leaf_of: dict[str, str] = {}
    declared: dict[str, int] = {}
    for number, line in _lines(text):
        with errors_about(f"{source} line {number}"):
            pairs = _pairs(line)
            switch = _switch_name(pairs)
            nodes = _nodes(switch, pairs)
            _refuse_repeated(switch, nodes, declared, leaf_of)
        declared[switch] = number
        leaf_of |= dict.fromkeys(nodes, switch)
    if not leaf_of:
        raise UsageError(f"{source} has no leaf switch with nodes: {_EXAMPLE}")
    return leaf_of


def _refuse_repeated(
    switch: str, nodes: tuple[str, ...], declared: dict[str, int], leaf_of: dict[str, str]
) -> None:
    if switch in declared:
        raise UsageError(f"{switch} is declared in line {declared[switch]} already: remove one")
    repeated = next((name for name in nodes if name in leaf_of), None)
    if repeated is not None:
        raise UsageError(f"{repeated} is on {leaf_of[repeated]} and on {switch}: leave it on one")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments; a backslash at the end joins the next one."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        stripped = _COMMENT.sub("", line).strip()
        if stripped.endswith("\\"):
            joined += stripped[:-1] + " "
            continue
        if full_line := (joined + stripped).strip():
            yield first, full_line
        joined, first = "", 0
    if joined.strip():
        yield first, joined.strip()


def _pairs(line: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in line.split():
        key, is_pair, value = word.partition("=")
        if not is_pair:
            raise UsageError(f"{word[:40]!a} is not KEY=VALUE: {_EXAMPLE}")
        pairs[key.lower()] = "" if value == "(null)" else value.strip('"')
    return pairs


def _switch_name(pairs: dict[str, str]) -> str:
    switch = pairs.get("switchname", "")
    if not switch:
        first = next(iter(pairs))
        if first.startswith("block"):
            raise UsageError("a block topology names no switches: write one that does, or none")
        raise UsageError(f"it has no SwitchName, but {first[:40]!a}: {_EXAMPLE}")
    if not LEAF_NAME.fullmatch(switch):
        raise UsageError(f"{switch[:40]!a} is not a switch name: letters, digits, and ._:/@+-")
    return switch


def _nodes(switch: str, pairs: dict[str, str]) -> tuple[str, ...]:
    """Return a leaf's nodes; none for a switch above others, whose nodes `scontrol` also lists."""
    if pairs.get("switches"):
        return ()
    if not pairs.get("nodes"):
        raise UsageError(f"{switch} has neither Nodes nor Switches: {_EXAMPLE}")
    return expand(pairs["nodes"])


TOPOLOGY_OPTION = "--preflight-topology"
SLURM_TOPOLOGY = Path("/etc/slurm/topology.conf")
_SCONTROL_S = 10.0
_SCONTROL = "scontrol show topology"


def with_leaves(
    fleet: Fleet, file: str | None, environ: Mapping[str, str], *, leaf_origin: str
) -> Fleet:
    """Give each node its leaf: from the option, else from the inventory, else from Slurm in a job.

    UsageError if the operator's file cannot be used; Slurm's own file only leaves a remark.
    """
    if file is not None:
        if not file:
            raise UsageError(f"{TOPOLOGY_OPTION} is empty: give the path of a topology.conf")
        path = typed_path(file)
        result = _set_leaves(fleet, read_switches(path), str(path))
        if not result.leaves:
            names = fold(host.name for host in fleet.hosts)
            raise UsageError(f"{path} knows no leaf of {names}: give the topology of this fleet")
        return result
    if fleet.leaves:
        return replace(fleet, topology=leaf_origin)
    if "SLURM_JOB_ID" not in environ:
        return fleet
    try:
        return _leaves_of_slurm(fleet, environ)
    except UsageError as error:
        return replace(fleet, topology_remark=str(error))


def _leaves_of_slurm(fleet: Fleet, environ: Mapping[str, str]) -> Fleet:
    answer = run_here(_SCONTROL.split(), _SCONTROL_S, slurm_environ(os.environ))
    listing = answer.stdout.decode(errors="replace") if answer and answer.returncode == 0 else ""
    if "SwitchName=" in listing:
        return _set_leaves(fleet, parse_switches(listing, _SCONTROL), _SCONTROL)
    conf = environ.get("SLURM_CONF")
    beside = [Path(conf).with_name(SLURM_TOPOLOGY.name)] if conf else []
    path = next((file for file in (*beside, SLURM_TOPOLOGY) if file.is_file()), None)
    return fleet if path is None else _set_leaves(fleet, read_switches(path), str(path))


def _set_leaves(fleet: Fleet, leaf_of: Mapping[str, str], origin: str) -> Fleet:
    """Set the leaf of each node; Slurm knows nodes by short names, a fleet may use long ones."""
    hosts = tuple(
        replace(host, leaf=leaf_of.get(host.name, leaf_of.get(host.name.partition(".")[0], "")))
        for host in fleet.hosts
    )
    has_leaves = any(host.leaf for host in hosts)
    return replace(fleet, hosts=hosts, topology=origin if has_leaves else "")
