"""Reads a pasted listing of processes, to find what an earlier job left behind.

Each format has so many typical columns (shares, sizes, a terminal, a time) that one row is enough
to recognize it.

Each reader returns None for a text of another tool. The header names the columns; without one, `ps`
is recognized by its shape: one of `_SHAPES`, or a pid (and its parent's), then a state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from preflight.captured import Captured, captured
from preflight.core.text import whole
from preflight.core.thresholds import SHIPPED
from preflight.facts.gpu_users import find_stale
from preflight.facts.model import Process, Processes

_Row = tuple[re.Match[str], bool, set[int]]
"""A line, whether it is about a GPU's device, and its ports."""


_PID: Final = r"(?P<pid>[0-9]{1,10})"
_STATE: Final = r"(?P<state>[RSDTtWXZI][<NLsl+]{0,5})"
_TTY: Final = r"(?:\?|-|[a-z][a-z0-9]*(?:/[0-9]+)?)"
_TIME: Final = r"(?:[0-9]+-)?[0-9]+:[0-9]{2}(?::[0-9]{2})?"
_START: Final = r"(?:[0-9]{2}:[0-9]{2}(?::[0-9]{2})?|[A-Z][a-z]{2} ?[0-9]{2}|[0-9]{4})"
_TIME_AND_COMMAND: Final = rf"{_TIME}\s+(?P<command>\S.*)$"
_SHAPES: Final = (
    re.compile(
        rf"^(?P<user>\S+)\s+{_PID}\s+[0-9.]+\s+[0-9.]+\s+[0-9]+\s+[0-9]+\s+{_TTY}\s+{_STATE}\s+"
        rf"{_START}\s+{_TIME_AND_COMMAND}"
    ),
    re.compile(rf"^\s*{_PID}\s+{_TTY}\s+{_STATE}\s+{_TIME_AND_COMMAND}"),
    re.compile(
        rf"^(?P<user>\S+)\s+{_PID}\s+(?P<ppid>[0-9]{{1,10}})\s+(?:[0-9]+\s+)?[0-9]+\s+(?:[0-9]+\s+)?"
        rf"{_START}\s+{_TTY}\s+{_TIME_AND_COMMAND}"
    ),
)
_GREP: Final = re.compile(r"(?:\S*/)?[ef]?grep\s")
_DEFUNCT: Final = "<defunct>"


def columns_of(line: str) -> dict[str, str] | None:
    """Return user, pid, ppid, state and command of a row of ps; None for another line."""
    row = next((match for shape in _SHAPES if (match := shape.match(line))), None)
    if row is None:
        return None
    columns = {name: word for name, word in row.groupdict().items() if word}
    if columns["command"].rstrip().endswith(_DEFUNCT):
        columns.setdefault("state", "Z")
    return columns


def unbracketed(command: str, state: str) -> str:
    """The name of a process without a command line, unless it is a kernel thread.

    ps puts both in brackets; kernel threads lead no session and have no threads.
    """
    has_no_arguments = command.startswith("[") and not command.rstrip().endswith(_DEFUNCT)
    return command.strip("[] ") if has_no_arguments and set(state) & set("sl+") else command


_FUSER: Final = re.compile(
    rf"^(?:(?P<file>/\S+|[0-9]+/(?:tcp|udp)):)?\s+(?P<user>\S+)\s+{_PID}\s+"
    r"(?P<access>[.FfceomrR]{4,6})\s+(?P<command>\S.*)$"
)
_LSOF: Final = re.compile(rf"^(?P<command>\S+)\s+{_PID}\s+(?:[0-9]+\s+)?(?P<user>\S+)\s+\S+\s.*\s")
_TEN_DIGITS: Final = re.compile(r"[0-9]{1,10}")
_LISTENS: Final = re.compile(r"TCP \S*:(?P<port>[0-9]{1,5}) \(LISTEN\)")
_PMON: Final = re.compile(rf"^\s*[0-9]+\s+{_PID}\s+(?:[CGM](?:\+[CGM])*)\s.*\s(?P<command>\S+)\s*$")
_ANY_STATE: Final = r"(?P<state>[RSDTtWXZI][<NLsl+]*)"
_PID_STATE_SHAPE: Final = re.compile(
    rf"^\s*{_PID}\s+(?:(?P<ppid>[0-9]{{1,10}})\s+)?{_ANY_STATE}\s+(?P<rest>\S.*)$"
)
_ELAPSED: Final = re.compile(
    r"(?:(?P<days>[0-9]+)-)?(?:(?P<hours>[0-9]+):)?(?P<minutes>[0-9]+):(?P<seconds>[0-9]+)"
)
_GPU_FILE: Final = re.compile(r"/dev/nvidia[0-9]")
_COLUMNS: Final = {
    "PID": "pid", "PPID": "ppid", "USER": "user", "UID": "user", "EUSER": "user", "S": "state",
    "STAT": "state", "WCHAN": "wchan", "ELAPSED": "elapsed", "CMD": "command",
    "COMMAND": "command", "ARGS": "command",
}  # fmt: skip
_FEWEST_ROWS: Final = 2
"""Least lines in the shape of ps if there is no header."""


