"""A scheduler's prolog: silent where all is well, and no fault of ours ever costs a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.nvml.scenario import NO_PERMISSION, h100
from tests.stories.hooked import NODE
from tests.unit.hook.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stories.hooked import Hooked


def test_a_healthy_node_is_silent(hooked: Hooked) -> None:
    """Exit 0, not a word, and nothing written: a job starts as if there were no prolog."""
    told = hooked.prolog()
    assert (told.code, told.out, told.log) == (0, "", ())
    assert not hooked.state.exists()


def test_a_sick_gpu_is_told(hooked: Hooked) -> None:
    """--plain exits 1; one line names check, GPU and number; last.json holds it, 0640."""
    hooked.become(h100(NODE).counted(3, "ecc_uncorrected", 4))
    told = hooked.prolog("--plain", "--json")
    assert told.code == 1
    assert told.unfit() == {"gpu.ecc": True}
    (line,) = told.log
    assert line.startswith(f"preflight: {NODE}: gpu.ecc")
    assert "GPU3" in line
    assert hooked.last()["judged"]["findings"] == told.document["judged"]["findings"]
    assert (hooked.state / "last.json").stat().st_mode & 0o777 == 0o640
    assert (hooked.state / "jobs" / "4711.json").exists()


def test_gpus_of_others_do_not_fail_a_job(hooked: Hooked) -> None:
    """A job on GPUs 0 and 1 starts beside a sick, a lost and a logged GPU; on those it does not."""
    sick = h100(NODE).counted(3, "ecc_uncorrected", 4).gpu_lost(5)
    hooked.become(sick)
    lost = sick.gpus[5].bus_id[4:-2].lower()
    hooked.log(f"NVRM: Xid (PCI:{lost}): 79, pid=1, GPU has fallen off the bus.")
    fine = hooked.prolog("--plain", "--json", gpus="0,1")
    assert (fine.code, fine.unfit(), fine.unknown(), fine.log) == (0, {}, {}, ())
    ill = hooked.prolog("--plain", "--json", gpus="2,3")
    assert (ill.code, ill.unfit()) == (1, {"gpu.ecc": True})
    gone = hooked.prolog("--plain", "--json", gpus="4-5")
    assert (gone.code, gone.unfit()) == (1, {"gpu.count": True, "gpu.xid": True})
    every = hooked.run("healthcheck", "--plain", "--json", env={"SLURM_JOB_GPUS": "0"})
    assert every.unfit() == {"gpu.count": True, "gpu.ecc": True, "gpu.xid": True}


def test_what_a_user_left_is_told_as_his(hooked: Hooked) -> None:
    """A program's own Xid condemns nobody: exit 0, silent, and marked as a user's."""
    slot = h100(NODE).gpus[2].bus_id[4:-2].lower()
    hooked.log(f"NVRM: Xid (PCI:{slot}): 31, pid=77, name=python, Ch 00000008, MMU Fault")
    told = hooked.prolog("--plain", "--json")
    assert (told.code, told.log) == (0, ())
    (warned,) = told.document["judged"]["findings"]
    assert (warned["check"], warned["user"], warned["drains"]) == ("gpu.xid", True, False)


def test_a_hanging_driver_stays_within_the_budget(hooked: Hooked) -> None:
    """Out of time is unknown and never a failure: the job starts, and the line says why."""
    hooked.become(replace(h100(NODE), init="hangs"))
    hooked.configure("budget_s = 5")
    told = hooked.prolog("--plain", "--json")
    assert told.code == 2
    assert told.unfit() == {}
    assert told.unknown()["host.driver_hung"] is True
    assert told.document["judged"]["seconds"] < 5
    assert not [pid for pid in _processes() if _is_of(pid, hooked)], "it left its probe behind"


@pytest.mark.parametrize(
    ("place", "why"),
    [("nowhere", "No such file or directory"), ("pipe", "it is no regular file")],
)
def test_a_kernel_log_that_cannot_be_read_is_unknown(hooked: Hooked, place: str, why: str) -> None:
    """The key names the host's log: that of the container, read in its place, passed."""
    hooked.become(h100(NODE))
    os.mkfifo(hooked.folder / "pipe")
    text = hooked.config.read_text()
    hooked.config.write_text(text.replace(f"{hooked.folder}/kmsg", f"{hooked.folder}/{place}"))
    told = hooked.prolog("--plain", "--json")
    assert told.code == 2
    assert {"host.kernel_log", "host.hardware_errors"} <= {*told.unknown()}
    rows = told.document["judged"]["unknown"]
    words = f"could not be read: {hooked.folder}/{place}: {why}"
    assert all(row["why"].endswith(words) for row in rows if "kernel" in row["check"])


