"""What a node shows of ranks that hang: real processes, read as they are on a node."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from probe import processes, procfs
from stacks import moments, pyspy
from stacks import node_ranks as finding
from stacks.main import StackReader, readable
from stacks.moments import Instant
from stacks.node_ranks import Patience
from stacks.rank_dumps import read_files

from preflight.facts.job import NodeLook
from preflight.facts.model import decode_document
from preflight.transport import bundle
from tests.lab import strangers_mount

from .node import NONCE, Remote, system_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from preflight.facts.job import RankLook

    from .conftest import Machine

    Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.slow

SEAT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29500",
}
WAITS = """
import time
def evaluate():
    print("there", flush=True)
    while True:
        time.sleep(30)
def train(password):
    evaluate()
train("hunter2")
"""
WITH_WORKER = """
import os, time
def load():
    print("there", flush=True)
    time.sleep(60)
if os.fork() == 0:
    load()
time.sleep(60)
"""
LAUNCHER = """
import os, subprocess, sys, time
STAYS = "import time; print('there', flush=True); time.sleep(60)"
LEFT = "import subprocess; subprocess.Popen(['sleep', '60'])"
for rank in "01":
    seat = dict(os.environ, RANK=str(6 + int(rank)), LOCAL_RANK=rank, WORLD_SIZE="8",
                LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="night", TORCHELASTIC_RESTART_COUNT="2")
    code = LEFT if rank == "1" and "train.py" in sys.argv else STAYS
    subprocess.Popen([sys.executable, "-c", code], env=seat)
time.sleep(60)
"""
ACCEPTS = """
import socket, time
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
ends = [(socket.create_connection(one.getsockname()), one.accept()[0]) for one in servers]
servers[1].close()
print(1, flush=True)
time.sleep(60)
"""
FLOODS = """
import socket, sys, time
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.setblocking(False)
try:
    while True:
        peer.send(b"x" * 65536)
except BlockingIOError:
    print("there", flush=True)
time.sleep(60)
"""
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")


@pytest.fixture
def start(cleanup: ExitStack) -> Start:
    """Return a starter of ranks that end with the test; it waits until one says a line."""

    def begin(
        *argv: str, python: str = sys.executable, user: int | None = None, **seat: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [python, *(argv or ("-c", WAITS))],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **SEAT, **seat},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            start_new_session=True,
        )

        def end() -> None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        cleanup.callback(end)
        assert process.stdout
        cleanup.callback(process.stdout.close)
        process.stdout.readline()
        return process

    return begin


def ask(remote: Remote, **request: object) -> None:
    """Ask for a look at this machine."""
    remote.ask(**{"nonce": NONCE, "name": "here", "deadline_s": 20, "look_s": 0.2} | request)


def answer(remote: Remote, *, has_spy: bool = True) -> NodeLook:
    """Return the answer, and give py-spy where it is asked for."""
    document = remote.answer()
    if document.startswith(b'{"lacks"'):
        messages = (
            bundle.pyspy_messages(json.loads(document)["machine"])
            if has_spy
            else [{"none": "no spy"}]
        )
        for message in messages:
            remote.ask(**json.loads(msgspec.json.encode(message)))
        document = remote.answer()
    assert remote.leave() == 0
    return decode_document(NodeLook, document, NONCE)


def look(*pids: int, **request: object) -> NodeLook:
    """Return what the payload says of these processes and those below."""
    remote = Remote("stacks")
    ask(remote, pids=list(pids), **request)
    return answer(remote)


def where(rank: RankLook) -> list[tuple[str, int]]:
    """Return its main thread's stack as functions and lines."""
    assert rank.stacks is not None, rank.no_stacks
    return [(frame.function, frame.line) for frame in rank.stacks.threads[0].frames]


def test_a_rank_is_reported_with_its_current_line(start: Start) -> None:
    """Its place in the job, the functions it is in, twice, and nothing of their variables."""
    seen = look(start().pid)
    (rank,) = seen.ranks
    assert (rank.rank, rank.local_rank, rank.world_size, rank.job) == (3, 1, 16, "h1:29500")
    assert where(rank)[:2] == [("evaluate", 6), ("train", 8)]
    assert rank.later == rank.stacks
    assert rank.state == "sleeping"
    assert rank.look_s > 0.1
    assert "hunter2" not in repr(seen)