def fuser(text: str) -> tuple[Process, ...] | None:
    """Processes that map a GPU's device or have a port open, from `fuser -v`."""

    def rows() -> Iterator[_Row]:
        file = ""
        for line in text.splitlines():
            if match := _FUSER.match(line):
                file = match["file"] or file
                port = whole(file.split("/")[0])
                ports = set() if port is None else {port}
                yield match, bool(_GPU_FILE.match(file)), ports

    return _merge_rows(rows())


def lsof(text: str) -> tuple[Process, ...] | None:
    """Processes that open a GPU's device or listen on a port, from `lsof`."""
    if not re.search(r"^COMMAND\s+PID\s+(?:TID\s+)?", text, re.MULTILINE):
        return None
    return _merge_rows(
        (match, bool(_GPU_FILE.search(line)), set(map(int, _LISTENS.findall(line))))
        for line in text.splitlines()
        if (match := _LSOF.match(line))
    )


def _merge_rows(rows: Iterable[_Row]) -> tuple[Process, ...] | None:
    """Each process with what it has open; None without any process."""
    processes: dict[int, Process] = {}
    ports: dict[int, set[int]] = defaultdict(set)
    gpu_holders: set[int] = set()
    for match, gpu, row_ports in rows:
        pid = int(match["pid"])
        processes.setdefault(pid, _process(match.groupdict()))
        gpu_holders |= {pid} if gpu else set()
        ports[pid] |= {port for port in row_ports if port < 1 << 16}
    listens = {pid: tuple(sorted(row_ports)) for pid, row_ports in ports.items()}
    holders = (
        replace(process, holds_gpu=pid in gpu_holders, listens=listens[pid])
        for pid, process in processes.items()
    )
    return tuple(holders) or None


def pmon(text: str) -> tuple[Process, ...] | None:
    """Processes that compute on a GPU, from `nvidia-smi pmon`; not whether a job needs them."""
    if not re.search(r"^#\s*gpu\s+pid\s+type\b", text, re.MULTILINE):
        return None
    processes = {
        int(match["pid"]): _process(match.groupdict())
        for line in text.splitlines()
        if (match := _PMON.match(line))
    }
    return tuple(processes.values())


def ps(text: str) -> tuple[Process, ...] | None:
    """Rows of `ps`, by its header or its shape, without a grep of the listing itself."""
    rows = _ps_rows(text)
    return None if rows is None else tuple(row for row in rows if not _GREP.match(row.command))


def _ps_rows(text: str) -> tuple[Process, ...] | None:
    lines = text.splitlines()
    for at, line in enumerate(lines):
        columns = [_COLUMNS.get(word) for word in line.split()]
        if "pid" in columns and columns[-1:] == ["command"]:
            rows = (_by_header(columns, row) for row in lines[at + 1 :])
            return tuple(row for row in rows if row is not None)
    if table := [row for line in lines if (row := columns_of(line))]:
        return tuple(map(_process, table))
    matches = [match for line in lines if (match := _PID_STATE_SHAPE.match(line))]
    return tuple(map(_by_shape, matches)) if len(matches) >= _FEWEST_ROWS else None


