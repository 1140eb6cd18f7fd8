"""The current Slurm allocation, its launcher, and what Slurm (as of 22.05) prints about nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final

from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.core.remote_command import ReachError, run_here
from preflight.core.text import excerpt
from preflight.errors import UsageError
from preflight.fleet.job_environment import slurm_environ
from preflight.fleet.nodeset import expand, fold
from preflight.transport import reach_error

QUERY_S = 10.0
"""Deadline of Slurm's query commands."""

SINFO: Final = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%E")
"""Prints a line NAME|STATE|REASON for each node, one for each of its partitions."""

OVERLAP_SINCE = (20, 11)
_VERSION = re.compile(r"slurm\S{0,40}\s+(\d+)\.(\d+)")


class Launcher:
    """Starts commands through srun inside one allocation."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = slurm_environ(environ)

    def command(self, nodes: Sequence[str]) -> list[str]:
        """Return the srun command for these nodes, to which the task's own command is appended.

        Its options override those of slurm.conf, of the site's defaults and of the job.
        """
        words = ["srun", "--job-name=preflight", f"--nodes={len(nodes)}"]
        words += [f"--nodelist={fold(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
        words += ["--mpi=none", "--export=ALL", "--chdir=/", "--input=all", "--quit-on-interrupt"]
        # The job's own steps may use all resources; share them, take none.
        words += [*self._sharing, "--mem=0", "--cpu-bind=none"]
        # A failure of one node must end neither the others nor the job.
        return [*words, "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]

    def states(self, nodes: Sequence[str]) -> str:
        """Return a line NAME|STATE|REASON for each partition of each of these nodes."""
        return query([*SINFO, f"--nodes={fold(nodes)}"], self.environ)

    @cached_property
    def ports(self) -> range | None:
        """The ports that firewalls between Slurm's nodes let through, if SrunPortRange is set."""
        config = query(["scontrol", "show", "config"], self.environ)
        match = re.search(r"^SrunPortRange\s*=\s*(\d+)-(\d+)", config, re.MULTILINE)
        ports = range(int(match[1]), int(match[2]) + 1) if match else range(0)
        return ports if ports and ports[0] > 0 else None

    @cached_property
    def _sharing(self) -> tuple[str, ...]:
        """Steps share the job's resources by default before 20.11, and with --overlap since."""
        match = _VERSION.search(query(["srun", "--version"], self.environ))
        is_old = match is not None and (int(match[1]), int(match[2])) < OVERLAP_SINCE
        return () if is_old else ("--overlap",)


