"""Verdicts on what is in no single wave: nodes without a report, and the fleet as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import FLEET
from preflight.ledger import Entry
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.report.document import Report, VerdictRow

ASKED = "reach.answer"
"""The check under which it stands that a node was not judged at all: the first of all questions."""

_WORST_FIRST = (
    *(Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.BROKEN, Outcome.LOST),
    *(Outcome.WARN, Outcome.WAIVED, Outcome.OK, Outcome.NOT_RUN),
)


def on_node(name: str, verdict: Verdict) -> Entry:
    """What stands for a node of which there is no report."""
    return Entry(ASKED, name, (name,), verdict)


def of_the_fleet(reports: Mapping[int, Report]) -> Iterator[Entry]:
    """One verdict for each check that judged every wave as a whole, by the number of the wave."""
    rows: dict[str, list[tuple[int, VerdictRow]]] = {}
    for number, report in reports.items():
        for row in report.verdicts:
            if row.subject == FLEET:
                rows.setdefault(row.check, []).append((number, row))
    for check, told in rows.items():
        yield Entry(check, FLEET, (), _joined(told, len(reports)))


def _joined(told: Sequence[tuple[int, VerdictRow]], waves: int) -> Verdict:
    """The worst that it said of any wave, and of which."""
    worst = min((row.outcome for _, row in told), key=_WORST_FIRST.index)
    same = [(number, row) for number, row in told if row.outcome is worst]
    first = same[0][1]
    by_sentence: dict[str, list[int]] = {}
    for number, row in same:
        by_sentence.setdefault(row.sentence, []).append(number)
    alone = waves == 1 or (len(by_sentence) == 1 and len(same) == waves)
    words = by_sentence if alone else (_of(*one) for one in by_sentence.items())
    return Verdict(
        outcome=worst,
        sentence="; ".join(words),
        advice=first.advice,
        evidence=first.evidence if waves == 1 else {f"wave {n}": r.evidence for n, r in same},
        cause=first.cause,
        grant=first.grant,
        blame=first.blame if len(same) == 1 else "",
        culprits=tuple(dict.fromkeys(name for _, row in same for name in row.culprits)),
        suspects=tuple(dict.fromkeys(name for _, row in same for name in row.suspects)),
    )


def _of(sentence: str, waves: Sequence[int]) -> str:
    numbers = ",".join(map(str, waves))
    return f"{'waves' if len(waves) > 1 else 'wave'} {numbers}: {sentence}"
