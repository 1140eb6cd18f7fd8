"""Draws the sweep on one self-contained page, so that the slow node is seen at once.

It is part of a run's page; `preflight blame --picture` draws it alone. It has no script, font or
address, and every name is escaped text. Besides heat maps it has histograms: means and medians hide
what breaks a job, as one operation in a thousand that takes 10 ms.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.core.text import and_more, count, first_few, size, time_us
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fleet.nodeset import fold
from preflight.report.fabric_grid import (
    CELLS,
    CUT_SHORT,
    LATE,
    best_ratios,
    cells,
    grid,
    locate_blames,
    panels,
)
from preflight.report.fabric_panels import draw, thumbnail
from preflight.report.markup import LEGEND, STEPS, element, macros, number, style, text
from preflight.report.terminal import at_size, two_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.decoding.sensitivity import SensitivityRow
    from preflight.fabric.observed import Digest, Observed
    from preflight.fabric.samples import PairSamples, Phase, Sweep
    from preflight.report.document import BlameRow
    from preflight.report.fabric_grid import Cell, Endpoint, LocatedBlame, Panel

    Ends = PairSamples | Digest

LARGEST = 2 << 20
"""Bytes of the page; rows are left out until it fits, and the page says so."""

_TEMPLATE = "fabric.html.j2"


def fabric_page(
    observed: Observed,
    blames: Sequence[BlameRow],
    *,
    sweep: Sweep | None = None,
    origin: str = "",
) -> str:
    """Draw the whole page in at most `LARGEST` bytes; for the arguments see `fabric_section`."""

    def render(section: str) -> str:
        page = macros(_TEMPLATE).page(style("fabric.css"), section)
        return f"<!DOCTYPE html>\n{page}\n"

    most = LARGEST - len(render("").encode())
    section = fabric_section(observed, blames, most, sweep=sweep, origin=origin, with_findings=True)
    return render(section)


def fabric_section(
    observed: Observed,
    blames: Sequence[BlameRow],
    most: int = LARGEST,
    *,
    sweep: Sweep | None = None,
    origin: str = "",
    with_findings: bool = False,
    limits: Thresholds = SHIPPED,
) -> str:
    """Draw the measurements of the fabric in at most `most` bytes.

    `sweep`: every iteration, if it was stored; else quantiles are drawn. `origin`: where the
    samples came from, in words. `with_findings`: list the blames here too.
    """
    located = locate_blames(blames, observed)
    names = first_few([blame.component for blame in located], 8)
    compared = cells(observed, located, limits)
    figures, charts_left = charts(observed, located, sweep)
    best = best_ratios(compared)
    base_panels = panels(limits.for_backend(observed.backend)("spike_us"))
    rows = outlier_rows(compared, (*base_panels, LATE))
    parts = macros(_TEMPLATE)
    most_cells = CELLS
    while True:
        layout = grid(observed, compared, best, located, most_cells=most_cells)
        drawn = [cell for row in layout.rows for cell in row.cells if cell is not None]
        has_late = any(cell.late is not None and cell.late.stands_out for cell in drawn)
        shown_panels = (*base_panels, LATE) if has_late else base_panels
        section = parts.section(
            summary=_summary_words(observed, compared, origin),
            blamed=f"Blamed: {names}" if located else "No node or path is blamed.",
            findings=located if with_findings else (),
            matrix=parts.matrix(
                legend=LEGEND,
                laid=layout,
                panels=[draw(panel, layout, located) for panel in shown_panels],
                rows=rows,
                most_rows=ROWS,
                thumbnail=thumbnail(observed, best) if layout.cut else "",
                standing_out=bad_endpoint_words(best),
            )
            if best
            else parts.nothing(),
            collapsed=not located and not rows,
            charts=figures,
            charts_left=charts_left,
            coarse=sweep is None,
        )
        if len(section.encode()) <= most or len(layout.rows) <= 1:
            return str(section)
        most_cells = most_cells * 3 // 4


def _summary_words(observed: Observed, compared: Sequence[Cell], origin: str) -> str:
    rails = len({cell.rail for cell in compared})
    pairs = len({frozenset((cell.a, cell.b)) for cell in compared})
    leaves = len(set(observed.leaves.values()))
    words = [
        count(len(observed.nodes), "node"),
        count(pairs, "pair"),
        count(rails, "rail"),
        observed.backend or "nothing was measured",
        f"sorted by {leaves} leaf switch{'es' * (leaves != 1)}"
        if leaves
        else "no topology known: sorted by name",
    ]
    return " · ".join([*words, origin] if origin else words)


_SHARPNESS_ROWS = 12


def sharpness(rows: Sequence[SensitivityRow]) -> str:
    """A table of endpoints by sensitivity, the least tested first: what would have been caught."""
    if not rows:
        return ""
    sizes = sorted({size_row.size_bytes for row in rows for size_row in row.sizes})
    groups = grouped((_sharpness_cells(row, sizes), row) for row in rows)
    heads = ("endpoints", "any size", "seconds of load", *map(size, sizes))
    table = [(cells, _endpoints(group)) for cells, group in groups.items()]
    markup: str = macros(_TEMPLATE).sharpness(heads, table, _SHARPNESS_ROWS)
    return markup


def _sharpness_cells(row: SensitivityRow, sizes: Sequence[int]) -> tuple[str, ...]:
    by_size = {size_row.size_bytes: at_size(size_row) for size_row in row.sizes}
    rate = "no rate" if row.one_in is None else f"1 in {two_digits(row.one_in):,}"
    event_rate = "-" if row.every_s is None else f"one in {row.every_s:.1g} s"
    return (rate, event_rate, *(by_size.get(size_bytes, "not measured") for size_bytes in sizes))


def _endpoints(rows: Sequence[SensitivityRow]) -> str:
    """Fold the nodes of each set of rails: "n[1-8] rails 0-7"."""
    rails = grouped((row.node, row.rail) for row in rows)
    nodes = grouped((fold(map(str, sorted(rail_set))), name) for name, rail_set in rails.items())
    return "; ".join(f"{fold(names)} rail {rail_set}" for rail_set, names in nodes.items())


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


def _spread(
    weights: Mapping[int, float], operations: int, longest_us: float, pairs: int
) -> Spread | None:
    """`weights`: bin → operations."""
    shares = {index: weight / operations for index, weight in weights.items() if operations}
    return Spread(shares, operations, longest_us, pairs) if operations else None


def spread_of_samples(pairs: Iterable[PairSamples], kind: Kind) -> Spread | None:
    """Count every operation that both ends timed (the shorter counts); None if there is none."""
    by_time: Counter[float] = Counter()  # times are rounded, so that few of them differ
    pair_count = 0
    for pair in pairs:
        times = _network_us(pair, kind)
        pair_count += bool(times)
        by_time.update(times)
    counts: Counter[int] = Counter()
    for lasted_us, repeats in by_time.items():
        counts[bin_of(lasted_us)] += repeats
    return _spread(counts, by_time.total(), max(by_time, default=0.0), pair_count)


def kind_of(digest: Digest) -> Kind:
    """The size and phase of a digest."""
    return digest.size_bytes, digest.phase


def spread_of_digests(digests: Sequence[Digest]) -> Spread | None:
    """The same from quantiles: operations between two of them are spread evenly."""
    weights: defaultdict[int, float] = defaultdict(float)
    for digest in digests:
        for index, weight in _digest_weights(digest).items():
            weights[index] += weight * digest.operations
    longest_us = max((digest.most_us for digest in digests), default=0.0)
    return _spread(weights, sum(digest.operations for digest in digests), longest_us, len(digests))


def _digest_weights(digest: Digest) -> Mapping[int, float]:
    edges = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    weights: defaultdict[int, float] = defaultdict(float)
    for low, high, share in zip(edges, edges[1:], (0.5, 0.49, 0.009, 0.001), strict=False):
        bins = range(bin_of(low), max(bin_of(low), bin_of(high)) + 1)
        for index in bins:
            weights[index] += share / len(bins)
    return weights


_WIDTH, _HEIGHT, _LEFT, _TOP, _FOOT = 400.0, 130.0, 58.0, 10.0, 22.0

_AROUND, _LABEL = 3, 52.0
_FEW_TICKS, _SOME_TICKS = (1.0,), (1.0, 2.0, 5.0)
_MANY_TICKS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def histogram(component: str, kind: Kind, blamed: Spread, peers: Spread | None) -> str:
    """Draw one histogram with a caption."""
    axes = _Axes(blamed, peers)
    body = [*axes.grid()]
    if peers is not None:
        body.append(axes.outline(peers, "peers"))
    body.append(axes.outline(blamed, "mine"))
    operation = f"{size(kind[0])} all-reduce{', soak' if kind[1] == 'soak' else ''}"
    peer_words = f"peers (grey): {_describe(peers)}" if peers is not None else "no peers"
    words = f"{component}, {operation}: {_describe(blamed)}; {peer_words}"
    width, height = _LEFT + _WIDTH + 24, _TOP + _HEIGHT + _FOOT
    svg = element("svg", "".join(body), css="histogram", width=width, height=height)
    return f"<figure>{svg}<figcaption>{text(words)}</figcaption></figure>"


def _describe(spread: Spread) -> str:
    longest = time_us(spread.longest_us)
    return f"{spread.operations} operations of {count(spread.pairs, 'pair')}, longest {longest}"


class _Axes:
    def __init__(self, blamed: Spread, peers: Spread | None) -> None:
        spreads = [spread for spread in (blamed, peers) if spread is not None]
        bins = [index for spread in spreads for index in spread.shares]
        self._first, self._last = min(bins) - _AROUND, max(bins) + 1 + _AROUND
        operations = max(spread.operations for spread in spreads)
        self._decades = max(1, math.ceil(math.log10(operations)))

    def _ticks(self) -> list[float]:
        """Decades; on a short axis also steps between them."""
        decades = (self._last - self._first) / PER_DECADE
        steps = _FEW_TICKS if decades > 2 else _SOME_TICKS if decades > 0.7 else _MANY_TICKS  # noqa: PLR2004  what is readable
        low, high = (math.floor(end / PER_DECADE) for end in (self._first, self._last))
        ticks = [step * 10.0**decade for decade in range(low, high + 1) for step in steps]
        return [t for t in ticks if self._first <= math.log10(t) * PER_DECADE <= self._last]

    def _x(self, index: float) -> float:
        return _LEFT + (index - self._first) / (self._last - self._first) * _WIDTH

    def _y(self, share: float) -> float:
        height = 1 + math.log10(share) / self._decades if share > 0 else 0.0
        return _TOP + (1 - max(0.0, height)) * _HEIGHT

    def grid(self) -> Iterator[str]:
        """Lines at round times, and at each decade of share."""
        free = 0.0
        for tick_us in self._ticks():
            x, bottom = self._x(math.log10(tick_us) * PER_DECADE), _TOP + _HEIGHT
            yield element("path", css="line", d=f"M{number(x)} {number(_TOP)}V{number(bottom)}")
            if x >= free:
                free = x + _LABEL
                yield element("text", time_us(tick_us), x=x, y=bottom + 14, anchor="middle")
        for decade in range(self._decades + 1):
            y = self._y(10.0**-decade)
            words = "all" if decade == 0 else f"10{str(-decade).translate(_RAISED)}"
            line = f"M{number(_LEFT)} {number(y)}h{number(_WIDTH)}"
            yield element("path", css="line", d=line)
            yield element("text", words, x=_LEFT - 4, y=y, anchor="end")

    def outline(self, spread: Spread, css: str) -> str:
        """A closed step line over the bins."""
        bottom = self._y(0)
        path = [f"M{number(self._x(self._first))} {number(bottom)}"]
        path += [
            f"V{number(self._y(spread.shares.get(index, 0.0)))}H{number(self._x(index + 1))}"
            for index in range(self._first, self._last)
        ]
        return element("path", css=css, d=f"{''.join(path)}V{number(bottom)}z")


PEERS = 200
"""The most pairs that represent the peers; of more, every k-th is used."""

_HISTOGRAMS = 6
"""Findings that get histograms."""

T = TypeVar("T")


def charts(
    observed: Observed, blames: Sequence[LocatedBlame], sweep: Sweep | None
) -> tuple[list[str], int]:
    """The histograms of the first findings with pairs, and how many findings have none drawn."""
    charted = [blame for blame in blames if blame.pairs]
    first = charted[:_HISTOGRAMS]
    figures = [figure for blame in first for figure in _figures_of(blame, observed, blames, sweep)]
    return figures, len(charted) - len(first)


def _figures_of(
    blame: LocatedBlame, observed: Observed, blames: Sequence[LocatedBlame], sweep: Sweep | None
) -> Iterator[str]:
    """The most telling histograms of one finding: smallest size, largest size, soak."""
    involved = {name for other in blames for pair in other.pairs for name in pair}
    blamed_nodes = {name for other in blames for name in other.nodes}
    # If hardly any other nodes are left, partners of the blamed count as peers too.
    avoid = involved if len(observed.nodes) - len(involved) > 1 else blamed_nodes

    def is_mine(pair: Ends) -> bool:
        return (pair.a, pair.b) in blame.pairs and blame.rail in (None, pair.rail)

    def is_peer(pair: Ends) -> bool:
        return avoid.isdisjoint((pair.a, pair.b)) and (pair.a, pair.b) not in blame.pairs

    for kind in _kinds(blame, observed):
        if sweep is not None:
            spread = spread_of_samples(filter(is_mine, sweep.pairs), kind)
            peers = spread_of_samples(_sample(filter(is_peer, sweep.pairs)), kind)
        else:
            digests = [digest for digest in observed.digests if kind_of(digest) == kind]
            spread = spread_of_digests(list(filter(is_mine, digests)))
            peers = spread_of_digests(_sample(filter(is_peer, digests)))
        if spread is not None:
            yield histogram(blame.component, kind, spread, peers)


def _sample(pairs: Iterable[T]) -> list[T]:
    """At most PEERS pairs, spread over the fabric."""
    all_pairs = list(pairs)
    return all_pairs[:: -(-len(all_pairs) // PEERS) or 1]


def _kinds(blame: LocatedBlame, observed: Observed) -> list[Kind]:
    kinds = {kind_of(d) for d in observed.digests if (d.a, d.b) in blame.pairs}
    ladder = sorted(kind for kind in kinds if kind[1] == "ladder")
    soak = sorted(kind for kind in kinds if kind[1] == "soak")
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


def outlier_rows(compared: Sequence[Cell], panels: Sequence[Panel]) -> list[Row]:
    """Rows for the cells that stand out, those without result first: ratio, its text, the rest."""
    rows = [(ratio, _times(ratio, "-"), cells) for ratio, cells in _outliers(compared, panels)]
    return sorted(rows, key=lambda row: -row[0])


def _outliers(
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


def bad_endpoint_words(best: Mapping[Endpoint, float]) -> str:
    """A sentence on the endpoints that are bad with every partner, by node, the worst first."""
    bad = grouped(
        (name, (ratio, rail)) for (name, rail), ratio in best.items() if ratio >= STEPS[0].up_to
    )
    if not bad:
        return "No endpoint is bad with every partner."
    order = sorted(bad, key=lambda name: (-max(bad[name])[0], name))
    nodes = [_node(name, bad[name]) for name in order[:ROWS]]
    rest_words = and_more(len(order) - ROWS, " nodes")
    return f"Bad with every partner: {', '.join(nodes)}{rest_words}."


def _node(name: str, rows: Sequence[tuple[float, int]]) -> str:
    ratio = max(rows)[0]
    rails = fold([str(rail) for _, rail in sorted(rows, key=lambda row: row[1])])
    return f"{name} rail {rails} ({_times(ratio, 'no result')})"


def _times(ratio: float, without_result: str) -> str:
    return without_result if ratio >= CUT_SHORT else f"{ratio:.2g} x"
