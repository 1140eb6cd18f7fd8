"""Takes two looks at a job that may hang, seconds apart: its ranks' stacks, and what changed.

The Python stacks are read twice, native ones only of some ranks that are at rest.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Callable, Iterable

from probe import guard, kernel_log, processes, procfs
from probe.node_files import TEXT_LIMIT, clean
from probe.processes import Care
from probe.procfs import Users, identity
from start import Emit, Read

from . import Document, moments, node_ranks, pyspy, rank_dumps, ras_client
from .moments import Instant
from .node_ranks import Patience

SPY_S, READ_S, NATIVE_S = 8.0, 8.0, 8.0
"""Time limit of each step; on a healthy node they take milliseconds, native stacks a second."""

MOST_NATIVE = 4
MOST_SAMPLED = 32
"""Most ranks of a node to sample, each by a process of ours: more would load the node."""

MOST_WORKERS = 32
_AT_REST_S, _AT_REST_SWITCHES = 0.011, 2
"""Most CPU time and context switches of a main thread at rest between the looks."""

_INSTALLED = (
    "this node runs no program that is sent to it: install py-spy there: pip install py-spy"
)
_INSTALL = "install py-spy there, or beside preflight: pip install 'pytest-preflight[diagnose]'"


class StackReader:
    """Reads the stacks of a node's processes, or the reason why there are none."""

    def __init__(self, patience: Patience, *, use_installed: bool) -> None:
        self._patience = patience
        self._use_installed = use_installed
        self._spy: pyspy.Spy | None = None
        self._no_spy = ""
        self._first: dict[int, Any] = {}
        self._later: dict[int, Any] = {}
        self._native: dict[int, Any] = {}
        self._samplers: dict[int, guard.Child] = {}
        self._sampled: dict[int, list[Document]] = {}

    def prepare(self, pythons: list[Document], lines: Read, emit: Emit) -> None:
        """Find the node's own py-spy, or request one; only if there are processes to read."""
        if not pythons:
            return
        if self._use_installed:
            folders = (folder for rank in pythons for folder in rank["bins"])
            self._spy = pyspy.find_installed(folders, self._patience.within(SPY_S))
        if self._spy is None and not pyspy.request_spy(emit):
            self._no_spy = _INSTALLED
        elif self._spy is None:
            self._spy, refused = pyspy.receive_spy(lines, self._patience.until)
            self._no_spy = f"{refused}: {_INSTALL}"

    def read(self, pids: Iterable[int], until: float) -> None:
        """Read the stacks a first time; retry those that changed while they were read."""
        self._first = self._dump(pids, until)
        read = self._first.items()
        failed = [pid for pid, stack in read if not _read(stack) and stack != pyspy.TOO_LONG]
        if failed and len(failed) < len(self._first):
            self._first.update(self._dump(failed, until))

    def sample(self, ranks: list[Document], until: float) -> None:
        """Start to sample ranks, for the whole seconds that remain until `until`."""
        seconds = int(until - time.monotonic())
        ordered = (rank["pid"] for rank in rank_dumps.in_turn(ranks))
        pids = [pid for pid in ordered if _read(self._first.get(pid))]
        if self._spy is not None and seconds > 0 and len(pids) <= MOST_SAMPLED:
            self._samplers = self._spy.sample(pids, seconds)

    def read_again(self) -> None:
        """Collect the samples, and read the stacks a second time where the first read succeeded."""
        until = self._patience.within(pyspy.LATE_S)
        self._sampled = self._without_reused(pyspy.collect_samples(self._samplers, until))
        pids = [pid for pid, stack in self._first.items() if _read(stack)]
        pids += [pid for pid, stack in self._first.items() if stack == pyspy.LATE]
        self._later = self._dump(pids, self._patience.within(READ_S))
        late_count = sum(stack == pyspy.LATE for stack in self._later.values())
        if late_count:
            self._patience.complain(f"{late_count} stacks could not be read in time")

    def read_native(self, rows: list[Document]) -> None:
        """Read the native stacks of ranks at rest, one per place: that pauses them for some ms."""
        pid_of: dict[str, int] = {}
        for row in rows:
            before, after = self._first.get(row["pid"]), self._later.get(row["pid"])
            place = pyspy.stack_text(before) if _read(before) else ""
            if place and _read(after) and place == pyspy.stack_text(after) and _at_rest(row):
                pid_of.setdefault(place, row["pid"])
        if self._spy is not None:
            pids = list(pid_of.values())[:MOST_NATIVE]
            until = self._patience.within(NATIVE_S)
            self._native = self._without_reused(self._spy.dump(pids, until, native=True, at_once=2))
            for pid, stack in self._native.items():
                if not _read(stack):
                    self._patience.complain(f"native stack of process {pid}: {stack}")

    def add(self, rank: Document, row: Document) -> None:
        """Add a rank's stacks to its row of the document, or why there are none."""
        pid = rank["pid"]
        row["stacks"] = self._document(self._first.get(pid))
        row["later"] = self._document(self._later.get(pid))
        row["sightings"] = self._sampled.get(pid, [])
        row["native"] = self._document(self._native.get(pid))
        row["workers"] = [
            {"pid": worker, "stacks": stacks}
            for worker in rank["workers"]
            for stacks in [self._document(self._later.get(worker, self._first.get(worker)))]
            if stacks is not None
        ]
        if row["stacks"] is None:
            row["no_stacks"] = clean(self._no_stacks_reason(rank, row), TEXT_LIMIT)

    def _dump(self, pids: Iterable[int], until: float) -> dict[int, Any]:
        return {} if self._spy is None else self._without_reused(self._spy.dump(pids, until))

    def _without_reused(self, read: dict[int, Any]) -> dict[int, Any]:
        """Remove the stacks of processes that reuse the pid of an ended one."""
        survey = processes.GuardedSurvey(partial(_start_times, list(read)), self._patience.stuck)
        until = max(self._patience.within(_STARTS_S), time.monotonic() + _SEND_S)
        starts = survey.finish(until, self._patience.problems) or {}
        looked_s = time.monotonic() - self._patience.began
        began_s = time.clock_gettime(time.CLOCK_BOOTTIME) - looked_s
        return {pid: read[pid] for pid in read if starts.get(str(pid), began_s) < began_s}

    def _document(self, stack: Any) -> Document | None:
        if not _read(stack) or self._spy is None:
            return None
        return {"threads": stack, "by": self._spy.by}

    def _no_stacks_reason(self, rank: Document, row: Document) -> str:
        if row["state"] in ("zombie", "gone"):
            return "it has ended"
        if rank["stuck"]:
            return "reading its memory hangs, as one of its threads hangs in the kernel: see dmesg"
        if not rank["python"]:
            return "it is no Python process"
        if self._spy is None:
            return self._no_spy
        error = self._first.get(rank["pid"])
        reason = pyspy.refusal(rank["uid"], rank["user"])
        return reason or f"py-spy could not read it: {error or 'it printed nothing'}"


