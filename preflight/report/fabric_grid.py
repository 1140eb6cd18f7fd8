"""Compares each pair with its peers, and places it in the heat map.

Small fleets, where most pairs were measured, get a column per partner, so that a bad node is a row
and a column. Large fleets get a column per round, so that a bad node is a row. Every pair is in two
rows.

This is only the picture: the blame is decided elsewhere. It uses the same limits, events and
scatter, as it would otherwise point at healthy nodes when machines are busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.core.statistics import LeaveOut, grouped, median
from preflight.core.text import Natural, gbs, natural, size, time_us
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.rare_events import SPIKE_MEDIANS
from preflight.fabric.decoding.sensitivity import Events, Slower, heatmap_values
from preflight.fabric.samples import MeetingKey, PairState
from preflight.report.document import BlameRow, row_of
from preflight.report.markup import STEPS

if TYPE_CHECKING:
    from preflight.fabric.observed import Digest, Observed


_ROWS = ("node", "endpoint", "leaf_rail")


class LocatedBlame(Struct, frozen=True, kw_only=True):
    """One blame: its sentence, and the rows and cells where it shows."""

    component: str
    sentence: str
    advice: str
    nodes: tuple[str, ...] = ()
    """Rows to mark; none for a path, whose two nodes are fine, and for a shared cause."""
    rail: int | None = None
    """Mark only this rail of the rows; None: all rails."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """The bad pairs that it explains."""
    certain: bool = True
    """False for one of several possible components that the samples do not tell apart."""


def blamed_meetings(blames: Iterable[LocatedBlame], observed: Observed) -> frozenset[MeetingKey]:
    """Every pair, rail and round that goes through a blamed component."""
    nodes: set[tuple[str, int | None]] = set()
    paths: set[tuple[str, str, int | None]] = set()
    for blame in blames:
        nodes.update((name, blame.rail) for name in blame.nodes)
        paths.update((a, b, blame.rail) for a, b in blame.pairs if not blame.nodes)
    return frozenset(
        meeting.key
        for meeting in observed.tried
        for rail in (None, meeting.rail)
        if (meeting.a, rail) in nodes
        or (meeting.b, rail) in nodes
        or (meeting.a, meeting.b, rail) in paths
    )


def locate_blames(blames: Iterable[BlameRow], observed: Observed) -> tuple[LocatedBlame, ...]:
    """Find the rows and cells of each blame."""
    by_name = {f"{meeting.a}-{meeting.b}": (meeting.a, meeting.b) for meeting in observed.tried}
    return tuple(_locate(blame, by_name, observed.nodes) for blame in blames)


def _locate(
    blame: BlameRow, by_name: dict[str, tuple[str, str]], nodes: Sequence[str]
) -> LocatedBlame:
    shared = blame.kind == "systemic"
    pairs = () if shared else (by_name[name] for name in blame.pairs if name in by_name)
    rows = blame.culprits or (blame.component,)
    rail = f" rail {blame.rail}" if blame.kind == "endpoint" and blame.rail is not None else ""
    return LocatedBlame(
        component=blame.component + rail,
        sentence=blame.sentence,
        advice=blame.advice,
        nodes=tuple(name for name in rows if name in nodes) if blame.kind in _ROWS else (),
        rail=blame.rail,
        pairs=frozenset(pairs),
        certain=blame.kind in (*_ROWS, "path"),
    )


_LIKE_PEERS = 1.1


class Comparison(Struct, frozen=True):
    """One number of one pair, and the same number of its peers."""

    value: float
    peers: float | None
    ratio: float | None
    """How many times as long (or as often) as the peers; None without peers.

    At most 1 within the scatter of healthy pairs, if nothing on the pair's way is blamed.
    """
    operations: int = 0
    """For a count of spikes or late starts: the number of operations."""
    size_bytes: int = 0
    longest_us: float = 0.0

    @property
    def stands_out(self) -> bool:
        """Whether it is so much worse than its peers that their number is shown too."""
        return self.ratio is not None and self.ratio > _LIKE_PEERS


_PRIOR_EVENTS = 0.5
"""Added to the events seen and expected: no event in n operations does not mean a rate of zero."""

_SIGMAS = 2.5
"""Standard deviations above the expected count that is not chance, even in hundreds of pairs."""

_LEAST_PEERS = 3


def compare_counts(
    events: Mapping[MeetingKey, Events],
    scatter: float,
    blamed: Collection[MeetingKey],
    *,
    late: bool = False,
) -> dict[MeetingKey, Comparison]:
    """Compare each count of spikes, or of late starts, with the rate of all unblamed pairs.

    `scatter`: the variance of healthy pairs' counts, in units of Poisson's (quasi-Poisson: its
    standard deviation is sqrt(scatter * mean)). Within 2.5 of them above the mean a pair counts as
    equal to its peers, unless it is in `blamed`.
    """
    numbers = {key: counts.late if late else counts.wire for key, counts in events.items()}
    healthy = [key for key in events if key not in blamed]
    peers = {*(healthy if len(healthy) > _LEAST_PEERS else events)}
    hits, tries = sum(numbers[key] for key in peers), sum(events[key].operations for key in peers)
    compared = {}
    for key, counts in events.items():
        value, total = numbers[key], counts.operations
        others = tries - total * (key in peers)
        expected = total * (hits - value * (key in peers)) / others if others > 0 else None
        ratio = None
        if expected is not None:
            ratio = (value + _PRIOR_EVENTS) / (expected + _PRIOR_EVENTS)
            chance = _SIGMAS * math.sqrt(scatter * (expected + _PRIOR_EVENTS))
            if key not in blamed and value - expected <= chance:
                ratio = min(1.0, ratio)
        compared[key] = Comparison(value, expected, ratio, total, longest_us=counts.longest_us)
    return compared


LARGE = 64
"""With more nodes, leaving out a pair's own two does not visibly change a median."""

