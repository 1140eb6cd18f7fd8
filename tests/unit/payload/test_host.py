"""What the probe reads of the machine: from made-up trees, damaged files, and the real thing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe import file_systems, guard, host, network, node_files
from probe.node_files import mount_of, parse

from preflight.facts.machine import Dimm, FileSystem, Governor, Limits
from tests.lab import strangers_mount
from tests.lab.crowd import crowd

from .node import Remote
from .test_probe import probe

LINES = st.lists(
    st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: raw.decode("latin-1"))
)

MOUNTS = r"""
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
23 22 0:21 / /proc rw - proc proc rw,hidepid=invisible
25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw
26 22 8:3 / /tmp rw,nosuid - ext4 /dev/sda3 ro,errors=remount-ro
30 22 0:50 / /home ro - autofs systemd-1 rw,fd=29,direct
31 30 0:51 / /home/alice rw - nfs4 nas1:/home/alice rw,vers=4.2
32 22 0:52 / /data\040sets rw shared:9 master:2 - lustre 10.0.0.1@o2ib:/fs rw,flock
33 22 0:52 /sub /var/data rw - lustre 10.0.0.1@o2ib:/fs rw,flock
34 22 0:53 / /run/user/1000/doc rw - fuse.portal portal rw
35 22 0:54 / /s3 ro - fuse.s3fs https://key:secret@s3.example/bucket rw
36 22 0:55 / /tmp/inner rw - tmpfs tmpfs rw
37 22 0:56 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
not a line - of mountinfo
""".strip().splitlines()


def put(root: Path, files: dict[str, str]) -> None:
    """Write small files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_the_real_machine_tells_all_of_it(tmp_path: Path) -> None:
    """Nothing of it is missing here, nothing went wrong, and what can be compared is right."""
    facts = probe(Remote("probe"), sysfs="/sys")
    machine = facts.machine
    assert machine is not None
    unread = [name for name in machine.__struct_fields__ if getattr(machine, name) is None]
    assert set(unread) <= {"clock_kept", "serial"}  # few virtual machines have a serial number
    assert machine.stack is not None
    assert machine.stack.cpus_online == os.cpu_count()
    assert machine.stack.architecture == os.uname().machine
    assert machine.load is not None
    assert machine.load.cpus_allowed == len(os.sched_getaffinity(0))
    found = {path: one for one in machine.file_systems or () for path in one.paths}
    assert found.keys() >= {"/", "/tmp", str(Path.cwd())}
    assert abs((found["/"].size_mib or 0) - (shutil.disk_usage("/").total >> 20)) <= 1
    assert facts.problems == ()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_proc_is_read_to_its_end() -> None:
    """The kernel hands out a page at a time: a mount on the second one is no less a mount."""
    assert len("".join(node_files.lines("/proc/kallsyms", 20_000))) > 16_000


def test_limits_are_those_of_the_process_that_answers(tmp_path: Path) -> None:
    """What prlimit gave it, soft and hard."""
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit")
    before = ("prlimit", "--memlock=65536:65536", "--nofile=300:400", "--")
    machine = probe(Remote("probe", before=before), sysfs=str(tmp_path)).machine
    assert machine is not None
    assert machine.limits == Limits(65536, 65536, 300, 400)


