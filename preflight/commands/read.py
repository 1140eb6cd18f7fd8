"""`preflight read`: turns pasted outputs of other tools into facts and checks them.

A support ticket brings a dmesg, not a login. The checks are those of a run; they skip what a text
does not show, and a damaged text never proves that anything is ok.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.captured import (
    Captured,
    dmesg,
    environment,
    ethernet,
    nvidia_smi,
    process_listing,
    rdma_ports,
    topology,
)
from preflight.captured.archive import MAGIC, Part, inflated_text, unpack
from preflight.captured.dmesg import SHOWS_NOTHING
from preflight.captured.unread import unread, wrapped_line
from preflight.check import subject
from preflight.checks.env.remark import UNKNOWN_JOB
from preflight.checks.rdma.ports import ADAPTER, SWITCH
from preflight.commands import add_json, print_answer
from preflight.commands.blame import has_no_culprit, hosts_of, judge_stored
from preflight.core.command_line import EMPTY, FINE, FOUND, UNCLEAR, path_type
from preflight.core.files import open_stream
from preflight.core.registry import Entry, shipped_checks
from preflight.core.statistics import grouped
from preflight.core.text import cut_long_numbers, decode_text, printable, wrapped
from preflight.errors import UsageError
from preflight.fabric.stored import stored_in
from preflight.facts.model import WIRE, Facts, bare_facts
from preflight.facts.node import Group, Net, Node, Reach
from preflight.fleet.model import Expected, Job
from preflight.report.document import VerdictRow
from preflight.report.findings import Finding, counts, findings
from preflight.report.ready import verdict_row
from preflight.report.terminal import finding_lines
from preflight.verdict import Outcome, Verdict, not_run, unknown


def _read_by_tool(text: str) -> Iterator[Captured]:
    """Try the readers of all tools, those with the most distinctive output first."""
    yield from nvidia_smi.read(text)
    readers = (topology.read, topology.read_ibnetdiscover, topology.read_ibswinfo)
    yield from filter(None, (reader(text) for reader in readers))
    yield from rdma_ports.read(text)
    readers = (ethernet.read_interfaces_json, ethernet.read_ethtool, ethernet.read_statistics)
    yield from filter(None, (reader(text) for reader in readers))
    yield from process_listing.read(text)


KINDS: Final = ", ".join((
    *nvidia_smi.KINDS, topology.TOPOLOGY_KIND, *rdma_ports.KINDS, topology.KIND,
    topology.IBSWINFO_KIND, *ethernet.KINDS, ethernet.KIND, *process_listing.KINDS, dmesg.KIND,
    *environment.KINDS,
))  # fmt: skip
"""The readable kinds of text, for the message about any other."""


def captured_parts(text: str) -> tuple[Captured, ...]:
    """Read all known parts of a text: a ticket may hold a table and, below it, a kernel log."""
    text = cut_long_numbers(text)
    parts = list(_read_by_tool(text))
    if log := dmesg.read(text, alone=not parts):
        torn = "" if parts or log.damaged else wrapped_line(text)
        parts.append(replace(log, damaged=torn) if torn else log)
    if settings := environment.read(text):
        parts.append(settings)
    return tuple(map(_refuse_crowd, parts))


def captured(text: str) -> Captured | None:
    """Return the first part of a text; None if its kind is unknown."""
    return next(iter(captured_parts(text)), None)


_OUTPUT_STARTS: Final = (
    re.compile(r"^(?>.*?NVIDIA-SMI\s+)\S.*?(?:Driver|KMD) Version:", re.MULTILINE),
    re.compile(r"^=+NVSMI LOG=", re.MULTILINE),
    re.compile(r"^[^\S\n]*<\?xml\b", re.MULTILINE),
    re.compile(r"^(?:\x1b\[[0-9;]*+m|[ \t])*+GPU0[ \t]++(?:GPU1|NIC0|mlx|CPU)", re.MULTILINE),
)
"""First lines of outputs that may follow each other in one text: their readers read only one."""
_MOST_OUTPUTS: Final = 64


def _read_text(name: str, text: str) -> dict[str, Captured | None]:
    """Read a text, which may hold several outputs of one kind, as of two nodes; by name."""
    if not text.strip():
        empty = "the file is empty: save the output of the tool again"
        return {name: Captured(kind="", facts=bare_facts(), checks=(), damaged=empty)}
    text = cut_long_numbers(text)
    if text.count("\\n") > text.count("\n") and not text.lstrip().startswith(("{", "[")):
        text = text.replace("\\n", "\n").replace("\\t", "\t")  # a log's field: escaped line ends
    places = [[match.start() for match in begin.finditer(text)] for begin in _OUTPUT_STARTS]
    cuts = sorted(place for starts in places if len(starts) > 1 for place in starts)
    if not cuts:
        return _read_output(name, text)
    outputs: dict[str, Captured | None] = {}
    for number, (start, end) in enumerate(pairwise([0, *cuts[1:], len(text)]), 1):
        if number > _MOST_OUTPUTS:
            return outputs | {f"{name} (after output {_MOST_OUTPUTS})": _UNREAD}
        outputs |= _read_output(f"{name} (output {number})", text[start:end])
    return outputs


def _read_output(name: str, text: str) -> dict[str, Captured | None]:
    """Read each kind of output in a text, and name the lines that no reader knows."""
    parts = captured_parts(text)
    if not parts:
        return {name: _NO_SETTING if environment.has_no_setting(text) else None}
    outputs = {f"{name} ({part.kind})" if len(parts) > 1 else name: part for part in parts}
    ranges = unread(text, [part.kind for part in parts])
    return {**outputs, **{f"{name} (lines {first}-{last})": _UNREAD for first, last in ranges}}


_UNREAD: Final = Captured(
    kind="", facts=bare_facts(), checks=(), damaged="not read: no reader knows these lines"
)


_NO_SETTING: Final = replace(
    _UNREAD,
    damaged="an environment without a variable that preflight judges, such as NCCL_DEBUG or "
    "MASTER_ADDR: type env > job.env in the job itself",
)


def _refuse_crowd(output: Captured) -> Captured:
    """Refuse a list of a whole fabric, which may have any number of ports."""
    facts, switches = output.facts, (SWITCH, ADAPTER)
    ports = sum(len(nic.ports) for nic in facts.nics or () if nic.hca_type not in switches)
    number = max(ports, len((facts.network and facts.network.interfaces) or ()))
    if number <= _MOST_PORTS:
        return output
    damaged = f"it lists {number} ports, a node has at most {_MOST_PORTS}"
    advice = "give each node's own text"
    return replace(output, facts=bare_facts(), damaged=damaged, advice=advice)


_MOST_PORTS: Final = 1024
"""RDMA ports or interfaces of one node, virtual ones included: each is compared with all others."""


_PROVE_NOTHING = frozenset((Outcome.OK, Outcome.WARN, Outcome.NOT_RUN))
"""Outcomes that the missing part of a damaged text could change."""


class ReadRow(Struct, frozen=True, kw_only=True):
    """One file: its kind and the verdicts on it."""

    file: str
    kind: str
    """Empty where it cannot be read."""
    damaged: str = ""
    verdicts: tuple[VerdictRow, ...] = ()


class ReadDocument(Struct, frozen=True, kw_only=True):
    """What `preflight read --json` prints; docs/reference/read.md."""

    schema: int = 1
    exit: int
    files: tuple[ReadRow, ...]


def judge_captured(outputs: Mapping[str, Captured | None]) -> tuple[Entry, ...]:
    """Run on each text the checks that it suffices for.

    Texts of one kind are peers if they show the same GPU models.
    """
    texts = {name: text for name, text in outputs.items() if text is not None}
    kinds: dict[tuple[str, frozenset[str]], dict[str, Facts]] = {}
    for name, text in texts.items():
        kinds.setdefault(_peer_key(text), {})[name] = text.facts
    groups = {kind: Group("captured", facts) for kind, facts in kinds.items()}
    return tuple(
        Entry(registered.check.id, subject((name,)) + place, (name,), verdict)
        for name, text in texts.items()
        for place, node in _nodes(name, text, groups[_peer_key(text)])
        for registered in shipped_checks()
        if registered.check.id in text.checks
        for verdict in (_limit(registered.conclude(node), text),)
    )


def _peer_key(text: Captured) -> tuple[str, frozenset[str]]:
    return text.kind, frozenset(gpu.name for gpu in text.facts.gpus or () if gpu.name)


def fact_checks() -> tuple[str, ...]:
    """Return the ids of the checks that judge one node by its facts alone."""
    return tuple(
        registered.check.id
        for registered in shipped_checks()
        if registered.check.stage == "facts" and registered.subject == "node"
    )


def exit_code(outputs: Mapping[str, Captured | None], entries: Sequence[Entry]) -> int:
    """Return 1 for a fault, 3 if something was not judged, 5 for nothing to judge, else 0."""
    if not entries:
        return EMPTY
    outcomes = {entry.verdict.outcome for entry in entries}
    if outcomes & {Outcome.FAIL, Outcome.FLAKY}:
        return FOUND
    has_gaps = bool(outcomes & {Outcome.UNKNOWN, Outcome.BROKEN})
    has_unread = any(text is None or not text.kind for text in outputs.values())
    return UNCLEAR if has_gaps or has_unread else FINE


def document(
    outputs: Mapping[str, Captured | None], entries: Sequence[Entry], code: int
) -> ReadDocument:
    """Return the document, with the verdicts of each file."""
    by_file, files = grouped((entry.nodes, entry) for entry in entries), []
    for name, text in outputs.items():
        kind, damaged = (text.kind, text.damaged) if text else ("", "")
        verdicts = tuple(map(verdict_row, by_file.get((name,), ())))
        files.append(ReadRow(file=name, kind=kind, damaged=damaged, verdicts=verdicts))
    return ReadDocument(exit=code, files=tuple(files))


def _limit(verdict: Verdict, text: Captured) -> Verdict:
    """Keep a fault, but turn other outcomes on a damaged text into unknown."""
    if verdict.sentence == UNKNOWN_JOB:  # it names options that this command does not have
        return not_run("no job environment known; give the output of env in the job as a file")
    if not text.damaged or verdict.outcome not in _PROVE_NOTHING:
        return verdict
    warning = f" (the rest shows: {verdict.sentence})" if verdict.outcome is Outcome.WARN else ""
    sentence = f"too little can be read: {text.damaged}{warning}"
    return unknown(sentence, advice=text.advice, cause="" if warning else "an incomplete text")


def _nodes(name: str, text: Captured, group: Group) -> Iterator[tuple[str, Node]]:
    """Yield the nodes that a text shows, each with its place in the text."""
    if not text.environs:
        job = Job(environ=None if text.environ is None else {"": text.environ}, environ_origin=name)
        yield "", _node(name, text, group, job)
    for place, environ in text.environs.items():
        environs = text.environs if text.one_job else {"": environ}
        job = Job(environ=environs, environ_origin=f"{name}, {place}")
        yield f" ({place})", _node(place, text, group, job)


def _node(name: str, text: Captured, group: Group, job: Job) -> Node:
    return Node(
        name=name, expected=Expected(), reach=Reach("captured"), facts=text.facts, group=group,
        job=job, net=Net(trouble="a captured text"),
    )  # fmt: skip


FACTS, LOG = "facts of a node", "NCCL log"
MEASURED = "run/measured.json"
_SWEEP = "fabric.allreduce"
_RUN_KINDS = {MEASURED: "measurements of a run", "run/report.json": "report of a run"}


def read_archive(
    name: str, content: bytes, *, alone: bool
) -> tuple[dict[str, Captured], tuple[Entry, ...]]:
    """Return the parts by name and the verdicts on samples; UsageError names the archive.

    `alone`: no other file is read, so parts need no archive name. Logs and reports have no checks.
    """
    try:
        archive = unpack(content)
    except UsageError as error:
        raise UsageError(f"cannot read {name}: {error}") from error
    prefix = "" if alone else f"{name}: "
    parts = {
        prefix + part.name: _read_part(part, archive.files[part.name])
        for part in archive.manifest.parts
        if part.name in archive.files
    }
    errors = {part.name: part.error for part in archive.manifest.parts if part.error}
    for part_name, reason in errors.items():
        if part_name.endswith("/facts.json"):
            parts[prefix + part_name] = _unreadable(f"its node sent none: {reason}")
    return parts, _sweep_entries(
        prefix + MEASURED, archive.files.get(MEASURED, b""), errors.get(MEASURED)
    )


def _read_part(part: Part, content: bytes) -> Captured:
    if part.name.endswith("/facts.json"):
        return _facts(content)
    text = decode_text(content, "replace")
    output = captured(text) if part.name.endswith(".txt") else None
    # Only some lines of a kernel log are kept: that these show no fault is no damage.
    if output is not None and output.damaged != SHOWS_NOTHING:
        cut = "its end was not kept" if part.cut else ""
        return replace(output, damaged=output.damaged or cut)
    kind = LOG if part.name.endswith(".log") else _RUN_KINDS.get(part.name, part.command)
    return Captured(kind=kind or part.name, facts=bare_facts(), checks=())


def _facts(content: bytes) -> Captured:
    try:
        facts = msgspec.json.decode(content, type=Facts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(f"its facts cannot be read: {error}")
    if facts.wire != WIRE:
        return _unreadable(f"they are version {facts.wire}, not {WIRE}")
    return Captured(kind=FACTS, facts=facts, checks=fact_checks())


def _unreadable(reason: str) -> Captured:
    """Return empty facts: a node that cannot be checked is not ok."""
    return Captured(kind=FACTS, facts=bare_facts(), checks=("reach.answer",), damaged=reason[:200])


def _sweep_entries(file: str, content: bytes, missing_reason: str | None) -> tuple[Entry, ...]:
    """Return the verdicts of `preflight blame` on pairs and nodes that name a culprit or are known.

    `missing_reason`: the reason why there are no measurements.
    """
    if not content and missing_reason:
        advice = "capture again; run/report.json, if it is there, says what the run found"
        verdict = unknown(f"no pair was measured: {missing_reason}", advice=advice)
        return (Entry(_SWEEP, file, (file,), verdict),)
    if not content:
        return ()
    samples = stored_in(Path(file), content)
    entries = judge_stored(samples, hosts_of(samples, None)).entries
    return tuple(
        replace(entry, subject=f"{file} ({entry.subject})", nodes=(file,))
        for entry in entries
        if not has_no_culprit(entry)
    )


LARGEST = 64 << 20
"""Bytes of one text; of a longer one only the part around the fault is needed."""

_QUIET_WORDS = {Outcome.OK: "ok", Outcome.NOT_RUN: "-"}


_EXAMPLES = """\
examples:
  preflight read nvidia-smi-q.txt dmesg.txt
  nvidia-smi -q | preflight read -
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog, add = _EXAMPLES, parser.add_argument
    add("files", metavar="FILE", type=path_type, nargs="+", help="the output of a tool that "
        "docs/reference/read.md lists, or an archive of preflight capture; "
        "- is standard input")  # fmt: skip
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check every file: 0 ok, 1 a fault, 3 not all could be judged, 5 nothing of a known kind.

    UsageError (exit 4) for a file that cannot be opened or is larger than LARGEST, and for a
    damaged archive.
    """
    outputs: dict[str, Captured | None] = {}
    sweep_entries: list[Entry] = []
    for path in arguments.files:
        name, content = printable(str(path)), _content(path)
        is_text = not content.startswith(MAGIC)
        may_be_text = not path.name.endswith((".tar.gz", ".tgz"))
        text = content if is_text else inflated_text(content) if may_be_text else None
        if text is None:
            parts, verdicts = read_archive(name, content, alone=len(arguments.files) == 1)
            outputs.update(parts)
            sweep_entries += verdicts
        else:
            outputs |= _read_text(name, decode_text(text, "replace"))
    entries = (*judge_captured(outputs), *sweep_entries)
    code = exit_code(outputs, entries)
    result = document(outputs, entries, code)
    print_answer(arguments, result, lambda width: _lines(outputs, entries, code, width))
    return code


def _content(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with io.BufferedReader(open_stream(path)) as file:
                content = file.read(LARGEST + 1) or b""
    except IsADirectoryError as error:
        folder = f"cannot read {path}: it is a folder; type: preflight read {path}/*"
        raise UsageError(folder) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a readable file") from error
    if len(content) > LARGEST:
        raise UsageError(
            f"{path} is larger than {LARGEST >> 20} MiB: give only the part around the fault"
        )
    return content


_UNKNOWN = (
    f"unknown kind of text; for a job's log type: preflight explain FILE; this reads: {KINDS}"
)


def _lines(
    texts: Mapping[str, Captured | None], entries: Sequence[Entry], code: int, width: int
) -> Iterator[str]:
    entries_of, rows = grouped((entry.nodes, entry) for entry in entries), findings(entries)
    file_of = {entry.subject: entry.nodes[0] for entry in entries}
    faults: dict[str, list[Finding]] = {}
    for finding in rows:
        files = {file_of.get(subject, "") for subject in finding.subjects}
        faults.setdefault(files.pop() if len(files) == 1 else "", []).append(finding)
    for name, text in sorted(texts.items(), key=lambda row: row[0] in faults):  # faults come last
        yield printable(name)
        kind = (text.kind or text.damaged) if text else _UNKNOWN
        yield from wrapped(printable(kind), first=" " * 7, indent=" " * 7, width=width)
        for entry in entries_of.get((name,), ()):
            if (word := _QUIET_WORDS.get(entry.verdict.outcome)) is not None:
                words = f"{entry.check}{entry.subject.removeprefix(name)}: {entry.verdict.sentence}"
                yield from wrapped(words, first=f"{word:<6} ", indent=" " * 7, width=width)
        for finding in faults.pop(name, ()):
            places = tuple(subject.removeprefix(name).strip() for subject in finding.subjects)
            yield from finding_lines(replace(finding, subjects=places), (), width)
    for finding in (row for file_findings in faults.values() for row in file_findings):
        yield from finding_lines(finding, (), width)
    numbers = counts(entries)
    summary = ", ".join(
        f"{numbers[outcome]} {outcome.value}" for outcome in Outcome if numbers[outcome]
    )
    yield f"{summary.replace('_', ' ') or 'nothing was judged'}    exit {code}"
