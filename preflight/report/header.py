"""Before anything is measured: who, how reached, what will run, how long, where it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.fleet.waivers import today
from preflight.report.overrides import before
from preflight.report.slurm import too_many_logins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.planner import Planned
    from preflight.fleet.model import Fleet


_LOADS = ["burn-in  every device of every node, all nodes at once, before the pairs"]


def header(
    fleet: Fleet,
    reach: str,
    *,
    version: str,
    tier: str,
    fail_fast: str,
    budget_s: float,
    at_most: int,
    per_node: int,
    of_fleet: int,
    planned: Planned | None,
    loads: bool,
    expected: int,
    estimate: Sequence[str],
    where: str,
) -> list[str]:
    """Lay out the header; nothing in it is secret. `estimate`: its lines on time, as they are."""
    total = len(fleet.hosts)
    nodes = "1 node" if total == 1 else f"{total} nodes"
    gpus = sum(host.promised.gpus or 0 for host in fleet.hosts)
    promised = f", {gpus} GPUs promised" if gpus else ", nothing promised"
    sources = sorted({host.promised.origin.split(" [")[0] for host in fleet.hosts} - {""})
    promises = (
        f"; promises: {', '.join(sources)}" if sources and fleet.origin not in sources else ""
    )
    rounds = len(planned.rounds) if planned else 0
    fabric = f", {rounds} round{'s' if rounds != 1 else ''} of pairs" if rounds else ""
    whole = f", {of_fleet} of the whole fleet" if of_fleet else ""
    who = fold(host.name for host in fleet.hosts)
    port = f"{fleet.job.master_port} ({fleet.job.master_port_origin})"
    environ = fleet.job.environ_origin or "not known"
    return [
        f"preflight {version}",
        f"fleet    {who}  {nodes}{promised}  (from {fleet.origin}{promises})",
        f"reach    {reach}, {_how_many(fleet, nodes, at_most)}",
        *too_many_logins(fleet),
        f"job      master {fleet.master.name} port {port}; environment: {environ}",
        f"checks   {tier}: {per_node} per node{whole}{fabric}, {expected} verdicts expected",
        *(_LOADS if loads else []),
        *(_environ(fleet) if loads or rounds else []),
        *(_rounds(fleet, planned) if planned and rounds else _no_rounds(total)),
        f"limits   budget {budget_s:g} s, fail-fast {fail_fast}",
        *estimate,
        *before(fleet, today()),
        f"report   {where}",
    ]


def _environ(fleet: Fleet) -> list[str]:
    """Say which of the job's variables burn-in and sweep run with, and which not, by reason."""
    given, left_out = fleet.measured_in
    reasons: dict[str, list[str]] = {}
    for name, why in sorted(left_out.items()):
        reasons.setdefault(why, []).append(name)
    told = [f"burn-in and sweep run with the job's {', '.join(given)}"] if given else []
    told += [f"without {', '.join(names)} ({why})" for why, names in reasons.items()]
    return [f"environ  {'; '.join(told)}"] if told else []


def _rounds(fleet: Fleet, planned: Planned) -> list[str]:
    """Say which rounds, how to have the same again, and who said what hangs on which leaf."""
    leaves = len(set(planned.leaves.values()))
    known = f"{leaves} {'leaf' if leaves == 1 else 'leaves'} by {planned.topology}"
    lacking = [host.name for host in fleet.hosts if host.name not in planned.leaves]
    none = f", none known of {fold(lacking)}" if leaves and lacking else ""
    switches = f"{known}{none}" if leaves else "no topology known"
    if fleet.topology_remark:
        switches += f" ({fleet.topology_remark})"
    of_all = f"{len(planned.rounds)} of {planned.total}" if planned.total else "as planned"
    return [f"rounds   {of_all}, seed {planned.seed}; {switches}"]


def _no_rounds(nodes: int) -> list[str]:
    return ["rounds   none: one node has no pairs"] if nodes == 1 else []


def _how_many(fleet: Fleet, nodes: str, at_most: int) -> str:
    if not fleet.ranks:
        return f"{at_most} at a time"
    ranks = "1 rank" if fleet.ranks == 1 else f"{fleet.ranks} ranks"
    again = "; a failed rank would start preflight anew: use --max-restarts=0"
    return f"{nodes}, {ranks}{again if fleet.restarts else ''}"
