"""`host.stale_processes`: what a dead job left is named with its kill command."""

from __future__ import annotations

import pytest

from preflight.checks.host.test_processes import judge_stale_processes
from preflight.core.thresholds import SHIPPED
from preflight.facts.model import GpuProcess, Process
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import charged, facts, gpu, holder, mig_gpu, process, rank, seen


def left(*notable: Process, scheduler: str = "none") -> Verdict:
    """The verdict on these processes beside healthy idle GPUs."""
    return judge_stale_processes(
        facts(processes=seen(*notable, scheduler=scheduler)), limit=SHIPPED
    )


@pytest.mark.proves("host.stale_processes", unknown="processes that could not be listed")
def test_an_idle_node_is_ok_and_an_unread_one_unknown() -> None:
    """Nothing notable passes, nor does a name of blanks alone; unlisted processes do not."""
    assert left(process(command="\u2028", gpu_mib=1)).outcome is not Outcome.BROKEN
    assert left().sentence == "nothing stale among 100 processes"
    assert judge_stale_processes(facts(processes=None), limit=SHIPPED).outcome is Outcome.UNKNOWN


def test_an_orphaned_rank_is_named_with_what_it_keeps() -> None:
    """Pid, age, owner, memory, port and the command to end it; its cause joins with `net.ports`."""
    stale = rank(orphan=True, gpu_mib=39424, holds_gpu=True, listens=(29500,))
    verdict = left(stale)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "pid 4242 (python train.py, user alice, started 2 h 0 min ago) is a rank whose torchrun is "
        "gone, holds 38.5 GiB of GPU memory and port 29500"
    )
    assert verdict.advice == "kill 4242; if still there after 10 s: kill -9 4242"
    assert verdict.cause == "pid 4242"


@pytest.mark.parametrize(
    ("ppid", "parent"),
    [
        (1, "/sbin/init"),
        (1, "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"),
        (1, "[systemd]"),
        (812, "/usr/lib/systemd/systemd --user"),
        (733, "/usr/bin/containerd-shim-runc-v2 -namespace moby"),
        (99, "slurmstepd: [4711.batch]"),
    ],
)
def test_orphans_are_recognised_by_their_reaper(ppid: int, parent: str) -> None:
    """Init, a user's systemd, a container's shim: what takes in orphans started no rank."""
    assert left(rank(ppid=ppid, parent_command=parent)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("ppid", "parent"),
    [
        (4000, "/usr/bin/python3 -m torch.distributed.run --nproc-per-node=8 train.py"),
        (1, "/usr/bin/python3 /usr/local/bin/torchrun train.py"),
        (4000, "/bin/bash ./run_rank.sh"),
        (4000, "/opt/conda/bin/accelerate launch train.py"),
    ],
)
def test_a_rank_whose_launcher_lives_is_busy_not_stale(ppid: int, parent: str) -> None:
    """Also where torchrun is PID 1 of a container, or a script stands between."""
    live = rank(ppid=ppid, parent_command=parent, gpu_mib=70000, holds_gpu=True)
    assert left(live).outcome is Outcome.OK


def test_ranks_of_one_run_are_one_finding() -> None:
    """Eight orphans of one run are one finding, with one command; the listener is the cause."""
    ranks = [rank(100 + n, orphan=True, gpu_mib=1024, holds_gpu=True) for n in range(2)]
    verdict = left(*ranks, rank(102, orphan=True, listens=(29500,)))
    assert verdict.sentence == (
        "3 ranks of run 'none' whose torchrun is gone (pids 100, 101, 102, user alice, "
        "started 2 h 0 min ago), hold 2.0 GiB of GPU memory and port 29500"
    )
    assert verdict.advice.startswith("kill 100 101 102;")
    assert verdict.cause == "pid 102"


def test_children_of_a_live_rank_are_alive() -> None:
    """A data loader inherits the rank's variables; it is no orphan while its rank is there."""
    loader = rank(5000, ppid=4242, parent_command="train")
    assert left(rank(4242), loader).outcome is Outcome.OK


