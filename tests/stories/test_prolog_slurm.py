"""The hook on a real Slurm: it takes faulty nodes out, and never more than it should."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hook.slurm import parse_now
from tests.lab import processes
from tests.lab import slurm as slurm_lab
from tests.lab.inside import until
from tests.stories.hooked_slurm import (
    CONTRIB,
    LONGEST_S,
    NO_HOLD,
    Hook,
    edit,
    ran_on,
    reasons,
    submitted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab
    from tests.lab.slurm import Slurm

pytestmark = pytest.mark.lab
GPUS = "--gres=gpu:8"
CHECKED = "--preflight-checks=host.driver_hung,gpu.count"


@pytest.fixture(scope="module")
def shared(cluster: Lab) -> Iterator[tuple[Hook, Slurm]]:
    """One Slurm for all of these: its nodes run the hook of contrib/slurm."""
    if reason := slurm_lab.why_not():
        pytest.skip(reason)
    hook = Hook(cluster)
    with slurm_lab.Slurm(cluster, hook.settings) as running:
        yield hook, running


@pytest.fixture
def hook(shared: tuple[Hook, Slurm], lab: Lab) -> Iterator[Hook]:
    """The hook's files, as new; the hosts are healthy."""
    del lab
    shared[0].reset()
    yield shared[0]
    shared[0].quiet()


@pytest.fixture
def slurm(shared: tuple[Hook, Slurm], hook: Hook) -> Iterator[Slurm]:
    """All nodes idle; jobs go to h1 first."""
    del hook
    running = shared[1]
    running.heal()
    running.run(["scontrol", "update", "nodename=h[2-4]", "weight=10"])
    yield running
    running.heal()


def lame(lab: Lab, *names: str) -> None:
    """Take a GPU away from these hosts."""
    for name in names:
        lab.hosts[name].set_scenario(lab.hosts[name].scenario.without_gpu(3))


def test_a_healthy_node_starts_its_job(hook: Hook, slurm: Slurm) -> None:
    """Silently, nothing is written; also where a GPU is sick that the job was not given."""
    sick = slurm.lab.hosts["h1"].scenario.counted(7, "ecc_volatile_uncorrected", 2)
    slurm.lab.hosts["h1"].set_scenario(sick)
    told = slurm.run(["srun", "-N2", "--gres=gpu:2", "hostname"]).stdout
    assert sorted(told.split()) == ["h1", "h2"]
    assert (hook.last("h1"), hook.last("h2")) == ({}, {})
    assert reasons(slurm) == {}


def test_a_faulty_node_goes_out_and_its_job_elsewhere(hook: Hook, slurm: Slurm) -> None:
    """With nohold_on_prolog_fail nobody has to do anything; our reason survives Slurm's own."""
    lame(slurm.lab, "h1")
    job = submitted(slurm, "-N1", GPUS)
    until(lambda: waits(slurm, job[0]) == "BeginTime", "its job to wait again", LONGEST_S)
    start_now(slurm, job[0])
    assert ran_on(slurm, job) == ["h2"]
    assert reasons(slurm) == {"h1": f"pf:gpu.count 7 of 8 GPUs answer [node] job {job[0]}"}
    assert hook.action("h1") == "drain"


def test_by_default_its_job_is_held(hook: Hook, slurm: Slurm) -> None:
    """Until somebody releases it; docs/reference/prolog.md says so."""
    conf = slurm.folder / "slurm.conf"
    before = conf.read_text()
    conf.write_text(before.replace(NO_HOLD, ""))
    try:
        slurm.run(["scontrol", "reconfigure"])
        lame(slurm.lab, "h1")
        job = submitted(slurm, "-N1", GPUS)
        until(lambda: hook.action("h1") == "drain", "the prolog to drain its node", LONGEST_S)
        until(lambda: "held" in waits(slurm, job[0]), "the job to be held", LONGEST_S)
        slurm.run(["scontrol", "release", job[0]])
        start_now(slurm, job[0])
        assert ran_on(slurm, job) == ["h2"]
    finally:
        conf.write_text(before)
        slurm.run(["scontrol", "reconfigure"])


def waits(slurm: Slurm, job: str) -> str:
    """Why a job waits, in Slurm's word; "" while it starts or runs."""
    told = slurm.run(["squeue", "-h", "-j", job, "-t", "PD", "-o", "%r"], check=False)
    return told.stdout.strip()


def start_now(slurm: Slurm, job: str) -> None:
    """Slurm lets a job that was sent back wait for two minutes; a test does not."""
    slurm.run(["scontrol", "update", f"jobid={job}", "starttime=now"])


def test_a_broken_inventory_drains_nobody(hook: Hook, slurm: Slurm) -> None:
    """On all nodes at once: the job starts on every one of them, and it is said aloud."""
    (hook.folder / "fleet.toml").write_text("[group.lab]\nnodes = 7\n")
    assert len(slurm.run(["srun", "-N4", GPUS, "hostname"]).stdout.split()) == 4
    assert reasons(slurm) == {}
    for node in slurm.lab.hosts:
        assert "fleet.toml" in hook.last(node)["judged"]["trouble"]
        assert "could not check" in hook.last(node)["decision"]["log"]


