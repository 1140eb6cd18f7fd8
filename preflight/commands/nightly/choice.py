"""Chooses the nodes of tonight's run, those that are idle in Slurm, and puts them into waves.

Over the nights every two nodes share a wave. The fleet is cut, leaf by leaf, into halves of waves;
a wave is two halves. Halves are paired like nodes in a schedule of pairs: on a circle, in which
every two of them share a wave exactly once. Slurm's output is read as 22.05 prints it.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from preflight.core.text import last_line, natural
from preflight.errors import PreflightError, UsageError
from preflight.fabric.schedule import circle
from preflight.fleet.job_environment import slurm_environ
from preflight.fleet.sources import allocated_nodes
from preflight.transport.slurm_allocation import SINFO, parse_nodes, parse_reservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.transport.slurm_allocation import NodeUse, Reservation


ASK_S = 20.0
"""A slurmctld under load answers late, and a nightly run of hours can wait for it."""

LARGEST = 16 << 20
"""Bytes of output; 64 Ki nodes in four partitions take 12 MiB."""

_NOT_FOUND = b" not found"
"""A valid answer: Slurm works, but has no such item."""

_NO_CLUSTER = (b"Could not establish a configuration source", b"ClusterName needs to be specified")
"""Errors of Slurm's commands where they are installed but not configured."""

_RESERVATION_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+@:-]{0,127}")


class SlurmError(PreflightError):
    """Slurm gave no usable answer; the text names the command and what to do."""


def ask_nodes(environ: Mapping[str, str]) -> dict[str, NodeUse]:
    """Ask Slurm how each node is used, by Slurm's node names; SlurmError without an answer."""
    uses = parse_nodes(_ask(SINFO, environ))
    if not uses:
        raise SlurmError("sinfo lists no node: see `sinfo --Node`, or give --whole-fleet")
    return uses


def ask_reservation(name: str, environ: Mapping[str, str]) -> Reservation:
    """Ask for an active reservation; UsageError if there is none, SlurmError without an answer."""
    if not _RESERVATION_NAME.fullmatch(name):  # scontrol would take some for an option
        raise UsageError(f"--reservation={name[:60]!a}: give a name as `scontrol` shows it")
    show = ("scontrol", "--oneliner", "show", "reservation", name)
    reservation = parse_reservation(_ask(show, environ))
    if reservation is None:
        raise UsageError(
            f"--reservation={name[:60]!a}: Slurm has none of that name with nodes; "
            "see: scontrol show reservation"
        )
    if not reservation.active:
        raise UsageError(
            f"--reservation={name[:60]!a} is not active: start the nightly run at "
            f"{reservation.starts}"
        )
    return reservation


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the output of a Slurm command; SlurmError in one line if it fails."""
    advice = f"run it by hand: {argv[0]}; or give --whole-fleet to ignore Slurm"
    try:
        process = subprocess.run(
            argv, env=slurm_environ(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=ASK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = f", it printed: {words}" if (words := last_line(error.stderr or b"", 150)) else ""
        raise SlurmError(f"{argv[0]} did not answer in {ASK_S:g} s{output}; {advice}") from error
    except OSError as error:
        raise SlurmError(f"{argv[0]} cannot be run ({error.strerror}); {advice}") from error
    if process.returncode and _NOT_FOUND not in process.stdout + process.stderr:
        if any(words in process.stderr for words in _NO_CLUSTER):
            raise SlurmError(
                f"{argv[0]} found no cluster (no slurm.conf where it looks): set SLURM_CONF to "
                "that of your cluster, or give --whole-fleet to ignore Slurm"
            )
        output = last_line(process.stderr, 150) or "nothing"
        raise SlurmError(f"{argv[0]} failed and printed: {output}; {advice}")
    return process.stdout[:LARGEST].decode("utf-8", "replace")


Source = Literal["idle", "reservation", "all"]

UNKNOWN_TO_SLURM = "Slurm does not know it"


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """Chooses nodes; asks Slurm each time, as jobs start during a nightly run."""

    source: Source
    reservation: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    own_nodes: frozenset[str] = frozenset()
    """Nodes of the nightly run's own allocation: they are busy only with the nightly run."""

    def left_out(self, names: Iterable[str]) -> dict[str, str]:
        """Return why nodes are not to be checked now; the others are.

        SlurmError without an answer, UsageError for an unusable reservation.
        """
        if self.source == "all":
            return {}
        reservation, uses = self.current_reservation(), ask_nodes(self.environ)
        candidates = (name for name in names if name not in self.own_nodes)
        return {name: why for name in candidates if (why := _refusal(name, uses, reservation))}

    def current_reservation(self) -> Reservation | None:
        """Return the reservation as it is now; None if none was named."""
        if self.source != "reservation":
            return None
        return ask_reservation(self.reservation, self.environ)

    def nodes_with_jobs(self, names: Iterable[str]) -> dict[str, str]:
        """Return the nodes on which a job has begun, with their state; none without an answer.

        A slurmctld that does not answer starts no job either.
        """
        if self.source == "all":
            return {}
        try:
            uses = ask_nodes(self.environ)
        except SlurmError:
            return {}
        by_name = {name: _use_of(name, uses) for name in names if name not in self.own_nodes}
        return {name: use.words for name, use in by_name.items() if use is not None and use.working}


def chooser(environ: Mapping[str, str], source: Source | None, reservation: str = "") -> Chooser:
    """Return how nodes are chosen: without `source` by Slurm, where sinfo is found; UsageError."""
    with_slurm = shutil.which("sinfo", path=environ.get("PATH")) is not None
    if not with_slurm and source in ("idle", "reservation"):
        raise UsageError(
            "Slurm's sinfo is not on PATH, so idle nodes cannot be found: run this where it is, "
            "or give --whole-fleet (nodes with GPUs in use are skipped all the same)"
        )
    source = source or ("idle" if with_slurm else "all")
    allocation = allocated_nodes(environ)
    return Chooser(source=source, reservation=reservation, environ=environ, own_nodes=allocation)