def test_a_long_look_samples_what_a_rank_does(start: Start) -> None:
    """Where there is a second to spare between the looks, its main thread is seen often."""
    seen = look(start().pid, look_s=1.5)
    (rank,) = seen.ranks
    assert rank.stacks is not None, rank.no_stacks
    (most, *_) = rank.sightings
    assert most.frames == rank.stacks.threads[0].frames
    assert most.times >= 5


def test_a_stopped_rank_stays_stopped(start: Start) -> None:
    """It is reported as stopped, its stack is read, and it is not continued."""
    process = start()
    os.kill(process.pid, signal.SIGSTOP)
    (rank,) = look(process.pid).ranks
    assert rank.state == "stopped"
    assert where(rank)[0][0] == "evaluate"
    assert rank.native is None
    assert state_of(process.pid) == "T"


def fields_of(pid: int) -> list[str]:
    """Return state, parent, group, session and so on of a process; [] for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def state_of(pid: int) -> str:
    """Return the state letter of a process."""
    return fields_of(pid)[0]


def orphans(session: int) -> list[int]:
    """Return the processes of a session whose parent has ended."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    mine = {pid: its for pid in pids if (its := fields_of(pid)) and int(its[3]) == session}
    return [pid for pid, its in mine.items() if int(its[1]) not in mine and pid != session]


