"""What the look reads from others is hostile or damaged until shown otherwise."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe import network, procfs
from stacks import moments, process_table, pyspy, sockets

from tests.lab import strangers_mount

JSON = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([[]])
)
SPY_KEYS = st.sampled_from(
    ["frames", "thread_name", "os_thread_id", "active", "owns_gil", "name", "filename", "line"]
)
NAMES = [name for names in process_table._NAMES.values() for name in names if name]


@given(st.binary(max_size=300))
def test_py_spys_output_may_be_anything(output: bytes) -> None:
    """Whatever a program of that name prints, there are stacks or there are none."""
    threads = pyspy.parse(output, 1)
    assert threads is None or isinstance(threads, list)


FRAMES = st.lists(st.dictionaries(SPY_KEYS, JSON, max_size=4), max_size=2)


@given(st.lists(st.dictionaries(SPY_KEYS, JSON | FRAMES, max_size=6), max_size=2))
def test_py_spys_document_may_hold_anything(document: object) -> None:
    """Of any JSON only functions, files and lines are taken, printable and of bounded length."""
    for thread in pyspy.parse(json.dumps(document).encode(), 1) or []:
        assert set(thread) == {"frames", "main", "name"}
        for frame in thread["frames"]:
            assert frame["function"].isprintable()
            assert frame["line"] >= 0


@given(st.binary(max_size=300))
def test_py_spys_samples_may_be_anything(output: bytes) -> None:
    """Whatever it prints in place of samples, what is taken of it is printable and bounded."""
    for line in (output, b"thread (0x1): MainThread;" + output + b" 7\n"):
        for one in pyspy.parse_samples(line, 1):
            assert one["times"] < 2**31
            assert all(frame["function"].isprintable() for frame in one["frames"])


def test_samples_are_places_of_the_main_thread_the_most_seen_first() -> None:
    """Innermost call first; a loader's thread does not show what its rank does."""
    samples = (
        b"thread (0x1): MainThread;<module> (/a b/t.py:9);step (/a b/t.py:3) 5\n"
        b"thread (0x1): MainThread;<module> (/a b/t.py:9);wait (x) (/t.py:4);<frozen> (os) 7\n"
        b"thread (0x2): loader;run (/l.py:1) 40\nthread (8);run (/l.py:1) 41\nhalf a li"
    )
    most, least = pyspy.parse_samples(samples, 9)
    assert [one["times"] for one in (most, least)] == [7, 5]
    assert least["frames"][0] == {"function": "step", "file": "/a b/t.py", "line": 3}
    assert [one["function"] for one in most["frames"]] == ["<frozen>", "wait (x)", "<module>"]
    (nameless,) = pyspy.parse_samples(b"thread (9);step (/t.py:3) 2\n", 9)
    assert nameless["times"] == 2


def test_a_deep_recursion_keeps_both_its_ends() -> None:
    """The innermost frames are kept, and the script's own line, not ten thousand between."""
    frames = [{"name": f"f{at}", "filename": "a.py", "line": at} for at in range(1000)]
    output = json.dumps([{"os_thread_id": 7, "frames": frames}]).encode()
    (thread,) = pyspy.parse(b"a warning\n" + output + b"\nanother\n", 7) or []
    assert thread["main"]
    names = [frame["function"] for frame in thread["frames"]]
    assert (names[0], names[-1], len(names)) == ("f0", "f999", 128)


@given(st.binary(max_size=400))
def test_netlink_answers_may_be_cut(data: bytes) -> None:
    """Any bytes end in messages or an OSError; no message outlasts its datagram."""
    with contextlib.suppress(OSError):
        bodies, _ = network.messages(data)
        assert sum(map(len, bodies)) <= len(data)


@given(st.sampled_from([2, 10]), st.sampled_from(sorted(sockets.STATES)), st.binary(max_size=400))
def test_a_connections_record_may_hold_anything(family: int, state: int, rest: bytes) -> None:
    """Whatever follows the family and state, the record gives numbers or nothing."""
    for body in (rest, bytes([family, state]) + rest):
        wire = sockets.parse(body)
        assert wire is None or all(value >= 0 for value in wire.values() if isinstance(value, int))
        port = sockets.parse_interfaces(body)
        assert port is None or port["name"].isprintable()


