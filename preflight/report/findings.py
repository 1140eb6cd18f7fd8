"""Groups verdicts into one finding per cause: a dead node, or a bad host, is one line, not many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped, shared_cause
from preflight.fabric.blame import components
from preflight.verdict import NOT_FINE, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.core.registry import Entry
    from preflight.report.document import BlameRow

COUNTED = (
    (Outcome.OK, "ok"),
    (Outcome.WARN, "warned"),
    (Outcome.FAIL, "failed"),
    (Outcome.FLAKY, "flaky"),
    (Outcome.UNKNOWN, "unknown"),
    (Outcome.WAIVED, "waived"),
    (Outcome.NOT_RUN, "not run"),
    (Outcome.BROKEN, "broken"),
    (Outcome.MISSING, "missing"),
)
"""The outcomes in the order in which they are counted, and the word for each."""

_AND = " and "
_WAIT = "find what these nodes share before you change any of them (see the note)"


class Finding(Struct, frozen=True, kw_only=True):
    """What is shown for one cause; `subjects`: nodes or pairs with exactly the same finding."""

    outcome: Outcome
    subjects: tuple[str, ...]
    check: str
    sentence: str
    advice: str
    also: tuple[str, ...] = ()
    """Other checks whose verdicts on the subject have the same cause."""
    verdicts: int = 1
    makes_not_ready: bool = False


def findings(
    entries: Iterable[Entry], blames: Sequence[BlameRow] = (), suspected: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Group verdicts that are not fine by their cause, then merge identical ones over subjects.

    `suspected`: checks that fail on so many nodes that no node should be drained for them.
    """
    bad = [entry for entry in entries if entry.verdict.outcome in NOT_FINE]
    subjects = {entry.subject for entry in bad}
    single = [blame for blame in blames if blame.kind != "systemic"]
    by_pair = grouped(
        (name, blame) for blame in single for name in dict.fromkeys(blame.pairs) if name in subjects
    )
    several = {name: _several(own) for name, own in by_pair.items() if len(own) > 1}
    groups = grouped(
        (cause, entry)
        for entry in bad
        for cause in _causes(entry, *several.get(entry.subject, ("", ())))
    )
    _merge_double_culprits(groups)
    by_component = {blame.component: blame for blame in blames}
    each = (_joined(who, own, by_component.get(who)) for (who, _), own in groups.items())
    merged = grouped(((one.check, one.sentence, one.advice, one.outcome), one) for one in each)
    found = [_over_subjects(same) for same in merged.values()]
    found = [replace(f, advice=_WAIT) if f.check in suspected else f for f in found]
    return tuple(sorted(found, key=lambda finding: NOT_FINE.index(finding.outcome)))


def _several(own: Sequence[BlameRow]) -> tuple[str, Sequence[BlameRow]]:
    """The joint name of all components that are blamed for one pair, and their rows."""
    return components(one.component for one in own), own


def _causes(entry: Entry, joint: str, own: Sequence[BlameRow]) -> list[tuple[str, str]]:
    """(subject at fault, cause) of a verdict: two checks with the same culprit are one finding."""
    subjects: Sequence[str] = entry.verdict.culprits or (entry.verdict.blame or entry.subject,)
    if own and entry.verdict.blame == joint:
        # A path with a fault of its own, besides that of its end, is a second finding.
        names = (name for one in own for name in one.culprits or (one.component,))
        subjects = tuple(dict.fromkeys(names))
    return [(subject, entry.verdict.cause or entry.check) for subject in subjects]


def _merge_double_culprits(groups: dict[tuple[str, str], list[Entry]]) -> None:
    """Merge "a and b" into a's finding, if a and b have findings of their own."""
    for both, cause in [key for key in groups if _AND in key[0]]:
        each = [(name, cause) for name in both.split(_AND)]
        if all(key in groups for key in each):
            groups[each[0]] += groups.pop((both, cause))


def _joined(subject: str, group: Sequence[Entry], blame: BlameRow | None) -> Finding:
    worst = min(group, key=lambda entry: NOT_FINE.index(entry.verdict.outcome))
    from_sweep = blame is not None and len(worst.nodes) > 1
    return Finding(
        outcome=worst.verdict.outcome,
        subjects=(subject,),
        check=worst.check,
        sentence=blame.sentence if blame and from_sweep else worst.verdict.sentence,
        advice=blame.advice if blame and from_sweep else worst.verdict.advice,
        also=tuple(dict.fromkeys(e.check for e in group if e.check != worst.check)),
        verdicts=len(group),
        makes_not_ready=any(entry.verdict.makes_not_ready for entry in group),
    )


def _over_subjects(same: Sequence[Finding]) -> Finding:
    return replace(
        same[0],
        subjects=tuple(subject for finding in same for subject in finding.subjects),
        also=tuple(dict.fromkeys(name for finding in same for name in finding.also)),
        verdicts=sum(finding.verdicts for finding in same),
        makes_not_ready=any(finding.makes_not_ready for finding in same),
    )


def suspicions(entries: Iterable[Entry], nodes: int) -> dict[str, str]:
    """A note for each check that fails on so many nodes that one shared cause is likelier.

    Counted on nodes, never on pairs: one slow host makes half of the pairs bad at N = 4.
    """
    at_fault: dict[str, set[str]] = {}
    for entry in entries:
        names = entry.verdict.culprits
        if not names and len(entry.nodes) == 1:
            names = (entry.verdict.blame or entry.subject,)
        if entry.verdict.makes_not_ready and names:
            at_fault.setdefault(entry.check, set()).update(names)
    return {
        check: f"{check} fails on {len(names)} of {nodes} nodes: the inventory, the check or one "
        "shared cause is likelier than that many faults; do not drain nodes for it"
        for check, names in at_fault.items()
        if shared_cause(len(names), nodes)
    }


def counts(entries: Iterable[Entry]) -> Counter[Outcome]:
    """Count verdicts by outcome."""
    return Counter(entry.verdict.outcome for entry in entries)
