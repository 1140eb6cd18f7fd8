"""Reads the report of NCCL's RAS service: the text of 2.24 and later, the JSON of 2.28.7 and later.

The forms are those of NCCL's src/ras/client_support.cc. The text lists a rank only where it differs
from most others, so that a communicator without an entry is one in which all ranks agree.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.core.text import printable, whole
from preflight.facts.basics import Count, Int64, Line

_LARGEST = 64 << 20
"""Bytes; a node sends no larger report."""
_MOST_RANKS = 1 << 20
"""Of all communicators that a text lists: a wrong number in its table must not fill the memory."""

_MOST_TOPICS = 16
"""Of one communicator: five functions, its status, its errors."""

Number = Annotated[int, Meta(ge=-1, le=1 << 20)]
Process = tuple[str, int, int]
"""(node's address, pid, GPU): one rank of NCCL; ("", -1, -1) where the report does not name it."""
Absence = Literal["dead", "unresponsive", "left"]
"""`dead`: RAS has given it up. `unresponsive`: no answer in time. `left`: its process answered and
is no member any more."""


class Member(Struct, frozen=True, kw_only=True):
    """A rank of a communicator that answered."""

    rank: Number
    """In this communicator."""
    process: Process
    counts: dict[str, Count] = {}
    """Operations that it has launched, by function; empty where the report does not list it."""
    status: str = ""
    """`init`, `running`, `finalize` or `abort`; empty where the report does not list it."""
    error: str = ""
    """NCCL's name of an error that it reported."""


class Absent(Struct, frozen=True, kw_only=True):
    """A rank of a communicator about which nothing was reported."""

    rank: Number
    process: Process
    why: Absence


class Communicator(Struct, frozen=True, kw_only=True):
    """One communicator: a process group of torch is one or more of them."""

    name: str
    size: Number
    members: tuple[Member, ...]
    absent: tuple[Absent, ...] = ()

    @property
    def everyone(self) -> tuple[Member | Absent, ...]:
        """All of its ranks that the report names."""
        return (*self.members, *self.absent)


class RasReport(Struct, frozen=True, kw_only=True):
    """What one question to one rank brought about the whole job."""

    number: int = 0
    """Communicators of the job."""
    communicators: tuple[Communicator, ...] = ()
    """In the text form only those in which ranks differ or are missing."""
    absent: tuple[tuple[str, int, Absence], ...] = ()
    """(node's address, pid, why) of processes without an answer; in JSON they stand above."""


class ReportError(Exception):
    """The report cannot be read, for this reason."""


def read_report(content: str, *, is_json: bool) -> RasReport:
    """Decode a report as a node sends it; ReportError with one sentence."""
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(base64.b64decode(content, validate=True), _LARGEST)
    except (zlib.error, ValueError) as error:
        raise ReportError(f"its report was damaged on the way: {error}") from error
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ReportError("its report is too large or was damaged on the way")
    return _from_json(raw) if is_json else _from_text(raw)


class _State(Struct, frozen=True):
    init_state: Int64 = 0
    async_error: Int64 = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(Struct):
    rank: Number
    host: Line
    pid: Int64
    status: _State
    cuda_dev: Number = -1
    collective_counts: dict[Line, Count] = {}


class _Communicator(Struct):
    size: Number
    hash: Line
    secondary_hash: Line = ""
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Report(Struct):
    nccl_version: Line
    communicators: list[_Communicator]


_NO_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})\n( {10}"status")')
"""2.28.7 and 2.28.9 print a missing rank without this comma."""

REMOTE = "Remote process error"
"""The error of a rank whose peer failed."""
_ERRORS = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument",
    5: "Invalid usage", 6: REMOTE,
}  # fmt: skip
"""ncclResult_t, in the words of the text form."""