@given(st.text(max_size=300))
def test_tables_of_proc_may_hold_anything(text: str) -> None:
    """Lines that are no line of the table are left out."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            assert sockets.parse_proc_tcp(procfs.Socket(line)) is None
    assert isinstance(moments.groups(text), list)


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=12)))
def test_environments_may_hold_anything(environ: dict[bytes, bytes]) -> None:
    """A rank has a number within its job's bounds, or it is none."""
    identity = process_table.read_identity(environ)
    assert identity is None or 0 <= identity["rank"] <= 65535
    assert identity is None or identity["world_size"] >= 1


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_command_lines_may_hold_anything(argv: list[bytes]) -> None:
    """A command is some launcher's or it is not."""
    assert isinstance(process_table.kind(argv), str)
    assert process_table.job_of_options(argv).isprintable()


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("/opt/venv/bin/python /opt/venv/bin/torchrun --nnodes 2 train.py", "torchrun"),
        ("python3.11 -u -m torch.distributed.run train.py", "torchrun"),
        ("python -m accelerate.commands.launch train.py", "accelerate"),
        ("/usr/bin/python /usr/bin/deepspeed train.py", "deepspeed"),
        ("slurmstepd: [123.0]", "srun"),
        ("mpirun -np 4 python train.py", "mpirun"),
        ("python train.py torchrun", ""),
        ("vim torchrun", ""),
        ("python -c pass", ""),
    ],
)
def test_launchers_are_known_by_their_command(command: str, kind: str) -> None:
    """What a person types, as the kernel shows it."""
    assert process_table.kind([word.encode() for word in command.split(" ")]) == kind


@pytest.mark.parametrize(
    ("environ", "job", "rank"),
    [
        ({"TORCHELASTIC_RUN_ID": "night", "RANK": "3", "WORLD_SIZE": "8"}, "night", 3),
        (
            {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "8",
             "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500", "SLURM_PROCID": "0",
             "SLURM_STEP_NUM_TASKS": "2"},
            "gpu1:29500", 3,
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "77",
             "SLURM_STEP_ID": "0"},
            "slurm 77.0", 5,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            f"{os.uname().nodename}:29500", 0,
        ),
    ],
)  # fmt: skip
def test_ranks_of_one_job_share_its_name(environ: dict[str, str], job: str, rank: int) -> None:
    """A run id that says nothing is none, and a master on the loopback is this node's alone."""
    identity = process_table.read_identity(
        {name.encode(): value.encode() for name, value in environ.items()}
    )
    assert identity is not None
    assert (identity["job"], identity["rank"]) == (job, rank)


def test_a_single_task_of_slurm_is_no_rank() -> None:
    """An interactive shell of srun waits for no other rank."""
    assert (
        process_table.read_identity({b"SLURM_PROCID": b"0", b"SLURM_STEP_NUM_TASKS": b"1"}) is None
    )