def test_a_folder_that_takes_nothing_says_why_and_keeps_no_trace(tmp_path: Path) -> None:
    """A read-only, a full and a sound file system, each as a job would meet it."""
    if os.geteuid():
        pytest.skip("needs root to mount")
    full, locked = tmp_path / "full", tmp_path / "locked"
    for folder in (full, locked):
        folder.mkdir()
    script = (
        f"mount -t tmpfs -o size=4096,mode=1777 tmpfs {full} && head -c 4096 /dev/zero >{full}/x"
        f" && mount -t tmpfs -o ro tmpfs {locked} && exec {sys.executable} -c "
        "'import sys; sys.path.insert(0, sys.argv[1]); from probe import file_systems as f; "
        'print([f._refusal(p) for p in sys.argv[2:]])\' "$@"'
    )
    payload = Path(__file__).parents[3] / "preflight/payload"
    folders = map(str, (payload, full, locked, tmp_path))
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", *folders]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed == "['No space left on device', 'Read-only file system', '']\n"
    assert {path.name for path in tmp_path.iterdir()} == {"full", "locked"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run before others")
def test_a_file_system_is_not_hung_because_its_reader_has_no_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known of it then; of one that lets its reader wait it is."""

    def compute() -> None:
        os.setsid()
        while True:
            pass

    looks = {"/": lambda: time.sleep(60), "/tmp": compute}
    monkeypatch.setattr(file_systems, "_look", lambda mount, _paths: looks.get(mount, dict)())
    monkeypatch.setattr(file_systems, "_paths", lambda: list(looks))
    monkeypatch.setattr(guard, "clock", guard.Clock())
    guard.clock.bound(time.monotonic() + 30)
    asked = file_systems.Readers(parse(MOUNTS))
    time.sleep(0.2)
    starved = threading.Thread(target=crowd, args=([asked._children[1].pid], 7))
    starved.start()
    states = {one["mount"]: one.get("state") for one in asked.finish(time.monotonic() + 6, [])}
    starved.join()
    assert (states["/"], states["/tmp"]) == ("hung", "hidden")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run before others")
@pytest.mark.slow
def test_no_server_is_slow_because_its_reader_has_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of a file system nor that of names, also where its patience is over."""

    def starved() -> float:
        os.setsid()
        began = time.monotonic()
        while time.process_time() < 0.5:
            pass
        return time.monotonic() - began

    monkeypatch.setattr(file_systems, "_look", lambda *_: {"seconds": starved()})
    monkeypatch.setattr(file_systems, "_paths", lambda: ["/tmp"])
    monkeypatch.setattr(network, "_look_up", lambda name: [[name], starved()])
    monkeypatch.setattr(network, "PATIENCE_S", 1.5)
    monkeypatch.setattr(guard, "clock", guard.Clock())
    until = time.monotonic() + 30
    guard.clock.bound(until)
    mounts = file_systems.Readers(parse(MOUNTS))
    names = network.start(["10.0.0.1"])
    pids = [child.pid for child in (*mounts._children, *(child for _, child in names))]
    time.sleep(0.2)
    crowding = threading.Thread(target=crowd, args=(pids, 3))
    crowding.start()
    answers = [*network.finish(names, until), *mounts.finish(until, [])]
    crowding.join()
    assert [one["addresses"] for one in answers[:2]] == [[os.uname().nodename], ["10.0.0.1"]]
    assert max(one["seconds"] for one in answers) < 1.5


def test_a_file_server_without_limits_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CephFS says that -1 inodes are free (ceph_statfs), some others the same of blocks."""
    few = os.statvfs(tmp_path)
    endless = os.statvfs_result((*few[:3], 5, -1, 5, -1, -1, *few[8:]))
    monkeypatch.setattr(os, "statvfs", lambda _: endless)
    reader = file_systems.Readers(node_files.read())
    found = msgspec.convert(reader.finish(time.monotonic() + 30, []), tuple[FileSystem, ...])
    assert {(one.free_mib, one.inodes, one.inodes_free) for one in found} == {(2**53, 5, 2**53)}


def test_the_file_systems_that_matter_are_chosen() -> None:
    """Those of the paths, and every shared one once: no portal of a login, no second bind mount."""
    chosen = file_systems.choose(parse(MOUNTS), ["/", "/tmp", "/dev/shm", "/home/alice/run"])
    by_mount = {one["mount"]: one for one in chosen}
    assert list(by_mount) == ["/", "/tmp", "/dev/shm", "/home/alice", "/s3", "/var/data"]
    assert by_mount["/tmp"]["remounted"]
    assert by_mount["/tmp"]["read_only"]
    assert by_mount["/home/alice"]["automounted"]
    assert by_mount["/home/alice"]["source"] == "nas1:/home/alice"
    assert not by_mount["/var/data"]["automounted"]
    assert by_mount["/s3"]["source"] == "https://***@s3.example/bucket"
    assert (by_mount["/s3"]["read_only"], by_mount["/s3"]["remounted"]) == (True, False)
    assert [one["shared"] for one in chosen] == [False, False, False, True, True, True]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("user", [65534, 0])
def test_a_mount_of_a_user_is_no_file_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int
) -> None:
    """His program may refuse whatever it likes, statfs too; root's own ones are looked at."""
    monkeypatch.setattr(guard, "clock", guard.Clock())
    with strangers_mount.mounted(tmp_path / "his", user):
        until = time.monotonic() + 9
        guard.clock.bound(until)
        read = file_systems.Readers(node_files.read()).finish(until, [])
        assert ("error" in [one["state"] for one in read if one["kind"] == "fuse.his"]) == (
            not user
        )


def test_a_path_lies_on_the_deepest_and_latest_mount() -> None:
    """A blank in a mount point is escaped; /tmpfoo does not lie on /tmp."""
    mounts = parse([*MOUNTS, "40 22 0:60 / /tmp rw - tmpfs over rw"])
    places = {path: found for path in ("/tmp/inner/x", "/tmp/x", "/tmpfoo", "/data sets/x")
              if (found := mount_of(path, mounts)) is not None}  # fmt: skip
    assert [one.source for one in places.values()] == [
        "tmpfs",
        "over",
        "/dev/sda2",
        "10.0.0.1@o2ib:/fs",
    ]


@given(LINES)
def test_no_damaged_file_breaks_the_probe(lines: list[str]) -> None:
    """A wrong line is left out, or the section fails with one of the errors that it may."""
    parse(lines)
    host.parse(lines)
    host.system(lines)
    host.cpu(lines)
    for line in lines:
        host.quota(line)
    problems: list[str] = []
    host._try_read("memory", lambda: host.parse_memory(lines, lines), problems)
    host._try_read("cpus", lambda: [node_files.cpus_in(line) for line in lines], problems)
    assert len(problems) >= 1


def test_limits_of_a_daemon_are_read_as_the_kernel_writes_them() -> None:
    """Unlimited is no number; a table without one of the lines is no answer."""
    table = [
        "Limit                     Soft Limit           Hard Limit           Units     ",
        "Max open files            1024                 524288               files     ",
        "Max locked memory         65536                unlimited            bytes     ",
    ]
    assert host.parse(table) == {
        "memlock": 65536,
        "memlock_hard": -1,
        "nofile": 1024,
        "nofile_hard": 524288,
    }
    assert host.parse(table[:2]) is None


def test_ecc_errors_are_read_by_dimm(tmp_path: Path) -> None:
    """The label of the board where there is one; what no DIMM accounts for is the controller's."""
    mc = "devices/system/edac/mc/mc0"
    put(
        tmp_path,
        {
            f"{mc}/ce_count": "7",
            f"{mc}/ue_count": "1",
            f"{mc}/seconds_since_reset": "86400",
            f"{mc}/dimm0/dimm_label": "CPU0_DIMM_A1",
            f"{mc}/dimm0/dimm_ce_count": "5",
            f"{mc}/dimm0/dimm_ue_count": "0",
            f"{mc}/dimm10/dimm_ce_count": "0",
            f"{mc}/dimm10/dimm_ue_count": "1",
        },
    )
    edac = probe(Remote("probe"), sysfs=str(tmp_path)).machine.edac  # type: ignore[union-attr]
    assert edac is not None
    assert edac.watched == 2
    assert edac.errors == (
        Dimm("mc0/dimm10", corrected=0, uncorrected=1, counted_s=86400),
        Dimm("CPU0_DIMM_A1", corrected=5, uncorrected=0, counted_s=86400),
        Dimm("mc0, no DIMM named", corrected=2, uncorrected=0, counted_s=86400),
    )


def test_a_counter_that_cannot_be_read_is_no_zero(tmp_path: Path) -> None:
    """The section is missing, with the reason; no driver at all is a section without DIMMs."""
    put(tmp_path, {"devices/system/edac/mc/mc0/ce_count": "", "class/infiniband/x": ""})
    facts = probe(Remote("probe"), sysfs=str(tmp_path))
    assert facts.machine is not None
    assert facts.machine.edac is None
    assert any(problem.startswith("edac: ") for problem in facts.problems)
    assert host.edac(str(tmp_path / "nowhere")) == {"watched": 0, "errors": []}


def test_governors_are_counted_by_cpu(tmp_path: Path) -> None:
    """A policy steers one CPU or several."""
    folder = "devices/system/cpu/cpufreq"
    for number, (name, cpus) in enumerate([("performance", "0 1"), ("powersave", "2")]):
        put(
            tmp_path,
            {
                f"{folder}/policy{number}/scaling_governor": name,
                f"{folder}/policy{number}/scaling_driver": "acpi-cpufreq",
                f"{folder}/policy{number}/affected_cpus": cpus,
                "devices/system/cpu/online": "0-2",
            },
        )
    machine = probe(Remote("probe"), sysfs=str(tmp_path)).machine
    assert machine is not None
    assert machine.governors == (
        Governor("performance", "acpi-cpufreq", 2),
        Governor("powersave", "acpi-cpufreq", 1),
    )
    assert machine.stack is not None
    assert machine.stack.cpus_online == 3


@pytest.mark.parametrize(
    ("online", "cpus"), [(",".join(map(str, range(0, 384, 2))), 192), ("0-3,many", None)]
)
def test_online_cpus_are_counted_whole_or_not_at_all(
    tmp_path: Path, online: str, cpus: int | None
) -> None:
    """Without SMT, every second CPU is listed: a long list is not cut, a broken one is unknown."""
    put(tmp_path, {"devices/system/cpu/online": online})
    machine = probe(Remote("probe"), sysfs=str(tmp_path)).machine
    assert machine is not None
    assert (machine.stack and machine.stack.cpus_online) == cpus


@pytest.mark.parametrize(("version", "cpus"), [("v2", 1.5), ("v1", 0.5)])
def test_the_least_that_any_group_above_grants(
    version: str, cpus: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice above a session may be the tight one; "max" and huge numbers are no limit."""
    if version == "v2":
        put(tmp_path, {
            "cpu.max": "max 100000", "user/cpu.max": "150000 100000",
            "user/me/cpu.max": "max 100000",
            "user/me/memory.max": "1073741824", "user/memory.max": "max", "user/pids.max": "1024",
        })  # fmt: skip
        mounts = parse([f"1 2 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw"])
        own = ["0::/user/me"]
    else:
        put(tmp_path, {
            "cpu/user/me/cpu.cfs_quota_us": "50000", "cpu/user/me/cpu.cfs_period_us": "100000",
            "memory/user/me/memory.limit_in_bytes": "1073741824",
            "memory/memory.limit_in_bytes": "9223372036854771712", "pids/user/pids.max": "1024",
        })  # fmt: skip
        words = [f"1 2 0:1 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}"
                 for name in ("cpu", "memory", "pids")]  # fmt: skip
        mounts = parse(words)
        own = ["3:cpu,cpuacct:/user/me", "2:memory:/user/me", "1:pids:/user"]
    monkeypatch.setattr(host, "lines", _instead(node_files.lines, own))
    assert host.read_cgroup(mounts) == {"cpus": cpus, "memory_mib": 1024, "pids": 1024}


def _instead(real, own: list[str]):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return lambda path, limit=65536: own if path == "/proc/self/cgroup" else real(path, limit)