def has_parents(text: str) -> bool:
    """Whether a listing of ps has states and parents, which are needed to find orphans."""
    headers = [set(line.split()) for line in text.splitlines()]
    if any({"PID", "PPID"} <= words and words & {"S", "STAT"} for words in headers):
        return True
    shapes = [match for line in text.splitlines() if (match := _PID_STATE_SHAPE.match(line))]
    return bool(shapes) and all(match["ppid"] for match in shapes)


def _by_header(columns: list[str | None], line: str) -> Process | None:
    words = line.split(maxsplit=len(columns) - 1)
    row = {name: word for name, word in zip(columns, words, strict=False) if name}
    is_complete = len(words) == len(columns) and _TEN_DIGITS.fullmatch(row["pid"])
    return _process(row) if is_complete else None


def _by_shape(match: re.Match[str]) -> Process:
    columns = match["rest"].split()
    elapsed = next((word for word in columns if _ELAPSED.fullmatch(word)), "")
    command = match["rest"].partition(elapsed)[2] if elapsed else match["rest"]
    row = {name: word for name, word in match.groupdict().items() if word}
    row |= {"elapsed": elapsed, "command": command.strip().removeprefix("\\_ ") or match["rest"]}
    row["wchan"] = columns[0] if elapsed and columns[0] != elapsed else ""
    return _process(row)


def _seconds(elapsed: str) -> float:
    """Seconds of "2-03:04:05", "03:04:05", "04:05"; 0 for other texts."""
    match = _ELAPSED.fullmatch(elapsed)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (float(match[part] or 0) for part in _ELAPSED.groupindex)
    return min(((days * 24 + hours) * 60 + minutes) * 60 + seconds, 1e12)


def _process(row: Mapping[str, str]) -> Process:
    """A process from one row, by the names of `_COLUMNS`."""
    ppid, state = row.get("ppid", ""), row.get("state", "?")
    return Process(
        pid=int(row["pid"]),
        ppid=int(ppid) if _TEN_DIGITS.fullmatch(ppid) else 0,
        state=state[:1],
        user=row.get("user", "")[:512],
        command=unbracketed(row["command"], state)[:4096],
        age_s=_seconds(row.get("elapsed", "")),
        wchan=row.get("wchan", "").strip("-")[:512],
        stuck_s=0.0 if state[:1] == "D" else None,
    )


KINDS: Final = ("ps", "fuser -v", "lsof", "nvidia-smi pmon")
_CHECKS: Final = ("host.stale_processes",)
_TOOLS: Final[
    tuple[tuple[str, Callable[[str], tuple[Process, ...] | None], re.Pattern[str] | None], ...]
] = (
    ("fuser -v", fuser, re.compile(rf"{_FUSER.pattern}|^\s*USER\s+PID\s+ACCESS\b")),
    ("lsof", lsof, re.compile(rf"{_LSOF.pattern}|^COMMAND\s+PID\b")),
    ("nvidia-smi pmon", pmon, re.compile(rf"{_PMON.pattern}|^#")),
    ("ps", ps, None),
)
"""Each with the lines that belong to it, which ps would also read as rows."""
_PS_COMMAND: Final = "ps -eo pid,ppid,user,stat,wchan:24,etime,args"


def read(text: str) -> Iterator[Captured]:
    """Read the processes that each tool lists."""
    for kind, rows, own_line in _TOOLS:
        processes = rows(text)
        if processes is not None:
            yield _captured(kind, processes, text)
            if own_line is not None:
                text = "\n".join(line for line in text.splitlines() if not own_line.match(line))


def _captured(kind: str, rows: tuple[Process, ...], text: str) -> Captured:
    commands = {row.pid: row.command for row in rows}
    notable = tuple(replace(row, parent_command=commands.get(row.ppid, "")) for row in rows)
    processes = Processes(seen=len(rows), unreadable=0, notable=notable)
    damaged = "" if rows else "it lists no readable process"
    if kind == "ps" and rows and not has_parents(text) and not _holds_without_parents(processes):
        damaged = "it has no states or no parents to find orphans by"
    return captured(kind, _CHECKS, damaged, advice=f"capture {_PS_COMMAND}", processes=processes)


def _holds_without_parents(processes: Processes) -> bool:
    """Whether a finding holds without parents: a process in D state hangs in any case."""
    culprits = (
        process for stale in find_stale(processes, (), limit=SHIPPED) for process in stale.culprits
    )
    return any(process.state == "D" for process in culprits)
