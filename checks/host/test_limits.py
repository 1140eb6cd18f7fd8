"""Limits that end or starve a job: locked memory, open files, control group, /dev/shm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from preflight.check import Check
from preflight.checks.host.test_file_systems import SHM, SHM_FULL, file_system_of
from preflight.core.text import count, memory
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Majority, Node
from preflight.facts.machine import UNLIMITED, Limits
from preflight.facts.node import majority_text
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("host.memlock", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.nofile", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.cgroup", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.shm", stage="facts", tier="prolog", requires=("reach.answer",)),
)


Kind = Literal["memlock", "nofile"]

JOB_TRANSPORTS: Final = ("srun", "torchrun")
"""Transports that are processes of the job itself: our limits are the job's limits."""


class JobLimit(Struct, frozen=True):
    """A limit and what it belongs to; `sure` where the job will have the same one."""

    value: float
    """`inf` for unlimited."""
    most: float
    """Up to which a process may raise it by itself."""
    whose: str
    sure: bool


def job_limit(kind: Kind, facts: Facts, transport: str) -> JobLimit | None:
    """The limit of the job, else of its scheduler, else of our login; None if unread."""
    if facts.machine is None:
        return None
    daemons = facts.machine.launchers or ()
    if transport not in JOB_TRANSPORTS and daemons:
        first = daemons[0]
        owner = f"of {first.name} (pid {first.pid}), from which jobs inherit it"
        return _job_limit(first.limits, kind, owner, sure=True)
    if facts.machine.limits is None:
        return None
    sure = transport in JOB_TRANSPORTS
    if kind == "memlock" and facts.machine.locks_any:
        owner = "of this root login (CAP_IPC_LOCK); another user's job has a limit of its own"
        owner = "of the job's own process (CAP_IPC_LOCK)" if sure else owner
        return JobLimit(float("inf"), float("inf"), owner, sure)
    owner = "of the job's own process" if sure else "of our login; the job's may differ"
    return _job_limit(facts.machine.limits, kind, owner, sure=sure)


def memlock_limit(facts: Facts) -> float | None:
    """For the group's vote: the limit of the service that starts jobs, else of our login."""
    limit = job_limit("memlock", facts, "")
    return None if limit is None else limit.value


def nofile_limit(facts: Facts) -> float | None:
    """For the group's vote: the limit of open files, of the same process as `memlock_limit`."""
    limit = job_limit("nofile", facts, "")
    return None if limit is None else limit.value


def _job_limit(limits: Limits, kind: Kind, owner: str, *, sure: bool) -> JobLimit:
    soft, hard = getattr(limits, kind), getattr(limits, f"{kind}_hard")
    return JobLimit(_number(soft), _number(hard), owner, sure)


def _number(ceiling: int) -> float:
    return float("inf") if ceiling == UNLIMITED else float(ceiling)


GIB = 1 << 30
MEMLOCK_ADVICE = (
    "set LimitMEMLOCK=infinity for the service that starts jobs (slurmd; containers: "
    "--ulimit memlock=-1) and memlock unlimited in /etc/security/limits.d; in Slurm also "
    "PropagateResourceLimitsExcept=MEMLOCK; then see ulimit -l inside a job"
)


def judge_memlock(
    expected: Expected,
    facts: Facts,
    transport: str,
    usual: Majority[float] | None = None,
    *,
    limit: Thresholds,
) -> Verdict:
    """Below the minimum, fail if the job surely has this limit or its peers have more."""
    if facts.nics == () and not (expected.nics or expected.hcas or expected.nic_gbits):
        return not_run("no RDMA devices here, nothing locks memory")
    actual = job_limit("memlock", facts, transport)
    if actual is None:
        return unknown("the limit of locked memory could not be read", advice="mount /proc")
    sentence = f"{size(actual.value)} may be locked: the limit {actual.whose}"
    least, enough = limit("memlock_least_gib") * GIB, limit("memlock_enough_gib") * GIB
    if actual.value >= enough:
        return ok(sentence)
    need = f"RDMA needs unlimited, or at least {size(enough)}"
    grave, comparison = _compare_with_peers(actual, usual, least, need, size)
    conclude = fail if grave else warn
    return conclude(f"{sentence}; {comparison}", advice=MEMLOCK_ADVICE, bytes=actual.value)


