"""The checks of a run are asked about captured outputs too: of what a text tells, and no more."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.check import subject
from preflight.facts.node import Group, Net, Node, Reach
from preflight.fleet.model import Job, Promise
from preflight.ledger import Entry
from preflight.registry import Registry, load_folder, shipped_folder
from preflight.report.document import VerdictRow
from preflight.report.rows import verdict_row
from preflight.verdict import Outcome, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.offline.captured import Captured
    from preflight.verdict import Verdict

CONDEMNED, UNJUDGED, EMPTY = 1, 3, 5
"""Exit codes: a fault was found; something could not be judged; nothing is of a known kind."""

_PROVE_NOTHING = frozenset((Outcome.OK, Outcome.WARN, Outcome.NOT_RUN))
"""What a check may say of a damaged text that the missing part could turn around."""


class ReadRow(Struct, frozen=True, kw_only=True):
    """One file: what it is, and what the checks say of it."""

    file: str
    kind: str
    """Empty where it is nothing that can be read."""
    damaged: str = ""
    verdicts: tuple[VerdictRow, ...] = ()


class ReadDocument(Struct, frozen=True, kw_only=True):
    """What `preflight read --json` prints; docs/read.md."""

    schema: int = 1
    exit: int
    files: tuple[ReadRow, ...]


def judge_captured(read: Mapping[str, Captured | None]) -> tuple[Entry, ...]:
    """Ask the checks that each text is enough for; texts of one kind are each other's peers."""
    known = {name: one for name, one in read.items() if one is not None}
    return tuple(
        Entry(registered.check.id, subject((name,)) + place, (name,), verdict)
        for name, one in known.items()
        for place, node in _nodes(name, one, known)
        for registered in _shipped()
        if registered.check.id in one.checks
        for verdict in (_held_back(registered.conclude(node), one.damaged),)
    )


@cache
def _shipped() -> Registry:
    return Registry(load_folder(shipped_folder()))


def fact_checks() -> tuple[str, ...]:
    """Ids of the checks that judge one node by its facts alone."""
    return tuple(
        one.check.id for one in _shipped() if one.check.stage == "facts" and one.subject == "node"
    )


def exit_code(read: Mapping[str, Captured | None], entries: Sequence[Entry]) -> int:
    """1 a fault, 3 something not judged, 5 nothing to judge, else 0."""
    if not entries:
        return EMPTY
    outcomes = {one.verdict.outcome for one in entries}
    if outcomes & {Outcome.FAIL, Outcome.FLAKY}:
        return CONDEMNED
    missed = bool(outcomes & {Outcome.UNKNOWN, Outcome.BROKEN})
    return UNJUDGED if missed or None in read.values() else 0


def document(
    read: Mapping[str, Captured | None], entries: Sequence[Entry], code: int
) -> ReadDocument:
    """Lay it out by file."""
    files = tuple(
        ReadRow(
            file=name,
            kind=one.kind if one else "",
            damaged=one.damaged if one else "",
            verdicts=tuple(verdict_row(each) for each in entries if each.nodes == (name,)),
        )
        for name, one in read.items()
    )
    return ReadDocument(exit=code, files=files)


def _held_back(verdict: Verdict, damaged: str) -> Verdict:
    """A fault that is there is there; but nothing in a damaged text is proven healthy."""
    if not damaged or verdict.outcome not in _PROVE_NOTHING:
        return verdict
    seen = f" (what is left of it: {verdict.sentence})" if verdict.outcome is Outcome.WARN else ""
    advice = "capture it again, whole and unedited"
    return unknown(f"not enough to go by: {damaged}{seen}", advice=advice)


def _nodes(name: str, one: Captured, known: Mapping[str, Captured]) -> Iterator[tuple[str, Node]]:
    """The node of a text, or each of those that it shows, and where it shows them."""
    if not one.environs:
        job = Job(environ=None if one.environ is None else {"": one.environ}, environ_origin=name)
        yield "", _node(name, one, known, job)
    for place, environ in one.environs.items():
        environs = one.environs if one.one_job else {"": environ}
        job = Job(environ=environs, environ_origin=f"{name}, {place}")
        yield f" ({place})", _node(place, one, known, job)


def _node(name: str, one: Captured, known: Mapping[str, Captured], job: Job) -> Node:
    alike = {other: each.facts for other, each in known.items() if each.kind == one.kind}
    return Node(
        name=name,
        promised=Promise(),
        reach=Reach("captured"),
        facts=one.facts,
        group=Group("captured", alike),
        job=job,
        net=Net(
            own=None,
            trouble="a captured text",
            master="",
            is_master=False,
            master_port_origin="",
            to_me=(),
            others_to_master=(),
        ),
    )
