"""Which nodes a sweep may measure: those on which Slurm says nobody works."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.text import legible
from preflight.errors import PreflightError, UsageError
from preflight.fleet.nodeset import expand
from preflight.transport.slurm import NODES, clean, parse_nodes, parse_reservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.transport.slurm import NodeUse, Reservation


ASK_S = 20.0
"""A slurmctld under load answers late; a sweep that is to run for hours waits for it."""

LARGEST = 16 << 20
"""Bytes of an answer; 64 Ki nodes in four partitions take 12 MiB."""

_NOT_FOUND = b" not found"
"""An answer as well: Slurm is there, and what was asked for is not."""

_NO_CLUSTER = (b"Could not establish a configuration source", b"ClusterName needs to be specified")
"""What Slurm's commands say where they are installed and nothing is configured."""

_RESERVATION_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+@:-]{0,127}")


class SlurmError(PreflightError):
    """Slurm gave no usable answer; the text says which command did not, and what to do."""


def ask_nodes(environ: Mapping[str, str]) -> dict[str, NodeUse]:
    """Ask who uses which node, by Slurm's names; SlurmError if it does not say."""
    found = parse_nodes(_ask(NODES, environ))
    if not found:
        raise SlurmError("sinfo names no node: see `sinfo --Node`, or give --whole-fleet")
    return found


def ask_reservation(name: str, environ: Mapping[str, str]) -> Reservation:
    """Ask for an active reservation; UsageError if there is none, SlurmError without an answer."""
    if not _RESERVATION_NAME.fullmatch(name):  # scontrol would take some for an option
        raise UsageError(f"--reservation={name[:60]!a}: give a name as `scontrol` shows it")
    show = ("scontrol", "--oneliner", "show", "reservation", name)
    found = parse_reservation(_ask(show, environ))
    if found is None:
        raise UsageError(
            f"--reservation={name[:60]!a}: Slurm shows none of that name with nodes; "
            "see: scontrol show reservation"
        )
    if not found.active:
        raise UsageError(
            f"--reservation={name[:60]!a} is not active, it starts {found.starts}: sweep then"
        )
    return found


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """What one of Slurm's commands prints; SlurmError in one line if it gives no answer."""
    hand = f"try it by hand: {argv[0]}; or give --whole-fleet to leave Slurm out"
    try:
        done = subprocess.run(
            argv, env=clean(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=ASK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = f", it said: {words}" if (words := _last(error.stderr)) else ""
        raise SlurmError(f"{argv[0]} did not answer in {ASK_S:g} s{said}; {hand}") from error
    except OSError as error:
        raise SlurmError(f"{argv[0]} cannot be run ({error.strerror}); {hand}") from error
    if done.returncode and _NOT_FOUND not in done.stdout + done.stderr:
        if any(words in done.stderr for words in _NO_CLUSTER):
            raise SlurmError(
                f"{argv[0]} is here, but it knows no cluster (no slurm.conf where it looks): set "
                "SLURM_CONF to that of your cluster, or give --whole-fleet to leave Slurm out"
            )
        said = _last(done.stderr) or "nothing"
        raise SlurmError(f"{argv[0]} gave up, it said: {said}; {hand}")
    return done.stdout[:LARGEST].decode("utf-8", "replace")


def _last(said: bytes | None) -> str:
    """The line in which Slurm's commands say why they end; those before it tell the way there."""
    lines = [line for line in (said or b"").decode("utf-8", "replace").splitlines() if line.strip()]
    return legible(lines[-1].strip(), 150) if lines else ""


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