def test_many_at_once_trip_the_breaker(hook: Hook, slurm: Slurm) -> None:
    """All four lost a GPU, one may go: the others stay, and their prologs exit 0."""
    hook.configure(f'directory = "{hook.folder}/breaker"\nmost_nodes = 1\nmost_share = 0')
    lame(slurm.lab, *slurm.lab.hosts)
    job = submitted(slurm, "-N4", GPUS)
    until(lambda: all(map(hook.action, slurm.lab.hosts)), "all prologs to end", LONGEST_S)
    out = reasons(slurm)
    slurm.run(["scancel", job[0]])
    actions = sorted(map(hook.action, slurm.lab.hosts))
    assert actions == ["drain", "withheld", "withheld", "withheld"]
    assert [hook.action(node) for node in out] == ["drain"]
    log = next(hook.last(n)["decision"]["log"] for n in slurm.lab.hosts if n not in out)
    assert "the breaker is open, 1 nodes drained in the window and 1 allowed" in log


def test_drains_counted_at_the_controller(hook: Hook, slurm: Slurm) -> None:
    """Without a shared folder: h4 is out by our reason already, one may be, so h1 stays.

    The age of that goes by the controller's clock, which is asked for.
    """
    told = parse_now(slurm.run(["scontrol", "show", "config"], env={"TZ": "UTC"}).stdout)
    assert told is not None
    assert abs(told - time.time()) < LONGEST_S
    hook.configure("slurm = true\nmost_nodes = 1\nmost_share = 0")
    ours = {"h4": "pf:gpu.ecc GPU 3: 2 errors [node] job 7"}
    slurm.run(["scontrol", "update", "nodename=h4", "state=drain", f"reason={ours['h4']}"])
    lame(slurm.lab, "h1")
    assert ran_on(slurm, submitted(slurm, "-N1", GPUS)) == ["h1"]
    assert hook.action("h1") == "withheld"
    assert reasons(slurm) == ours


def test_the_health_check_drains_and_resumes(hook: Hook, slurm: Slurm) -> None:
    """A hot node goes out and comes back when it is cool; h2, which a person drained, stays."""
    slurm.run(["scontrol", "update", "nodename=h2", "state=drain", "reason=RMA 4711"])
    host = slurm.lab.hosts["h1"]
    cool = host.scenario
    host.set_scenario(cool.counted(2, "margin_c", -2))
    lame(slurm.lab, "h2")
    hook.due("h1")
    hook.due("h2")
    until(lambda: len(reasons(slurm)) > 1, "the health check to drain h1", LONGEST_S)
    assert reasons(slurm)["h1"].startswith("pf:gpu.temperature ")
    hook.quiet()
    host.set_scenario(cool)
    hook.due("h1")
    hook.due("h2")
    until(lambda: "h1" not in reasons(slurm), "the health check to resume h1", LONGEST_S)
    until(lambda: bool(hook.action("h2")), "the health check of h2", LONGEST_S)
    assert hook.action("h2") == "none"
    assert reasons(slurm) == {"h2": "RMA 4711"}


def test_a_launch_behind_the_gate(hook: Hook, slurm: Slurm, tmp_path: Path) -> None:
    """train.sbatch: a bad node is found, the job requeued without it, and torchrun starts there.

    The prologs only observe: they say what they would have done, and let the job start.
    """
    hook.configure(f'directory = "{hook.folder}/breaker"', enforce="false")
    lame(slurm.lab, "h1")
    edit(CONTRIB / "requeue.sh", tmp_path / "requeue.sh", {})
    gate = f"pytest --preflight {CHECKED} --preflight-inventory={tmp_path}/fleet.toml"
    changes = {"pytest --preflight ": f"{gate} ", "per-node=8": "per-node=1"}
    edit(CONTRIB / "train.sbatch", tmp_path / "train.sbatch", changes)
    (tmp_path / "fleet.toml").write_text('[group.g]\nnodes = "h[1-4]"\ngpus = 8\n')
    (tmp_path / "train.py").write_text("import os\nprint('trained on', os.uname().nodename)\n")
    path = f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"
    env = {"PATH": path, "PREFLIGHT_SCRIPTS": str(tmp_path)}
    words = ["sbatch", "--parsable", "-N2", f"--chdir={tmp_path}", f"--output={tmp_path}/out"]
    job = slurm.run([*words, f"{tmp_path}/train.sbatch"], env=env).stdout.strip()
    until(lambda: waits(slurm, job) == "BeginTime", "the job to be requeued", LONGEST_S)
    assert hook.action("h1") == "observe"
    assert hook.last("h1")["decision"]["log"].startswith("would drain h1: pf:gpu.count 7 of 8")
    start_now(slurm, job)
    assert ran_on(slurm, (job, tmp_path / "out"))
    told = (tmp_path / "out").read_text()
    assert f"requeue: job {job} waits for other nodes than h1\n" in told
    trained = {line for line in told.splitlines() if line.startswith("trained on ")}
    assert len(trained) == 2
    assert "trained on h1" not in trained
    assert reasons(slurm) == {}


def test_a_hung_driver_is_left_to_the_health_check(hook: Hook, slurm: Slurm) -> None:
    """Not even SIGKILL ends what asks it; the prolog ends in its budget, and the job starts.

    Such silence may be a slow start: the health check has the time to be certain, and drains at its
    second look.
    """
    hook.configure(f'directory = "{hook.folder}/breaker"', budget_s=8)
    host = slurm.lab.hosts["h1"]
    with processes.frozen_disk(host) as path:
        host.set_scenario(host.scenario.blocking(str(path)))
        assert ran_on(slurm, submitted(slurm, "-N1", GPUS)) == ["h1"]
        late = [one["check"] for one in hook.last("h1")["judged"]["unknown"] if one["out_of_time"]]
        assert late
        assert hook.action("h1") == "none"
        hook.due("h1")
        until(lambda: bool(reasons(slurm)), "the health check to drain it", LONGEST_S)
        hook.quiet()
    assert reasons(slurm)["h1"].startswith("pf:host.driver_hung the driver gave NVML no answer")
    assert reasons(slurm)["h1"].endswith(" [node] health check")
