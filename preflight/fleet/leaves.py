"""Which leaf switch each node is on, and who says so: one that is guessed is never named."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.switches import parse_switches, read_switches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.model import Fleet

OPTION = "--preflight-topology"
SLURMS_OWN = Path("/etc/slurm/topology.conf")
_ASK_S = 10.0
_SCONTROL = "scontrol show topology"


def with_leaves(
    fleet: Fleet, file: str | None, environ: Mapping[str, str], *, told_by: str
) -> Fleet:
    """Give each node its leaf: by the option, else as was told with it, else by Slurm in its job.

    UsageError for a file that the operator named and that is no use; Slurm's own, which nobody
    named, only leaves a remark.
    """
    if file is not None:
        if not file:
            raise UsageError(f"{OPTION} is empty: give the path of a topology.conf")
        path = Path(file).expanduser()
        found = _placed(fleet, read_switches(path), str(path))
        if not found.leaves:
            names = fold(host.name for host in fleet.hosts)
            raise UsageError(f"{path} knows no leaf of {names}: give the topology of this fleet")
        return found
    if fleet.leaves:
        return replace(fleet, topology=told_by)
    if "SLURM_JOB_ID" not in environ:
        return fleet
    try:
        return _by_slurm(fleet, environ)
    except UsageError as error:
        return replace(fleet, topology_remark=str(error))


def _by_slurm(fleet: Fleet, environ: Mapping[str, str]) -> Fleet:
    said = _ask()
    if "SwitchName=" in said:
        return _placed(fleet, parse_switches(said, _SCONTROL), _SCONTROL)
    conf = environ.get("SLURM_CONF")
    beside = [Path(conf).with_name(SLURMS_OWN.name)] if conf else []
    path = next((each for each in (*beside, SLURMS_OWN) if each.is_file()), None)
    return fleet if path is None else _placed(fleet, read_switches(path), str(path))


def _ask() -> str:
    """What Slurm answers; nothing where it has no topology, or no answer."""
    try:
        done = subprocess.run(
            _SCONTROL.split(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_ASK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _placed(fleet: Fleet, leaf_of: Mapping[str, str], origin: str) -> Fleet:
    """Slurm knows nodes by their short names; a fleet may not."""
    hosts = tuple(
        replace(host, leaf=leaf_of.get(host.name, leaf_of.get(host.name.partition(".")[0], "")))
        for host in fleet.hosts
    )
    placed = any(host.leaf for host in hosts)
    return replace(fleet, hosts=hosts, topology=origin if placed else "")