def readable(ranks: list[Document], alive: Callable[[int], bool]) -> list[int]:
    """Return the pids whose stacks can be read: live Python ranks, and their first workers.

    Each user's in turn: some may take py-spy seconds.
    """
    live = [rank for rank in ranks if rank["python"] and not rank["stuck"] and alive(rank["pid"])]
    ordered = rank_dumps.in_turn(live)
    share = max(1, MOST_WORKERS // max(1, len(ordered)))
    workers = [pid for rank in ordered for pid in rank["workers"][:share]]
    return [rank["pid"] for rank in ordered] + workers[:MOST_WORKERS]


def _read(stack: Any) -> bool:
    """Whether a stack was read: otherwise it is an error text, or None."""
    return isinstance(stack, list)


def _start_times(pids: list[int], care: Care) -> dict[str, float]:
    """Return when each process was started, in seconds after boot, by its pid as text."""
    stats = {str(pid): care.look(pid) for pid in pids if not care.hides(pid)}
    return {pid: stat.start / procfs.TICKS for pid, stat in stats.items() if stat is not None}


def _at_rest(row: Document) -> bool:
    """Whether its main thread sleeps, and did nothing between the looks."""
    is_idle = row.get("main_cpu_s", 1.0) <= _AT_REST_S and row["switches"] <= _AT_REST_SWITCHES
    return bool(row["state"] == "sleeping" and is_idle)


_STARTS_S = 2.0
_SEND_S = 0.5
"""Time of a child that is reserved for sending what it has read."""
LOOK_S = 3.0
MARGIN_S = 1.0
"""Time that is reserved for sending the answer."""

FIND_S, USERS_S, GPUS_S, DUMPS_S = 6.0, 1.0, 3.0, 3.0


def run(request: Document, lines: Read, emit: Emit) -> None:
    """Emit one `NodeLook` document: preflight.facts.job, docs/internals/wire.md.

    With the field `ras` in the request: one `RasLook` of NCCL's RAS service.
    """
    stat = procfs.look(os.getpid())
    # A loaded node takes seconds to start this process: the controller counts them, too.
    began = time.monotonic() - (stat.age_s() if stat else 0.0)
    patience = Patience(began + float(request["deadline_s"]) - MARGIN_S)
    if "ras" in request:
        emit({**identity(request["nonce"]), **ras_client.answer(request["ras"], patience.until)})
        return
    look_s = max(0.1, float(request.get("look_s", LOOK_S)))
    sysfs = str(request.get("sysfs", "/sys"))
    document = identity(request["nonce"])
    log = kernel_log.Readers(request)
    gpus_asked = guard.spawn(moments.read_gpu_look, began + look_s)
    survey = _find(request, patience)
    ranks, launchers = survey["ranks"], survey["launchers"]
    dumps_until = patience.within(look_s + DUMPS_S - _SEND_S)
    with_dumps = [rank for rank in ranks if rank["dumps"]]
    dumps_asked = _spawn_by_user(rank_dumps.read_files, with_dumps, dumps_until)
    servers = [rank for rank in ranks if rank["socket"]]
    served_asked = _spawn_by_user(rank_dumps.ask_servers, servers, dumps_until)
    addresses = {str(rank["pid"]): rank["ras"] for rank in ranks if rank["ras"]}
    services_asked = guard.spawn(ras_client.services, addresses, survey["others"])
    stacks = StackReader(patience, use_installed=bool(request.get("own_spy", True)))
    first_look = Instant(patience, ranks, sysfs)
    stacks.prepare([rank for rank in ranks if rank["python"]], lines, emit)
    # The second look, and what follows it, have as much time as the first.
    first_until = patience.within(min(READ_S, (patience.left_s() - look_s) / 2))
    stacks.read(readable(ranks, first_look.alive), first_until)
    stacks.sample(ranks, first_look.at + look_s)
    patience.sleep_until(first_look.at + look_s)
    second_look = Instant(patience, ranks, sysfs)
    stacks.read_again()
    document["gpus"] = _gpus(patience.answer_of("GPUs", gpus_asked, GPUS_S), ranks, patience)
    rows = [second_look.row(rank, first_look) for rank in ranks]
    if request.get("native", True):
        stacks.read_native(rows)
    dumped = _join_answers("flight recorder", dumps_asked, patience)
    served = _join_answers("torch's worker server", served_asked, patience)
    services = patience.answer_of("RAS services", services_asked, DUMPS_S) or {}
    document["ras"], document["ras_pid"] = services.get("0", ""), services.get("pid", 0)
    for rank, row in zip(ranks, rows):  # noqa: B905 (Python 3.8)
        stacks.add(rank, row)
        row["ras"] = services.get(str(rank["pid"]), "")
        row["dump"] = dumped.get(str(rank["pid"])) or served.get(str(rank["pid"]))
    document.update(
        ranks=rows,
        launchers=launchers,
        hidden=survey["hidden"],
        ports=second_look.ports(first_look),
        log=log.finish(patience.within(kernel_log.PATIENCE_S), patience.problems),
    )
    document["problems"] = [clean(problem, TEXT_LIMIT) for problem in patience.problems[:64]]
    emit(document)


def _find(request: Document, patience: Patience) -> Document:
    pids = [pid for pid in request.get("pids") or [] if isinstance(pid, int)]
    survey = processes.GuardedSurvey(partial(node_ranks.find, os.getpid(), pids), patience.stuck)
    answer = survey.finish(patience.within(FIND_S), patience.problems)
    if answer is None:
        return {"ranks": [], "launchers": [], "hidden": 0, "others": []}
    for pid in answer["absent"]:
        patience.complain(f"process {pid}: there is none")
    _name_users(answer["ranks"], patience)
    return answer


def _name_users(ranks: list[Document], patience: Patience) -> None:
    """Look up users that are not in /etc/passwd in the directory, if it answers soon."""
    unknown = {rank["uid"] for rank in ranks if rank["user"].isdigit()}
    if unknown:
        names = patience.answer_of("users", guard.spawn(_names, sorted(unknown)), USERS_S) or {}
        for rank in ranks:
            rank["user"] = names.get(str(rank["uid"]), rank["user"])


def _names(uids: list[int]) -> dict[str, str]:
    users = Users(patient=True)
    return {str(uid): clean(users.name(uid)) for uid in uids}


def _spawn_by_user(
    read: Callable[..., Document], ranks: list[Document], until: float
) -> list[guard.Child]:
    """Start a reader for each user: a path of one may be on a file system that hangs."""
    groups = rank_dumps.by_user(ranks)
    return [guard.spawn(read, group, until, len(groups)) for group in groups]


def _join_answers(subject: str, readers: list[guard.Child], patience: Patience) -> Document:
    """Return the answers of such readers."""
    answers: Document = {}
    until = patience.within(DUMPS_S)
    for reader in readers:
        answers.update(guard.answer_of(subject, reader, until, patience.complain) or {})
    return answers


def _gpus(
    answer: Document | None, ranks: list[Document], patience: Patience
) -> list[Document] | None:
    """Return the GPUs, and add to each rank those on which it has memory."""
    gpus: list[Document] | None = answer["gpus"] if answer else None
    for problem in answer["problems"] if answer else []:
        patience.complain(problem)
    for rank in ranks:
        rank["gpus"] = [gpu["uuid"] for gpu in gpus or [] if rank["pid"] in gpu["pids"]]
    return gpus
