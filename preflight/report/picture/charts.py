"""The histograms of a page: how long the blamed pairs took, beside their peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from preflight.report.picture.histogram import histogram
from preflight.report.picture.spread import kind_of, of_digests, of_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Sweep
    from preflight.report.picture.accused import Accused
    from preflight.report.picture.spread import Kind

PEERS = 200
"""Pairs that stand for the peers; of more, every k-th is taken."""

_HISTOGRAMS = 6
"""Findings that get them."""

T = TypeVar("T")


class Ends(Protocol):
    """Whatever is measured between two nodes."""

    @property
    def a(self) -> str:
        """One end."""

    @property
    def b(self) -> str:
        """The other."""

    @property
    def rail(self) -> int:
        """On which rail."""


def charts(observed: Observed, found: Sequence[Accused], sweep: Sweep | None) -> Iterator[str]:
    """Draw those of the first findings; nothing where no operation was timed."""
    shown = [one for one in found if one.pairs][:_HISTOGRAMS]
    drawn = [figure for one in shown for figure in _of(one, observed, found, sweep)]
    if not drawn:
        return
    yield "<h2>Times of the blamed pairs and of their peers</h2>"
    coarse = (
        "" if sweep else " Only quantiles were stored: what lies between them is spread evenly."
    )
    yield (
        '<p class="small">Share of the operations by their time, both axes logarithmic. Peers are '
        f"pairs (at most {PEERS}) that share no node with anything blamed.{coarse}</p>"
    )
    yield from drawn
    charted = sum(bool(one.pairs) for one in found)
    if charted > len(shown):
        yield f"<p>{charted - len(shown)} more findings have no histogram here.</p>"


def _of(
    one: Accused, observed: Observed, found: Sequence[Accused], sweep: Sweep | None
) -> Iterator[str]:
    """One histogram per kind that tells most: the smallest size, the largest, the soak."""
    involved = {name for each in found for pair in each.pairs for name in pair}
    blamed = {name for each in found for name in each.nodes}
    # Partners of the blamed are peers too, where nobody else is left: then without the blamed.
    avoid = involved if len(observed.nodes) - len(involved) > 1 else blamed

    def is_mine(pair: Ends) -> bool:
        return (pair.a, pair.b) in one.pairs and one.rail in (None, pair.rail)

    def is_peer(pair: Ends) -> bool:
        return avoid.isdisjoint((pair.a, pair.b)) and (pair.a, pair.b) not in one.pairs

    for kind in _kinds(one, observed):
        if sweep is not None:
            mine = of_samples(filter(is_mine, sweep.pairs), kind)
            peers = of_samples(_some(filter(is_peer, sweep.pairs)), kind)
        else:
            own = [digest for digest in observed.digests if kind_of(digest) == kind]
            mine = of_digests(filter(is_mine, own))
            peers = of_digests(_some(filter(is_peer, own)))
        if mine is not None:
            yield histogram(one.component, kind, mine, peers)


def _some(pairs: Iterable[T]) -> list[T]:
    """As many as are enough for a picture, from all over the fabric."""
    found = list(pairs)
    return found[:: -(-len(found) // PEERS) or 1]


def _kinds(one: Accused, observed: Observed) -> list[Kind]:
    own = {kind_of(d) for d in observed.digests if (d.a, d.b) in one.pairs}
    ladder = sorted(kind for kind in own if kind[1] == "ladder")
    soak = sorted(kind for kind in own if kind[1] == "soak")
    return list(dict.fromkeys([*ladder[:1], *ladder[-1:], *soak[-1:]]))