def query(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the output of one of Slurm's commands; "" if it does not end in time."""
    result = run_here(argv, QUERY_S, environ)
    return result.stdout.decode("utf-8", "replace") if result else ""


_STATES: Final = shipped_table(__file__, "slurm_states.toml")
MARKS: Final[dict[str, list[str]]] = _STATES["marks"]
"""What may be appended to a state: the word of today's scontrol for it, and ours for people."""

_MARKS = "".join(MARKS)


class NodeUse(Struct, frozen=True, kw_only=True):
    """One node as sinfo shows it."""

    name: str
    state: str
    """Slurm's long state name in lower case, its suffix included: "idle", "mixed", "idle*"."""
    reason: str = ""
    """Why it was drained or is down; "" if Slurm has no reason."""

    @property
    def free(self) -> bool:
        """Whether the next job may start there: idle, not reserved or planned, and responding."""
        return self.state == "idle"

    @property
    def reserved(self) -> bool:
        """Whether nothing runs there, and only jobs of a reservation may start."""
        return self.state.rstrip("$") in _STATES["reserved"] or self.state == "idle$"

    @property
    def working(self) -> bool:
        """Whether a job runs there."""
        return self.state.rstrip(_MARKS) in _STATES["working"]

    @property
    def down(self) -> bool:
        """Whether no job can start there."""
        return self.state.startswith(tuple(_STATES["down"])) or self.state.endswith("*")

    @property
    def words(self) -> str:
        """Say why it is not checked, or down."""
        why = f": {self.reason}" if self.reason else ""
        if self.working and not self.down:
            return f"in use ({self.state})"
        if self.reserved:
            return f"reserved for others ({self.state})"
        if self.state == "planned":
            return "planned for a waiting job (planned)"
        marks = [MARKS[mark][1] for mark in self.state if mark in MARKS]
        return f"{', '.join([self.state.rstrip(_MARKS) or 'of no state', *marks])}{why}"


class Reservation(Struct, frozen=True, kw_only=True):
    """Nodes that an operator has set aside."""

    nodes: tuple[str, ...]
    active: bool
    starts: str
    ends: datetime | None
    """In this machine's time zone, as scontrol prints it; None if it has no end."""


def parse_nodes(text: str) -> dict[str, NodeUse]:
    """Read sinfo's lines NAME|STATE|REASON, one or more a node; any other line is skipped.

    If a node is in several partitions, the line that says it is not free counts.
    """
    uses: dict[str, NodeUse] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        state = excerpt(state.strip().lower(), 40)
        if not name or not state:
            continue
        cause = excerpt(reason.strip(), 100)
        use = NodeUse(name=name, state=state, reason="" if cause in ("none", "(null)") else cause)
        if name not in uses or uses[name].free:
            uses[name] = use
    return uses


def parse_reservation(text: str) -> Reservation | None:
    """Read `scontrol --oneliner show reservation NAME`; None if it is not that."""
    words = dict(re.findall(r"\b(\w+)=(\S*)", text))
    if "ReservationName" not in words or "Nodes" not in words:
        return None
    try:
        nodes = expand(words["Nodes"])
    except UsageError:
        return None
    try:
        ends = datetime.fromisoformat(words.get("EndTime", "")).astimezone()
    except ValueError:
        ends = None
    return Reservation(
        nodes=nodes,
        active=words.get("State") == "ACTIVE",
        starts=excerpt(words.get("StartTime", "an unknown time"), 40),
        ends=ends,
    )


_LAUNCH_FAILED = re.compile(r"Task launch for \S+ failed on node ([^\s:]+): (.*)")
_EXITED = re.compile(r"error: ([^\s:]+): tasks? [\d,\-]+: (.*)")
_EXECVE = re.compile(r"error: execve\(\): (.*)")
_ERROR = re.compile(r"^(?:srun|slurmstepd\S*): (?:error|fatal): (.*)")


def down_nodes(listing: str) -> dict[str, ReachError]:
    """Name the nodes that are down according to Slurm; `listing`: the output of NODES."""
    uses = parse_nodes(listing).items()
    return {name: reach_error("slurm_says", words=use.words) for name, use in uses if use.down}


def failed_launches(line: str) -> dict[str, ReachError]:
    """Name the nodes on which srun could not start its task: srun then ends the whole step."""
    return _errors_of(_LAUNCH_FAILED.search(line), "not_started")


def exited_nodes(line: str) -> dict[str, ReachError]:
    """Name the nodes on which our task has ended; the others go on without them."""
    return _errors_of(_EXITED.search(line), "step_ended")


def _errors_of(match: re.Match[str] | None, kind: str) -> dict[str, ReachError]:
    if match is None:
        return {}
    try:
        names = expand(match[1])
    except UsageError:
        names = (match[1],)
    return dict.fromkeys(names, reach_error(kind, reason=excerpt(match[2], 120)))


def missing_python(line: str, python: str) -> ReachError | None:
    """Return the error if a line says that Python could not be run; Slurm does not say where."""
    match = _EXECVE.search(line)
    if match is None:
        return None
    return reach_error("no_python", python=python, reason=excerpt(match[1], 120))


def first_error(lines: Iterable[str]) -> str:
    """Return the first error of srun: the later ones follow from it."""
    return next((excerpt(match[1]) for line in lines if (match := _ERROR.match(line))), "")
