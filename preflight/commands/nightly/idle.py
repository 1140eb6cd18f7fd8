"""Whom a sweep may look at: nodes that nobody works on. The others are named, never condemned."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.errors import UsageError
from preflight.fleet.nodeset import expand
from preflight.sweeping.slurm_ask import SlurmError, ask_nodes, ask_reservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.sweeping.slurm import NodeUse, Reservation

Whom = Literal["idle", "reservation", "all"]

UNKNOWN_TO_SLURM = "Slurm does not know it"


class Chosen(Struct, frozen=True):
    """The nodes to look at, in the order given, and why not the others."""

    nodes: tuple[str, ...]
    left_out: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """Asks Slurm anew each time: jobs start while a sweep goes on."""

    whom: Whom
    reservation: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    """Nodes of the allocation that the sweep itself runs in: they are busy with us."""

    def choose(self, names: Iterable[str]) -> Chosen:
        """Sort the nodes; SlurmError without an answer, UsageError for a reservation of no use."""
        if self.whom == "all":
            return Chosen(tuple(names))
        held = self.held()
        uses = ask_nodes(self.environ)
        free: list[str] = []
        left_out: dict[str, str] = {}
        for name in names:
            why = "" if name in self.ours else _why_not(name, uses, held)
            if why:
                left_out[name] = why
            else:
                free.append(name)
        return Chosen(tuple(free), left_out)

    def held(self) -> Reservation | None:
        """The reservation as it is now; None where none was named."""
        if self.whom != "reservation":
            return None
        return ask_reservation(self.reservation, self.environ)

    def arrived(self, names: Iterable[str]) -> dict[str, str]:
        """Nodes on which somebody's job has begun, and its state there; nobody without an answer.

        A slurmctld that does not answer starts no job either.
        """
        if self.whom == "all":
            return {}
        try:
            uses = ask_nodes(self.environ)
        except SlurmError:
            return {}
        found = {name: _use_of(name, uses) for name in names if name not in self.ours}
        return {name: use.words for name, use in found.items() if use is not None and use.working}


def chosen_way(*, idle: bool, reservation: str | None, whole: bool) -> Whom | None:
    """What the options say; None if nothing. UsageError where they contradict each other."""
    said: list[Whom] = ["idle"] if idle else []
    said += ["reservation"] if reservation is not None else []
    said += ["all"] if whole else []
    if len(said) > 1:
        raise UsageError("--idle, --reservation and --whole-fleet are three ways: give one of them")
    if reservation == "":
        raise UsageError("--reservation is empty: give the name of one")
    return said[0] if said else None


def chooser(environ: Mapping[str, str], whom: Whom | None, reservation: str = "") -> Chooser:
    """How nodes are chosen: Slurm is asked where there is one, if nobody said; UsageError."""
    here = shutil.which("sinfo", path=environ.get("PATH")) is not None
    if not here and whom in ("idle", "reservation"):
        raise UsageError(
            "Slurm's sinfo is not here, so nobody tells which nodes are idle: run this where it "
            "is, or give --whole-fleet (nodes on whose GPUs somebody works are spared all the same)"
        )
    whom = whom or ("idle" if here else "all")
    return Chooser(whom=whom, reservation=reservation, environ=environ, ours=_ours(environ))


def _ours(environ: Mapping[str, str]) -> frozenset[str]:
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    try:
        return frozenset(expand(nodes)) if nodes and environ.get("SLURM_JOB_ID") else frozenset()
    except UsageError:  # it is refused where it names the fleet
        return frozenset()


def _use_of(name: str, uses: Mapping[str, NodeUse]) -> NodeUse | None:
    """Slurm knows nodes by their short names; a fleet may not."""
    return uses.get(name) or uses.get(name.partition(".")[0])


def _why_not(name: str, uses: Mapping[str, NodeUse], held: Reservation | None) -> str:
    use = _use_of(name, uses)
    if use is None:
        return UNKNOWN_TO_SLURM
    if held is not None and not {name, name.partition(".")[0]} & set(held.nodes):
        return "not in the reservation"
    if use.free or (held is not None and use.reserved):
        return ""
    return use.words