def test_the_kernel_tells_of_a_connection_what_proc_tells() -> None:
    """Both sources know our own connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.send(b"x" * 1000)
            name = "{}:{}".format(*theirs.getsockname())
            inode = os.fstat(theirs.fileno()).st_ino
            by_inode = [
                {one["inode"]: one for one in found}[inode]
                for found in (sockets.connections({inode}), sockets.proc_connections(os.getpid()))
            ]
            found = sockets.look([os.getpid()])
    for one in by_inode:
        assert (one["local"], one["unacked"], one["retries"]) == (name, 0, 0)
    assert by_inode[0]["received"] == 1000
    assert inode in [one["inode"] for one in found["wires"][str(os.getpid())]]
    assert found["problems"] == []


def test_a_connection_counts_what_moved() -> None:
    """The difference of two looks; one that is new counts from its beginning."""
    first = {"inode": 1, "local": "a:1", "peer": "b:2", "unacked": 0,
             "retries": 0, "sent": 10, "received": 5, "resent": 1,
             "quiet_ms": 40}  # fmt: skip
    later = {**first, "sent": 30, "resent": 4, "retries": 2, "quiet_ms": 3500}
    (moved,) = sockets.changes([first], [later])
    assert (moved["sent"], moved["received"], moved["resent"]) == (20, 0, 3)
    assert (moved["retries"], moved["quiet_s"]) == (2, 3.5)
    (new,) = sockets.changes([], [later])
    assert new["sent"] == 30


def test_ports_count_what_moved(tmp_path: Path) -> None:
    """Words become bytes, and only errors that rose between the looks are reported."""
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    values = {"port_rcv_data": 50, "symbol_error": 7, "link_downed": 2}
    for name, value in values.items():
        (port / "counters" / name).write_text(f"{value}\n")
    before = moments.look(str(tmp_path))
    (port / "counters" / "port_rcv_data").write_text("300\n")
    (port / "counters" / "link_downed").write_text("3\n")
    (moved,) = moments.changes(before, moments.look(str(tmp_path)))
    assert (moved["name"], moved["up"]) == ("mlx5_0/1", True)
    assert (moved["received"], moved["errors"]) == (1000, {"link_downed": 1})


@pytest.mark.parametrize(
    ("own", "capable", "scope", "words"),
    [
        (1000, False, "1", "sudo sysctl kernel.yama.ptrace_scope=0"),
        (1000, False, "2", "run preflight diagnose as root"),
        (0, True, "3", "restart the node"),
        (0, False, "0", "--cap-add=SYS_PTRACE"),
        (1001, False, "0", "run preflight diagnose as alice or as root"),
    ],
)
def test_a_denial_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
    own: int,
    capable: bool,  # noqa: FBT001
    scope: str,
    words: str,
) -> None:
    """Each cause of a refused ptrace has its own remedy."""
    login(monkeypatch, own, capable=capable, scope=scope)
    assert words in pyspy.refusal(1000, "alice")


def test_nothing_speaks_against_ones_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login may read its own processes, and root all, unless the kernel says otherwise."""
    login(monkeypatch, 1000, capable=False, scope="0")
    assert pyspy.refusal(1000, "alice") == ""
    login(monkeypatch, 0, capable=True, scope="1")
    assert pyspy.refusal(1000, "alice") == ""


def login(monkeypatch: pytest.MonkeyPatch, own: int, *, capable: bool, scope: str) -> None:
    """Let py-spy run as this user, with CAP_SYS_PTRACE or without."""
    monkeypatch.setattr(os, "geteuid", lambda: own)
    monkeypatch.setattr(procfs, "has_capability", lambda _number: capable)
    monkeypatch.setattr(pyspy, "attempt", lambda _path: scope)


