"""A control group smaller than the machine starves the ranks: one CPU for eight GPUs crawls."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.job_limits import IN_THE_JOB
from preflight.facts.limits import limit
from preflight.facts.words import count, memory
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check("host.cgroup", stage="facts", tier="prolog", requires=("reach.answer",))

CPUS = "ask for more CPUs (--cpus-per-task, --exclusive; resources.limits.cpu in Kubernetes)"
MEMORY = "ask for more memory (--mem=0 takes all of a node; resources.limits.memory)"
PIDS = "raise it: TasksMax= of the service, podPidsLimit of the kubelet, --pids-limit"


def judge(facts: Facts, promised_gpus: int | None, transport: str) -> Verdict:
    """What is granted of CPUs, memory and processes; in the job itself too few CPUs fail."""
    machine = facts.machine
    if machine is None or machine.cgroup is None or machine.load is None or machine.stack is None:
        return unknown(
            "what its control group grants could not be read",
            advice="mount /proc and /sys/fs/cgroup there",
        )
    sure = transport in IN_THE_JOB
    whose = "the job" if sure else "our login (the job's group may differ)"
    online = machine.stack.cpus_online
    usable = float(machine.load.cpus_allowed)
    usable = min(usable, machine.cgroup.cpus) if machine.cgroup.cpus is not None else usable
    gpus = promised_gpus or len(facts.gpus or ())
    if online and usable < online and usable < gpus * limit("cpus_per_gpu"):
        said = f"{usable:g} of {online} CPUs for {count(gpus, 'GPU')}, granted to {whose}"
        wanted = f"at least {limit('cpus_per_gpu'):g} per GPU expected"
        conclude = fail if sure and usable < gpus else warn
        return conclude(f"{said}; {wanted}", advice=CPUS, cpus=usable)
    granted, total = machine.cgroup.memory_mib, machine.memory.total_mib if machine.memory else 0
    if granted is not None and granted < total * limit("cgroup_memory_percent") / 100:
        said = f"{memory(granted)} of {memory(total)} of memory granted to {whose}"
        wanted = f"at least {limit('cgroup_memory_percent'):g} % expected"
        return warn(f"{said}; {wanted}", advice=MEMORY, memory_mib=granted)
    pids = machine.cgroup.pids
    if pids is not None and pids < limit("pids_least"):
        said = f"{pids} processes and threads granted to {whose}"
        return warn(f"{said}; at least {limit('pids_least'):.0f} expected", advice=PIDS, pids=pids)
    room = f"{usable:g} of {online} CPUs" if online and usable < online else "all CPUs"
    room += f", {memory(granted)} of memory" if granted is not None and granted < total else ""
    return ok(f"{room} granted to {whose}")


def test_host_cgroup(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.promised.gpus, node.reach.transport))
