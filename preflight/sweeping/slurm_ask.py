"""Asks Slurm who uses which node, under deadlines; nothing here changes anything in Slurm."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from preflight.errors import PreflightError, UsageError
from preflight.sweeping.slurm import NodeUse, Reservation, parse_nodes, parse_reservation
from preflight.transport.legible import legible
from preflight.transport.slurm.job import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASK_S = 20.0
"""A slurmctld under load answers late; a sweep that is to run for hours waits for it."""

LARGEST = 16 << 20
"""Bytes of an answer; 64 Ki nodes in four partitions take 12 MiB."""

_SINFO = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%E")
_NOT_FOUND = b" not found"
"""An answer as well: Slurm is there, and what was asked for is not."""

_NO_CLUSTER = (b"Could not establish a configuration source", b"ClusterName needs to be specified")
"""What Slurm's commands say where they are installed and nothing is configured."""

_RESERVATION_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+@:-]{0,127}")


class SlurmError(PreflightError):
    """Slurm gave no usable answer; the text says which command did not, and what to do."""


def ask_nodes(environ: Mapping[str, str]) -> dict[str, NodeUse]:
    """Ask who uses which node, by Slurm's names; SlurmError if it does not say."""
    found = parse_nodes(_ask(_SINFO, environ))
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
