"""`preflight capture`: writes a node's facts, tool outputs and a run into one local archive.

Each node sends its facts and its tools' output; a run measures as usual and keeps NCCL's logs.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import secrets
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight import __version__
from preflight.captured.archive import LARGEST, MANIFEST, Manifest, Part, pack
from preflight.commands import TARGETS, add_json, add_targets, fleet_of, remark
from preflight.core.command_line import (
    FINE,
    FOUND,
    INTERRUPTED,
    UNCLEAR,
    Interrupts,
    decimal_number,
)
from preflight.core.files import file_errors, open_folder, read_regular, write_typed
from preflight.core.text import plain_json
from preflight.errors import PreflightError, UsageError, WireError
from preflight.facts.basics import Line, wire_errors
from preflight.facts.model import DRIVER_S, Facts
from preflight.fleet.nodeset import fold
from preflight.history.place import VARIABLE
from preflight.report.document import Report, row_of
from preflight.report.hide import Addresses, Hider
from preflight.report.secret_names import secrets_of
from preflight.run.expected_verdicts import BUDGET_S
from preflight.run.measured import Measured
from preflight.run.probe_stage import CONNECT_S, PROBE_S
from preflight.session.options import refuse_out_of_range
from preflight.transport.bundle import start_payload
from preflight.transport.ways import Ways, fan_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from preflight.core.remote_command import Connection
    from preflight.fleet.model import Host


OUTPUTS_S = 30.0
"""For all tools of a node together, which run in parallel; nvidia-smi alone may take seconds."""

LIMIT = 32 << 20
"""Bytes of a node's reply: eight outputs of at most 512 KiB, in escaped JSON."""


class Output(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of one tool on a node; `error` says why it is incomplete."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,60}\.txt\Z")]
    command: Line
    status: Annotated[int, Meta(ge=-255, le=255)] | None
    """Exit status; negative for a signal. None: not installed, or ended by preflight."""
    seconds: Annotated[float, Meta(ge=0, le=86400)]
    cut: bool
    """Whether the tool printed more than is kept."""
    error: Line
    text: Annotated[str, Meta(max_length=512 << 10)]


class _Outputs(Struct, frozen=True, forbid_unknown_fields=True):
    outputs: Annotated[tuple[Output, ...], Meta(max_length=16)]


class NodeCapture(Struct, frozen=True, kw_only=True):
    """One node's part of a capture."""

    facts: bytes | None = None
    """The probe's document, as the node sent it."""
    outputs: tuple[Output, ...] = ()
    troubles: dict[str, str] = {}
    """"facts" or "outputs" → why there are none."""


def capture_fleet(hosts: Sequence[Host], ways: Ways, nonce: str) -> dict[str, NodeCapture]:
    """Ask all nodes in parallel; each has an entry in the result, even if it fails."""
    answers = fan_out(hosts, lambda host: _capture_node(host, ways, nonce), deadline_s=ASK_S)
    return {
        name: answer
        if isinstance(answer, NodeCapture)
        else NodeCapture(troubles=dict.fromkeys(("facts", "outputs"), str(answer)))
        for name, answer in answers.items()
    }


def _capture_node(host: Host, ways: Ways, nonce: str) -> NodeCapture:
    facts: bytes | None = None
    outputs: tuple[Output, ...] = ()
    troubles: dict[str, str] = {}
    with closing(ways.connect(host, CONNECT_S)) as connection:
        try:
            facts = _ask(connection, host, nonce, "probe", PROBE_S)
        except (PreflightError, TimeoutError) as error:
            troubles["facts"] = str(error) or "no answer in time"
        try:
            outputs = decode_outputs(_ask(connection, host, nonce, "outputs", OUTPUTS_S))
        except (PreflightError, TimeoutError) as error:
            troubles["outputs"] = str(error) or "no answer in time"
    return NodeCapture(facts=facts, outputs=outputs, troubles=troubles)


