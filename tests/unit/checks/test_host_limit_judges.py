"""`host.memlock`, `host.nofile`, `host.cgroup`: whose limit it is decides what it proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.host.test_limits import (
    judge_cgroup,
    judge_memlock,
    judge_nofile,
    memlock_limit,
    nofile_limit,
)
from preflight.core.thresholds import SHIPPED
from preflight.facts import Majority
from preflight.facts.machine import Cgroup, Launcher, Limits
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, group
from tests.unit.facts.machines import limits, load, machine, memory

if TYPE_CHECKING:
    from preflight.facts import Facts

MIB, GIB = 1 << 20, 1 << 30
UNLIMITED = float("inf")
NONE = Expected()


def with_limits(own: Limits, *daemons: Limits, **changes: object) -> Facts:
    """A node whose login has these limits, and whose slurmd has those."""
    launchers = tuple(Launcher("slurmd", 812 + at, one) for at, one in enumerate(daemons))
    return facts(machine=machine(limits=own, launchers=launchers, **changes))


@pytest.mark.proves("host.memlock", passes="a login without a limit, and one with CAP_IPC_LOCK")
def test_unlimited_memory_may_be_locked() -> None:
    """No limit is as it should be; root needs none, and the sentence says that others may."""
    assert judge_memlock(NONE, facts(), "paramiko", limit=SHIPPED).outcome is Outcome.OK
    root = judge_memlock(
        NONE, with_limits(limits(64 << 10), locks_any=True), "paramiko", limit=SHIPPED
    )
    assert root.outcome is Outcome.OK
    assert "another user's job has a limit of its own" in root.sentence


@pytest.mark.proves("host.memlock", finds="a job's own limit of 8 MiB")
@pytest.mark.parametrize("transport", ["srun", "torchrun"])
def test_a_small_limit_of_the_job_itself_fails(transport: str) -> None:
    """Where the job's own processes answered there is no doubt whose limit it is."""
    verdict = judge_memlock(NONE, with_limits(limits(8 * MIB)), transport, limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "8 MiB may be locked: the limit of the job's own process; "
        "RDMA needs unlimited, or at least 32.0 GiB"
    )


@pytest.mark.proves("host.memlock", finds="a slurmd that was started with 64 KiB")
def test_the_scheduler_counts_more_than_our_login() -> None:
    """Jobs inherit from slurmd: its small limit fails although the login has none, and reverse."""
    bad = judge_memlock(NONE, with_limits(limits(), limits(64 << 10)), "paramiko", limit=SHIPPED)
    assert bad.outcome is Outcome.FAIL
    assert "64 KiB may be locked: the limit of slurmd (pid 812)" in bad.sentence
    good = judge_memlock(NONE, with_limits(limits(64 << 10), limits()), "paramiko", limit=SHIPPED)
    assert good.outcome is Outcome.OK


@pytest.mark.proves(
    "host.memlock", finds="one login of 13 with 8 MiB where the others have no limit"
)
def test_a_small_limit_of_our_login_is_a_fault_only_against_its_peers() -> None:
    """Alone it proves nothing of the job: a warning; odd among its peers it is a fault."""
    odd = with_limits(limits(8 * MIB))
    alone = judge_memlock(NONE, odd, "paramiko", limit=SHIPPED)
    assert alone.outcome is Outcome.WARN
    assert "our login; the job's may differ" in alone.sentence
    usual = group(*[facts()] * 12, odd).majority(memlock_limit)
    among = judge_memlock(NONE, odd, "paramiko", usual, limit=SHIPPED)
    assert among.outcome is Outcome.FAIL
    assert "12 of 13 nodes of its group have any amount" in among.sentence
    assert judge_memlock(NONE, facts(), "paramiko", usual, limit=SHIPPED).outcome is Outcome.OK


def test_a_limit_between_the_least_and_enough_is_a_warning() -> None:
    """8 GiB carry some jobs; 32 GiB are enough."""
    assert (
        judge_memlock(NONE, with_limits(limits(8 * GIB)), "srun", limit=SHIPPED).outcome
        is Outcome.WARN
    )
    assert (
        judge_memlock(NONE, with_limits(limits(32 * GIB)), "srun", limit=SHIPPED).outcome
        is Outcome.OK
    )


@pytest.mark.proves("host.memlock", unknown="the limits could not be read")
def test_memlock_without_rdma_is_not_run_and_unread_is_unknown() -> None:
    """Not expected and absent is not run; expected or there and unread is unknown."""
    none = facts(nics=(), machine=None)
    assert judge_memlock(NONE, none, "paramiko", limit=SHIPPED).outcome is Outcome.NOT_RUN
    assert (
        judge_memlock(Expected(nics=8), none, "paramiko", limit=SHIPPED).outcome is Outcome.UNKNOWN
    )
    assert (
        judge_memlock(NONE, facts(machine=machine(limits=None)), "srun", limit=SHIPPED).outcome
        == "unknown"
    )