def _use_of(name: str, uses: Mapping[str, NodeUse]) -> NodeUse | None:
    """Return a node's use: Slurm uses short host names, a fleet may use long ones."""
    return uses.get(name) or uses.get(name.partition(".")[0])


def _refusal(name: str, uses: Mapping[str, NodeUse], reservation: Reservation | None) -> str:
    use = _use_of(name, uses)
    if use is None:
        return UNKNOWN_TO_SLURM
    if reservation is not None and not {name, name.partition(".")[0]} & set(reservation.nodes):
        return "not in the reservation"
    if use.free or (reservation is not None and use.reserved):
        return ""
    return use.words


Wave = tuple[str, ...]
"""Nodes that are checked together, in the order of the fleet."""

Waves = tuple[Wave, ...]
"""The waves of one nightly run."""

LEAST, MOST = 2, 4096
"""Nodes of a wave."""

MOST_COMPARED = 64
"""Rounds of halves that are compared, and earlier nights that are read."""


def plan_waves(
    nodes: Sequence[str], leaves: Mapping[str, str], wave_size: int, earlier: Sequence[Waves] = ()
) -> Waves:
    """Put every node into one wave of at most `wave_size` nodes, those that waited longest first.

    `nodes` is the fleet in order; `earlier` are the waves of earlier nights, the latest first. If
    the same nodes are idle every night, every two of them have shared a wave after the number of
    nights that `nights_for_all_pairs` returns; with more than 64 halves, nearly all have.
    """
    if not LEAST <= wave_size <= MOST:
        raise ValueError(wave_size)
    if len(nodes) <= wave_size:
        return (tuple(nodes),) if nodes else ()
    place = {name: index for index, name in enumerate(nodes)}
    cut = _cut(nodes, leaves, _halves(len(nodes), wave_size))
    past = _PastWaves(earlier[:MOST_COMPARED], leaves)
    halves = max(_rounds(cut, earlier), key=past.score)
    waves = [tuple(sorted((*half, *other), key=place.__getitem__)) for half, other in halves]
    return tuple(sorted(waves, key=lambda wave: (-past.nights_waited(wave), place[wave[0]])))


def nights_for_all_pairs(nodes: int, wave_size: int) -> int:
    """Return after how many nights every two of `nodes` nodes have shared a wave."""
    return 1 if nodes <= wave_size else _halves(nodes, wave_size) - 1


def _halves(nodes: int, wave_size: int) -> int:
    """Return an even number of halves, none larger than half a wave."""
    return 2 * -(-nodes // (2 * (wave_size // 2)))


def _rounds(halves: Sequence[Wave], earlier: Sequence[Waves]) -> Iterator[list[tuple[Wave, Wave]]]:
    """Yield different ways to pair the halves; of many ways a new sample every night."""
    frame = circle([str(number) for number in range(len(halves))])
    numbers = list(frame.numbers)
    if len(numbers) > MOST_COMPARED:
        generator = random.Random(repr(earlier[:1]))  # noqa: S311  a repeatable order, no secret
        numbers = generator.sample(numbers, MOST_COMPARED)
    for pairing in numbers:
        yield [(halves[int(a)], halves[int(b)]) for a, b in frame.pairs(pairing)]


def _cut(nodes: Sequence[str], leaves: Mapping[str, str], count: int) -> list[Wave]:
    """Cut the nodes into parts of nearly equal size, with nodes of one leaf together."""
    leaf_names = sorted({leaves[name] for name in nodes if name in leaves}, key=natural)
    rank = {leaf: number for number, leaf in enumerate(leaf_names)}
    row = sorted(nodes, key=lambda name: rank.get(leaves.get(name, ""), len(rank)))
    edges = [len(row) * number // count for number in range(count + 1)]
    return [tuple(row[a:b]) for a, b in pairwise(edges)]


class _PastWaves:
    """Which nodes and leaves earlier nights have put into one wave."""

    def __init__(self, earlier: Sequence[Waves], leaves: Mapping[str, str]) -> None:
        self._wave_of = [
            {name: number for number, wave in enumerate(night) for name in wave}
            for night in earlier
        ]
        self._leaves = leaves
        self._joined = {
            pair for night in earlier for wave in night for pair in self._leaf_pairs(wave)
        }

    def score(self, halves: Sequence[tuple[Wave, Wave]]) -> tuple[int, int]:
        """Score a night: new leaf pairs, then how long ago its node pairs shared a wave."""
        pairs = {pair for half, other in halves for pair in self._leaf_pairs((*half, *other))}
        # The nodes at equal places of both halves represent all pairs.
        ages = (
            self._age(a, b) for half, other in halves for a, b in zip(half, other, strict=False)
        )
        return len(pairs - self._joined), sum(ages)

    def nights_waited(self, wave: Wave) -> float:
        """Return for how many nights the wave's nodes were not checked, on average."""
        return sum(self._age(name, name) for name in wave) / len(wave)

    def _age(self, a: str, b: str) -> int:
        """Return how many nights ago two nodes shared a wave; if never, one more than is known."""
        for ago, wave_of in enumerate(self._wave_of):
            if a in wave_of and wave_of[a] == wave_of.get(b):
                return ago
        return len(self._wave_of) + 1

    def _leaf_pairs(self, wave: Wave) -> Iterator[tuple[str, str]]:
        leaves = sorted({self._leaves[name] for name in wave if name in self._leaves})
        return ((a, b) for index, a in enumerate(leaves) for b in leaves[index + 1 :])