def until(state: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    patience = time.monotonic() + 30
    while not state():
        assert time.monotonic() < patience, "it never happened"
        time.sleep(0.01)


def test_a_dead_rank_is_known_by_its_place(start: Start, tmp_path: Path) -> None:
    """A rank that ended unnoticed has no environment; its launcher's other ranks tell which.

    What it has left behind carries its variables, and is not taken for it.
    """
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(LAUNCHER)
    # As in a pod of a Kubernetes job: the launcher itself has torch's variables, of its node.
    agent = start(str(torchrun), "--nproc-per-node=2", "train.py", RANK="0", WORLD_SIZE="4")
    until(lambda: bool(orphans(agent.pid)))
    seen = look(agent.pid, *orphans(agent.pid))
    (launcher,) = seen.launchers
    alive, dead = sorted(seen.ranks, key=lambda rank: rank.rank or 0)
    assert (launcher.pid, launcher.kind, launcher.job) == (agent.pid, "torchrun", "night")
    assert launcher.children == (alive.pid, dead.pid)
    assert (alive.rank, alive.state) == (6, "sleeping")
    assert (dead.rank, dead.local_rank, dead.state, dead.job) == (7, 1, "zombie", "night")
    assert (dead.restarts, dead.no_stacks) == (2, "it has ended")


def test_of_a_rank_the_others_of_its_launcher_are_meant_too(start: Start, tmp_path: Path) -> None:
    """A hanging rank's pid is what top shows; who is not below it is not gone for that."""
    script = tmp_path / "other.py"
    script.write_text(LAUNCHER)
    agent = start(str(script), RANK="", WORLD_SIZE="")
    until(lambda: len(below(agent.pid)) == 2)
    stranger = start(RANK="6", MASTER_PORT="1")
    (rank, *_) = below(agent.pid)
    seen = look(rank)
    assert sorted(one.rank for one in seen.ranks if one.rank is not None) == [6, 7]
    assert stranger.pid not in {one.pid for one in seen.ranks}


def test_a_rank_whose_memory_cannot_be_read_hides_no_other(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading its environment hangs, its place follows from the others of its launcher.

    A stand-in hangs: the lock of a process's memory is held for long only by a driver.
    """
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(LAUNCHER)
    agent = start(str(torchrun), "stays.py")
    until(lambda: len(below(agent.pid)) == 2)
    stuck = below(agent.pid)[1]
    really = procfs.environ

    def environ(pid: int) -> bytes | None:
        if pid == stuck:
            time.sleep(600)
        return really(pid)

    monkeypatch.setattr(procfs, "environ", environ)
    patience = Patience(time.monotonic() + 60)
    survey = processes.GuardedSurvey(partial(finding.find, 2**22 + 1, [agent.pid]), patience.stuck)
    found = survey.finish(patience.until, patience.problems)
    assert found is not None
    ranks = {one["pid"]: (one["rank"], one["stuck"]) for one in found["ranks"]}
    assert ranks == {below(agent.pid)[0]: (6, False), stuck: (7, True)}
    assert patience.problems == [f"process {stuck}: reading its command or environment hangs"]
    assert readable(found["ranks"], lambda _pid: True) == [below(agent.pid)[0]]


@needs_root
def test_a_process_that_never_gets_through_execve_hides_no_rank(start: Start) -> None:
    """Newer kernels make a reader of its stat line wait: a FUSE file may hold it for ever."""
    mine = start()
    with strangers_mount.starting_a_program(NOBODY):
        seen = look()
    assert mine.pid in [rank.pid for rank in seen.ranks if rank.stacks]


def below(pid: int) -> list[int]:
    """Return the children of a process."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@needs_root
def test_another_users_rank_is_counted_and_the_rest_goes_on(start: Start, tmp_path: Path) -> None:
    """Without permission for a rank, the answer names the right user; hidden ones are counted."""
    tmp_path.chmod(0o755)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(LAUNCHER)
    agent = start(str(torchrun), "train.py", python=system_python())
    until(lambda: "Z" in map(state_of, below(agent.pid)))
    mine = start(user=NOBODY, python=system_python())
    remote = Remote("stacks", python=system_python(), user=NOBODY)
    ask(remote, pids=[agent.pid, mine.pid])
    seen = answer(remote)
    assert seen.hidden == 1
    assert [rank.pid for rank in seen.ranks if rank.stacks] == [mine.pid]
    remote = Remote("stacks", python=system_python(), user=NOBODY)
    ask(remote, pids=[agent.pid])
    assert {rank.no_stacks for rank in answer(remote).ranks} == {
        "it has ended", "it belongs to root: run preflight diagnose as root",
    }  # fmt: skip


def test_a_rank_that_ends_between_the_looks(start: Start) -> None:
    """It is reported as gone, without a problem, and the others completely."""
    leaves, stays = start(), start(RANK="4")
    ranks = finding.find(2**22 + 1, [leaves.pid, stays.pid], processes.Care())["ranks"]
    patience = Patience(time.monotonic() + 60)
    before = Instant(patience, ranks, "/sys")
    stacks = StackReader(patience, use_installed=True)
    stacks.prepare(ranks, lambda _within_s: None, lambda _document: None)
    leaves.kill()
    leaves.wait()
    stacks.read([one["pid"] for one in ranks], patience.until)
    rows = [Instant(patience, ranks, "/sys").row(one, before) for one in ranks]
    for one, row in zip(ranks, rows, strict=True):
        stacks.add(one, row)
    assert [row["state"] for row in rows] == ["gone", "sleeping"]
    assert rows[0]["no_stacks"] == "it has ended"
    assert patience.problems == []


def has_stacks(stacks: StackReader, rank: dict[str, Any]) -> bool:
    """Whether the answer has the stacks of a rank."""
    row: dict[str, Any] = {"state": "sleeping"}
    stacks.add(rank, row)
    return row["stacks"] is not None


def test_a_process_that_got_the_pid_of_a_rank_is_not_read_in_its_place(start: Start) -> None:
    """It began after the look did, so it is no process that the look found."""
    before = start()
    patience = Patience(time.monotonic() + 60)
    time.sleep(0.05)  # the kernel counts starts in ticks of 10 ms
    pids = [before.pid, start().pid]
    ranks = finding.find(2**22 + 1, pids, processes.Care())["ranks"]
    stacks = StackReader(patience, use_installed=True)
    stacks.prepare(ranks, lambda _within_s: None, lambda _document: None)
    stacks.read(pids, patience.until)
    assert [has_stacks(stacks, one) for one in ranks] == [True, False]


def test_ranks_whose_counters_cannot_be_read_are_not_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep the state in which they were found, and the answer has the problem."""
    stopped, sleeps = start(), start(RANK="4")
    os.kill(stopped.pid, signal.SIGSTOP)
    until(lambda: state_of(stopped.pid) == "T" and state_of(sleeps.pid) == "S")
    ranks = finding.find(2**22 + 1, [stopped.pid, sleeps.pid], processes.Care())["ranks"]
    patience = Patience(time.monotonic() + 60)
    monkeypatch.setattr(moments, "moment", lambda *_: 1 // 0)
    looked = Instant(patience, ranks, "/sys")
    assert [looked.row(one, looked)["state"] for one in ranks] == ["stopped", "sleeping"]
    assert patience.problems == ["processes: ZeroDivisionError: integer division or modulo by zero"]


@needs_root
def test_many_ranks_of_one_user_leave_room_for_anothers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who poses as many ranks, all started before, hides his own only."""
    python = system_python()
    many = [start(RANK=str(rank), user=NOBODY, python=python) for rank in range(4)]
    other = start(RANK="4", user=4321, python=python)
    monkeypatch.setattr(finding, "MOST_RANKS", 2)
    pids = [one.pid for one in (*many, other)]
    found = finding.find(2**22 + 1, pids, processes.Care())["ranks"]
    assert [one["pid"] for one in found] == [many[0].pid, other.pid]


def test_long_names_on_a_stack_leave_room_for_other_ranks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into the answer is left out, and no other rank with it."""
    name = "n" * 500
    code = f"import time\ndef {name}():\n print('there', flush=True)\n time.sleep(60)\n{name}()"
    plain, long = start(), start("-c", code, RANK="4")
    monkeypatch.setattr(pyspy, "_ALL_BYTES", 500)
    patience = Patience(time.monotonic() + 60)
    ranks = finding.find(2**22 + 1, [long.pid, plain.pid], processes.Care())["ranks"]
    stacks = StackReader(patience, use_installed=True)
    stacks.prepare(ranks, lambda _within_s: None, lambda _document: None)
    stacks.read([long.pid, plain.pid], patience.until)
    assert {one["pid"] for one in ranks if has_stacks(stacks, one)} == {plain.pid}


def test_stacks_that_take_long_leave_time_for_the_second_look(start: Start, tmp_path: Path) -> None:
    """Of many ranks on a loaded node, those whose stacks were read count; the others are named."""
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    real = Path(sys.executable).with_name("py-spy")
    own = {"python": system_python(), "VIRTUAL_ENV": str(tmp_path)}
    first = start(**own)
    slow = [start(RANK=str(rank), **own) for rank in range(4, 13)]
    tool.write_text(
        f'#!/bin/sh\nfor last; do :; done\ncase $last in {first.pid}|--version) exec {real} "$@";; '
        f"esac\necho $last >>{tmp_path}/begun\nexec sleep 60\n"
    )
    tool.chmod(0o755)
    seen = look(first.pid, *(one.pid for one in slow), deadline_s=12)
    ranks = {one.pid: one for one in seen.ranks}
    assert ranks[first.pid].stacks == ranks[first.pid].later is not None
    late = [ranks[one.pid] for one in slow]
    assert {one.no_stacks for one in late} == {"py-spy could not read it: " + pyspy.LATE}
    assert {one.state for one in late} == {"sleeping"}
    assert f"{len(slow)} stacks could not be read in time" in seen.problems
    assert set((tmp_path / "begun").read_text().split()) != {str(one.pid) for one in slow}


@needs_root
def test_many_launchers_of_one_user_leave_room_for_anothers(
    cleanup: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can call his processes torchrun."""
    launchers = []
    for user in (NOBODY, NOBODY, NOBODY, 4321):
        one = subprocess.Popen(["torchrun", "60"], executable=shutil.which("sleep"), user=user)
        cleanup.callback(one.wait)
        cleanup.callback(one.kill)
        launchers.append(one.pid)
    monkeypatch.setattr(finding, "MOST_LAUNCHERS", 2)
    found = finding.find(2**22 + 1, launchers, processes.Care())["launchers"]
    assert [one["pid"] for one in found] == [launchers[0], launchers[-1]]


def test_each_user_has_stacks_read_in_turn() -> None:
    """Who poses as many ranks, which take py-spy long, has one of them read first."""
    uids = [7, 7, 7, 8]
    ranks = [
        {"pid": pid, "uid": uid, "python": True, "stuck": False, "workers": []}
        for pid, uid in enumerate(uids)
    ]
    assert readable(ranks, lambda _: True) == [0, 3, 1, 2]


RENAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, "²".encode(), 0, 0, 0)
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "count", ["²", "٣", "0" * 5000, "9" * 5000], ids=["square", "arabic", "zeros", "nines"]
)
def test_no_number_that_is_none_hides_a_rank(start: Start, tmp_path: Path, count: str) -> None:
    """Any user may name a process "²", or start one whose command looks like a launcher's."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(WAITS)
    named = start("-c", RENAMED, RANK="4")
    launcher = start(str(torchrun), f"--nproc-per-node={count}", RANK="", WORLD_SIZE="")
    mine = start()
    seen = look(mine.pid, named.pid, launcher.pid)
    assert {(one.pid, one.state) for one in seen.ranks} >= {
        (mine.pid, "sleeping"), (named.pid, "sleeping"),
    }  # fmt: skip
    assert seen.problems == ()


def test_a_process_that_is_not_there() -> None:
    """An unused pid is a line among the problems, and nothing else."""
    seen = look(2**22 - 7)
    assert seen.ranks == ()
    assert seen.problems == (f"process {2**22 - 7}: there is none",)


def test_without_py_spy_all_the_rest_is_reported(start: Start) -> None:
    """Without any py-spy the answer has the reason and what to type, and the wait channel."""
    remote = Remote("stacks")
    ask(remote, pids=[start().pid], own_spy=False)
    (rank,) = answer(remote, has_spy=False).ranks
    assert rank.stacks is None
    assert rank.no_stacks == (
        "no spy: install py-spy there, or beside preflight: "
        "pip install 'pytest-preflight[diagnose]'"
    )
    assert (rank.rank, rank.state) == (3, "sleeping")


def test_py_spy_travels_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """A node without it is given one, which runs from memory: no file stays there."""
    if not [one for one in bundle.pyspy_messages(os.uname().machine) if "part" in one]:
        pytest.skip("no py-spy here that could travel")
    remote = Remote("stacks", env={"TMPDIR": str(tmp_path)})
    ask(remote, pids=[start().pid], own_spy=False)
    (rank,) = answer(remote).ranks
    assert rank.stacks is not None
    assert rank.stacks.by.endswith("that travelled")
    assert where(rank)[0][0] == "evaluate"
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_takes_no_more(start: Start) -> None:
    """What a rank has sent and the other end has not taken stands there in bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        port = server.getsockname()[1]
        process = start("-c", FLOODS, str(port))
        peer, _ = server.accept()
        with peer:
            (rank,) = look(process.pid).ranks
    (connection,) = rank.connections
    assert connection.peer == f"127.0.0.1:{port}"
    assert connection.unacked > 0
    assert connection.received == 0


