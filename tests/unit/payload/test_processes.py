"""The probe finds zombies, stuck processes and ranks among real processes, and no secrets."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from probe import processes, procfs

from .native import STUCK, compiled
from .node import Remote, system_python
from .test_probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from preflight.facts.model import Facts, Process

pytestmark = pytest.mark.slow

RANK = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")


@pytest.fixture
def start(cleanup: ExitStack) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a starter of processes that end with the test."""

    def begin(*argv: str | Path, **how: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, **how)  # type: ignore[call-overload]
        cleanup.callback(process.wait)
        cleanup.callback(process.kill)
        return process  # type: ignore[no-any-return]

    return begin


def facts_of(tmp_path: Path, **how: object) -> Facts:
    """Return what the probe says of this machine, without its devices."""
    return probe(Remote("probe", **how), sysfs=str(tmp_path))  # type: ignore[arg-type]


def of(facts: Facts, pid: int) -> Process | None:
    """Return the document of one process; None if it is not notable."""
    assert facts.processes is not None
    return next((one for one in facts.processes.notable if one.pid == pid), None)


def until(state: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    patience = time.monotonic() + 30
    while not state():
        assert time.monotonic() < patience, "it never happened"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """Return the state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_zombie_is_reported_with_its_parent(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """An unreaped child is reported, with its parent."""
    child = start("true")
    until(lambda: state_of(child.pid) == "Z")
    zombie = of(facts_of(tmp_path), child.pid)
    assert zombie is not None
    assert (zombie.state, zombie.command, zombie.ppid) == ("Z", "[true]", os.getpid())
    assert "python" in zombie.parent_command


def test_a_zombie_that_is_reaped_in_a_moment_is_harmless(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A parent whose children are zombies for a tenth of a second has none that lasts."""
    parent = start("bash", "-c", "while :; do /bin/true & sleep 0.1; wait; done")
    facts = facts_of(tmp_path)
    assert facts.processes is not None
    assert parent.pid not in [one.ppid for one in facts.processes.notable]


def test_an_idle_process_is_not_worth_telling(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """An ordinary process is only counted."""
    idle = start("sleep", "60")
    facts = facts_of(tmp_path)
    assert of(facts, idle.pid) is None
    assert facts.processes is not None
    assert facts.processes.seen > 1


def test_a_process_in_d_state_is_reported_when_it_stays_there(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, cleanup: ExitStack
) -> None:
    """Seen in D at two looks, it is reported with the time between them and where it sleeps."""
    stuck = start(compiled(STUCK, tmp_path))
    until(lambda: state_of(stuck.pid) == "D")
    child = int(Path(f"/proc/{stuck.pid}/task/{stuck.pid}/children").read_text())
    cleanup.callback(os.kill, child, 9)
    process = of(facts_of(tmp_path), stuck.pid)
    assert process is not None
    assert (process.state, process.command) == ("D", str(tmp_path / "program"))
    assert process.stuck_s is not None
    assert process.stuck_s >= 0.2


def test_a_process_whose_memory_cannot_be_read_hides_no_other(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where reading its environment hangs, the probe gives up on that one, says so, and goes on.

    A stand-in hangs: the lock of a process's memory is held for long only by a driver.
    """
    stuck, rank = start("sleep", "60"), start("sleep", "60", env={**os.environ, **RANK})
    really = procfs.environ

    def environ(pid: int) -> bytes | None:
        if pid == stuck.pid:
            time.sleep(600)
        return really(pid)

    monkeypatch.setattr(procfs, "environ", environ)
    problems: list[str] = []
    document = processes.read({}, time.monotonic() + 60, problems, set())
    assert problems == [f"process {stuck.pid}: reading its command or environment hangs"]
    assert document is not None
    assert rank.pid in [one["pid"] for one in document["notable"]]


def test_environments_without_end_are_not_read(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users make them: beyond so many bytes the others are counted as not readable."""
    rank = start("sleep", "60", env={**os.environ, **RANK})

    def survey() -> tuple[bool, int]:
        found = processes.Survey(os.getpid(), {}, processes.Care()).run()
        return rank.pid in [one["pid"] for one in found["notable"]], found["unreadable"]

    until(lambda: survey()[0])
    read = survey()
    monkeypatch.setattr(processes, "MOST_ENVIRONS", 0)
    assert read[0]
    assert not survey()[0]
    assert survey()[1] > read[1]


@needs_root
@pytest.mark.parametrize("apart", [0, 1], ids=["one user", "subordinate users"])
@pytest.mark.parametrize("limit", ["MOST_ENVIRONS", "MOST_FILES", "MOST"])
def test_what_one_user_has_in_plenty_hides_no_process_of_another(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, limit: str,
    apart: int, tmp_path: Path,
) -> None:  # fmt: skip
    """Long environments, open files, or processes that look like ranks: his alone are left out.

    He may also spread them over the user ids that he has for his containers.
    """
    monkeypatch.setattr(os, "listdir", _with(os.listdir, "/dev", "nvidia0"))
    (tmp_path / "subuid").write_text(f"a:{NOBODY}:{1 + 4 * apart}\nb:100:7\n")
    monkeypatch.setattr(procfs, "SUBUIDS", str(tmp_path / "subuid"))
    rank = {**os.environ, **RANK}
    users = [NOBODY + apart * at for at in range(4)]
    many = [start("sleep", "60", env=rank, user=user, group=NOBODY) for user in users]
    other = start("sleep", "60", env=rank, user=4321, group=4321)
    pids = {one.pid for one in (*many, other)}
    room = {"MOST_ENVIRONS": 1, "MOST_FILES": 3, "MOST": 2}
    monkeypatch.setattr(procfs if limit == "MOST_FILES" else processes, limit, room[limit])
    monkeypatch.setattr(procfs, "pids", lambda: sorted(pids))

    def survey() -> dict[str, Any]:
        return processes.Survey(os.getpid(), {}, processes.Care()).run()

    until(lambda: other.pid in [one["pid"] for one in survey()["notable"]])
    found = survey()
    his = [one for one in found["notable"] if one["pid"] != other.pid]
    assert found["seen"] == len(pids)
    assert len(his) < len(many) or found["unreadable"] == len(many) - 1


@needs_root
def test_processes_of_one_user_that_hang_the_reader_hide_no_other(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that forks again and again with much memory locks that memory: he may have many."""
    rank = start("sleep", "60", env={**os.environ, **RANK})
    stuck = {start("sleep", "60", user=NOBODY, group=NOBODY).pid for _ in range(6)}
    really = procfs.environ

    def environ(pid: int) -> bytes | None:
        if pid in stuck:
            time.sleep(600)
        return really(pid)

    monkeypatch.setattr(procfs, "environ", environ)
    problems: list[str] = []
    document = processes.read({}, time.monotonic() + 60, problems, set())
    assert len(problems) == 2
    assert document is not None
    assert rank.pid in [one["pid"] for one in document["notable"]]


def test_sockets_without_number_are_not_all_read(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may listen at 1,000,000 addresses; the processes are reported all the same."""
    rank = start("sleep", "60", env={**os.environ, **RANK})
    listening = procfs.Socket("0: 0:1 0:0 0A 0:0 0:0 0 1000 0 7")
    monkeypatch.setattr(procfs, "tcp", lambda: itertools.repeat(listening))
    until(lambda: rank.pid in [
        one["pid"]
        for one in processes.Survey(os.getpid(), {}, processes.Care()).run()["notable"]
    ])  # fmt: skip


def _with(listed: Callable[[str], list[str]], folder: str, name: str) -> Callable[[str], list[str]]:
    """A listing in which a folder has one more entry."""
    return lambda place: [*listed(place), name] if place == folder else listed(place)


def test_processes_without_number_are_no_hang(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass goes on for longer than a hang takes, where a user has many zombies."""
    rank = start("sleep", "60", env={**os.environ, **RANK})
    monkeypatch.setattr(processes, "STALLED_S", 0.05)
    looked = procfs.look

    def slow(pid: int) -> procfs.Stat | None:
        time.sleep(0.01)
        return looked(pid)

    monkeypatch.setattr(procfs, "look", slow)
    monkeypatch.setattr(procfs, "pids", lambda: [*range(2**22 - 40, 2**22), rank.pid])
    problems: list[str] = []
    found = processes.read({}, time.monotonic() + 60, problems, set())
    assert problems == []
    assert found is not None
    assert found["seen"] == 1


@needs_root
def test_a_setuid_program_is_its_users(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    """`passwd` runs with root's rights, and is a process of the user who started it."""
    asks = start(
        "sleep", "60", env={**os.environ, **RANK}, preexec_fn=lambda: os.setresuid(NOBODY, 0, 0)
    )
    assert procfs.uid(asks.pid) == NOBODY
    until(lambda: procfs.argv(asks.pid)[:1] == [b"sleep"])
    care = processes.Care()
    described = processes.Describer(care.everyone(), os.getpid(), care)
    shown = described.describe(care.everyone([asks.pid])[asks.pid], None)
    assert (shown["user"], shown["command"]) == ("nobody", "sleep")


def test_an_orphaned_rank_is_reported_with_its_place_and_port(tmp_path: Path) -> None:
    """A torchrun worker whose agent is gone: rank, run id, parent, age, and the port it holds."""
    code = (
        "import os, socket, subprocess, sys\n"
        "if len(sys.argv) == 1:\n"
        "    worker = subprocess.Popen([sys.executable, '-c', open('/proc/self/cmdline')"
        ".read().split(chr(0))[2], 'worker'])\n"
        "    os._exit(0)\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(os.getpid(), server.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = {**os.environ, **RANK}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout
        pid, port = map(int, agent.stdout.readline().split())
        agent.wait()
        rank = of(facts_of(tmp_path), pid)
    assert rank is not None
    assert rank.rank is not None
    assert (rank.rank.master_port, rank.rank.elastic_run_id) == ("29500", "none")
    assert rank.ppid != agent.pid
    assert rank.listens == (port,)
    assert not rank.ours


def test_a_probe_that_is_a_rank_knows_its_launch(tmp_path: Path) -> None:
    """Under `torchrun -m pytest` the other ranks of that agent are the run's own, not stale."""
    launch = {**RANK, "TORCHELASTIC_RUN_ID": "this launch"}
    agent = (
        "import os, subprocess, sys\n"
        f"env = {{**os.environ, **{launch}}}\n"
        "with subprocess.Popen(['sleep', '60'], env=env, stdout=subprocess.DEVNULL) as other:\n"
        "    status = subprocess.call(sys.argv[1:], env=env)\n"
        "    other.kill()\n"
        "sys.exit(status)\n"
    )
    facts = facts_of(tmp_path, before=(sys.executable, "-c", agent))
    assert facts.processes is not None
    ranks = [
        one
        for one in facts.processes.notable
        if one.rank and one.rank.elastic_run_id == "this launch"
    ]
    assert "sleep 60" in [one.command for one in ranks]
    assert all(one.ours for one in ranks)


def test_secrets_of_environment_and_command_stay_on_the_node(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Tokens planted in both appear nowhere in the document; control characters neither."""
    secret = "Zx9kQ27vLm3Tp8RwYb4N"  # noqa: S105 (planted)
    argv = [sys.executable, "-c", "import time; time.sleep(60)", "--token", secret, "\x1b[31m\nred"]
    rank = start(*argv, env={**os.environ, **RANK, "HF_TOKEN": secret, "MASTER_PORT": "\x1b[2J1"})
    process = of(facts_of(tmp_path), rank.pid)
    assert process is not None
    assert secret not in str(process)
    assert "--token ***" in process.command
    assert process.command.isprintable()
    assert process.rank is not None
    assert process.rank.master_port == "1"


@needs_root
def test_another_users_arguments_stay_on_the_node(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Even a root probe tells of another user's process only the program, and who it is."""
    shell = ["/bin/sh", "-c", "read line; : private"]
    rank = start(*shell, env={**os.environ, **RANK}, user=NOBODY, cwd="/", stdin=subprocess.PIPE)
    process = of(facts_of(tmp_path), rank.pid)
    assert process is not None
    assert (process.user, process.command) == ("nobody", "/bin/sh")


@needs_root
def test_an_unprivileged_probe_counts_what_it_could_not_read(tmp_path: Path) -> None:
    """Other users' environments are counted as unreadable, and the answer is still whole."""
    facts = facts_of(tmp_path, user=NOBODY, python=system_python())
    assert not facts.root
    assert facts.user == "nobody"
    assert facts.processes is not None
    assert facts.processes.unreadable > 0


@needs_root
@pytest.mark.parametrize("name", ["x\\rUid:", "x\\rUid: 0 0 0"])
def test_a_carriage_return_in_a_name_makes_no_process_root(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, name: str
) -> None:
    """Nor does it hide other processes: the kernel escapes only the newlines of a name."""
    named = f"printf '{name}' > /proc/$$/comm; echo; read line"
    env = {**os.environ, **RANK}
    rank = start("/bin/sh", "-c", named, env=env, user=NOBODY, cwd="/", stdin=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    process = of(facts_of(tmp_path), rank.pid)
    assert process is not None
    assert process.user == "nobody"
    program = Path(f"/proc/{rank.pid}/exe").readlink().name
    assert not procfs.is_daemon(rank.pid, program)


@needs_root
@pytest.mark.parametrize("how", ["his", "setuid", "renamed"])
def test_a_process_that_only_bears_the_name_is_no_daemon(
    start: Callable[..., subprocess.Popen[bytes]], cleanup: ExitStack, tmp_path: Path, how: str
) -> None:
    """Neither a user's, nor a setuid program that he started by that name, nor root's sleep."""
    sleep = str(shutil.which("sleep"))
    folder = Path(cleanup.enter_context(TemporaryDirectory()))
    folder.chmod(0o755)
    user = {} if how == "renamed" else {"user": NOBODY}
    for name in ("slurmd", "slurmstepd"):
        daemon = folder / name
        shutil.copy(sleep, daemon)
        daemon.chmod(0o4755 if how == "setuid" else 0o755)
        if how == "renamed":
            daemon.unlink()
            daemon.symlink_to(sleep)
        start(f"{name}: [4711.0]", "60", executable=daemon, **user)
    rank = start("sleep", "60", env={**os.environ, **RANK, "SLURM_JOB_ID": "4711"})
    facts = facts_of(tmp_path)
    assert facts.processes is not None
    assert facts.processes.scheduler == "none"
    found = of(facts, rank.pid)
    assert found is not None
    assert found.job_alive is None
    assert facts.machine is not None
    assert facts.machine.launchers == ()


@needs_root
def test_a_slurm_job_is_alive_while_its_step_daemon_is(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Of two ranks the one whose job has a slurmstepd is alive, the other is a leftover."""
    sleep = shutil.which("sleep")
    assert sleep
    daemon = tmp_path / "slurmstepd"
    shutil.copy(sleep, daemon)
    start("slurmstepd: [4711.batch]", "60", executable=daemon)
    alive = start("sleep", "60", env={**os.environ, **RANK, "SLURM_JOB_ID": "4711"})
    stale = start("sleep", "60", env={**os.environ, **RANK, "SLURM_JOB_ID": "4710"})
    facts = facts_of(tmp_path)
    assert facts.processes is not None
    assert facts.processes.scheduler == "slurm"
    of_jobs = [of(facts, one.pid) for one in (alive, stale)]
    assert [(one.job, one.job_alive) for one in of_jobs if one] == [("4711", True), ("4710", False)]
