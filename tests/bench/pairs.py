"""What measuring every pair costs: one launch over the fleet against one torchrun per pair."""

from __future__ import annotations

import itertools
import random
import secrets
import sys
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.launch import QUIET
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import GLOO, GLOO_SOAK, Budget, SweepPlan, measured_share
from preflight.fleet.model import Job
from preflight.run.stages import Nodes, sweep_fleet
from tests.bench.probing import DEADLINE_S, connected, some
from tests.bench.ratio import Bound, Row, extremes, faster, in_turns, interval, seconds
from tests.bench.sweeping import whole
from tests.bench.torchruns import rung, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.core.remote_command import Connection
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Host
    from tests.lab.cluster import Lab

_JOB = [*map(rung, GLOO), rung(GLOO_SOAK, Budget().soak_s)]
"""What torchrun's script does: the shipped ladder and soak."""


class Shape(Struct, frozen=True):
    """So many hosts, all pairs of them swept in each turn; `launches` of them by torchrun."""

    hosts: int
    turns: int
    launches: int
    bound: Bound

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return self.hosts * (self.hosts - 1) // 2


SHAPES = (Shape(4, 3, 6, Bound("at least", 4)), Shape(8, 7, 4, Bound("at least", 10)))
"""28 launches take two minutes. With four a turn, each pair of the 8 hosts has one in the end."""


def measure(lab: Lab) -> Iterator[Row]:
    """All pairs, the same ladder of gloo all-reduces and the same soak on both sides."""
    for shape in SHAPES:
        hosts = some(lab.inventory(), shape.hosts)
        _, connections = connected(hosts)
        try:
            yield from compare(shape, hosts, connections)
        finally:
            for connection in connections.values():
                connection.close()


def compare(
    shape: Shape, hosts: Sequence[Host], connections: Mapping[str, Connection]
) -> Iterator[Row]:
    """One row of the ratio, one of what part of its time our side spent in operations."""
    named = {host.name: host for host in hosts}
    shares: list[float] = []
    batches = launched(list(named), shape)

    def sweep() -> None:
        shares.append(_sweep(hosts, connections))

    def launch() -> None:
        """One pair after the other: two at once would measure each other on shared links."""
        for one, other in next(batches):
            torchrun((named[one], named[other]), _JOB)

    def timed(work: str) -> float:
        took_s = seconds({"sweep": sweep, "torchrun": launch}[work])()
        sys.stderr.write(f"  {work} of {shape.hosts} hosts: {took_s:.1f} s\n")
        return took_s

    ours, some_s = in_turns(shape.turns, lambda: timed("sweep"), lambda: timed("torchrun"))
    theirs = [took_s * shape.pairs / shape.launches for took_s in some_s]
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    all_of_them = shape.launches == shape.pairs
    yield Row(
        id=f"pairs.torchrun.{shape.hosts}",
        what=f"all {shape.pairs} pairs of {shape.hosts} hosts: "
        "one torchrun per pair / our one launch",
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=faster(ours, theirs) if all_of_them else interval(ratios),
        value_unit="times faster",
        runs=shape.turns,
        bound=shape.bound,
        note=""
        if all_of_them
        else f"torchrun: {shape.launches} launches a turn, taken for {shape.pairs}; in all "
        f"{shape.launches * shape.turns}, {sum(some_s):.0f} s. Value: its 95 % interval",
    )
    yield Row(
        id=f"pairs.share.{shape.hosts}",
        what=f"{shape.hosts} hosts: part of our time, after start-up, that a node spent inside "
        "timed all-reduces",
        unit="s",
        value=extremes([100 * share for share in shares]),
        value_unit="%",
        runs=shape.turns,
    )


def launched(names: Sequence[str], shape: Shape) -> Iterator[list[Pairing]]:
    """Which pairs torchrun measures in each turn: all in turn, in an order drawn once."""
    pairs = list(itertools.combinations(names, 2))
    random.Random(shape.hosts).shuffle(pairs)  # noqa: S311 - no secret
    endless = itertools.cycle(pairs)
    while True:
        yield list(itertools.islice(endless, shape.launches))


def _sweep(hosts: Sequence[Host], connections: Mapping[str, Connection]) -> float:
    """Sweep all pairs as a run does; the share of the time that was spent in operations."""
    names = tuple(host.name for host in hosts)
    nodes = Nodes(hosts, connections, secrets.token_hex(16), DEADLINE_S)
    plan = SweepPlan(nodes=names, rounds=circle_rounds(names))
    measured = sweep_fleet(nodes, plan, Job(), QUIET)
    share = measured_share(whole(measured))
    if share is None:
        raise RuntimeError("the sweep tells no times; look at its samples")
    return share
