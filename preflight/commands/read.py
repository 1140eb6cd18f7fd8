"""`preflight read`: pasted outputs of other tools become facts, and are judged.

A support ticket brings a dmesg, not a login. The checks are those of a run; what a text does not
tell they do not judge, and nothing in a damaged text is proven healthy.
"""

from __future__ import annotations

import io
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.captured import (
    Captured,
    bare_facts,
    environment,
    ethernet,
    kernel_log,
    nvidia_smi,
    processes,
    rdma,
    topology,
)
from preflight.captured.archive import MAGIC, inflated_text, unpack
from preflight.captured.kernel_log import TELLS_NOTHING
from preflight.captured.unread import unread
from preflight.check import subject
from preflight.checks.rdma.ports import ADAPTER, SWITCH
from preflight.commands import add_json, print_answer
from preflight.commands.blame import hosts_of, judge_stored, names_nobody
from preflight.core.files import open_stream
from preflight.core.registry import Entry, Registry, load_folder, shipped_folder
from preflight.core.statistics import grouped
from preflight.core.text import countable, decoded, printable, wrapped
from preflight.errors import UsageError
from preflight.fabric.stored import stored_in
from preflight.facts.model import WIRE, Facts
from preflight.facts.node import Group, Net, Node, Reach
from preflight.fleet.model import Job, Promise
from preflight.report.document import VerdictRow
from preflight.report.findings import counts, findings
from preflight.report.ready import verdict_row
from preflight.report.terminal import finding_lines
from preflight.verdict import Outcome, unknown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.captured.archive import Part
    from preflight.verdict import Verdict


def _parts(text: str) -> Iterator[Captured]:
    """Whatever tools printed it, the surest first: whose words no other tool prints."""
    yield from nvidia_smi.read(text)
    for reader in (topology.read, topology.read_ibnetdiscover, topology.read_ibswinfo):
        if found := reader(text):
            yield found
    yield from rdma.read(text)
    for reader in (ethernet.read_interfaces_json, ethernet.read_ethtool):
        if found := reader(text):
            yield found
    yield from processes.read(text)


KINDS: Final = ", ".join((
    *nvidia_smi.KINDS, topology.TOPOLOGY_KIND, *rdma.KINDS, topology.KIND, topology.IBSWINFO_KIND,
    *ethernet.KINDS, ethernet.KIND, *processes.KINDS, kernel_log.KIND,
    *environment.KINDS,
))  # fmt: skip
"""What can be read, for whoever gave something else."""


def captured_parts(text: str) -> tuple[Captured, ...]:
    """Read all that is known in a text: a ticket has a table and, below it, a kernel log."""
    text = countable(text)
    found = list(_parts(text))
    if log := kernel_log.read(text, alone=not found):
        found.append(log)
    if settings := environment.read(text):
        found.append(settings)
    return tuple(map(_bounded, found))


def captured(text: str) -> Captured | None:
    """Take what a text tells first; None if it is of no kind that is known."""
    return next(iter(captured_parts(text)), None)


def _of_text(name: str, text: str) -> dict[str, Captured | None]:
    """By name what a text holds: each output, and each part of it that is none that is known."""
    parts = captured_parts(text)
    if not parts:
        return {name: None}
    known = {f"{name} ({one.kind})" if len(parts) > 1 else name: one for one in parts}
    strange = unread(text, [one.kind for one in parts])
    return {**known, **{f"{name} (lines {first}-{last})": _UNREAD for first, last in strange}}


_UNREAD: Final = Captured(
    kind="", facts=bare_facts(), checks=(), damaged="not read: no reader knows these lines"
)


def _bounded(found: Captured) -> Captured:
    if (many := _crowd(found.facts)) <= _MOST_PORTS:
        return found
    damaged = f"it lists {many} ports, and a node has {_MOST_PORTS} at most"
    advice = "give each node's text in a file of its own"
    return replace(found, facts=bare_facts(), damaged=damaged, advice=advice)


_MOST_PORTS: Final = 1024
"""RDMA ports or interfaces of one node, virtual ones included: each is held against all others."""