def _from_json(raw: bytes) -> RasReport:
    try:
        report = msgspec.json.decode(_NO_COMMA.sub(rb"\1,\n\2", raw), type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = printable(str(error))[:120]
        raise ReportError(f"its report is no valid JSON of RAS: {why}") from error
    return RasReport(
        number=len(report.communicators),
        communicators=tuple(
            Communicator(
                name=printable(f"{group.hash} {group.secondary_hash}"),
                size=group.size,
                members=tuple(map(_member, group.ranks)),
                absent=tuple(map(_absent, group.missing_ranks)),
            )
            for group in report.communicators
        ),
    )


def _member(row: _Rank) -> Member:
    state = row.status
    failed = [code for code in (state.init_state, state.async_error) if code not in (0, 7)]
    status = "running" if state.init_state == 0 else "init"
    if state.abort_flag:
        status = "abort"
    elif state.finalize_called or state.destroy_flag:
        status = "finalize"
    return Member(
        rank=row.rank,
        process=(printable(row.host), row.pid, row.cuda_dev),
        counts=row.collective_counts,
        status=status,
        error=_ERRORS.get(failed[0], "Unexpected error") if failed else "",
    )


def _absent(row: _Rank) -> Absent:
    why: Absence = "unresponsive" if row.status.unresponsive else "left"
    if row.status.considered_dead:
        why = "dead"
    return Absent(rank=row.rank, process=(printable(row.host), row.pid, row.cuda_dev), why=why)


_NUMBER = r"(\d{1,15})"
_SIZE_ROW = re.compile(rf" {{0,9}}{_NUMBER} +{_NUMBER} +{_NUMBER} +[\d-]{{1,15}} +{_NUMBER} ")
_SECTION = re.compile(rf"#{_NUMBER}-{_NUMBER} \(([0-9a-f]{{1,16}})\) (INCOMPLETE|ERROR|MISMATCH)")
_RANK = re.compile(
    rf"  Rank {_NUMBER} (?:(?:has launched up to operation {_NUMBER}|(has not launched any)"
    r" operations|has status ([A-Z]{1,12})|reported ([A-Z][A-Za-z ]{1,40})) )?-- "
    rf"(?:GPU {_NUMBER}(?: \(NVML \d{{1,15}}\))? managed by process {_NUMBER} on node (\S{{1,64}})"
    r"|\[process)"
)
_MANY_RANKS = re.compile(
    rf"  {_NUMBER} ranks (?:have launched up to operation {_NUMBER}|(have not launched any)"
    r" operations|have status ([A-Z]{1,12})|reported ([A-Z][A-Za-z ]{1,40})$)"
)
_TOPIC = re.compile(r"  Communicator ranks have different (\w{1,32})")
_PROCESS = re.compile(rf"  Process {_NUMBER} on node (\S{{1,64}}) managing GPU")
_RANK_LIST = re.compile(r"  The (missing|unknown) ranks?: ([\d,]{1,1024})$")
_VERSION = re.compile(r"NCCL version (\d{1,4}(?:\.\d{1,4}){1,3})")
_END = "Warnings"
"""The last heading: a report without it was cut off."""

_UNNAMED: Process = ("", -1, -1)


class _Topic:
    """One kind of difference between a communicator's ranks: who has which value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[int, str] = {}
        self.unlisted: dict[str, None] = {}
        """Values of ranks that are not listed."""


class _Section:
    """What a text lists about one communicator."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.processes: dict[int, Process] = {}
        self.missing: dict[int, Absence] = {}
        self.topics: list[_Topic] = []

    def communicator(self, dead: set[tuple[str, int]]) -> Communicator:
        """Return it with all of its ranks, those of the largest group without their process."""
        listed = (pair for topic in self.topics for pair in topic.values.items())
        departed = [rank for rank, value in listed if value in ("NOCOMM", "UNKNOWN")]
        missing: dict[int, Absence] = {**self.missing, **dict.fromkeys(departed, "left")}
        return Communicator(
            name=self.name,
            size=self.size,
            members=tuple(self._member(rank) for rank in range(self.size) if rank not in missing),
            absent=tuple(
                Absent(rank=rank, process=process, why="dead" if process[:2] in dead else why)
                for rank, why in sorted(missing.items())
                for process in [self.processes.get(rank, _UNNAMED)]
            ),
        )

    def _member(self, rank: int) -> Member:
        counts: dict[str, int] = {}
        status, error = "RUNNING", ""
        for topic in self.topics:
            shared_value = next(iter(topic.unlisted)) if len(topic.unlisted) == 1 else None
            value = topic.values.get(rank, shared_value)
            if topic.name == "status":
                status = value or status
            elif topic.name == "error":
                error = topic.values.get(rank, error)
            elif (number := whole(value or "")) is not None and len(topic.unlisted) < 2:  # noqa: PLR2004
                counts[topic.name] = number
        process = self.processes.get(rank, _UNNAMED)
        return Member(rank=rank, process=process, counts=counts, status=status.lower(), error=error)


def _from_text(raw: bytes) -> RasReport:
    lines = [printable(line) for line in raw.decode("utf-8", "replace").split("\n")]
    if not _VERSION.match(lines[0]):
        raise ReportError(f'its report does not begin with a version: "{lines[0][:60]}"')
    if _END not in lines:
        raise ReportError("its report was cut off")
    reader = _TextReader()
    for line in lines:
        reader.read(line)
    dead = {(host, pid) for host, pid, why in reader.absent if why == "dead"}
    return RasReport(
        number=reader.number,
        communicators=tuple(section.communicator(dead) for section in reader.sections.values()),
        absent=tuple(reader.absent),
    )


class _TextReader:
    """Reads a text line by line."""

    def __init__(self) -> None:
        self.sections: dict[str, _Section] = {}
        self.absent: list[tuple[str, int, Absence]] = []
        self.number = 0
        self._sizes: dict[int, int] = {}
        self._ranks = 0
        self._why: Absence = "unresponsive"
        self._section: _Section | None = None
        self._kind = ""
        self._topic = _Topic("")
        self._value = ""

    def read(self, line: str) -> None:
        """Take in one line."""
        section, process = _SECTION.match(line), _PROCESS.match(line)
        size_row = _SIZE_ROW.match(line)
        if line in ("INCOMPLETE", "DEAD"):
            self._why = "dead" if line == "DEAD" else "unresponsive"
        elif section:
            self._open_section(f"#{section[1]}-{section[2]} {section[3]}", int(section[1]))
            self._kind, self._topic = section[4], _Topic("error")
            if self._kind == "ERROR" and self._section and len(self._section.topics) < _MOST_TOPICS:
                self._section.topics.append(self._topic)
        elif size_row and not self.sections:
            self._sizes[int(size_row[1])] = int(size_row[4])
            self.number += int(size_row[2])
        elif process:
            self.absent.append((process[2], int(process[1]), self._why))
        elif self._section is not None:
            self._read_difference(self._section, line)

    def _open_section(self, name: str, group: int) -> None:
        if name not in self.sections:
            size = self._sizes.get(group, 0)
            self._ranks += size
            if self._ranks > _MOST_RANKS:
                raise ReportError("its report lists more ranks than a job can have")
            self.sections[name] = _Section(name, size)
        self._section = self.sections[name]

    def _read_difference(self, section: _Section, line: str) -> None:
        topic, several, rank = _TOPIC.match(line), _MANY_RANKS.match(line), _RANK.match(line)
        listed = _RANK_LIST.match(line)
        if topic:
            if len(section.topics) >= _MOST_TOPICS:
                raise ReportError("its report repeats the differences of a communicator")
            self._topic = _Topic(topic[1])
            section.topics.append(self._topic)
        elif several:
            self._value = "0" if several[3] else several[2] or several[4] or several[5]
            self._topic.unlisted[self._value] = None
        elif listed:
            why: Absence = "left" if listed[1] == "unknown" else "unresponsive"
            section.missing.update({int(word): why for word in listed[2].split(",") if word})
        elif rank:
            self._read_rank(section, rank)

    def _read_rank(self, section: _Section, rank: re.Match[str]) -> None:
        number = int(rank[1])
        if rank[7]:
            section.processes[number] = rank[8], int(rank[7]), int(rank[6])
        value = "0" if rank[3] else rank[2] or rank[4] or rank[5]
        if self._kind == "INCOMPLETE":
            section.missing[number] = "unresponsive"
        elif value:
            self._topic.values[number] = value
        else:
            self._topic.values[number] = self._value
            self._topic.unlisted.pop(self._value, None)