CUT_SHORT = 999.0
"""The ratio of a pair whose time was up before it reached the sizes that others reached."""


class Cell(Struct, frozen=True, kw_only=True):
    """One pair on one rail in one round, as it is drawn."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState
    error: str = ""
    bandwidth: Comparison | None = None
    latency: Comparison | None = None
    spikes: Comparison | None = None
    late: Comparison | None = None

    @property
    def worst(self) -> float:
        """The largest of its ratios; infinite if it gave no result."""
        if self.state != "measured":
            return math.inf
        numbers = (self.bandwidth, self.latency, self.spikes, self.late)
        return max(((number.ratio or 0.0) for number in numbers if number), default=0.0)


class Panel(Struct, frozen=True):
    """One heat map: its title, its number in a cell, and the words for it."""

    title: str
    pick: Callable[[Cell], Comparison | None]
    describe: Callable[[Comparison], str]


def _describe_value(name: str, words: Callable[[float], str]) -> Callable[[Comparison], str]:
    """`name`: "fastest" or "median"; a finding gives the median also where the fastest decides."""

    def describe(pair: Comparison) -> str:
        peers = f", peers {words(pair.peers)}" if pair.peers is not None and pair.stands_out else ""
        return f"{name} {words(pair.value)} at {size(pair.size_bytes)}{peers}"

    return describe


def _describe_spikes(pair: Comparison) -> str:
    unit = " operations" if pair.peers is not None and pair.stands_out else ""
    return f"{_describe_late(pair, unit)}, longest {time_us(pair.longest_us)}"


def _describe_late(pair: Comparison, unit: str = "") -> str:
    peers = f", of its peers {pair.peers:.2g}" if pair.peers is not None and pair.stands_out else ""
    return f"{pair.value:g} in {pair.operations}{unit}{peers}"


BANDWIDTH = Panel(
    "Bandwidth (fastest operations)", lambda cell: cell.bandwidth, _describe_value("fastest", gbs)
)
LATENCY = Panel(
    "Latency, smallest size (median)", lambda cell: cell.latency, _describe_value("median", time_us)
)
LATE = Panel("Late starts (one end waited)", lambda cell: cell.late, _describe_late)
"""Drawn only if there are any: a host is late, or paused."""


def panels(spike_us: float) -> tuple[Panel, ...]:
    """The panels that are always drawn; `spike_us`: the least time of a spike on this network."""
    limits = f"{SPIKE_MEDIANS:g} medians and {time_us(spike_us)}"
    spikes = Panel(f"Spikes (over {limits})", lambda cell: cell.spikes, _describe_spikes)
    return BANDWIDTH, LATENCY, spikes


def cells(
    observed: Observed, blames: Sequence[LocatedBlame] = (), limits: Thresholds = SHIPPED
) -> tuple[Cell, ...]:
    """Compare every pair that was tried with those that share no node with it.

    A pair that no blame explains is coloured only beyond the scatter of healthy pairs.
    """
    by_key = grouped((digest.key, digest) for digest in observed.digests)
    is_large = len(observed.nodes) > LARGE
    large = {key: max(_ladder(group), key=lambda d: d.size_bytes) for key, group in by_key.items()}
    small = {key: min(_ladder(group), key=lambda d: d.size_bytes) for key, group in by_key.items()}
    values, blamed = heatmap_values(observed, limits), blamed_meetings(blames, observed)
    wire = _times_slower(values.wire, blamed, is_large=is_large)
    latency = _times_slower(values.latency, blamed, is_large=is_large)
    usual_size = median([digest.size_bytes for digest in large.values()] or [0])
    spikes = compare_counts(values.events, values.scatter, blamed)
    late = compare_counts(values.events, values.scatter, blamed, late=True)
    return tuple(
        row_of(
            Cell,
            meeting,
            error=meeting.error,
            bandwidth=_speed(large.get(meeting.key), wire.get(meeting.key), usual_size),
            latency=_time(small.get(meeting.key), latency.get(meeting.key)),
            spikes=spikes.get(meeting.key),
            late=late.get(meeting.key),
        )
        for meeting in observed.tried
    )


def _ladder(digests: Sequence[Digest]) -> Sequence[Digest]:
    return [digest for digest in digests if digest.phase == "ladder"] or digests


_Times = tuple[float, float]
"""How many times as long as its peers a pair takes, and the ratio that sets its colour."""


def _times_slower(
    slower: Slower, blamed: Collection[MeetingKey], *, is_large: bool
) -> dict[MeetingKey, _Times]:
    """The ratios by key, of the keys that have peers."""
    peers = _peers(list(slower.logs.items()), is_large=is_large)
    times: dict[MeetingKey, _Times] = {}
    for key, log in slower.logs.items():
        if (typical := peers(key)) is None:
            continue
        excess = log - typical
        scattered = excess <= slower.least_excess and key not in blamed
        times[key] = math.exp(excess), math.exp(min(excess, 0.0) if scattered else excess)
    return times


def _peers(
    values: Sequence[tuple[MeetingKey, float]], *, is_large: bool
) -> Callable[[MeetingKey], float | None]:
    """Return a function: a pair's peers are those that share no node, else its other rails."""
    if is_large:
        typical = median([value for _, value in values]) if values else None
        return lambda _turn: typical
    leave_out = LeaveOut([(value, key[:2]) for key, value in values])
    medians = {pair: leave_out.median(pair) for pair in dict.fromkeys(key[:2] for key, _ in values)}

    def typical_of(key: MeetingKey) -> float | None:
        typical = medians[key[:2]]
        if typical is not None:
            return typical
        rails = [value for other, value in values if other[:2] == key[:2] and other[2] != key[2]]
        return median(rails) if rails else None

    return typical_of


