"""Reads this node's state from Slurm and drains or resumes it; each call has a deadline.

Calls tools by absolute path, as a prolog has no PATH; never through a shell; for one node only.
"""

from __future__ import annotations

import errno
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from preflight.core.trust import who_may_change
from preflight.errors import PreflightError
from preflight.hook.child import kill_with_parent, orphaned
from preflight.hook.hook_values import NodeState
from preflight.transport.slurm_allocation import MARKS

_REAP_S: Final = 0.2
LARGEST: Final = 4 << 20
"""Bytes of output: sinfo prints about 200 per node, and cut output cannot be used."""

_ERROR_BYTES: Final = 4096
_RUNNING: Final[list[subprocess.Popen[bytes]]] = []


def run_program(
    words: Sequence[str | Path], environ: Mapping[str, str], until_s: float
) -> subprocess.CompletedProcess[str] | None:
    """Run a program until `until_s` (monotonic clock); None where it has not ended by then.

    OSError where it cannot be started, or prints too much. A process that outlives SIGKILL, since
    it waits in the kernel, holds none of this process's descriptors and is not waited for.
    """
    if until_s <= time.monotonic():
        return None
    process = subprocess.Popen(
        words,
        env=environ,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=kill_with_parent(),  # noqa: PLW1509  it imports nothing and takes no lock
    )
    _RUNNING.append(process)
    try:
        output = _read_output(process, until_s)
        if output is None:
            return None
        process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _RUNNING.remove(process)
        _release(process)
    out, errors = (text.decode(errors="replace") for text in output)
    errors = " ".join(errors.split())[:200]
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


def end_programs() -> None:
    """End the running programs: no process is left to read their output."""
    for process in _RUNNING:
        _release(process)


def _read_output(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes] | None:
    """Read stdout and stderr to their ends; None where one is still open at `until_s`."""
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as pipes:
        for pipe, buffer in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                pipes.register(pipe, selectors.EVENT_READ, buffer)
        while pipes.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            for key, _ in pipes.select(left_s):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    pipes.unregister(key.fileobj)
                elif key.data is err:
                    err += chunk[: _ERROR_BYTES - len(err)]
                else:
                    out += chunk
            if len(out) > LARGEST:
                raise OSError(errno.EFBIG, f"it prints more than {LARGEST >> 20} MiB")
    return bytes(out), bytes(err)


def _release(process: subprocess.Popen[bytes]) -> None:
    """Kill its process group, with a wrapper's children; its pid stays reserved until reaped."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_REAP_S)


_COMBINED: Final = {"DRAINED": ("IDLE", "DRAIN"), "DRAINING": ("ALLOCATED", "DRAIN")}
_STATE = re.compile(r"^[ \t]*State=(\S+)", re.MULTILINE)
_PARTITIONS = re.compile(r"^[ \t]*Partitions=(\S+)", re.MULTILINE)
_REASON = re.compile(r"^ *Reason=(?P<first>.*)(?P<rest>(?:\n {10}.*)*)", re.MULTILINE)
_STAMP = re.compile(r"(.*) \[[^\[\]@]*@[^\[\]]*\]")
"""A reason, its user and time."""
_NOW = re.compile(r"^Configuration data as of (\S+)$", re.MULTILINE)
_SIZE = re.compile(r"[0-9]{1,7}")  # Slurm itself holds no more than 65,536 nodes
_TIME = "%Y-%m-%dT%H:%M:%S"


class NodeReason(Struct, frozen=True):
    """A node and its reason in Slurm."""

    node: str
    reason: str
    time_s: float | None
    """When the reason was set, in seconds since the epoch."""


def parse_node(text: str) -> NodeState | None:
    """Read `scontrol show node` for one node; None where it shows no state."""
    state = _STATE.search(text)
    if state is None:
        return None
    partitions = _PARTITIONS.search(text)
    return NodeState(
        states=frozenset(_states(state[1])),
        reason=_reason(text),
        partitions=tuple(filter(None, partitions[1].split(","))) if partitions else (),
    )


def parse_reasons(text: str) -> dict[str, NodeReason]:
    """Read `sinfo --Node --format=%N|%H|%E`: every node, with the reason "none" where unset."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") > 1)
    return {node: NodeReason(node, reason, seconds(time_text)) for node, time_text, reason in rows}