def _crowd(facts: Facts) -> int:
    """How many of them a text shows; a list of a whole fabric's may have any number."""
    nics = sum(len(nic.ports) for nic in facts.nics or () if nic.hca_type not in (SWITCH, ADAPTER))
    return max(nics, len((facts.network and facts.network.interfaces) or ()))


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
    """Ask the checks that each text is enough for.

    Texts of one kind are each other's peers, where they tell of the same models of GPUs.
    """
    known = {name: one for name, one in read.items() if one is not None}
    kinds: dict[tuple[str, frozenset[str]], dict[str, Facts]] = {}
    for name, one in known.items():
        kinds.setdefault(_peers_of(one), {})[name] = one.facts
    alike = {kind: Group("captured", facts) for kind, facts in kinds.items()}
    return tuple(
        Entry(registered.check.id, subject((name,)) + place, (name,), verdict)
        for name, one in known.items()
        for place, node in _nodes(name, one, alike[_peers_of(one)])
        for registered in _shipped()
        if registered.check.id in one.checks
        for verdict in (_held_back(registered.conclude(node), one),)
    )


def _peers_of(one: Captured) -> tuple[str, frozenset[str]]:
    return one.kind, frozenset(gpu.name for gpu in one.facts.gpus or () if gpu.name)


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
    strange = any(one is None or not one.kind for one in read.values())
    return UNJUDGED if missed or strange else 0


def document(
    read: Mapping[str, Captured | None], entries: Sequence[Entry], code: int
) -> ReadDocument:
    """Lay it out by file."""
    by_file = _by_file(entries)
    files = tuple(
        ReadRow(
            file=name,
            kind=one.kind if one else "",
            damaged=one.damaged if one else "",
            verdicts=tuple(verdict_row(each) for each in by_file.get((name,), ())),
        )
        for name, one in read.items()
    )
    return ReadDocument(exit=code, files=files)


def _by_file(entries: Sequence[Entry]) -> dict[tuple[str, ...], list[Entry]]:
    return grouped((each.nodes, each) for each in entries)


def _held_back(verdict: Verdict, one: Captured) -> Verdict:
    """A fault that is there is there; but nothing in a damaged text is proven healthy."""
    if not one.damaged or verdict.outcome not in _PROVE_NOTHING:
        return verdict
    seen = f" (what is left of it: {verdict.sentence})" if verdict.outcome is Outcome.WARN else ""
    sentence = f"not enough to go by: {one.damaged}{seen}"
    return unknown(sentence, advice=one.advice, cause="" if seen else "a text that is not whole")


def _nodes(name: str, one: Captured, alike: Group) -> Iterator[tuple[str, Node]]:
    """The node of a text, or each of those that it shows, and where it shows them."""
    if not one.environs:
        job = Job(environ=None if one.environ is None else {"": one.environ}, environ_origin=name)
        yield "", _node(name, one, alike, job)
    for place, environ in one.environs.items():
        environs = one.environs if one.one_job else {"": environ}
        job = Job(environ=environs, environ_origin=f"{name}, {place}")
        yield f" ({place})", _node(place, one, alike, job)


