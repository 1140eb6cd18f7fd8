"""The histograms and tables of the fabric's page.

Means and medians hide what breaks a job: one operation in a thousand that takes 10 ms.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.core.text import and_more, count, size, time_us
from preflight.fleet.nodeset import fold
from preflight.report.fabric_grid import CUT_SHORT, Cell, Endpoint, LocatedBlame, Panel
from preflight.report.markup import STEPS, number, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.observed import Digest, Observed
    from preflight.fabric.samples import PairSamples, Phase, Sweep

    Ends = PairSamples | Digest


PER_DECADE = 40
Kind = tuple[int, "Phase"]
"""Size in bytes and phase of the measurement."""


class Spread(Struct, frozen=True):
    """Shares of operations by time: bin → share; bin k begins at 10^(k/40) us and is 6 % wide."""

    shares: dict[int, float]
    operations: int
    longest_us: float
    pairs: int


def bin_of(time_us: float) -> int:
    """The bin of one time; times below 0.1 us count as 0.1 us."""
    return math.floor(math.log10(max(time_us, 0.1)) * PER_DECADE)


def of_samples(pairs: Iterable[PairSamples], kind: Kind) -> Spread | None:
    """Count every operation that both ends timed (the shorter counts); None if there is none."""
    by_time: Counter[float] = Counter()  # times are rounded, so that few of them differ
    number = 0
    for pair in pairs:
        times = _network_us(pair, kind)
        number += bool(times)
        by_time.update(times)
    operations = by_time.total()
    if not operations:
        return None
    counts: Counter[int] = Counter()
    for lasted_us, often in by_time.items():
        counts[bin_of(lasted_us)] += often
    shares = {at: count / operations for at, count in counts.items()}
    return Spread(shares, operations, max(by_time), number)


def kind_of(digest: Digest) -> Kind:
    """The size and phase of a digest."""
    return digest.size_bytes, digest.phase


def of_digests(digests: Iterable[Digest]) -> Spread | None:
    """The same from quantiles: operations between two of them are spread evenly."""
    weights: dict[int, float] = {}
    operations, longest, number = 0, 0.0, 0
    for digest in digests:
        for at, weight in _spread(digest).items():
            weights[at] = weights.get(at, 0.0) + weight * digest.operations
        number += 1
        operations += digest.operations
        longest = max(longest, digest.most_us)
    if not operations:
        return None
    shares = {at: weight / operations for at, weight in weights.items()}
    return Spread(shares, operations, longest, number)


def _spread(digest: Digest) -> Mapping[int, float]:
    edges = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    weights: dict[int, float] = {}
    for low, high, share in zip(edges, edges[1:], (0.5, 0.49, 0.009, 0.001), strict=False):
        bins = range(bin_of(low), max(bin_of(low), bin_of(high)) + 1)
        for at in bins:
            weights[at] = weights.get(at, 0.0) + share / len(bins)
    return weights


_WIDTH, _HEIGHT, _LEFT, _TOP, _FOOT = 400.0, 130.0, 58.0, 10.0, 22.0

_AROUND, _LABEL = 3, 52.0
_FEW, _SOME = (1.0,), (1.0, 2.0, 5.0)
_MANY = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def histogram(who: str, kind: Kind, mine: Spread, peers: Spread | None) -> str:
    """Draw one histogram with a caption."""
    axes = _Axes(mine, peers)
    body = [*axes.grid()]
    if peers is not None:
        body.append(axes.outline(peers, "peers"))
    body.append(axes.outline(mine, "mine"))
    operation = f"{size(kind[0])} all-reduce{', soak' if kind[1] == 'soak' else ''}"
    others = f"peers (grey): {_describe(peers)}" if peers is not None else "no peers"
    words = f"{who}, {operation}: {_describe(mine)}; {others}"
    width, height = number(_LEFT + _WIDTH + 24), number(_TOP + _HEIGHT + _FOOT)
    return (
        f'<figure><svg class="histogram" width="{width}" height="{height}">{"".join(body)}</svg>'
        f"<figcaption>{text(words)}</figcaption></figure>"
    )


def _describe(spread: Spread) -> str:
    longest = time_us(spread.longest_us)
    return f"{spread.operations} operations of {count(spread.pairs, 'pair')}, longest {longest}"


class _Axes:
    def __init__(self, mine: Spread, peers: Spread | None) -> None:
        spreads = [spread for spread in (mine, peers) if spread is not None]
        bins = [at for spread in spreads for at in spread.shares]
        self._first, self._last = min(bins) - _AROUND, max(bins) + 1 + _AROUND
        most = max(spread.operations for spread in spreads)
        self._decades = max(1, math.ceil(math.log10(most)))

    def _ticks(self) -> list[float]:
        """Decades; on a short axis also steps between them."""
        decades = (self._last - self._first) / PER_DECADE
        steps = _FEW if decades > 2 else _SOME if decades > 0.7 else _MANY  # noqa: PLR2004  what is readable
        low, high = (math.floor(at / PER_DECADE) for at in (self._first, self._last))
        ticks = [step * 10.0**decade for decade in range(low, high + 1) for step in steps]
        return [
            tick for tick in ticks if self._first <= math.log10(tick) * PER_DECADE <= self._last
        ]

    def _x(self, at: float) -> float:
        return _LEFT + (at - self._first) / (self._last - self._first) * _WIDTH

    def _y(self, share: float) -> float:
        up = 1 + math.log10(share) / self._decades if share > 0 else 0.0
        return _TOP + (1 - max(0.0, up)) * _HEIGHT

    def grid(self) -> Iterator[str]:
        """Lines at round times, and at each decade of share."""
        free = 0.0
        for tick_us in self._ticks():
            x, y = self._x(math.log10(tick_us) * PER_DECADE), number(_TOP + _HEIGHT + 14)
            bottom = number(_TOP + _HEIGHT)
            yield f'<path class="line" d="M{number(x)} {number(_TOP)}V{bottom}"/>'
            if x >= free:
                free = x + _LABEL
                words = time_us(tick_us)
                yield f'<text x="{number(x)}" y="{y}" text-anchor="middle">{words}</text>'
        for decade in range(self._decades + 1):
            y = number(self._y(10.0**-decade))
            words = "all" if decade == 0 else f"10{str(-decade).translate(_RAISED)}"
            yield f'<path class="line" d="M{number(_LEFT)} {y}h{number(_WIDTH)}"/>'
            yield f'<text x="{number(_LEFT - 4)}" y="{y}" text-anchor="end">{words}</text>'

    def outline(self, spread: Spread, css: str) -> str:
        """A closed step line over the bins."""
        bottom = self._y(0)
        path = [f"M{number(self._x(self._first))} {number(bottom)}"]
        path += [
            f"V{number(self._y(spread.shares.get(at, 0.0)))}H{number(self._x(at + 1))}"
            for at in range(self._first, self._last)
        ]
        return f'<path class="{css}" d="{"".join(path)}V{number(bottom)}z"/>'


PEERS = 200
"""The most pairs that represent the peers; of more, every k-th is used."""

_HISTOGRAMS = 6
"""Findings that get histograms."""

T = TypeVar("T")


def charts(
    observed: Observed, found: Sequence[LocatedBlame], sweep: Sweep | None
) -> tuple[list[str], int]:
    """The histograms of the first findings with pairs, and how many findings have none drawn."""
    charted = [blame for blame in found if blame.pairs]
    first = charted[:_HISTOGRAMS]
    figures = [figure for blame in first for figure in _figures_of(blame, observed, found, sweep)]
    return figures, len(charted) - len(first)


def _figures_of(
    blame: LocatedBlame, observed: Observed, blames: Sequence[LocatedBlame], sweep: Sweep | None
) -> Iterator[str]:
    """The most telling histograms of one finding: smallest size, largest size, soak."""
    involved = {name for other in blames for pair in other.pairs for name in pair}
    blamed = {name for other in blames for name in other.nodes}
    # If hardly any other nodes are left, partners of the blamed count as peers too.
    avoid = involved if len(observed.nodes) - len(involved) > 1 else blamed

    def is_mine(pair: Ends) -> bool:
        return (pair.a, pair.b) in blame.pairs and blame.rail in (None, pair.rail)

    def is_peer(pair: Ends) -> bool:
        return avoid.isdisjoint((pair.a, pair.b)) and (pair.a, pair.b) not in blame.pairs

    for kind in _kinds(blame, observed):
        if sweep is not None:
            mine = of_samples(filter(is_mine, sweep.pairs), kind)
            peers = of_samples(_sample(filter(is_peer, sweep.pairs)), kind)
        else:
            own = [digest for digest in observed.digests if kind_of(digest) == kind]
            mine = of_digests(filter(is_mine, own))
            peers = of_digests(_sample(filter(is_peer, own)))
        if mine is not None:
            yield histogram(blame.component, kind, mine, peers)


def _sample(pairs: Iterable[T]) -> list[T]:
    """At most PEERS pairs, spread over the fabric."""
    every = list(pairs)
    return every[:: -(-len(every) // PEERS) or 1]


def _kinds(blame: LocatedBlame, observed: Observed) -> list[Kind]:
    own = {kind_of(d) for d in observed.digests if (d.a, d.b) in blame.pairs}
    ladder = sorted(kind for kind in own if kind[1] == "ladder")
    soak = sorted(kind for kind in own if kind[1] == "soak")
    return list(dict.fromkeys([*ladder[:1], *ladder[-1:], *soak[-1:]]))


def _network_us(pair: PairSamples, kind: Kind) -> list[float]:
    """The times of one size in order, each the shorter of both ends' times."""
    ends = [
        timing.times_us
        for end in (pair.first, pair.second)
        for timing in (end.timings if end is not None else ())
        if (timing.size_bytes, timing.phase) == kind
    ]
    return list(map(min, *ends)) if len(ends) > 1 else list(*ends)