def _compare_with_peers(
    actual: JobLimit,
    usual: Majority[float] | None,
    least: float,
    need: str,
    words: Callable[[float], str],
) -> tuple[bool, str]:
    """Whether a limit is a fault, and what it is compared with: that of its peers, or `need`."""
    peers = usual if usual is not None and usual.decides and usual.value > actual.value else None
    grave = actual.value < least and (actual.sure or peers is not None)
    return grave, need if peers is None else majority_text(peers, words(peers.value))


def size(limit_bytes: float) -> str:
    """64 KiB, 8 MiB, 32.0 GiB, any amount."""
    if limit_bytes == float("inf"):
        return "any amount"
    mib = limit_bytes / (1 << 20)
    return memory(mib) if mib >= 1 else f"{limit_bytes / 1024:.0f} KiB"


def test_host_memlock(node: Node, conclude: Conclude) -> None:
    """RDMA registers memory by locking it: with a small limit no queue pair can be made."""
    usual, transport = node.group.majority(memlock_limit), node.reach.transport
    conclude(judge_memlock(node.expected, node.facts, transport, usual, limit=node.limit))


NOFILE_ADVICE = (
    "set LimitNOFILE=1048576 for the service that starts jobs and nofile in "
    "/etc/security/limits.d; then see ulimit -n inside a job"
)


def judge_nofile(
    facts: Facts, transport: str, usual: Majority[float] | None = None, *, limit: Thresholds
) -> Verdict:
    """Below the minimum, fail if the job surely has this limit or its peers have more."""
    actual = job_limit("nofile", facts, transport)
    if actual is None:
        return unknown("the limit of open files could not be read", advice="mount /proc")
    sentence = f"{count_files(actual.value)} may be open: the limit {actual.whose}"
    enough = limit("nofile_enough")
    if actual.value >= enough or (not actual.sure and actual.most >= enough):
        more = "" if actual.value >= enough else f"; it may raise it to {actual.most:.0f}"
        return ok(sentence + more)
    need = f"a training job wants at least {count_files(enough)}"
    grave, comparison = _compare_with_peers(actual, usual, limit("nofile_least"), need, count_files)
    conclude = fail if grave else warn
    return conclude(f"{sentence}; {comparison}", advice=NOFILE_ADVICE, files=actual.value)


def count_files(files: float) -> str:
    """1024 files, any number of files."""
    return "any number of files" if files == float("inf") else f"{files:.0f} files"


def test_host_nofile(node: Node, conclude: Conclude) -> None:
    """Every peer, channel and loader costs open files: a job at its limit dies when it grows."""
    usual = node.group.majority(nofile_limit)
    conclude(judge_nofile(node.facts, node.reach.transport, usual, limit=node.limit))


CPUS = "ask for more CPUs (--cpus-per-task, --exclusive; resources.limits.cpu in Kubernetes)"
MEMORY = "ask for more memory (--mem=0 takes all of a node; resources.limits.memory)"
PIDS = "raise it: TasksMax= of the service, podPidsLimit of the kubelet, --pids-limit"


