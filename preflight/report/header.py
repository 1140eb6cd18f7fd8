"""The header of a run: the nodes, how they are reached, what will run, how long, and the report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight import __version__
from preflight.check import STAGES, Stage
from preflight.core.statistics import grouped
from preflight.core.text import count, cut_list
from preflight.core.thresholds import Override, describe_override, shipped
from preflight.facts.basics import Count
from preflight.fleet.model import Fleet, Host, today
from preflight.fleet.nodeset import fold
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import date

    from preflight.core.registry import Entry
    from preflight.fabric.schedule import Planned
    from preflight.transport.ways import Choice


_BASELINE = "baseline "
_NOTHING_WAIVED = " (nothing to waive in this run)"


class WaiverRow(Struct, frozen=True, kw_only=True):
    """A failure that is accepted for a while, and how many verdicts of this run it covered."""

    check: str
    nodes: tuple[str, ...]
    until: str
    reason: str
    expired: bool
    verdicts: Count


class OffRow(Struct, frozen=True, kw_only=True):
    """A check that is off for these nodes, and where the inventory says so."""

    check: str
    nodes: tuple[str, ...]
    by: str


class NumberRow(Struct, frozen=True, kw_only=True):
    """A number that replaces a shipped one, and where the inventory sets it."""

    name: str
    value: float
    shipped: float | None
    nodes: tuple[str, ...]
    by: str


class Overrides(Struct, frozen=True, kw_only=True):
    """What the inventory overrides: waivers, checks that are off, numbers."""

    waivers: tuple[WaiverRow, ...] = ()
    off: tuple[OffRow, ...] = ()
    numbers: tuple[NumberRow, ...] = ()


def overrides(fleet: Fleet, day: date, entries: Iterable[Entry] = ()) -> Overrides:
    """Collect a fleet's overrides; `entries`: the run's verdicts, once it is over."""
    waived = Counter(
        (entry.check, name)
        for entry in entries
        if entry.verdict.outcome is Outcome.WAIVED
        for name in set(_at_fault(entry))
    )
    off = grouped((switch, host.name) for host in fleet.hosts for switch in host.off.items())
    return Overrides(
        waivers=tuple(
            WaiverRow(
                check=waiver.check,
                nodes=waiver.nodes,
                until=str(waiver.until),
                reason=waiver.reason,
                expired=waiver.expired(day),
                verdicts=0
                if waiver.expired(day)
                else sum(waived[waiver.check, name] for name in set(waiver.nodes)),
            )
            for waiver in fleet.waivers
        ),
        off=tuple(
            OffRow(check=check, nodes=tuple(names), by=origin)
            for (check, origin), names in off.items()
        ),
        numbers=tuple(_number_rows(fleet.hosts)),
    )


def _at_fault(entry: Entry) -> Sequence[str]:
    verdict = entry.verdict
    at_fault = (*verdict.culprits, *verdict.suspects)
    return at_fault or ((verdict.blame,) if verdict.blame else entry.nodes)


def _number_rows(hosts: Sequence[Host]) -> Iterable[NumberRow]:
    nodes_by_entry = grouped(
        ((f"{kind}{name}", override.value, override.where), host.name)
        for host in hosts
        for kind, numbers in (("", host.expected.limits), (_BASELINE, host.expected.baselines))
        for name, override in numbers.items()
    )
    for (name, value, origin), names in nodes_by_entry.items():
        threshold = shipped().get(name)
        yield NumberRow(
            name=name,
            value=value,
            shipped=threshold.value if threshold else None,
            nodes=tuple(names),
            by=origin,
        )


def override_lines(fleet: Fleet, day: date) -> list[str]:
    """Lines of the header: an operator must see what will not count against a node in this run."""
    rows = overrides(fleet, day)
    lines = [f"{label:<8} {words}" for label, words in override_rows(rows, is_over=False)]
    for row in rows.numbers:
        number = describe_override(row.name, Override(row.value, row.by))
        lines.append(f"number   {number} for {fold(row.nodes)}")
    return lines


def override_rows(rows: Overrides, *, is_over: bool = True) -> list[tuple[str, str]]:
    """(label, line) of each waiver and each check that is off.

    `is_over`: the run has ended, so a waiver says how many verdicts it covered.
    """
    lines = []
    for row in rows.waivers:
        words = f"{row.check} on {fold(row.nodes)} until {row.until}: {row.reason}"
        if row.expired:
            words += "; it has no effect: remove or renew it"
        elif is_over:
            words += f" ({count(row.verdicts, 'verdict')})" if row.verdicts else _NOTHING_WAIVED
        lines.append(("expired" if row.expired else "waived", words))
    return lines + [("off", f"{row.check} for {fold(row.nodes)} ({row.by})") for row in rows.off]


LOGINS = 1000
"""With more nodes, logging in to each takes too long: see docs/how-to/slurm.md."""


def slurm_job(fleet: Fleet) -> str:
    """Return the id of the Slurm job in which preflight runs; empty if it is not known."""
    return (fleet.job.environ or {}).get("", {}).get("SLURM_JOB_ID", "")[:20]


def too_many_logins(fleet: Fleet) -> list[str]:
    """Recommend srun for a fleet that is too large for a login to each node."""
    if sum(host.transport not in ("srun", "torchrun", "local") for host in fleet.hosts) <= LOGINS:
        return []
    advice = "run inside an allocation: srun starts all at once"
    return [f"note     for more than {LOGINS:,} nodes {advice}"]


_LOADS = ["burn-in  every device of every node, all nodes at once, before the pairs"]


def header(
    fleet: Fleet,
    reach: str,
    keys: Collection[tuple[str, tuple[str, ...]]],
    planned: Planned,
    *,
    tier: str,
    limits: str,
    at_most: int,
    loads: bool,
    estimate: Sequence[str],
    where: str,
    replay: str = "",
) -> list[str]:
    """Lay out the header; nothing in it is secret.

    `keys`: check and nodes of each expected verdict. `estimate`: finished lines on the time.
    `replay`: the recorded run that is judged again.
    """
    total = len(fleet.hosts)
    nodes = count(total, "node")
    per_node = sum(len(names) == 1 for _, names in keys) // total
    of_fleet = sum(not names for _, names in keys)
    has_pairs = any(len(names) > 1 for _, names in keys)
    gpus = sum(host.expected.gpus or 0 for host in fleet.hosts)
    hardware = f", {gpus} GPUs expected" if gpus else ", nothing expected"
    sources = sorted({host.expected.origin.split(" [")[0] for host in fleet.hosts} - {""})
    others = sources if fleet.origin not in sources else []
    inventory = f"; expected by {', '.join(others)}" if others else ""
    rounds = len(planned.rounds) if has_pairs else 0
    fabric = f", {count(rounds, 'round')} of pairs" if rounds else ""
    fleet_words = f", {of_fleet} of the whole fleet" if of_fleet else ""
    pattern = fold(host.name for host in fleet.hosts)
    port = f"{fleet.job.master_port} ({fleet.job.master_port_origin})"
    environ = fleet.job.environ_origin or "not known"
    verdicts = count(len(keys), "verdict")
    return [
        f"preflight {__version__}",
        f"fleet    {pattern}  {nodes}{hardware}  (from {fleet.origin}{inventory})",
        f"replay   {replay}" if replay else f"reach    {reach}, {_starts(fleet, nodes, at_most)}",
        *too_many_logins(fleet),
        f"job      master {fleet.master.name} port {port}; environment: {environ}",
        f"checks   {tier}: {per_node} per node{fleet_words}{fabric}, {verdicts} expected",
        *(_LOADS if loads else []),
        *(_environ_lines(fleet) if loads or rounds else []),
        *(_round_lines(fleet, planned) if rounds else []),
        *(["rounds   none: one node has no pairs"] if total == 1 and not rounds else []),
        f"limits   {limits}",
        *estimate,
        *override_lines(fleet, today()),
        f"report   {where}",
    ]


def plan_lines(fleet: Fleet, verdicts: Iterable[tuple[Stage, str]]) -> list[str]:
    """Say for `--co` what would run, by stage, and where this machine would log in.

    `verdicts`: the stage and the check of each.
    """
    by_stage = grouped(verdicts)
    lines = [
        f"{stage:<8} {count(len(set(by_stage[stage])), 'check')}, "
        f"{count(len(by_stage[stage]), 'verdict')}"
        for stage in STAGES
        if stage in by_stage
    ]
    logins = [host for host in fleet.hosts if host.transport not in _LOCAL_WORDS]
    ways = grouped(((host.transport, host.user, host.port), host.name) for host in logins)
    for (transport, user, port), names in ways.items():
        as_user, at_port = f" as {user}" if user else "", f", port {port}" if port else ""
        lines.append(f"login    {transport} to {fold(names)}{as_user}{at_port}")
    by_address = [host for host in logins if host.address != host.name]
    if elsewhere := [f"{host.name} at {host.address}" for host in by_address]:
        lines.append(f"address  {'; '.join(cut_list(elsewhere, _MOST_PARTS))}")
    if not logins:
        lines.append("login    to no node")
    return [*lines, "list     each verdict: the same command with -v, or ids alone: with -q"]


def _environ_lines(fleet: Fleet) -> list[str]:
    """The job's variables with which burn-in and sweep run, and those left out, by reason."""
    variables, left_out = fleet.measured_in
    reasons = grouped((reason, name) for name, reason in sorted(left_out.items()))
    parts = [f"burn-in and sweep run with the job's {', '.join(variables)}"] if variables else []
    parts += [f"without {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return [f"environ  {'; '.join(parts)}"] if parts else []


def _round_lines(fleet: Fleet, planned: Planned) -> list[str]:
    """The rounds, the seed that repeats them, and the source of the topology."""
    leaves = len(set(planned.leaves.values()))
    topology = f"{leaves} {'leaf' if leaves == 1 else 'leaves'} by {planned.topology}"
    without_leaf = [host.name for host in fleet.hosts if host.name not in planned.leaves]
    gap = f", none known of {fold(without_leaf)}" if leaves and without_leaf else ""
    switches = f"{topology}{gap}" if leaves else "no topology known"
    if fleet.topology_remark:
        switches += f" ({fleet.topology_remark})"
    share = f"{len(planned.rounds)} of {planned.total}" if planned.total else "as planned"
    return [f"rounds   {share}, seed {planned.seed}; {switches}"]


def _starts(fleet: Fleet, nodes: str, at_most: int) -> str:
    if not fleet.ranks:
        return f"{at_most} at a time"
    ranks = count(fleet.ranks, "rank")
    advice = "; a failed rank would start preflight again: use --max-restarts=0"
    return f"{nodes}, {ranks}{advice if fleet.restarts else ''}"


_SSH_WORDS: Final = {"paramiko": "paramiko", "openssh": "OpenSSH", "ssh": "paramiko or OpenSSH"}
_LOCAL_WORDS: Final = {"local": "local processes", "torchrun": "torchrun (the job's own store)"}
_MOST_PARTS: Final = 4


def reach_words(hosts: Sequence[Host], ways: Mapping[str, Choice], slurm_job: str = "") -> str:
    """How the nodes are reached; `ways`: the ways found out so far, by node name."""
    job = f"Slurm job {slurm_job}, one step" if slurm_job else "one Slurm step"
    titles = {**_LOCAL_WORDS, "srun": f"srun ({job})"}
    rows = [(ways.get(host.name), host) for host in hosts]
    by_way = grouped(
        ((way.transport, way.why) if way else (host.transport, ""), host.name) for way, host in rows
    )
    by_ssh = {way: names for way, names in by_way.items() if way[0] in _SSH_WORDS}
    by_name = {name: names for (name, _), names in by_way.items() if name not in _SSH_WORDS}
    parts = [f"ssh ({_ssh_words(by_ssh)}, known hosts only)"] if by_ssh else []
    mixed = len(by_name) + len(by_ssh) > 1
    for name, names in by_name.items():
        words = titles.get(name, name)
        parts.append(f"{words} x{len(names)}" if mixed else words)
    return ", ".join(parts)


def _ssh_words(by_ssh: Mapping[tuple[str, str], Sequence[str]]) -> str:
    several = len(by_ssh) > 1
    parts = [
        _SSH_WORDS[name] + (f" for {fold(names)}" if several else "") + (f": {why}" if why else "")
        for (name, why), names in by_ssh.items()
    ]
    return "; ".join(cut_list(parts, _MOST_PARTS))