def parse_sizes(text: str) -> dict[str, int]:
    """Read `sinfo --format=%R %D`: how many nodes each partition has."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.rpartition(" ")
        if name and _SIZE.fullmatch(number):
            sizes[name] = max(int(number), sizes.get(name, 0))
    return sizes


def parse_now(text: str) -> float | None:
    """Read the controller's time from the first line of `scontrol show config`; None without it.

    slurmctld stamps each reply with a new time (_fill_ctld_conf).
    """
    match = _NOW.search(text)
    return seconds(match[1]) if match else None


def seconds(text: str) -> float | None:
    """Parse a time of Slurm, printed in UTC; None for "Unknown" and the like."""
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _reason(text: str) -> str:
    """Return the whole reason, also lines that an operator added, without its user and time."""
    match = _REASON.search(text)
    if match is None:
        return ""
    more = "".join(f"\n{line[10:]}" for line in match["rest"].splitlines()[1:])
    stamp = _STAMP.fullmatch(match["first"].rstrip())
    return (stamp[1] if stamp else match["first"].strip()) + more


def _states(text: str) -> list[str]:
    words: list[str] = []
    for flagged in text.upper().split("+"):
        state = flagged.rstrip("".join(MARKS))
        words += [MARKS[mark][0] for mark in flagged[len(state) :]]
        words += _COMBINED.get(state, (state,))
    return [word for word in words if word]


FOLDERS: Final = (
    *("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"),
    *("/opt/slurm/current/bin", "/cm/shared/apps/slurm/current/bin"),
)
"""Where Debian, a source build and the usual cluster managers put scontrol."""

CALL_S: Final = 2.0
"""One call of scontrol or sinfo, at most; a controller that answers does so in milliseconds."""

LEAST_S: Final = 0.1
"""With less time left no change is started: one that is cut off may have been made or not."""

_NODE = re.compile(r"(?!(?i:all)$)[A-Za-z0-9][A-Za-z0-9._-]*")
"""One node: neither a list nor `ALL`, which scontrol takes for the whole cluster."""


class SlurmError(PreflightError):
    """Slurm did not answer, in time or at all; the text names the call that failed."""


class Slurm:
    """The scheduler of this node; every call ends by `until_s` (monotonic clock)."""

    def __init__(self, folder: Path | None, until_s: float) -> None:
        self._folder = folder
        self._until_s = until_s

    def node(self, name: str) -> NodeState:
        """Read the node's state and reason; SlurmError where that fails."""
        listing = self._run("scontrol", "show", "node", _checked_name(name))
        state = parse_node(listing)
        if state is None:
            excerpt = " ".join(listing.split())[:80]
            raise SlurmError(f"scontrol shows no state for {name}, but {excerpt!a}")
        return state

    def drain(self, name: str, reason: str) -> None:
        """Take the node out of service: running jobs may end, no new ones start."""
        self._update(name, "State=DRAIN", f"Reason={reason}")

    def undrain(self, name: str) -> None:
        """Let jobs start on it again. A node that is also down stays down."""
        self._update(name, "State=UNDRAIN")

    def sizes(self) -> dict[str, int]:
        """Count the nodes of every partition."""
        return parse_sizes(self._run("sinfo", "--noheader", "--all", "--format=%R %D"))

    def reasons(self, name: str) -> tuple[NodeReason, ...]:
        """Return every node that has a reason.

        SlurmError for a list without this node: an empty list would look like a fleet without
        drains.
        """
        words = ("--noheader", "--all", "--Node", "--format=%N|%H|%E")
        nodes = parse_reasons(self._run("sinfo", *words))
        if name not in nodes:
            raise SlurmError(f"sinfo does not list {name}: run sinfo --all --Node there")
        return tuple(row for row in nodes.values() if row.reason != "none")

    def now_s(self) -> float | None:
        """Seconds since the epoch by the controller's clock, which stamps reasons; None if unknown.

        The node's own clock may be wrong.
        """
        try:
            return parse_now(self._run("scontrol", "show", "config"))
        except SlurmError:
            return None

    def _update(self, name: str, *changes: str) -> None:
        """Change the node, unless the parent, which would log the change, has ended."""
        if orphaned():
            raise SlurmError("the hook was ended, so nothing is changed")
        if self._until_s - time.monotonic() < LEAST_S:
            raise SlurmError("no time is left to call scontrol: raise budget_s in hook.toml")
        self._run("scontrol", "update", f"NodeName={_checked_name(name)}", *changes)

    def _run(self, tool: str, *words: str) -> str:
        program = find_tool(tool, self._folder)
        call = " ".join((tool, *words[:1]))
        began_s = time.monotonic()
        until_s = min(began_s + CALL_S, self._until_s)
        try:
            answer = run_program([program, *words], _environ(), until_s)
        except OSError as error:
            raise SlurmError(f"{program}: {error.strerror}; run it there by hand") from error
        if answer is None:
            waited_s = max(0.0, until_s - began_s)
            raise SlurmError(f"{call} did not answer within {waited_s:.1f} s: is slurmctld up?")
        if answer.returncode:
            error_text = " ".join((answer.stderr or answer.stdout[:200]).split()) or "no output"
            raise SlurmError(f"{call} failed: {error_text}")
        return answer.stdout


def find_tool(tool: str, folder: Path | None) -> Path:
    """Find a Slurm program that root may run; SlurmError says why there is none."""
    for place in (folder,) if folder is not None else map(Path, FOLDERS):
        program = place / tool
        if os.access(program, os.X_OK):
            if os.geteuid() == 0 and (writer := who_may_change(program)):
                raise SlurmError(f"{program} is not run: {writer}; give it to root")
            return program
    places = folder or "the usual folders"
    raise SlurmError(f"no {tool} in {places}: set slurm_bin in hook.toml to its folder")


def _checked_name(name: str) -> str:
    if not _NODE.fullmatch(name):
        raise SlurmError(f"{name[:40]!a} is not the name of one node: check SLURMD_NODENAME")
    return name


def _environ() -> dict[str, str]:
    """Return an environment without the job's variables, with UTC times and slurmd's SLURM_CONF."""
    fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    conf = os.environ.get("SLURM_CONF")
    return fixed | {"SLURM_CONF": conf} if conf else fixed
