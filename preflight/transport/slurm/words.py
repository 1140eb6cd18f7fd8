"""What Slurm says of nodes that cannot run our step, in its own words and by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.nodeset import expand
from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAUNCH = re.compile(r"Task launch for \S+ failed on node ([^\s:]+): (.*)")
_EXITED = re.compile(r"error: ([^\s:]+): tasks? [\d,\-]+: (.*)")
_EXECVE = re.compile(r"error: execve\(\): (.*)")
_ERROR = re.compile(r"^(?:srun|slurmstepd\S*): (?:error|fatal): (.*)")
_NOT_UP = ("down", "fail", "error", "unknown", "powering", "powered", "reboot")
"""States, as sinfo begins them, in which a node runs nothing; an asterisk: it does not respond."""


def down(listing: str) -> dict[str, ReachError]:
    """Name the nodes that Slurm itself says cannot start anything.

    `listing`: lines of `sinfo --Node --format=%N|%T|%E` (name, state, reason).
    """
    found = {}
    for line in listing.splitlines():
        name, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if state.startswith(_NOT_UP) or state.endswith("*"):
            found[name] = _by_state(state, legible(reason, 100))
    return found


def _by_state(state: str, reason: str) -> ReachError:
    why = "" if reason in ("", "none", "None") else f", reason: {reason}"
    silent = " (it does not respond)" if state.endswith("*") else ""
    return ReachError(
        "route",
        f"Slurm says it is {legible(state, 30).rstrip('*')}{silent}{why}",
        "look whether the node is up and slurmd runs on it; then: "
        "scontrol update nodename=NAME state=resume",
    )


def not_started(line: str) -> dict[str, ReachError]:
    """Name the nodes on which srun could not start us: it ends the whole step for them."""
    found = _LAUNCH.search(line)
    if found is None:
        return {}
    sentence = f"Slurm could not start our step on it: {legible(found[2], 120)}"
    advice = "look at slurmd and its log on the node, and at its prolog"
    return dict.fromkeys(_names(found[1]), ReachError("route", sentence, advice))


def exited(line: str) -> dict[str, ReachError]:
    """Name the nodes on which our task has ended: the others go on without them."""
    found = _EXITED.search(line)
    if found is None:
        return {}
    sentence = f"our step ended there: {legible(found[2], 120)}"
    advice = "look at slurmd's log on the node, and whether it has the Python of the others"
    return dict.fromkeys(_names(found[1]), ReachError("python", sentence, advice))


def missing_python(line: str, python: str) -> ReachError | None:
    """Say so if a line tells that our Python could not be run; Slurm does not say where."""
    found = _EXECVE.search(line)
    if found is None:
        return None
    return ReachError(
        "python",
        f"{python}: {legible(found[1], 120)}",
        "install Python 3.8 or newer on the node, or name the job's with --preflight-python",
    )


def complaint(lines: Iterable[str]) -> str:
    """Pick the error that srun gave up with: the first, for the later ones follow from it."""
    return next((legible(found[1]) for line in lines if (found := _ERROR.match(line))), "")


def _names(folded: str) -> tuple[str, ...]:
    try:
        return expand(folded)
    except UsageError:
        return (folded,)