def _speed(digest: Digest | None, times: _Times | None, usual: float) -> Comparison | None:
    """The bandwidth; a pair whose time was up before the `usual` size gets the ratio CUT_SHORT."""
    if digest is None:
        return None
    slower, colour = times or (None, None)
    peers_gbs = digest.best_gbs * slower if slower is not None else None
    ratio = CUT_SHORT if digest.size_bytes < usual else colour
    return Comparison(digest.best_gbs, peers_gbs, ratio, size_bytes=digest.size_bytes)


def _time(digest: Digest | None, times: _Times | None) -> Comparison | None:
    if digest is None:
        return None
    slower, colour = times or (None, None)
    peers_us = digest.p50_us / slower if slower is not None else None
    return Comparison(digest.p50_us, peers_us, colour, size_bytes=digest.size_bytes)


CELLS = 4608
"""Cells of a panel, of some 120 bytes each: 64 nodes with 8 rails in 9 rounds."""

_LEAST_ROWS = 16
"""The least number of rows, if there are so many nodes."""

_PARTNERS = 32
"""The most nodes with which a column can be a partner."""


Endpoint = tuple[str, int]
"""Node and rail."""


class Row(Struct, frozen=True):
    """One node and its cells by column; None: not tried."""

    node: str
    leaf: str
    cells: tuple[Cell | None, ...]


