"""Several things unlike their peers make one verdict: the gravest leads, all are evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.verdict import Verdict, fail, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.facts.odd_gpus import Oddity


def conclude_oddities(found: Iterable[Oddity]) -> Verdict | None:
    """A failure if one of them is grave, else a warning; None where nothing is odd."""
    odd = sorted(found, key=lambda one: not one.grave)
    if not odd:
        return None
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    conclude = fail if odd[0].grave else warn
    findings = [one.sentence for one in odd]
    return conclude(odd[0].sentence + more, advice=odd[0].advice, findings=findings)