def _ask(connection: Connection, host: Host, nonce: str, entry: str, timeout_s: float) -> bytes:
    request = {"nonce": nonce, "name": host.name, "deadline_s": timeout_s}
    request["driver_deadline_s"] = DRIVER_S
    with closing(start_payload(connection, host, entry, request, timeout_s, limit=LIMIT)) as reply:
        reply.finish()
        return reply.read(timeout_s + 2)


def decode_outputs(document: bytes) -> tuple[Output, ...]:
    """Decode the reply of the entry `outputs`; WireError if it is invalid."""
    with wire_errors("its tools' outputs are not a preflight document"):
        outputs = msgspec.json.decode(document, type=_Outputs).outputs
    if len({output.name for output in outputs}) != len(outputs):
        raise WireError("its tools' outputs name one file twice")
    return outputs


ASK_S = 120.0
"""For all nodes together to send facts and outputs."""

LATE_S = 120.0
"""Time beyond its budget for a run to leave its nodes and write its report."""

LEAVE_S = 60.0
"""For a run to end after SIGTERM."""

_EMPTY = "nothing was printed"
_MEASURED_EXITS = (FINE, FOUND)
"""Exit codes of a run that measured; with any other it printed the reason."""
_TYPES = {"run/measured.json": Measured, "run/report.json": Report}


class ArchiveParts:
    """Parts of the archive: their contents, and why some are missing."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.files: dict[str, bytes] = {}

    def add(self, part: Part, content: bytes) -> None:
        """Add one part; one without content gets an error."""
        self.parts.append(part)
        if content:
            self.files[part.name] = content
        elif not part.error:
            self.parts[-1] = replace(part, error=_EMPTY)


class CaptureDocument(Struct, frozen=True, kw_only=True):
    """What `preflight capture --json` prints."""

    file: str
    manifest: Manifest


def run(arguments: argparse.Namespace) -> int:
    """Collect and write: 0 complete, 1 incomplete, 2 interrupted, 3 no node answered.

    UsageError (exit 4), before any node is asked, for an unwritable folder or an invalid budget.
    """
    folder, budget_s = _folder(arguments.folder), arguments.budget
    refuse_out_of_range("budget", budget_s)
    fleet = fleet_of(arguments)
    names = [host.name for host in fleet.hosts]
    archive = ArchiveParts()
    try:
        with Interrupts():
            remark(f"reading facts and tool outputs of {fold(names)}")
            with closing(Ways(fleet.hosts)) as ways:
                captures = capture_fleet(fleet.hosts, ways, secrets.token_hex(16))
            for name, capture in captures.items():
                _add_node(archive, name, capture)
            if not any(capture.facts or capture.outputs for capture in captures.values()):
                for part in archive.parts:
                    remark(f"{part.node}: {part.error}")
                remark("no node answered: no archive is written")
                return UNCLEAR
            run_exit = _add_run(archive, arguments, names)
    except KeyboardInterrupt:
        remark("interrupted: no archive is written")
        return INTERRUPTED
    if arguments.public:
        archive, names = hide_names(archive, names)
    now = datetime.now(UTC)
    label = names[0] if len(names) == 1 else f"{len(names)}-nodes"
    path = folder / f"preflight-capture-{_file_name(label)}-{now:%Y%m%d-%H%M%S}.tar.gz"
    manifest = Manifest(
        preflight=__version__, captured=f"{now:%Y-%m-%dT%H:%M:%SZ}", public=arguments.public,
        tier=arguments.tier, run_exit=run_exit, parts=tuple(archive.parts),
    )  # fmt: skip
    with file_errors(f"cannot write {path}", "give another folder, or run the command again"):
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it exists already")
        write_typed(path, pack(manifest, archive.files))
    _print_summary(path, manifest, len(archive.files))
    if arguments.json:
        sys.stdout.write(plain_json(CaptureDocument(file=str(path), manifest=manifest)))
    complete = all(capture.facts and capture.outputs for capture in captures.values())
    return FINE if complete and run_exit in _MEASURED_EXITS else FOUND


def _folder(name: str) -> Path:
    """Return the folder with this name; UsageError if it takes no new file."""
    folder = Path(name).absolute()
    advice = "give a folder that takes a new file, as in: preflight capture ."
    if not name:
        raise UsageError(f"DIR is empty; {advice}")
    # Through the open folder: another user may replace a folder above by a link.
    with (
        file_errors(f"cannot write into {folder}", advice),
        open_folder(folder, make=False) as fd,
        tempfile.TemporaryFile(dir=f"/proc/self/fd/{fd}"),
    ):
        return folder


def _add_node(archive: ArchiveParts, name: str, capture: NodeCapture) -> None:
    place = f"nodes/{_file_name(name)}"
    facts = Part(name=f"{place}/facts.json", node=name, command="preflight's probe")
    archive.add(replace(facts, error=capture.troubles.get("facts", "")[:512]), capture.facts or b"")
    for output in capture.outputs:
        part = row_of(Part, output, name=f"{place}/{output.name}", node=name)
        archive.add(part, output.text.encode())
    if trouble := capture.troubles.get("outputs"):
        archive.add(Part(name=f"{place}/outputs.txt", node=name, error=trouble[:512]), b"")


def _add_run(archive: ArchiveParts, arguments: argparse.Namespace, names: list[str]) -> int | None:
    """Measure and add the run's files; return its exit code, None where it did not end in time."""
    with tempfile.TemporaryDirectory(prefix="preflight-capture-") as scratch:
        folder = Path(scratch) / "run"
        code = _measure(arguments, folder)
        outputs = {name: _read_output(folder / name.rpartition("/")[2]) for name in _TYPES}
    late_words = "" if code is not None else "; it did not end in its time"
    logs: dict[str, str] = {}
    for name, (content, error) in outputs.items():
        if name == "run/measured.json" and content:
            measured = Measured.decode(content)
            logs = _logs(measured)
            if measured.sweep is not None:
                sweep = replace(measured.sweep, nccl_logs=())
                content = replace(measured, sweep=sweep).encode()  # noqa: PLW2901
        archive.add(Part(name=name, error=error and error + late_words), content)
    for name in names:
        place = f"nodes/{_file_name(name)}/nccl-"
        node_logs = {file: text for file, text in logs.items() if file.startswith(place)}
        for file, text in node_logs.items():
            archive.add(Part(name=file, node=name, command="NCCL_DEBUG=INFO"), text.encode())
        if not node_logs:
            error = f"the sweep left no NCCL log{late_words}: see run/report.json"
            archive.add(Part(name=f"{place}rail-0.log", node=name, error=error), b"")
    return code