@pytest.mark.proves(
    "host.nofile", passes="1048576 files, or a login that may raise its limit to so many"
)
def test_enough_files() -> None:
    """A login's soft limit of 1024 is nothing to worry about while it may be raised."""
    assert judge_nofile(facts(), "paramiko", limit=SHIPPED).outcome is Outcome.OK
    raised = judge_nofile(with_limits(limits(nofile=1024, hard=524288)), "paramiko", limit=SHIPPED)
    assert raised.outcome is Outcome.OK
    assert raised.sentence.endswith("it may raise it to 524288")


@pytest.mark.proves(
    "host.nofile", finds="a job's own limit of 256 files, and a login that differs from its peers"
)
def test_too_few_files() -> None:
    """What the job surely has is judged as it is; a login's only where its peers have more."""
    few = with_limits(limits(nofile=256))
    assert judge_nofile(few, "srun", limit=SHIPPED).outcome is Outcome.FAIL
    assert judge_nofile(few, "paramiko", limit=SHIPPED).outcome is Outcome.WARN
    usual = group(*[facts()] * 3, few).majority(nofile_limit)
    odd = judge_nofile(few, "paramiko", usual, limit=SHIPPED)
    assert odd.outcome is Outcome.FAIL
    assert "256 files may be open" in odd.sentence
    assert "3 of 4 nodes of its group have 1048576 files" in odd.sentence
    assert (
        judge_nofile(with_limits(limits(nofile=1024)), "torchrun", limit=SHIPPED).outcome
        is Outcome.WARN
    )


@pytest.mark.proves("host.nofile", unknown="the limits could not be read")
def test_unread_limits_of_files_are_unknown() -> None:
    """Neither the machine's section nor the limits in it."""
    assert judge_nofile(facts(machine=None), "srun", limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert (
        judge_nofile(facts(machine=machine(limits=None)), "srun", limit=SHIPPED).outcome
        is Outcome.UNKNOWN
    )


@pytest.mark.proves(
    "host.cgroup", passes="a group that grants everything, and a fair share of a shared node"
)
def test_a_fair_share_is_no_fault() -> None:
    """All CPUs, or four for each of two GPUs of a shared node."""
    assert judge_cgroup(facts(), 8, "srun", limit=SHIPPED).sentence == "all CPUs granted to the job"
    share = machine(load=load(cpus_allowed=8))
    assert judge_cgroup(facts(machine=share), 2, "srun", limit=SHIPPED).outcome is Outcome.OK


@pytest.mark.proves("host.cgroup", finds="1 CPU for 8 GPUs, by affinity or by quota")
@pytest.mark.parametrize(
    "changes", [{"load": load(cpus_allowed=1)}, {"cgroup": Cgroup(cpus=1.0)}], ids=["set", "quota"]
)
def test_one_cpu_for_eight_gpus(changes: dict[str, object]) -> None:
    """In the job it fails; a login's group is not the job's, so there it is a warning."""
    starved = facts(machine=machine(**changes))
    verdict = judge_cgroup(starved, 8, "srun", limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert "1 of 192 CPUs for 8 GPUs, granted to the job" in verdict.sentence
    assert judge_cgroup(starved, 8, "paramiko", limit=SHIPPED).outcome is Outcome.WARN


@pytest.mark.proves(
    "host.cgroup", finds="a limit of 64 GiB where the host has 1 TiB, and a limit of 1024 processes"
)
def test_little_memory_and_few_processes() -> None:
    """Each with what is granted and what is expected."""
    little = judge_cgroup(
        facts(machine=machine(cgroup=Cgroup(memory_mib=65536))), 8, "srun", limit=SHIPPED
    )
    assert (little.outcome, little.sentence) == (
        "warn",
        "64.0 GiB of 1024.0 GiB of memory granted to the job; at least 10 % expected",
    )
    few = judge_cgroup(facts(machine=machine(cgroup=Cgroup(pids=1024))), 8, "srun", limit=SHIPPED)
    assert few.outcome is Outcome.WARN
    assert "1024 processes and threads" in few.sentence


@pytest.mark.proves("host.cgroup", unknown="the control group could not be read")
@pytest.mark.parametrize("part", ["cgroup", "load", "stack"])
def test_an_unread_group_is_unknown(part: str) -> None:
    """Each of the parts that it is judged from."""
    unread = facts(machine=replace(machine(), **{part: None}))
    assert judge_cgroup(unread, 8, "srun", limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert judge_cgroup(facts(machine=None), 8, "srun", limit=SHIPPED).outcome is Outcome.UNKNOWN


def test_a_small_machine_is_no_small_group() -> None:
    """Two CPUs are few for eight GPUs, but the group takes none of them away."""
    small = machine(load=load(cpus_allowed=2), memory=memory())
    two = replace(small, stack=replace(small.stack, cpus_online=2))  # type: ignore[type-var]
    assert judge_cgroup(facts(machine=two), 8, "srun", limit=SHIPPED).outcome is Outcome.OK


def test_votes_are_by_value() -> None:
    """A group agrees on no limit as on any other number."""
    usual = group(facts(), facts()).majority(memlock_limit)
    assert usual == Majority(UNLIMITED, 2, 2)