def test_what_it_may_not_read_is_unknown(hooked: Hooked) -> None:
    """As a user who may not open the driver: exit 2 with --plain, one line, and the job starts."""
    hooked.become(h100(NODE).init_error(NO_PERMISSION))
    told = hooked.prolog("--plain", "--json")
    assert (told.code, told.unfit()) == (2, {})
    assert told.unknown()["host.driver_hung"] is False
    (line,) = told.log
    assert "host.driver_hung" in line
    assert "NVML refuses: Insufficient Permissions" in line
    assert hooked.prolog().code == 0


@pytest.mark.parametrize("broken", ["inventory", "config", "budget"])
def test_our_own_fault_keeps_no_job_away(hooked: Hooked, broken: str) -> None:
    """A bad inventory or configuration beside a sick GPU: exit 0, one loud line."""
    hooked.become(h100(NODE).counted(3, "ecc_uncorrected", 4))
    hooked.configure('enforce = true\nslurm_bin = "/nowhere"', after="[breaker]\nslurm = true\n")
    if broken == "inventory":
        (hooked.folder / "fleet.toml").write_text("[group.train\n")
    elif broken == "config":
        hooked.configure("enfroce = true")
    else:
        hooked.configure("budget_s = 20")
    told = hooked.prolog("--limit=9")
    assert (told.code, told.out, len(told.log)) == (0, "", 1)
    assert "could not check" in told.log[0]


@pytest.fixture
def slurm(hooked: Hooked) -> FakeSlurm:
    """A Slurm that keeps one node in files; drains are enforced."""
    tokens = hooked.folder / "tokens"
    tokens.mkdir()
    (tokens / "shared").touch()
    fake = FakeSlurm(hooked.folder / "slurm")
    said = f'enforce = true\nslurm_bin = "{fake.folder}"'
    hooked.configure(said, after=f'[breaker]\ndirectory = "{tokens}"\n')
    return fake