def test_a_py_spy_that_hangs_leaves_no_rank_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it had a process stopped for its native stack, it takes nothing with it."""
    monkeypatch.setattr(pyspy, "NATIVE_EACH_S", 0.3)
    fake = tmp_path / "py-spy"
    fake.write_text('#!/bin/sh\nfor last; do :; done\nkill -STOP "$last"\nsleep 60\n')
    fake.chmod(0o755)
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stacks = pyspy.Spy(str(fake), "").dump([rank.pid], time.monotonic() + 60, native=True)
        assert stacks == {rank.pid: "py-spy did not answer in time"}
        state = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state != "T"
    finally:
        rank.send_signal(signal.SIGKILL)
        rank.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_root_runs_py_spy_with_the_rights_of_the_ranks_user(tmp_path: Path) -> None:
    """It opened what a user had mounted over the path of his library, be it /dev/watchdog0."""
    secret, fake = tmp_path / "secret", tmp_path / "py-spy"
    secret.write_text("secret")
    secret.chmod(0o600)
    fake.write_text(
        f"#!/bin/sh\necho user $(id -u) $(cat {secret} 2>/dev/null || echo 'reads nothing')\n"
    )
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    rank = subprocess.Popen(["sleep", "60"], user=65534, group=65534, extra_groups=[])
    try:
        stacks = pyspy.Spy(str(fake), "fake").dump([rank.pid], time.monotonic() + 60)
        assert stacks == {rank.pid: "user 65534 reads nothing"}
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be careful")
def test_root_runs_no_py_spy_of_a_users(tmp_path: Path) -> None:
    """A program that anybody but root can have put there is not run as root."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho py-spy 9.9\n")
    program.chmod(0o755)
    os.chown(program, 65534, -1)
    assert not pyspy.resolve_path(str(program))
    found = pyspy.find_installed([str(tmp_path)], time.monotonic() + 20)
    assert found is None or "9.9" not in found.by
    assert pyspy.resolve_path("/bin/sh") == os.path.realpath("/bin/sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_account_runs_no_py_spy_that_another_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All may read with which Python another user's launcher was started, and what is beside it."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho py-spy 9.9\n")
    program.chmod(0o755)
    for path in (tmp_path, program):
        os.chown(path, 65534, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 65533)
    found = pyspy.find_installed([str(tmp_path)], time.monotonic() + 20)
    assert found is None or "9.9" not in found.by
    monkeypatch.setenv("PATH", str(tmp_path))
    found = pyspy.find_installed([], time.monotonic() + 20)
    assert found is not None
    assert "9.9" in found.by


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("user", [65534, 0])
@pytest.mark.parametrize("name", ["his", "a\rb", "a\fx\u2003y\u2003z"])
@pytest.mark.slow
def test_root_runs_no_py_spy_of_a_strangers_mount(tmp_path: Path, name: str, user: int) -> None:
    """Its server says that the program is root's."""
    with strangers_mount.mounted(tmp_path / name, user):
        program = str(tmp_path / name / "py-spy")
        assert pyspy.resolve_path(program) == ("" if user else program)


def test_a_link_that_leads_in_a_circle_is_no_py_spy(tmp_path: Path) -> None:
    """It ends, and what it names is not run."""
    (tmp_path / "py-spy").symlink_to("py-spy")
    assert not pyspy.resolve_path(f"{tmp_path}/py-spy")
    assert not pyspy.resolve_path(f"{tmp_path}/absent")
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky" / "py-spy").symlink_to("/bin/sh")
    assert not pyspy.resolve_path(f"{tmp_path}/sticky/py-spy")


def test_an_installed_payload_runs_nothing_that_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the payload did not travel itself, it asks for no program."""
    monkeypatch.setattr(sys, "path", ["/opt/preflight/payload"])
    asked: list[object] = []
    assert not pyspy.request_spy(asked.append)
    assert asked == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"none": "this node is riscv64"}, "this node is riscv64"),
        ({"part": "###", "more": False}, "the py-spy that arrived is damaged"),
        ({"part": "AAAA", "more": False}, "the py-spy that arrived is damaged"),
        ({"else": 1}, "the py-spy that arrived is damaged"),
        (None, "the controller sent no py-spy"),
    ],
)
def test_what_arrives_in_py_spys_place(message: dict[str, object] | None, why: str) -> None:
    """Nothing, nonsense and half of it end in words."""
    came = pyspy.receive_spy(lambda _within_s: message, time.monotonic() + 20)
    assert came == (None, why)


@pytest.mark.parametrize("program", [b"#!/bin/false\n", b"no program"])
def test_a_py_spy_that_does_not_run_stays_in_no_file(program: bytes) -> None:
    """Its file is closed, which frees its memory, where the node runs it from nowhere."""
    part = base64.b64encode(zlib.compress(program)).decode()
    before = len(list(Path("/proc/self/fd").iterdir()))
    spy, why = pyspy.receive_spy(lambda _within_s: {"part": part}, time.monotonic() + 20)
    assert (spy, why[:16]) == (None, "py-spy arrived, ")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_crowd_of_threads_is_cut_and_the_main_one_is_not() -> None:
    """A process with a thousand threads cannot make the answer too large to be read."""
    frames = [{"name": "f", "filename": "a.py", "line": 1}] * 10
    crowd = [{"os_thread_id": at, "frames": frames} for at in range(1000)]
    threads = pyspy.parse(json.dumps(crowd).encode(), 999, most=50) or []
    assert (threads[0]["main"], len(threads)) == (True, 256)
    assert [len(one["frames"]) for one in threads[:8]] == [10, 10, 10, 10, 10, 10, 0, 0]
