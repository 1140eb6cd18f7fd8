"""Whom the findings name, in rows and cells of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fabric.blame import Blame
    from preflight.fabric.decoding.shown import Turn
    from preflight.fabric.observed import Observed

_ROWS = ("node", "endpoint", "leaf_rail")


class Accused(Struct, frozen=True, kw_only=True):
    """One finding: its words, and where it shows."""

    component: str
    sentence: str
    advice: str
    nodes: tuple[str, ...] = ()
    """Rows that are marked; none for a path, whose two nodes are fine, or a shared cause."""
    rail: int | None = None
    """Of those rows only this rail; None: all."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """The bad pairs that it explains."""
    certain: bool = True
    """False where it is only one of several that the samples do not tell apart."""


def blamed_turns(found: Iterable[Accused], observed: Observed) -> frozenset[Turn]:
    """Give every pair, rail and round that goes through what is blamed, or may be."""
    nodes: set[tuple[str, int | None]] = set()
    paths: set[tuple[str, str, int | None]] = set()
    for one in found:
        nodes.update((name, one.rail) for name in one.nodes)
        paths.update((a, b, one.rail) for a, b in one.pairs if not one.nodes)
    return frozenset(
        (one.a, one.b, one.rail, one.round)
        for one in observed.tried
        if any((name, rail) in nodes for name in (one.a, one.b) for rail in (None, one.rail))
        or any((one.a, one.b, rail) in paths for rail in (None, one.rail))
    )


def accused(blames: Iterable[Blame], observed: Observed) -> tuple[Accused, ...]:
    """Find the rows and cells of each blame."""
    known = {f"{one.a}-{one.b}": (one.a, one.b) for one in observed.tried}
    return tuple(_accused(blame, known, observed.nodes) for blame in blames)


def _accused(blame: Blame, known: dict[str, tuple[str, str]], nodes: Sequence[str]) -> Accused:
    shared = blame.kind == "systemic"
    pairs = () if shared else (known[name] for name in blame.pairs if name in known)
    rows = blame.culprits or (blame.component,)
    only = f" rail {blame.rail}" if blame.kind == "endpoint" and blame.rail is not None else ""
    return Accused(
        component=blame.component + only,
        sentence=blame.sentence,
        advice=blame.advice,
        nodes=tuple(name for name in rows if name in nodes) if blame.kind in _ROWS else (),
        rail=blame.rail,
        pairs=frozenset(pairs),
        certain=blame.kind in (*_ROWS, "path"),
    )