def _node(name: str, one: Captured, alike: Group, job: Job) -> Node:
    return Node(
        name=name,
        promised=Promise(),
        reach=Reach("captured"),
        facts=one.facts,
        group=alike,
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


FACTS, LOG = "facts of a node", "NCCL log"
MEASURED = "run/measured.json"
_SWEEP = "fabric.allreduce"
_KEPT = {MEASURED: "measurements of a run", "run/report.json": "report of a run"}


def read_archive(
    name: str, content: bytes, *, alone: bool
) -> tuple[dict[str, Captured], tuple[Entry, ...]]:
    """Return the parts by name, and what the samples of the run say; UsageError names the archive.

    `alone`: nothing else is read, so that parts need not say whose they are. A part that is kept
    for people (a log, a report) has no checks.
    """
    try:
        archive = unpack(content)
    except UsageError as error:
        raise UsageError(f"cannot read {name}: {error}") from error
    whose = "" if alone else f"{name}: "
    parts = {
        whose + part.name: _captured(part, archive.files[part.name])
        for part in archive.manifest.parts
        if part.name in archive.files
    }
    lacking = {part.name: part.error for part in archive.manifest.parts if part.error}
    for name_of, why in lacking.items():
        if name_of.endswith("/facts.json"):
            parts[whose + name_of] = _lost(f"its node gave none: {why}")
    return parts, _swept(whose + MEASURED, archive.files.get(MEASURED, b""), lacking.get(MEASURED))


def _captured(part: Part, content: bytes) -> Captured:
    if part.name.endswith("/facts.json"):
        return _facts(content)
    text = decoded(content, "replace")
    found = captured(text) if part.name.endswith(".txt") else None
    # Only some lines of a kernel log are kept: that they tell of nothing is no damage.
    if found is not None and found.damaged != TELLS_NOTHING:
        cut = "it is longer than what was kept" if part.cut else ""
        return replace(found, damaged=found.damaged or cut)
    kind = LOG if part.name.endswith(".log") else _KEPT.get(part.name, part.command)
    return Captured(kind=kind or part.name, facts=bare_facts(), checks=())


def _facts(content: bytes) -> Captured:
    try:
        facts = msgspec.json.decode(content, type=Facts)
        damaged = "" if facts.wire == WIRE else f"they are version {facts.wire}, not {WIRE}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _lost(f"its facts cannot be read: {error}")
    if damaged:
        return _lost(damaged)
    return Captured(kind=FACTS, facts=facts, checks=fact_checks())


def _lost(why: str) -> Captured:
    """Facts of which nothing is known: a node that is not judged is not fine."""
    return Captured(kind=FACTS, facts=bare_facts(), checks=("reach.answer",), damaged=why[:200])


def _swept(file: str, content: bytes, why: str | None) -> tuple[Entry, ...]:
    """Verdicts on pairs and nodes as `preflight blame` reaches them, without those on nobody.

    `why`: there are no measurements.
    """
    if not content and why:
        advice = "capture again; run/report.json, if it is there, says what the run found"
        verdict = unknown(f"no pair was measured: {why}", advice=advice)
        return (Entry(_SWEEP, file, (file,), verdict),)
    if not content:
        return ()
    stored = stored_in(Path(file), content)
    entries = judge_stored(stored, hosts_of(stored, None)).entries
    return tuple(
        replace(one, subject=f"{file} ({one.subject})", nodes=(file,))
        for one in entries
        if not names_nobody(one)
    )


LARGEST = 64 << 20
"""Bytes of one text; who has more passes the part around the fault."""

_QUIET = {Outcome.OK: "ok", Outcome.NOT_RUN: "-"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Say what `preflight read` can be asked."""
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="+",
        help="what a tool printed, as docs/read.md lists them, or an archive of preflight "
        "capture; - is standard input",
    )  # fmt: skip
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judge every file: 0 fine, 1 a fault, 3 not all could be judged, 5 nothing of a known kind.

    UsageError (exit 4) for a file that cannot be opened or is larger than LARGEST, and for an
    archive that is damaged.
    """
    read: dict[str, Captured | None] = {}
    swept: list[Entry] = []
    for path in arguments.files:
        name, content = printable(str(path)), _content(path)
        is_text = not content.startswith(MAGIC)
        may_be = not path.name.endswith((".tar.gz", ".tgz"))
        text = content if is_text else inflated_text(content) if may_be else None
        if text is None:
            named, found = read_archive(name, content, alone=len(arguments.files) == 1)
            read.update(named)
            swept += found
        else:
            read |= _of_text(name, decoded(text, "replace"))
    entries = (*judge_captured(read), *swept)
    code = exit_code(read, entries)
    told = document(read, entries, code)
    print_answer(arguments, told, lambda width: _lines(read, entries, code, width))
    return code


def _content(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with io.BufferedReader(open_stream(path)) as file:
                content = file.read(LARGEST + 1) or b""
    except IsADirectoryError as error:
        folder = f"cannot read {path}: it is a folder; type preflight read {path}/*"
        raise UsageError(folder) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a readable file") from error
    if len(content) > LARGEST:
        raise UsageError(f"{path} has over {LARGEST >> 20} MiB: pass the part around the fault")
    return content


def _lines(
    read: Mapping[str, Captured | None], entries: Sequence[Entry], code: int, width: int
) -> Iterator[str]:
    by_file = _by_file(entries)
    for name, one in read.items():
        yield printable(name)
        what = (
            (one.kind or one.damaged)
            if one
            else f"nothing that can be read here, which is: {KINDS}"
        )
        yield from wrapped(printable(what), first=" " * 7, indent=" " * 7, width=width)
        for each in by_file.get((name,), ()):
            if (word := _QUIET.get(each.verdict.outcome)) is not None:
                words = f"{each.check}{each.subject.removeprefix(name)}: {each.verdict.sentence}"
                yield from wrapped(words, first=f"{word:<6} ", indent=" " * 7, width=width)
    for finding in findings(entries):
        yield from finding_lines(finding, (), width)
    counted = counts(entries)
    told = ", ".join(
        f"{counted[outcome]} {outcome.value}" for outcome in Outcome if counted[outcome]
    )
    yield f"{told.replace('_', ' ') or 'nothing was judged'}    exit {code}"
