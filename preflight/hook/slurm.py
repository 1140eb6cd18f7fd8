"""What Slurm says of this node, and the one word we may tell it: each call has a deadline.

By absolute path, as a prolog has no PATH; never through a shell; by the name of one node alone.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.errors import PreflightError
from preflight.hook.bounded import answer_of
from preflight.hook.lifeline import orphaned
from preflight.hook.slurm_words import parse_listed, parse_node, parse_now, parse_sizes
from preflight.trust import who_may_change

if TYPE_CHECKING:
    from preflight.hook.model import NodeState
    from preflight.hook.slurm_words import Noted

FOLDERS: Final = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
    "/opt/slurm/current/bin",
    "/cm/shared/apps/slurm/current/bin",
)
"""Where Debian, a source build and the usual cluster managers put scontrol."""

CALL_S: Final = 2.0
"""One call of scontrol or sinfo, at most; a controller that answers does so in milliseconds."""

LEAST_S: Final = 0.1
"""With less than this nothing is begun: a change that is cut off may have been made or not."""

_NODE = re.compile(r"(?!(?i:all)$)[A-Za-z0-9][A-Za-z0-9._-]*")
"""One node: neither a list of them nor `ALL`, which scontrol takes for the whole cluster."""


class SlurmError(PreflightError):
    """Slurm did not answer, in time or at all; the text says what was tried."""


class Slurm:
    """The scheduler of this node; every call ends by `until_s` (monotonic clock)."""

    def __init__(self, folder: Path | None, until_s: float) -> None:
        self._folder = folder
        self._until_s = until_s

    def node(self, name: str) -> NodeState:
        """Read the node's state and reason; SlurmError if they could not be."""
        told = self._run("scontrol", "show", "node", _one(name))
        state = parse_node(told)
        if state is None:
            said = " ".join(told.split())[:80]
            raise SlurmError(f"scontrol told no state of {name}, but {said!a}")
        return state

    def drain(self, name: str, reason: str) -> None:
        """Take the node out of service: what runs there may end, nothing new starts."""
        self._update(name, "State=DRAIN", f"Reason={reason}")

    def undrain(self, name: str) -> None:
        """Let jobs start on it again. A node that is also down stays so: that is not ours."""
        self._update(name, "State=UNDRAIN")

    def sizes(self) -> dict[str, int]:
        """Count the nodes of every partition."""
        return parse_sizes(self._run("sinfo", "--noheader", "--all", "--format=%R %D"))

    def noted(self, name: str) -> tuple[Noted, ...]:
        """Every node that carries a reason, with when it was set.

        SlurmError for an answer without the node that asks: silence is no fleet without drains.
        """
        words = ("--noheader", "--all", "--Node", "--format=%N|%H|%E")
        told = parse_listed(self._run("sinfo", *words))
        if name not in told:
            raise SlurmError(f"sinfo does not list {name} among its nodes: look at what it prints")
        return tuple(one for one in told.values() if one.reason != "none")

    def now_s(self) -> float | None:
        """Seconds since the epoch by the controller's clock, as its reasons have; None if untold.

        A node's own clock may be wrong, or be set by whoever made the mistake of the day.
        """
        try:
            return parse_now(self._run("scontrol", "show", "config"))
        except SlurmError:
            return None

    def _update(self, name: str, *changes: str) -> None:
        """Change the node, after a last look: what nobody would log any more is not done."""
        if orphaned():
            raise SlurmError("the hook itself was ended, so nothing is changed")
        if self._until_s - time.monotonic() < LEAST_S:
            raise SlurmError("there is no time left to tell slurmctld: raise budget_s in hook.toml")
        self._run("scontrol", "update", f"NodeName={_one(name)}", *changes)

    def _run(self, tool: str, *words: str) -> str:
        program = find(tool, self._folder)
        shown = " ".join((tool, *words[:1]))
        began_s = time.monotonic()
        until_s = min(began_s + CALL_S, self._until_s)
        try:
            told = answer_of([program, *words], _environ(), until_s)
        except OSError as error:
            raise SlurmError(f"{program}: {error.strerror}; look at it there") from error
        if told is None:
            waited_s = max(0.0, until_s - began_s)
            raise SlurmError(f"{shown} gave no answer within {waited_s:.1f} s: is slurmctld up?")
        if told.code:
            said = " ".join((told.err or told.out[:200]).split()) or "no word"
            raise SlurmError(f"{shown} failed: {said}")
        return told.out


def find(tool: str, folder: Path | None) -> Path:
    """Find a program of Slurm that root may run; SlurmError says why there is none."""
    for place in (folder,) if folder is not None else map(Path, FOLDERS):
        program = place / tool
        if os.access(program, os.X_OK):
            if os.geteuid() == 0 and (whose := who_may_change(program)):
                raise SlurmError(f"{program} is not run: {whose}; give it to root")
            return program
    where = folder or "the usual folders"
    raise SlurmError(f"no {tool} in {where}: set slurm_bin in hook.toml to its folder")


def _one(name: str) -> str:
    if not _NODE.fullmatch(name):
        raise SlurmError(f"{name[:40]!a} is not the name of one node: look at SLURMD_NODENAME")
    return name


def _environ() -> dict[str, str]:
    """Nothing of a job, and times in UTC; slurmd tells where its configuration is."""
    conf = os.environ.get("SLURM_CONF")
    fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    return {**fixed, **({"SLURM_CONF": conf} if conf else {})}
