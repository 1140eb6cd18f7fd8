"""Whom the findings name, in rows and cells of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fabric.blame import Blame
    from preflight.fabric.culprit import Found
    from preflight.fabric.observed import Observed


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


def accused(blames: Iterable[Blame], observed: Observed) -> tuple[Accused, ...]:
    """Find the rows and cells of each blame."""
    known = {f"{one.a}-{one.b}": (one.a, one.b) for one in observed.tried}
    return tuple(_accused(blame, known, observed.nodes) for blame in blames)


def accused_part(one: Found, blame: Blame) -> Accused:
    """The same of what the decoder found, with its words."""
    rows = one.among if all(part.kind != "path" for part in one.among) else ()
    rails = {part.rail for part in one.among}
    return Accused(
        component=blame.component,
        sentence=blame.sentence,
        advice=blame.advice,
        nodes=tuple(dict.fromkeys(name for part in rows for name in part.nodes)),
        rail=rails.pop() if len(rails) == 1 else None,
        pairs=frozenset(one.pairs),
        certain=one.named is not None,
    )


def _accused(blame: Blame, known: dict[str, tuple[str, str]], nodes: Sequence[str]) -> Accused:
    shared = blame.kind == "systemic"
    pairs = () if shared else (known[name] for name in blame.pairs if name in known)
    named = (blame.component,) if blame.component in nodes else ()
    return Accused(
        component=blame.component,
        sentence=blame.sentence,
        advice=blame.advice,
        nodes=named if blame.kind == "node" else (),
        pairs=frozenset(pairs),
        certain=blame.kind in ("node", "path"),
    )