class Grid(Struct, frozen=True, kw_only=True):
    """The layout of the panels; `rows` are those that fit, of `nodes` in all."""

    rows: tuple[Row, ...]
    rails: tuple[int, ...]
    columns: tuple[str, ...]
    """The columns of each rail's block: partners' names or "round 0", ..."""
    nodes: int

    @property
    def cut(self) -> bool:
        """Whether rows were left out."""
        return len(self.rows) < self.nodes


def by_leaf(observed: Observed) -> tuple[str, ...]:
    """The nodes sorted by leaf switch, then by name; those without a leaf come last."""

    def place(name: str) -> tuple[bool, Natural, Natural]:
        leaf = observed.leaves.get(name, "")
        return not leaf, natural(leaf), natural(name)

    return tuple(sorted(observed.nodes, key=place))


def grid(
    observed: Observed,
    cells: Sequence[Cell],
    best: Mapping[Endpoint, float],
    blames: Sequence[LocatedBlame],
    *,
    most_cells: int = CELLS,
) -> Grid:
    """Lay out as many rows as `most_cells` cells allow: the blamed first, then the worst.

    `best`: the result of `best_ratios` for these cells.
    """
    order = by_leaf(observed)
    rails = tuple(sorted({cell.rail for cell in cells}))
    rounds = sorted({cell.round for cell in cells})
    tried = {frozenset((cell.a, cell.b)) for cell in cells}
    possible = len(order) * (len(order) - 1) / 2
    partners = len(order) <= _PARTNERS and len(tried) * 2 >= possible
    columns = order if partners else tuple(f"round {number}" for number in rounds)
    place = {name: index for index, name in enumerate(order if partners else rounds)}
    if len(columns) * len(rails) > most_cells:
        rails, columns = rails[:most_cells], ("the worst",)
        place = dict.fromkeys(place, 0)
    first_column = {rail: index * len(columns) for index, rail in enumerate(rails)}
    width = max(1, len(columns) * len(rails))
    names = _nodes_to_draw(order, best, blames, most_cells // width)
    rows: dict[str, list[Cell | None]] = {name: [None] * width for name in order if name in names}
    for cell in cells:
        for node, partner in ((cell.a, cell.b), (cell.b, cell.a)):
            if node in rows and cell.rail in first_column:
                column = first_column[cell.rail] + place[partner if partners else cell.round]
                drawn = rows[node][column]
                if drawn is None or cell.worst > drawn.worst:  # it may be measured twice
                    rows[node][column] = cell
    return Grid(
        rows=tuple(Row(n, observed.leaves.get(n, ""), tuple(row)) for n, row in rows.items()),
        rails=rails,
        columns=columns,
        nodes=len(order),
    )


_EVERY_ROW = 16
"""Up to so many nodes all have a row; of more, rows that look fine would hide the others."""


def _nodes_to_draw(
    order: Sequence[str], best: Mapping[Endpoint, float], blames: Sequence[LocatedBlame], limit: int
) -> Collection[str]:
    """All nodes if they are few; else the blamed, then those that look bad, the worst first.

    A few that look fine are added for comparison.
    """
    if len(order) <= min(limit, _EVERY_ROW):
        return order
    ratios = grouped((name, ratio) for (name, _), ratio in best.items())
    worst = {name: max(ratios.get(name, [0.0])) for name in order}
    by_ratio = sorted(order, key=worst.__getitem__, reverse=True)
    bad = [name for name in by_ratio if worst[name] >= STEPS[0].up_to]
    blamed = [name for blame in blames for name in blame.nodes]
    paths = (pair for blame in blames if not blame.nodes for pair in sorted(blame.pairs))
    ranked = dict.fromkeys([*blamed, *chain.from_iterable(paths), *bad])
    names = {*[name for name in ranked if name in worst][: max(1, limit)]}
    fine = [name for name in order if name not in names]
    return names | {*fine[: max(0, min(limit, _LEAST_ROWS) - len(names))]}


def best_ratios(cells: Iterable[Cell]) -> dict[Endpoint, float]:
    """The least ratio of each endpoint over all of its pairs, which no bad partner explains."""
    ratios = grouped(((name, cell.rail), cell.worst) for cell in cells for name in (cell.a, cell.b))
    return {endpoint: min(worst) for endpoint, worst in ratios.items()}