def test_a_port_that_still_accepts_connections_is_told_from_one_that_does_not(start: Start) -> None:
    """As NCCL does it: its RAS threads listen for good, its data connections' ports are closed."""
    (rank,) = look(start("-c", ACCEPTS).pid).ranks
    assert sorted(one.served for one in rank.connections) == [False, False, False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace")
def test_a_rank_in_a_container_is_known_by_both_of_its_pids(start: Start) -> None:
    """NCCL's RAS reports the one that the rank itself sees."""
    inside = ("--pid", "--fork", "--kill-child", sys.executable, "-c", WAITS)
    (rank,) = look(start(*inside, python="unshare").pid).ranks
    assert rank.inner_pid == 1 != rank.pid
    (plain,) = look(start().pid).ranks
    assert plain.inner_pid == plain.pid


def test_a_data_loaders_worker_is_no_second_rank(start: Start) -> None:
    """A child with the rank's own environment is reported below it, with its stack."""
    (rank,) = look(start("-c", WITH_WORKER).pid).ranks
    (worker,) = rank.workers
    assert worker.stacks.threads[0].frames[0].function == "load"


def test_a_rank_at_rest_shows_its_native_stack(start: Start) -> None:
    """The C side of a main thread that did nothing between the looks is read as well."""
    (rank,) = look(start().pid).ranks
    if rank.native is None:
        pytest.skip("py-spy cannot unwind this interpreter")
    assert "evaluate" in [frame.function for frame in rank.native.threads[0].frames]


def test_flight_recorder_dumps_travel_unopened(start: Start, tmp_path: Path) -> None:
    """The file that torch left for this rank comes along byte by byte."""
    prefix = str(tmp_path / "trace_")
    process = start(TORCH_FR_DUMP_TEMP_FILE=prefix)
    Path(prefix + "3").write_bytes(b"\x80\x04never opened")
    (rank,) = look(process.pid).ranks
    assert rank.dump is not None
    assert zlib.decompress(base64.b64decode(rank.dump.content)) == b"\x80\x04never opened"


@needs_root
def test_a_users_file_system_that_hangs_hides_no_dump_of_another(
    start: Start, tmp_path: Path
) -> None:
    """One reader read the dumps of all jobs: at a file system that hangs it hung for all."""
    (tmp_path / "trace_4").write_bytes(b"mine")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with strangers_mount.mounted(Path(folder) / "his", NOBODY):
            hangs = f"{folder}/his/never"
            stranger = start(user=NOBODY, python=system_python(), TORCH_FR_DUMP_TEMP_FILE=hangs)
            mine = start(RANK="4", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_")
            seen = look(stranger.pid, mine.pid)
    dumps = {rank.pid: rank.dump for rank in seen.ranks}
    assert dumps[mine.pid] is not None
    assert dumps[stranger.pid] is None
    assert "flight recorder: no answer in time" in seen.problems


def test_a_dump_of_any_size_and_time_hides_no_rank(start: Start, cleanup: ExitStack) -> None:
    """A tmpfs takes 7 EiB of holes, and the year 146 billion: more than the answer may hold."""
    folder = cleanup.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    process = start(TORCH_FR_DUMP_TEMP_FILE=f"{folder}/trace_")
    dump = Path(folder, "trace_3")
    with dump.open("wb") as file:
        file.truncate(7 << 60)
    os.utime(dump, (2**62, 2**62))
    (rank,) = look(process.pid).ranks
    assert rank.dump is not None
    assert rank.dump.why == f"it has {7 << 40} MiB"


def test_no_other_ranks_files_keep_a_dump_from_being_read(start: Start, tmp_path: Path) -> None:
    """14 processes with a rank's variables, and links to one file of 31 MiB: no dump came."""
    large = tmp_path / "large"
    large.write_bytes(os.urandom(31 << 20))
    for number in range(14):
        Path(f"{tmp_path}/his_{number}").hardlink_to(large)
    posing = [
        start(RANK=str(number), MASTER_PORT="1", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/his_")
        for number in range(14)
    ]
    mine = start(RANK="20", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/mine_")
    Path(f"{tmp_path}/mine_20").write_bytes(b"small")
    seen = look(*(one.pid for one in (*posing, mine)), native=False)
    dumps = {one.pid: one.dump for one in seen.ranks}
    own = dumps[mine.pid]
    assert own is not None, seen.problems
    assert zlib.decompress(base64.b64decode(own.content)) == b"small"
    others = [dumps[one.pid] for one in posing]
    assert {one.content for one in others if one is not None} == {""}
    assert seen.problems == ()


@needs_root
def test_each_user_has_a_dump_read_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ranks one of them poses as; what there was no time for says so."""
    wanted = []
    for number, (uid, size) in enumerate([(NOBODY, 10)] * 5 + [(NOBODY - 1, 4000), (0, 9000)]):
        path = tmp_path / str(number)
        path.write_bytes(b"x" * size)
        os.chown(path, uid, uid)
        wanted.append({"pid": 2**22 + number, "uid": uid, "dumps": [str(path)], "began_s": 0.0})
    passed = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(passed)))
    monkeypatch.setattr("stacks.rank_dumps.time", clock)
    found = read_files(wanted, 3.0)
    assert [bool(found[str(one["pid"])]["content"]) for one in wanted] == [True] + [False] * 4 + [
        True,
        True,
    ]
    assert {one["why"] for one in found.values() if not one["content"]} == {
        "no time was left to read it"
    }


def test_a_dump_that_is_no_file_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    """A pipe or a device in a dump's place is named and never opened: /dev/watchdog0 is deadly.

    Somebody waits until a reader opens the pipe, and waits on.
    """
    prefix = str(tmp_path / "trace_")
    process = start(TORCH_FR_DUMP_TEMP_FILE=prefix)
    os.mkfifo(prefix + "3")
    with subprocess.Popen(["sh", "-c", 'echo opened >"$1"', "sh", prefix + "3"]) as waiting:
        try:
            (rank,) = look(process.pid).ranks
            assert waiting.poll() is None
        finally:
            waiting.kill()
    assert rank.dump is not None
    assert (rank.dump.content, rank.dump.why) == (
        "", "it is no regular file of the rank's own user",
    )  # fmt: skip


@needs_root
def test_root_runs_the_py_spy_that_was_checked(start: Start, tmp_path: Path) -> None:
    """A link in a folder that a rank's user names led to root's py-spy, and then to his script."""
    his, roots = tmp_path / "his" / "bin", tmp_path / "roots"
    his.mkdir(parents=True)
    roots.mkdir()
    swapped = f"#!/bin/sh\nmv {his}/script {his}/py-spy\necho py-spy 9.9\n"
    for program, does in ((roots / "py-spy", swapped), (his / "script", "#!/bin/sh\n")):
        program.write_text(f"{does}echo $0 >>{tmp_path}/ran\n")
        program.chmod(0o755)
    (his / "py-spy").symlink_to(roots / "py-spy")
    for path in (his.parent, his, his / "script", his / "py-spy"):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    (rank,) = look(start(python=system_python(), VIRTUAL_ENV=str(his.parent)).pid).ranks
    assert not (tmp_path / "ran").exists()
    assert "9.9" not in repr(rank)


@needs_root
def test_root_runs_what_roots_own_link_leads_to(start: Start, tmp_path: Path) -> None:
    """As in /usr/local/bin: a py-spy is run that root alone could have put there."""
    tool, own = tmp_path / "tool", tmp_path / "own" / "bin"
    own.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\necho $0 >>{tmp_path}/ran\necho py-spy 9.9\n")
    tool.chmod(0o755)
    (own / "py-spy").symlink_to("../../tool")
    look(start(python=system_python(), VIRTUAL_ENV=str(own.parent)).pid)
    assert {*(tmp_path / "ran").read_text().split()} == {str(tool)}


def test_gpus_are_reported_with_their_processes(machine: Machine, start: Start) -> None:
    """Utilisation and clocks at the second look, and which GPU a rank has memory on."""
    from tests.lab.nvml.scenario import h100

    process = start()
    scenario = h100("here").process(5, process.pid, 40_000)
    remote = Remote("stacks", env=machine(scenario))
    ask(remote, pids=[process.pid])
    seen = answer(remote)
    assert seen.gpus is not None
    assert [gpu.index for gpu in seen.gpus] == list(range(8))
    gpu = seen.gpus[5]
    assert seen.ranks[0].gpus == (gpu.uuid,)
    assert gpu.pids == (process.pid,)
    assert gpu.memory_used_mib
    assert gpu.memory_used_mib >= 40_000
    assert gpu.busy_percent is not None


def test_a_driver_that_hangs_costs_only_the_gpus(machine: Machine, start: Start) -> None:
    """The ranks are reported in time."""
    from tests.lab.nvml.scenario import h100

    remote = Remote("stacks", env=machine(h100("here").hanging()))
    ask(remote, pids=[start().pid], deadline_s=3)
    seen = answer(remote)
    assert seen.gpus is None
    assert "GPUs: no answer in time" in seen.problems
    assert seen.ranks[0].state == "sleeping"