ROWS = 24
Row = tuple[float, str, tuple[str, ...]]


def worst(compared: Sequence[Cell], panels: Sequence[Panel]) -> list[Row]:
    """Rows for the cells that stand out, those without result first: ratio, its text, the rest."""
    rows = [
        (ratio, "-" if ratio >= CUT_SHORT else f"{ratio:.2g} x", cells)
        for ratio, cells in _rows(compared, panels)
    ]
    return sorted(rows, key=lambda row: -row[0])


def _rows(
    compared: Sequence[Cell], panels: Sequence[Panel]
) -> Iterator[tuple[float, tuple[str, ...]]]:
    for cell in compared:
        place = (f"{cell.a}-{cell.b}", str(cell.rail), str(cell.round))
        if cell.state != "measured":
            problem = f"{cell.state.replace('_', ' ')} {cell.error}".rstrip()
            yield math.inf, (*place, "no result", problem)
            continue
        for panel in panels:
            comparison = panel.pick(cell)
            ratio = comparison.ratio if comparison else None
            if comparison is None or ratio is None or ratio < STEPS[0].up_to:
                continue
            title = panel.title.split(" (")[0]
            yield ratio, (*place, title, panel.describe(comparison))


def standing_out(best: Mapping[Endpoint, float]) -> str:
    """A sentence on the endpoints that are bad with every partner, by node, the worst first."""
    bad = grouped(
        (name, (ratio, rail)) for (name, rail), ratio in best.items() if ratio >= STEPS[0].up_to
    )
    if not bad:
        return "No endpoint is bad with every partner."
    order = sorted(bad, key=lambda name: (-max(bad[name])[0], name))
    nodes = [_node(name, bad[name]) for name in order[:ROWS]]
    more = and_more(len(order) - ROWS, " nodes")
    return f"Bad with every partner: {', '.join(nodes)}{more}."


def _node(name: str, own: Sequence[tuple[float, int]]) -> str:
    ratio = max(own)[0]
    rails = fold([str(rail) for _, rail in sorted(own, key=lambda row: row[1])])
    return f"{name} rail {rails} ({'no result' if ratio >= CUT_SHORT else f'{ratio:.2g} x'})"