def test_a_process_of_this_run_never_counts() -> None:
    """Preflight under torchrun is itself a rank."""
    assert left(rank(orphan=True, ours=True)).outcome is Outcome.OK


@pytest.mark.proves("host.stale_processes", finds="a zombie that keeps its GPU")
def test_zombies() -> None:
    """Short-lived ones are harmless, old ones untidy, one with live threads keeps its GPU."""
    young = process(14929, state="Z", command="[python]", age_s=20, ppid=14860)
    assert left(young).outcome is Outcome.OK
    old = left(process(14929, state="Z", command="[python]", age_s=8042, ppid=14860))
    assert old.outcome is Outcome.WARN
    assert "its parent 14860 (-bash) never reaped it" in old.sentence
    threads = left(process(7, state="Z", command="[python]", age_s=20, threads=3))
    assert threads.outcome is Outcome.FAIL
    assert "has 3 live threads" in threads.sentence
    assert left(process(7, state="Z", holds_gpu=True)).outcome is Outcome.FAIL


def test_no_live_job_is_killed_for_a_zombie() -> None:
    """Its parent is named; a command that ends it is given only where it is left over itself."""
    held = {"state": "Z", "age_s": 8042.0, "ppid": 4242, "parent_command": "python train.py"}
    for threads in (0, 3):
        zombie = process(7, command="[sh]", threads=threads, **held)
        live = left(rank(4242), zombie)
        assert "pid 4242" in live.advice
        assert "kill" not in live.advice
    assert (
        "its parent 4242 (python train.py) never reaped it"
        in left(rank(4242), process(7, command="[sh]", **held)).sentence
    )
    for parent in (rank(4242, orphan=True), process(4242, job="9", job_alive=False)):
        stale = left(parent, process(7, command="[sh]", threads=3, **held))
        assert any("has 3 live threads" in line for line in stale.evidence["findings"])
    dead = left(process(4242, job="9", job_alive=False), process(7, command="[sh]", **held))
    assert "end its parent, which is left over: kill 4242" in dead.advice


def test_a_container_without_an_init_is_reported_once() -> None:
    """A few zombies of PID 1 are noise; dozens are one finding about the container."""
    zombies = [process(n, state="Z", command="[sh]", ppid=1) for n in range(100, 125)]
    assert left(*zombies[:3]).outcome is Outcome.OK
    verdict = left(*zombies)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith("25 zombies that PID 1 does not reap")
    assert "--init" in verdict.advice


@pytest.mark.proves("host.stale_processes", finds="a process in D state in the driver")
def test_d_state() -> None:
    """Waiting in the driver, or orphaned with a GPU, fails; waiting for a disk is a warning."""
    disk = left(process(state="D", stuck_s=0.2, wchan="nfs_wait_bit_killable"))
    assert disk.outcome is Outcome.WARN
    assert "is in D state in nfs_wait_bit_killable" in disk.sentence
    assert "/proc/4242/stack" in disk.advice
    driver = left(process(state="D", stuck_s=0.2, wchan="uvm_va_space_destroy"))
    assert driver.outcome is Outcome.FAIL
    assert "reboot" in driver.advice
    assert left(rank(orphan=True, state="D", stuck_s=0.2, holds_gpu=True)).outcome is Outcome.FAIL
    assert left(process(state="D", stuck_s=None)).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        (
            {"job": "4711", "job_alive": False},
            "fail",
            "of job 4711, which has ended, holds 3.0 GiB",
        ),
        ({"job": "4711", "job_alive": True}, "ok", "nothing stale"),
        ({}, "fail", "outside any job, holds 3.0 GiB"),
        ({"gpu_mib": None}, "warn", "outside any job, has a GPU open"),
        ({"command": "/usr/bin/nvidia-cuda-mps-server"}, "ok", "nothing stale"),
        ({"command": "nvidia-cuda-mps"}, "ok", "nothing stale"),
        ({"command": "/usr/bin/nvidia-persistenced --verbose"}, "ok", "nothing stale"),
        ({"command": "/usr/lib/xorg/Xorg :0"}, "ok", "nothing stale"),
        ({"command": "/usr/sbin/slurmd -D", "user": "root", "gpu_mib": None}, "ok", "nothing"),
        ({"command": "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg"}, "ok", "nothing stale"),
        ({"command": "nvidia-smi", "gpu_mib": 39424}, "fail", "outside any job, holds 38.5 GiB"),
        ({"command": "nv-hostengine", "gpu_mib": 39424, "user": "root"}, "ok", "nothing stale"),
    ],
)
def test_gpu_memory_outside_a_running_slurm_job(
    changes: dict[str, object], outcome: str, words: str
) -> None:
    """Under Slurm every GPU user belongs to a job; the driver's own servers and desktops do not."""
    verdict = left(holder(6114, 3072, **changes), scheduler="slurm")
    assert verdict.outcome == outcome
    assert words in verdict.sentence