def judge_cgroup(
    facts: Facts, expected_gpus: int | None, transport: str, limit: Thresholds
) -> Verdict:
    """Judge the CPUs, memory and processes granted; too few CPUs fail only inside the job."""
    machine = facts.machine
    if machine is None or machine.cgroup is None or machine.load is None or machine.stack is None:
        sentence = "the limits of its control group could not be read"
        return unknown(sentence, advice="mount /proc and /sys/fs/cgroup there")
    sure = transport in JOB_TRANSPORTS
    owner = "the job" if sure else "our login (the job's group may differ)"
    online = machine.stack.cpus_online
    usable = float(machine.load.cpus_allowed)
    usable = min(usable, machine.cgroup.cpus) if machine.cgroup.cpus is not None else usable
    gpus = expected_gpus or len(facts.gpus or ())
    if online and usable < online and usable < gpus * limit("cpus_per_gpu"):
        grant = f"{usable:g} of {online} CPUs for {count(gpus, 'GPU')}, granted to {owner}"
        least = f"at least {limit('cpus_per_gpu'):g} per GPU expected"
        conclude = fail if sure and usable < gpus else warn
        return conclude(f"{grant}; {least}", advice=CPUS, cpus=usable)
    quota, total = machine.cgroup.memory_mib, machine.memory.total_mib if machine.memory else 0
    if quota is not None and quota < total * limit("cgroup_memory_percent") / 100:
        grant = f"{memory(quota)} of {memory(total)} of memory granted to {owner}"
        least = f"at least {limit('cgroup_memory_percent'):g} % expected"
        return warn(f"{grant}; {least}", advice=MEMORY, memory_mib=quota)
    pids = machine.cgroup.pids
    if pids is not None and pids < limit("pids_least"):
        grant = f"{pids} processes and threads granted to {owner}"
        return warn(f"{grant}; at least {limit('pids_least'):.0f} expected", advice=PIDS, pids=pids)
    room = f"{usable:g} of {online} CPUs" if online and usable < online else "all CPUs"
    room += f", {memory(quota)} of memory" if quota is not None and quota < total else ""
    return ok(f"{room} granted to {owner}")


def test_host_cgroup(node: Node, conclude: Conclude) -> None:
    """A control group smaller than the machine starves the ranks: one CPU for eight GPUs crawls."""
    conclude(judge_cgroup(node.facts, node.expected.gpus, node.reach.transport, node.limit))


ENLARGE_SHM = (
    "give the container more: --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with "
    "medium: Memory at /dev/shm"
)
REMOUNT_SHM = "mount -o remount,rw /dev/shm, and correct /etc/fstab or the container's mount of it"
CLEAR_SHM = (
    "look at ls -l /dev/shm, end the processes that hold it, and remove what dead jobs left there"
)


def judge_shm(facts: Facts, limit: Thresholds) -> Verdict:
    """First its size, which a container sets, then the part that is still free."""
    shm = file_system_of(facts, SHM)
    if shm is None or shm.size_mib is None or shm.free_mib is None:
        why = f": {shm.error or shm.state}" if shm is not None else ""
        return unknown(f"{SHM} could not be read{why}", advice="see df /dev/shm there")
    space = f"{memory(shm.free_mib)} of {memory(shm.size_mib)} of {SHM} are free"
    mib = {"size": shm.size_mib, "free": shm.free_mib}
    if shm.kind != "tmpfs":
        # A folder of the root disk: it works, and every message between ranks is written to disk.
        sentence = f"{SHM} is no memory but a folder on {shm.kind} at {shm.mount}"
        advice = "mount -t tmpfs tmpfs /dev/shm, and put it into /etc/fstab"
        return warn(sentence, advice=advice, mib=mib)
    least, enough = limit("shm_least_mib"), limit("shm_enough_mib")
    if shm.size_mib <= least:
        return fail(f"{space}; {memory(enough)} are needed", advice=ENLARGE_SHM, mib=mib)
    if shm.refused or shm.free_mib <= least:
        why = f"; {shm.refused[0]}" if shm.refused else f"; {memory(enough)} are needed"
        is_locked = shm.read_only and shm.refused
        advice, cause = (REMOUNT_SHM, "") if is_locked else (CLEAR_SHM, SHM_FULL)
        return fail(space + why, advice=advice, cause=cause, mib=mib)
    if shm.free_mib < enough:
        advice = ENLARGE_SHM if shm.size_mib < enough else CLEAR_SHM
        return warn(f"{space}; {memory(enough)} are advised", advice=advice, mib=mib)
    return ok(space, mib=mib)


def test_host_shm(node: Node, conclude: Conclude) -> None:
    """NCCL and loaders talk through /dev/shm: a container's default of 64 MiB kills them at start."""  # noqa: E501  `preflight list-checks` prints it
    conclude(judge_shm(node.facts, node.limit))
