"""A fake of NCCL's RAS service: a real TCP server that keeps the rules of its client protocol.

Rules and forms are those of src/ras/client_support.cc: one buffer of 1024 bytes for commands, an
answer for each, a report of the whole job as text (2.24 and later) or JSON (2.28.7 and later), then
the end of the connection. A job of any size stands behind one server.
"""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
STATUSES = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")
ERRORS = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument",
    5: "Invalid usage", 6: "Remote process error",
}  # fmt: skip


@dataclass
class Peer:
    """One process of the job, with one GPU."""

    host: str
    pid: int
    gpu: int
    answers: str = "yes"
    """"yes", "dead" (RAS has given it up), or "late" (no answer in time)."""


@dataclass
class Comm:
    """One communicator; `ranks` are indices of peers, in the order of its own ranks."""

    hash: int
    ranks: list[int]
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """By peer."""
    status: dict[int, str] = field(default_factory=dict)
    """By peer, where it is not RUNNING; NOCOMM: it has destroyed it."""
    errors: dict[int, int] = field(default_factory=dict)
    """Asynchronous errors (ncclResult_t) by peer."""


@dataclass
class Job:
    """What the RAS network knows."""

    peers: list[Peer]
    comms: list[Comm]
    version: str = "2.30.7"

    @property
    def number(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(map(int, self.version.split(".")))


def report(job: Job, *, is_json: bool, verbose: bool = True) -> str:
    """What a service of this version answers to STATUS."""
    return _json(job) if is_json else "".join(_text(job, verbose=verbose))


def _reports(job: Job, comm: Comm) -> tuple[list[int], list[int]]:
    """(own ranks that report, missing ones)."""
    here = [
        rank
        for rank, peer in enumerate(comm.ranks)
        if job.peers[peer].answers == "yes" and comm.status.get(peer) != "NOCOMM"
    ]
    known = set(here)
    return here, [rank for rank in range(len(comm.ranks)) if rank not in known]


def _json(job: Job) -> str:
    comms = ",\n".join(filter(None, (_json_comm(job, comm) for comm in job.comms)))
    return (
        f'{{\n  "nccl_version": "{job.version}+cuda12.9",\n  "cuda_runtime_version": 12090,\n'
        '  "cuda_driver_version": 13000,\n  "timestamp": "2026-11-26 12:00:00",\n'
        f'  "communicators_count": {len(job.comms)},\n  "communicators": [\n{comms}\n  ],\n'
        '  "ras": {\n    "collection_time_sec": 0.012,\n'
        f'    "timeouts_count": {sum(p.answers == "late" for p in job.peers)}\n  }}\n}}\n'
    )


def _json_comm(job: Job, comm: Comm) -> str:
    here, missing = _reports(job, comm)
    if not here:
        return ""
    rows = ",\n".join(_json_rank(job, comm, rank) for rank in here)
    lost = ",\n".join(_json_missing(job, comm, rank) for rank in missing)
    return (
        f'    {{\n      "hash": "{comm.hash:#x}",\n      "secondary_hash": "0x1:0x2",\n'
        f'      "size": {len(comm.ranks)},\n      "ranks_count": {len(here)},\n'
        f'      "missing_ranks_count": {len(missing)},\n      "ranks": [\n{rows}\n      ],\n'
        f'      "missing_ranks": [\n{lost}\n      ]\n    }}'
    )


def _json_head(job: Job, comm: Comm, rank: int, comma: str) -> str:
    peer = job.peers[comm.ranks[rank]]
    pad = " " * 10
    return (
        f'        {{\n{pad}"rank": {rank},\n{pad}"host": "{peer.host}",\n{pad}"pid": {peer.pid},\n'
        f'{pad}"cuda_dev": {peer.gpu},\n{pad}"nvml_dev": {peer.gpu}{comma}\n{pad}"status": {{\n'
    )


def _json_rank(job: Job, comm: Comm, rank: int) -> str:
    peer = comm.ranks[rank]
    status = comm.status.get(peer, "RUNNING")
    counts = comm.counts.get(peer, {})
    ops = ",\n".join(f'            "{name}": {counts.get(name, 0)}' for name in FUNCTIONS)
    flags = {
        "init_state": 7 if status == "INIT" else 0,
        "async_error": comm.errors.get(peer, 0),
        "finalize_called": "true" if status == "FINALIZE" else "false",
        "destroy_flag": "true" if status in ("FINALIZE", "ABORT") else "false",
        "abort_flag": "true" if status == "ABORT" else "false",
    }
    inner = ",\n".join(f'            "{name}": {value}' for name, value in flags.items())
    return (
        f"{_json_head(job, comm, rank, ',')}{inner}\n          }},\n"
        f'          "collective_counts": {{\n{ops}\n          }}\n        }}'
    )


def _json_missing(job: Job, comm: Comm, rank: int) -> str:
    comma = "," if job.number >= (2, 29) else ""  # 2.28.7 and 2.28.9 forget it
    peer = job.peers[comm.ranks[rank]]
    silent, dead = peer.answers != "yes", peer.answers == "dead"
    return (
        f'{_json_head(job, comm, rank, comma)}            "unresponsive": {str(silent).lower()},\n'
        f'            "considered_dead": {str(dead).lower()}\n          }}\n        }}'
    )


def _outlier(number: int, *, verbose: bool, total: int | None = None) -> bool:
    """Whether NCCL lists these ranks one by one (rasCountIsOutlier)."""
    if number == 1:
        return True
    if verbose:
        return total is None or number < total * 0.5
    return number <= 10 and (total is None or number <= total * 0.25)


def _s(number: int) -> str:
    return "s" if number > 1 else ""


def _text(  # noqa: C901 (in the order of rasClientRunComms)
    job: Job, *, verbose: bool
) -> Iterator[str]:
    old = job.number < (2, 26)
    hosts = Counter(peer.host for peer in job.peers)
    each = next(iter(hosts.values()))
    yield f"NCCL version {job.version}+cuda12.9 compiled with CUDA 12.9\n"
    yield "CUDA runtime version 12090, driver version 13000\n\n"
    yield "Job summary\n===========\n\n"
    yield "  Nodes  Processes         GPUs  Processes     GPUs\n"
    yield "(total)   per node  per process    (total)  (total)\n"
    yield f"{len(hosts):7}  {each:9}  {1:11}  {len(job.peers):9}  {len(job.peers):7}\n"
    yield "\nCommunicators... (0.01s)\n=============\n\n"
    late = [peer for peer in job.peers if peer.answers == "late"]
    dead = [peer for peer in job.peers if peer.answers == "dead"]
    groups = _groups(job)
    yield "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    yield "    #  in group  per comm  per node  per comm  in group\n"
    for number, (key, comms) in enumerate(groups):
        size, nodes, status, errors = key
        yield (
            f"{number:5}  {len(comms):8}  {nodes:8}  {max(1, size // nodes):8}  {size:8}  {size:8}"
            f"  {status:>8}  {errors:>6}\n"
        )
    yield "\nErrors\n======\n\n"
    if late:
        n = len(late)
        yield f"INCOMPLETE\n  Missing communicator data from {n} job process{'es' * (n > 1)}\n"
        yield from _processes(late, verbose=verbose)
    if dead:
        n = len(dead)
        yield f"DEAD\n  {n} job process{'es are' if n > 1 else ' is'} considered dead "
        yield "(unreachable via the RAS network)\n"
        yield from _processes(dead, verbose=verbose)
    for number, (_, comms) in enumerate(groups):
        for index, comm in enumerate(comms):
            name = f"#{number}-{index} ({comm.hash:016x})"
            _, missing = _reports(job, comm)
            silent = [r for r in missing if job.peers[comm.ranks[r]].answers != "yes"]
            if silent:
                n = len(silent)
                yield f"{name} INCOMPLETE\n  Missing communicator data from {n} rank{_s(n)}\n"
                if _outlier(n, verbose=verbose) and old:
                    yield f"  The missing rank{_s(n)}: {','.join(map(str, silent))}\n"
                elif _outlier(n, verbose=verbose):
                    yield from (f"  Rank {r} -- {_managed(job, comm, r)}\n" for r in silent)
                yield "\n"
            if comm.errors:
                yield from _errors(job, comm, name, verbose=verbose)
    yield "Warnings\n========\n\n"
    if late:
        yield f"TIMEOUT\n  Encountered {len(late)} communication timeout{_s(len(late))} while "
        yield "gathering communicator data\n\n"
    for number, (_, comms) in enumerate(groups):
        for index, comm in enumerate(comms):
            name = f"#{number}-{index} ({comm.hash:016x})"
            yield from _mismatch(job, comm, name, verbose=verbose)


def _managed(job: Job, comm: Comm, rank: int) -> str:
    peer = job.peers[comm.ranks[rank]]
    return f"GPU {peer.gpu} managed by process {peer.pid} on node {peer.host}"


def _processes(peers: list[Peer], *, verbose: bool) -> Iterator[str]:
    if _outlier(len(peers), verbose=verbose):
        for peer in peers:
            yield f"  Process {peer.pid} on node {peer.host} managing GPU {peer.gpu}\n"
    yield "\n"


def _groups(job: Job) -> list[tuple[tuple[int, int, str, str], list[Comm]]]:
    """Communicators by size, nodes, status and errors, largest first."""
    found: dict[tuple[int, int, str, str], list[Comm]] = {}
    for comm in job.comms:
        here, missing = _reports(job, comm)
        if not here:
            continue
        nodes = len({job.peers[peer].host for peer in comm.ranks})
        statuses = {comm.status.get(comm.ranks[r], "RUNNING") for r in here}
        silent = [r for r in missing if job.peers[comm.ranks[r]].answers != "yes"]
        if len(silent) < len(missing):
            statuses.add("NOCOMM")
        status = max(statuses, key=STATUSES.index)
        differ = len({tuple(sorted(comm.counts[comm.ranks[r]].items())) for r in here}) > 1
        marks = ["INCOMPLETE"] * bool(silent) + ["ERROR"] * bool(comm.errors)
        marks += ["MISMATCH"] * (differ or len(statuses) > 1)
        found.setdefault((len(comm.ranks), nodes, status, ",".join(marks) or "OK"), []).append(comm)
    return sorted(found.items(), key=lambda item: (-item[0][0], -item[0][1]))


def _errors(job: Job, comm: Comm, name: str, *, verbose: bool) -> Iterator[str]:
    n = len(comm.errors)
    yield f"{name} ERROR\n  Asynchronous error{_s(n)} on {n} rank{_s(n)}\n"
    by_code: dict[int, list[int]] = {}
    for peer, code in comm.errors.items():
        by_code.setdefault(code, []).append(comm.ranks.index(peer))
    for code, some in sorted(by_code.items(), key=lambda item: -len(item[1])):
        if len(some) > 1:
            yield f"  {len(some)} ranks reported {ERRORS[code]}\n"
        if _outlier(len(some), verbose=verbose):
            said = f" reported {ERRORS[code]}" if len(some) == 1 else ""
            yield from (f"  Rank {r}{said} -- {_managed(job, comm, r)}\n" for r in some)
    yield "\n"


def _mismatch(job: Job, comm: Comm, name: str, *, verbose: bool) -> Iterator[str]:
    here, missing = _reports(job, comm)
    if not here:
        return
    old = job.number < (2, 26)
    gone = [r for r in missing if job.peers[comm.ranks[r]].answers == "yes"]
    status = {r: comm.status.get(comm.ranks[r], "RUNNING") for r in here}
    nocomm = dict.fromkeys(gone, "UNKNOWN" if old else "NOCOMM")
    lines: list[str] = []
    if len({*status.values(), *nocomm.values()}) > 1:
        lines.append("  Communicator ranks have different status\n")
        lines += _spread(job, comm, {**status, **nocomm}, "have status {}", "has status {}",
                         verbose=verbose)  # fmt: skip
    if old:
        totals = {r: sum(comm.counts[comm.ranks[r]].values()) for r in here}
        rows = [("collective", totals)]
    else:
        rows = [(f, {r: comm.counts[comm.ranks[r]].get(f, 0) for r in here}) for f in FUNCTIONS]
    for function, values in rows:
        if len(set(values.values())) > 1:
            lines.append(f"  Communicator ranks have different {function} operation counts\n")
            lines += _spread(
                job, comm, values, "have launched up to operation {}",
                "has launched up to operation {}", verbose=verbose,
            )  # fmt: skip
            lines.append("\n")
    if lines:
        yield f"{name} MISMATCH\n"
        yield from lines


def _spread(
    job: Job, comm: Comm, values: dict[int, Any], many: str, one: str, *, verbose: bool
) -> Iterator[str]:
    """Ranks by value, the most frequent value first."""
    by_value: dict[Any, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    order = sorted(by_value, key=lambda value: (-len(by_value[value]), str(value)))
    for value in order:
        some = sorted(by_value[value])
        none = value == 0
        if len(some) > 1:
            words = "have not launched any operations" if none else many.format(value)
            yield f"  {len(some)} ranks {words}\n"
        if _outlier(len(some), verbose=verbose, total=len(comm.ranks)):
            words = " has not launched any operations" if none else " " + one.format(value)
            words = words if len(some) == 1 else ""
            if value == "UNKNOWN" and len(some) > 1:
                yield f"  The unknown ranks: {','.join(map(str, some))}\n"
                continue
            yield from (f"  Rank {r}{words} -- {_managed(job, comm, r)}\n" for r in some)


class _Talk(socketserver.BaseRequestHandler):
    """One client."""

    server: RasMesh

    def handle(self) -> None:
        buffer, is_json = b"", False
        while True:
            chunk = self.request.recv(1024 - len(buffer))
            if not chunk:
                return
            buffer += chunk
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                command = line.rstrip(b"\r").decode("ascii", "replace")
                if command.lower() in ("status", "verbose status"):
                    verbose = command.lower().startswith("verbose")
                    self.server.questions += 1
                    if self.server.status is not None:
                        self.server.status(self.request)
                        return
                    text = report(self.server.job, is_json=is_json, verbose=verbose)
                    self.request.sendall(text.encode())
                    return
                answer = self.server.answer(command)
                is_json = is_json or (answer == "OK" and command.lower() == "set format json")
                self.request.sendall(answer.encode() + b"\n")
            if len(buffer) >= 1024:  # an excessively long line: NCCL ends the connection
                return


class RasMesh(socketserver.ThreadingTCPServer):
    """The service of one job, on a port of the loopback."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self, job: Job, port: int = 0, status: Callable[[Any], None] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", port), _Talk)
        self.job = job
        self.status = status
        """What sends a hostile report, instead of NCCL's."""
        self.questions = 0
        """How often STATUS was asked."""
        self.commands: list[str] = []

    @property
    def address(self) -> str:
        """As in NCCL_RAS_ADDR."""
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, command: str) -> str:
        """The answer to any other command than STATUS."""
        self.commands.append(command)
        word, number = command.lower(), self.job.number
        if word.startswith("client protocol "):
            return "SERVER PROTOCOL 2"
        if word.startswith("timeout "):
            value = command[8:]
            return "OK" if value.isdigit() else f"ERROR: Invalid timeout value {value}"
        if word.startswith("set format ") and number >= (2, 28, 7):
            name = command[11:]
            return "OK" if name.lower() in ("text", "json") else f"ERROR: Invalid format {name}"
        if (word == "monitor" or word.startswith("monitor ")) and number >= (2, 29, 2):
            bad = [each for each in word[8:].split(",") if each not in ("", "lifecycle", "trace",
                                                                        "all")]  # fmt: skip
            return f"ERROR: Invalid event group '{command[8:]}'" if bad else "OK"
        return f"ERROR: Unknown command {command}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