@pytest.fixture(params=["full", "a file", "a stranger's"])
def unwritable(hooked: Hooked, request: pytest.FixtureRequest) -> Iterator[str]:
    """A state_dir that takes nothing; yields what is said of it."""
    if request.param == "a file":
        hooked.state.write_text("in its place")
        yield "Not a directory"
        return
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk, and giving a folder away, needs root")
    hooked.state.mkdir(mode=0o750)
    if request.param == "a stranger's":
        os.chown(hooked.state, 65534, 65534)
        yield "belongs to nobody"
        assert not list(hooked.state.iterdir())
        return
    small = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=750", "tmpfs", str(hooked.state)]
    if subprocess.run(small, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        (hooked.state / "filler").write_bytes(bytes(4096))
        yield "No space left on device"
    finally:
        subprocess.run(["umount", str(hooked.state)], check=True)


def test_a_full_disk_drains_no_healthy_node(
    hooked: Hooked, slurm: FakeSlurm, unwritable: str
) -> None:
    """A prolog writes nothing then; the health check says that it cannot, and exits 0."""
    told = hooked.prolog()
    assert (told.code, told.log, slurm.seen) == (0, (), ("IDLE", ""))
    told = hooked.run("healthcheck", "--periodic")
    assert (told.code, len(told.log), slurm.seen) == (0, 1, ("IDLE", ""))
    assert unwritable in told.log[0]


@pytest.mark.parametrize("occasion", ["prolog", "healthcheck"])
def test_a_full_disk_hides_no_fault(
    hooked: Hooked, slurm: FakeSlurm, unwritable: str, occasion: str
) -> None:
    """Any user may fill it: the node is drained for what was found, and the line says both."""
    hooked.become(h100(NODE).counted(3, "ecc_uncorrected", 4))
    told = hooked.run(occasion, "--plain", "--json")
    assert (told.code, told.unfit()) == (1, {"gpu.ecc": True})
    assert f"cannot write {hooked.state}: " in told.log[0]
    told = hooked.run(occasion)
    assert (told.code, len(told.log)) == (1, 1)
    assert told.log[0].startswith(f"preflight: drain {NODE}: pf:gpu.ecc ")
    assert unwritable in told.log[0]
    assert slurm.seen[0] == "IDLE+DRAIN"


def test_a_full_disk_drains_nobody_for_a_hung_driver(
    hooked: Hooked, slurm: FakeSlurm, unwritable: str
) -> None:
    """Which look came before cannot be known then; each one says so."""
    hooked.become(replace(h100(NODE), init="hangs"))
    for _ in range(2):
        hooked.later()
        told = hooked.run("healthcheck")
        assert (told.code, slurm.seen) == (0, ("IDLE", ""))
        assert unwritable in told.log[0]


@pytest.mark.parametrize("kept", [True, False])
def test_a_second_look_that_cannot_be_kept_drains_nobody(
    hooked: Hooked, slurm: FakeSlurm, *, kept: bool
) -> None:
    """An answer between the two may not have been written down either."""
    hooked.become(replace(h100(NODE), init="hangs"))
    hooked.run("healthcheck")
    if not kept:
        (hooked.state / "last.json").unlink()
        (hooked.state / "last.json").mkdir()
    hooked.later()
    told = hooked.prolog()
    assert (told.code, slurm.seen[0]) == ((1, "IDLE+DRAIN") if kept else (0, "IDLE"))


def test_the_health_check_leaves_its_facts_for_the_prologs(hooked: Hooked) -> None:
    """Readable by nobody else; of what a prolog reads itself, nothing is taken from there."""
    well = hooked.run("healthcheck", "--periodic")
    assert (well.code, well.log) == (0, ())
    path = hooked.state / "facts.json"
    assert path.stat().st_mode & 0o777 == 0o640
    facts = json.loads(path.read_bytes())
    path.write_text(json.dumps({**facts, "topo_text": "a matrix"}))
    assert hooked.prolog("--plain", "--json").document["judged"]["facts_age_s"] is None


def test_it_imports_little(hooked: Hooked) -> None:
    """No torch, no SSH library, no database, no pytest: a job waits for every module."""
    program = (
        "from preflight.hook.entry import parse_options; "
        "from preflight.hook.work import work; "
        f"options = parse_options(['prolog', '--config={hooked.config}']); "
        "work(options, 0.0, lambda **_: None)"
    )
    told = subprocess.run(
        [sys.executable, "-I", "-X", "importtime", "-c", program],
        env={"SLURMD_NODENAME": NODE}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in told.stderr.splitlines()
    }
    assert "msgspec" in loaded
    heavy = {"torch", "numpy", "paramiko", "cryptography", "sqlalchemy", "prometheus_client"}
    assert not loaded & (heavy | {"pytest", "_pytest", "pynvml", "asyncio"})


@pytest.mark.skipif(os.geteuid() != 0, reason="what root must not do needs root")
def test_root_trusts_no_strangers_files(hooked: Hooked) -> None:
    """An inventory that another user could write decides nothing."""
    path = hooked.folder / "fleet.toml"
    os.chown(path, 65534, 65534)
    told = hooked.prolog()
    assert told.code == 0
    assert f"{path} is not used" in told.log[0]


def test_nothing_planted_takes_part(hooked: Hooked, tmp_path: Path) -> None:
    """In a stranger's folder no conftest, module or variable of his runs with root's rights."""
    his = tmp_path / "his"
    his.mkdir()
    spring = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
    for name in ("conftest", "evil", "struct", "socket", "msgspec", "json", "sitecustomize"):
        (his / f"{name}.py").write_text(spring)
    (his / "pytest.ini").write_text("[pytest]\naddopts = -p evil\n")
    planted = {"PYTHONSTARTUP": "evil.py", "PYTEST_ADDOPTS": "-p evil", "PYTEST_PLUGINS": "evil"}
    told = hooked.run("prolog", "--plain", env=planted, cwd=his)
    assert (told.code, told.log) == (0, ())
    assert not (tmp_path / "sprung").exists()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _is_of(pid: int, hooked: Hooked) -> bool:
    """Whether it was started with this node's driver."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return str(hooked.folder).encode() in environ and state != "Z"
