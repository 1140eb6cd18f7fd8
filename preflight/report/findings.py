"""Groups verdicts into one finding per cause: a dead node, or a bad host, is one line, not many."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped, shared_cause
from preflight.fabric.phrases import components
from preflight.fleet.nodeset import fold
from preflight.verdict import NOT_FINE, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.core.registry import Entry
    from preflight.report.document import BlameRow

COUNTED = {
    Outcome.OK: "ok", Outcome.WARN: "warned", Outcome.FAIL: "failed", Outcome.FLAKY: "flaky",
    Outcome.UNKNOWN: "unknown", Outcome.WAIVED: "waived", Outcome.NOT_RUN: "not run",
    Outcome.BROKEN: "broken", Outcome.MISSING: "missing",
}  # fmt: skip
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
    alike: tuple[Finding, ...] = ()
    """The findings that were folded into this one; they differ in a node's name or in numbers."""


def findings(
    entries: Iterable[Entry], blames: Sequence[BlameRow] = (), suspected: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Group verdicts that are not fine by their cause, then fold like ones over their subjects.

    `suspected`: checks that fail on so many nodes that no node should be drained for them.
    """
    faults = [entry for entry in entries if entry.verdict.outcome in NOT_FINE]
    subjects = {entry.subject for entry in faults}
    single = [blame for blame in blames if blame.kind != "systemic"]
    blamed = ((name, blame) for blame in single for name in dict.fromkeys(blame.pairs))
    by_pair = grouped(row for row in blamed if row[0] in subjects)
    joint = {
        name: (components(blame.component for blame in rows), rows)
        for name, rows in by_pair.items()
        if len(rows) > 1
    }
    groups = grouped(
        (cause, entry)
        for entry in faults
        for cause in causes(entry, *joint.get(entry.subject, ("", ())))
    )
    _merge_double_culprits(groups)
    by_component = {blame.component: blame for blame in blames}
    singles = [_finding(name, rows, by_component.get(name)) for (name, _), rows in groups.items()]
    merged = grouped(
        ((finding.check, finding.sentence, finding.advice, finding.outcome), finding)
        for finding in singles
    )
    result = _fold([_merge(equal) for equal in merged.values()])
    result = [replace(f, advice=_WAIT) if f.check in suspected else f for f in result]
    return tuple(sorted(result, key=lambda finding: NOT_FINE.index(finding.outcome)))


def causes(entry: Entry, joint: str = "", blames: Sequence[BlameRow] = ()) -> list[tuple[str, str]]:
    """(subject at fault, cause) of a verdict: two checks with the same culprit are one finding."""
    subjects: Sequence[str] = entry.verdict.culprits or (entry.verdict.blame or entry.subject,)
    if blames and entry.verdict.blame == joint:
        # A path with a fault of its own, besides that of its end, is a second finding.
        names = (name for blame in blames for name in blame.culprits or (blame.component,))
        subjects = tuple(dict.fromkeys(names))
    return [(subject, entry.verdict.cause or entry.check) for subject in subjects]


def _merge_double_culprits(groups: dict[tuple[str, str], list[Entry]]) -> None:
    """Merge "a and b" into a's finding, if a and b have findings of their own."""
    for joint, cause in [key for key in groups if _AND in key[0]]:
        keys = [(name, cause) for name in joint.split(_AND)]
        if all(key in groups for key in keys):
            groups[keys[0]] += groups.pop((joint, cause))


def _finding(subject: str, group: Sequence[Entry], blame: BlameRow | None) -> Finding:
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


def _merge(findings: Sequence[Finding]) -> Finding:
    return replace(
        findings[0],
        subjects=tuple(subject for finding in findings for subject in finding.subjects),
        also=tuple(dict.fromkeys(name for finding in findings for name in finding.also)),
        verdicts=sum(finding.verdicts for finding in findings),
        makes_not_ready=any(finding.makes_not_ready for finding in findings),
    )


_FEWEST = 3
"""So many nodes whose findings differ in numbers are one finding; of two, each is shown whole."""
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_NUMBER = re.compile(r"(?<![\w.-])[0-9][0-9a-f]*(?:[.:][0-9a-f]+)*")
"""A number, an address or a date; not the digits of a name such as mlx5_1."""
_PLURAL = re.compile(r"s\b")
_NODE = "<node>"


def _fold(merged: Sequence[Finding]) -> list[Finding]:
    """Fold findings that differ only in the node's own name, or, from `_FEWEST` on, in numbers."""
    by_name = grouped((_shape(finding), finding) for finding in merged)
    by_node = [_example(group) for group in by_name.values()]
    by_number = grouped((tuple(map(_numberless, _shape(finding))), finding) for finding in by_node)
    folded: list[Finding] = []
    for group in by_number.values():
        enough = sum(len(finding.subjects) for finding in group) >= _FEWEST
        folded += [_example(group)] if enough else group
    return folded


def _shape(finding: Finding) -> tuple[str, ...]:
    """What two findings must have in common to be one: everything but the node's own name."""
    first = finding.alike[0] if finding.alike else finding
    names = {first.subjects[0]} if len(first.subjects) == 1 else set()

    def nameless(text: str) -> str:
        return _WORD.sub(lambda word: _NODE if word[0] in names else word[0], text)

    kind = f"{first.outcome} {first.makes_not_ready}"
    return (first.check, kind, nameless(first.sentence), nameless(first.advice))


def fold_reasons(
    reasons: Mapping[str, Counter[str]], nodes: Collection[str]
) -> dict[str, Counter[str]]:
    """Join sentences that differ only in the node they name, and in numbers; sum the counts."""

    def named_as(reason: str, name: str) -> str:
        found = _names(reason, nodes)
        return _WORD.sub(lambda word: name if word[0] in found else word[0], reason)

    folded: dict[str, Counter[str]] = {}
    groups = grouped((_numberless(named_as(reason, _NODE)), reason) for reason in reasons)
    for group in groups.values():
        names = {name for reason in group for name in _names(reason, nodes)}
        words = "e.g. " if len({named_as(reason, _NODE) for reason in group}) > 1 else ""
        words += named_as(group[0], fold(name for name in nodes if name in names))
        folded[words] = sum((reasons[reason] for reason in group), Counter[str]())
    return folded


def _names(reason: str, nodes: Collection[str]) -> set[str]:
    """The one node that a sentence names; nothing for a sentence with several."""
    names = {word for word in _WORD.findall(reason) if word in nodes}
    return names if len(names) == 1 else set()


def _numberless(text: str) -> str:
    return _PLURAL.sub("", _NUMBER.sub("#", text))


def _example(findings: Sequence[Finding]) -> Finding:
    """One finding for all of these, in the words of the first."""
    if len(findings) == 1:
        return findings[0]
    every = tuple(original for finding in findings for original in finding.alike or (finding,))
    first, node = every[0], every[0].subjects[0]
    varies = any(finding.advice != first.advice for finding in every)
    return replace(
        _merge(every),
        sentence=f"e.g. {node}: {first.sentence}",
        advice=f"e.g. on {node}: {first.advice}" if varies else first.advice,
        alike=every,
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