def _measure(arguments: argparse.Namespace, folder: Path) -> int | None:
    options = {name: getattr(arguments, name) for name in (*TARGETS, "budget", "tier")}
    words = [f"--preflight-{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--preflight-report={folder}", "--preflight-fail-fast=never"]
    program = [sys.executable, "-I", "-m", "preflight", "check", "--keep-nccl-logs"]
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    stdout = sys.stderr if arguments.json else None
    process = subprocess.Popen(
        [*program, *words], env=environ, stdin=subprocess.DEVNULL, stdout=stdout
    )
    budget_s = BUDGET_S[arguments.tier] if arguments.budget is None else arguments.budget
    try:
        return process.wait(budget_s + LATE_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run: SIGTERM, so that it leaves its nodes, then SIGKILL. Ctrl-C reaches it too."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_output(path: Path) -> tuple[bytes, str]:
    """Return a file of the run, or why it cannot be read."""
    try:
        return read_regular(path, LARGEST // 2), ""
    except OSError as error:
        return b"", f"the run left no such file: {error.strerror}"


def _logs(measured: Measured) -> dict[str, str]:
    """Return NCCL's logs by file; a rail's second and later processes are numbered."""
    files: dict[str, str] = {}
    for log in measured.sweep.nccl_logs if measured.sweep else ():
        stem = f"nodes/{_file_name(log.node)}/nccl-rail-{log.rail}"
        number = 1 + sum(name.startswith((f"{stem}.", f"{stem}-")) for name in files)
        files[f"{stem}.log" if number == 1 else f"{stem}-{number}.log"] = log.text
    return files


def hide_names(archive: ArchiveParts, names: list[str]) -> tuple[ArchiveParts, list[str]]:
    """Replace every name of a person or machine by a number, the same one in all files."""
    kinds = {
        name: Facts if name.endswith("/facts.json") else _TYPES.get(name) for name in archive.files
    }
    values = {name: _decode(content, kinds[name]) for name, content in archive.files.items()}
    own_names = {"user": getpass.getuser(), "host": os.uname().nodename}
    hider = Hider(secrets_of(names, *values.values(), [*archive.parts], own_names), Addresses())
    with_facts = {part.node for part in archive.parts if isinstance(values.get(part.name), Facts)}
    hidden = ArchiveParts()
    for part in archive.parts:
        place = "/".join(map(_file_name, map(hider.words, part.name.split("/"))))
        public = replace(hider.hide(part), name=place)
        value = hider.hide(values.get(part.name, ""))
        content = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        if content and part.node and part.node not in with_facts:
            words = "its names are unknown without its facts: capture again without --public"
            public, content = replace(public, error=words), b""
        elif content and kinds[part.name] and isinstance(_decode(content, kinds[part.name]), str):
            public, content = replace(public, error="it could not be hidden without damage"), b""
        hidden.add(public, content)
    return hidden, [hider.words(name) for name in names]


def _decode(content: bytes, kind: type | None) -> object:
    """Decode a document, so that preflight's own words stay; return other content as text."""
    try:
        return msgspec.json.decode(content, type=kind) if kind else content.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content.decode("utf-8", "replace")


def _file_name(name: str) -> str:
    """Return a name usable in a path of the archive: a node's name may be an IPv6 address."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-") or "node"


def _print_summary(path: Path, manifest: Manifest, files: int) -> None:
    nodes_by_problem: dict[str, dict[str, None]] = {}
    for part in manifest.parts:
        if part.error:
            name = part.command or part.name
            could_not = f"could not collect {name}: {part.error}"
            problem = f"{name} printed nothing" if part.error == _EMPTY else could_not
            nodes_by_problem.setdefault(problem, {})[part.node] = None
    for problem, nodes in nodes_by_problem.items():
        node_names = fold(filter(None, nodes))
        remark(f"{problem}{f' ({node_names})' if node_names else ''}")
    size_kb = path.stat().st_size / 1e3
    size = f"{size_kb:.0f} KB" if size_kb < 1000 else f"{size_kb / 1e3:.1f} MB"  # noqa: PLR2004
    remark("the run's report is in the archive; the report folder that it printed is removed")
    remark(f"written: {path}, {size}, {files} files and {MANIFEST}; nothing was sent anywhere")
    if not manifest.public:
        remark("it names hosts, users and serials; to share it, capture with --public")


_EXAMPLE = """\
examples:
  preflight capture .
      this machine (in an allocation: its nodes): facts, tool outputs, and a run
      of some minutes with NCCL's logs, in one file; nothing is sent anywhere
  preflight capture . --public
      the same, with hosts, users, serials, UUIDs and addresses numbered
  preflight read preflight-capture-gpu041-20261122-210000.tar.gz
      check the archive on another machine
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; nodes are chosen as for a run."""
    parser.epilog = _EXAMPLE
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder for the archive")
    add("words", metavar="NODES", nargs="*", default=[], help="as in 'gpu[001-064]'")
    add_targets(parser)
    add_json(parser)
    add("--tier", choices=("quick", "standard", "deep"), default="standard",
        help="how deep its run measures (default: standard, burn-in and sweep in 5 "
        "minutes)")  # fmt: skip
    add("--budget", metavar="SECONDS", type=decimal_number,
        help="time for the run (default: the tier's)")  # fmt: skip
    add("--public", action="store_true",
        help="number hosts, users, serials, UUIDs and addresses, "
        "consistently in all files")  # fmt: skip