def test_a_monitor_that_is_not_known_is_not_killed() -> None:
    """It has a GPU open and no memory on it: that it is not needed is for its owner to say."""
    monitor = process(10, user="root", command="/opt/gpu-metrics", holds_gpu=True)
    assert left(monitor, scheduler="slurm").advice.startswith("if it is not needed: kill 10")
    assert left(holder(11, 3072), scheduler="slurm").advice.startswith("kill 11")


def test_without_a_scheduler_a_gpu_user_is_a_warning() -> None:
    """Whether a notebook is wanted is not known: a warning with the command."""
    verdict = left(holder(6114, 3072, command="ray::ServeReplica"))
    assert verdict.outcome is Outcome.WARN
    assert "uses a GPU, holds 3.0 GiB of GPU memory" in verdict.sentence
    assert "if it is not needed: kill 6114" in verdict.advice


def used(*notable: Process, unreadable: int = 0, mib: int = 12288) -> Verdict:
    """The verdict on a node whose first GPU has memory in use that NVML charges to no process."""
    processes = seen(*notable, unreadable=unreadable)
    return judge_stale_processes(
        facts(gpus=(charged(0, mib), gpu(1)), processes=processes), limit=SHIPPED
    )


def test_memory_of_no_visible_process() -> None:
    """A container's leftovers: the one with the device open is named, else where to look."""
    verdict = used()
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == "GPU0 12.0 GiB in use by no visible process"
    assert "fuser -v /dev/nvidia*" in verdict.advice
    opener = process(6114, command="python3", holds_gpu=True)
    named = used(process(2216, command="Xorg", holds_gpu=True), opener)
    assert named.outcome is Outcome.FAIL
    assert "open by pid 6114 (python3" in named.sentence
    assert named.cause == "pid 6114"


def test_memory_of_a_hidden_process_asks_for_a_grant() -> None:
    """Where this login cannot look, the verdict says what to grant instead of guessing."""
    verdict = used(unreadable=40)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "40 processes not readable" in verdict.sentence
    assert "CAP_SYS_PTRACE" in verdict.grant


def test_memory_with_an_explanation_is_no_fault() -> None:
    """Charged, small, MIG's, hidden behind a live rank, or a charge that NVML hides."""
    assert used(mib=600).outcome is Outcome.OK
    assert used(rank(holds_gpu=True)).outcome is Outcome.OK
    for one in (
        charged(0, 12288, GpuProcess(6114, 12000)),
        charged(0, 12288, GpuProcess(6114, None)),
        mig_gpu(0, 1),
    ):
        assert judge_stale_processes(facts(gpus=(one,)), limit=SHIPPED).outcome is Outcome.OK


def test_the_grave_come_first_and_all_are_listed() -> None:
    """An old zombie does not hide the rank that holds the GPU."""
    zombie = process(7, state="Z", command="[sh]", age_s=9000, ppid=6)
    verdict = left(zombie, rank(orphan=True))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("pid 4242")
    assert verdict.sentence.endswith("(and 1 more)")
    assert len(verdict.evidence["findings"]) == 2
    assert verdict.cause == "pid 4242"
