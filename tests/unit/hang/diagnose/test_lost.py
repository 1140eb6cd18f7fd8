"""A rank that cannot come any more is named before anything is made of the others' stacks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from preflight.facts.job import Frame, Launcher, NodeLook
from preflight.facts.machine import KernelLog, LogLine
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.job_state import JobState, NodeState
from tests.unit.hang.diagnose.jobs import collective, job, loading, standing, without

WAITING = standing(collective("all_reduce", 41))


def one(rank: int, **fields: Any) -> Any:
    """All ranks wait, and one has the given fields."""
    return lambda r: {**WAITING, **fields} if r == rank else WAITING


@pytest.mark.parametrize("world", [2, 4, 8, 32])
def test_a_stopped_rank(world: int) -> None:
    """Its stack is that of the others; its state is not."""
    answer = diagnose(job(world, one(1, state="stopped")))
    assert (answer.category, answer.culprits) == ("stopped_rank", ("rank 1",))
    assert "kill -CONT 1001" in answer.advice


def test_a_rank_in_a_tracer() -> None:
    """No signal lets it go: its tracer must."""
    answer = diagnose(job(4, one(1, state="traced")))
    assert answer.category == "stopped_rank"
    assert "tracer" in answer.sentence


@pytest.mark.parametrize("world", [2, 8, 32])
def test_a_zombie(world: int) -> None:
    """It is dead and nobody has collected it."""
    answer = diagnose(job(world, one(1, state="zombie", stacks=None, later=None)))
    assert (answer.category, answer.culprits) == ("dead_rank", ("rank 1",))
    others = "1 rank waits" if world == 2 else f"{world - 1} ranks wait"
    assert f"while {others} in all_reduce (train.py:41)" in answer.sentence


def test_a_rank_that_ended_during_the_look() -> None:
    """Its pid may be another process's now: nothing is said of that."""
    answer = diagnose(job(8, one(1, state="gone", stacks=None, later=None)))
    assert (answer.category, answer.culprits) == ("dead_rank", ("rank 1",))
    assert "is gone" in answer.sentence
    assert "zombie" not in answer.sentence + " ".join(answer.evidence)


@pytest.mark.parametrize("world", [2, 8, 32])
def test_a_rank_that_its_node_lacks(world: int) -> None:
    """Its neighbours are there, and count it."""
    answer = diagnose(job(world, one(world - 2, state="absent")))
    assert (answer.category, answer.culprits) == ("dead_rank", (f"rank {world - 2}",))
    assert "is gone" in answer.sentence


def test_of_ranks_without_a_launcher_those_not_looked_for_are_not_gone() -> None:
    """`--pid` of one of two ranks that a shell started examines that rank alone."""
    alone = replace(job(2, one(1, state="absent")), narrowed=True)
    answer = diagnose(alone)
    assert (answer.category, answer.culprits) == ("unknown", ())
    launchers = (Launcher(pid=7, kind="torchrun", job="j", children=(1000,)),)
    (node,) = alone.nodes
    assert node.look is not None
    look = replace(node.look, launchers=launchers)
    whole = replace(alone, nodes=(replace(node, look=look),))
    assert diagnose(whole).category == "dead_rank"


def test_another_users_process_does_not_stand_for_a_rank() -> None:
    """Who copies a rank's variables, and stops himself, is no stopped rank of the job."""
    state = job(2, lambda _: WAITING, uid=1000)
    (node,) = state.nodes
    assert node.look is not None
    poser = replace(node.look.ranks[1], pid=9, uid=1001, restarts=9, state="stopped")
    for ranks in ((poser, *node.look.ranks), (*node.look.ranks, poser)):
        look = replace(node.look, ranks=ranks)
        answer = diagnose(replace(state, nodes=(replace(node, look=look),)))
        assert (answer.category, answer.culprits) == (diagnose(state).category, ())


def test_what_a_dead_rank_has_left_behind_does_not_stand_for_it() -> None:
    """Its loader's worker has its environment and lives on."""
    state = job(8, one(3, state="zombie", stacks=None, later=None))
    node = state.nodes[0]
    assert node.look is not None
    zombie = node.look.ranks[3]
    for frames in (collective("barrier", 50), [Frame("_worker_loop", "worker.py", 9)]):
        fields = standing(frames, pid=5000, parent=1, age_s=500.0, state="sleeping")
        worker = replace(zombie, **fields)
        for ranks in ((worker, *node.look.ranks), (*node.look.ranks, worker)):
            look = replace(node.look, ranks=ranks)
            answer = diagnose(JobState(nodes=(replace(node, look=look),)))
            assert (answer.category, answer.culprits) == ("dead_rank", ("rank 3",))


def test_a_node_that_has_none_of_its_ranks_any_more() -> None:
    """Its launcher ended both, and the other nodes' ranks wait on."""
    state = job(8, lambda r: {"state": "absent"} if r in (4, 5) else WAITING, per_node=2)
    answer = diagnose(state)
    assert (answer.category, answer.culprits) == ("dead_rank", ("rank 4", "rank 5", "node gpu003"))


def test_ranks_on_nodes_that_were_not_asked_are_not_called_dead() -> None:
    """Only half of the job's nodes were named: half a job is no verdict on the rest."""
    state = job(16, lambda _: WAITING)
    answer = diagnose(JobState(nodes=state.nodes[:1]))
    assert answer.category == "unknown"
    assert answer.culprits == ()
    assert any("ranks 8-15" in each for each in answer.unseen)


KILLED = "Out of memory: Killed process {} ({}) total-vm:9kB, shmem-rss:0kB, UID:{} pgtables:9kB"


def _log(*texts: str, at_s: float = 1e9 - 60) -> dict[str, Any]:
    lines = tuple(LogLine(text=text, last_s=at_s) for text in texts)
    return {"gpu001": {"log": KernelLog(source="kmsg", seen=9, begins_s=0.0, lines=lines)}}


def test_a_rank_that_the_kernel_killed_for_memory() -> None:
    """The kernel's log names a python of that time, and of the job's user."""
    text = KILLED.format(1004, "python3", 1000)
    gone = one(4, state="absent")
    answer = diagnose(job(8, gone, uid=1000, nodes=_log(text)))
    assert (answer.category, answer.culprits) == ("out_of_memory", ("rank 4", "node gpu001"))
    answer = diagnose(job(8, gone, uid=1000, nodes=_log(text, at_s=1e9 - 6000)))
    assert answer.category == "dead_rank"


@pytest.mark.parametrize("name", ["python3", "a) UID:1000 pgt", "pt_data_worker"])
@pytest.mark.parametrize("kills", [0, 3])
def test_a_killed_process_of_another_user_is_no_rank(name: str, kills: int) -> None:
    """Not even where it shares the ranks' memory cgroup, or the kernel does not write its user."""
    stranger = KILLED.format(777, name, 1001)
    gone = one(4, state="absent")
    answer = diagnose(job(8, gone, uid=1000, oom_kills=kills, nodes=_log(stranger)))
    assert (answer.category, answer.culprits) == ("dead_rank", ("rank 4",))
    old = stranger.partition(", UID")[0]
    assert diagnose(job(8, gone, uid=1000, nodes=_log(old))).category == "dead_rank"
    zombie = one(4, state="zombie", stacks=None, later=None, pid=777)
    assert diagnose(job(8, zombie, uid=1000, nodes=_log(old))).category == "out_of_memory"


def test_a_loader_whose_worker_was_killed_for_memory() -> None:
    """The rank lives and waits for a batch that nobody brings."""
    answer = diagnose(
        job(
            8,
            lambda r: standing(loading(88), oom_kills=1) if r == 3 else {**WAITING, "oom_kills": 1},
        )
    )
    assert (answer.category, answer.culprits) == ("out_of_memory", ("rank 3", "node gpu001"))


def test_a_node_that_is_silent() -> None:
    """The ranks that nobody shows must be there."""
    answer = diagnose(without(job(32, lambda _: WAITING), "gpu003"))
    assert (answer.category, answer.culprits) == ("node_unreachable", ("node gpu003",))
    assert "ranks 16-23 must be there while 24 ranks wait in all_reduce" in answer.sentence
    refused = diagnose(without(job(32, lambda _: WAITING), "gpu003", "Permission denied"))
    assert refused.confidence < 0.5
    unexplained = diagnose(without(job(32, lambda _: WAITING), "gpu003", ""))
    assert "1 node does not answer: gpu003 (no answer)" in unexplained.sentence


def test_where_no_node_answers_none_is_named() -> None:
    """What several nodes have in common is who asks: a busy machine, a login of its own."""
    late = "it had not ended after 28 s"
    state = JobState(nodes=tuple(NodeState(node=f"gpu00{n}", sentence=late) for n in range(4)))
    answer = diagnose(state)
    assert (answer.category, answer.culprits, answer.confidence) == ("unknown", (), 0.0)
    assert "none of 4 nodes answers" in answer.sentence
    assert late in answer.sentence
    alone = diagnose(replace(state, nodes=state.nodes[:1]))
    assert (alone.category, alone.culprits) == ("node_unreachable", ("node gpu000",))


def test_a_silent_node_beside_the_job_is_only_mentioned() -> None:
    """All ranks are seen: what does not answer is none of theirs."""
    state = without(job(16, lambda r: standing(loading(88)) if r == 3 else WAITING), "nobody")
    state = JobState(nodes=(*state.nodes, NodeState(node="spare", sentence="timed out")))
    answer = diagnose(state)
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 3",))
    assert any("spare" in each for each in answer.unseen)


def test_a_node_that_is_only_slow_is_not_called_unreachable() -> None:
    """It was logged in to and answered too late: perhaps the job's own load; far from sure."""
    state = job(32, one(3))
    slow = NodeState(node="gpu003", sentence="no answer in 20 s", late=True)
    late = replace(state, nodes=tuple(slow if n.node == "gpu003" else n for n in state.nodes))
    answer = diagnose(late)
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert answer.sentence.startswith("1 node does not answer: gpu003 (no answer in 20 s); ranks")
    assert answer.confidence < 0.4 < diagnose(without(state, "gpu003")).confidence
    assert answer.alternatives[0].sentence == "the node is slow"
    both = diagnose(without(late, "gpu002"))
    assert both.culprits == ("node gpu002",)


def test_where_the_only_node_is_slow_none_is_named() -> None:
    """`--pid` on an overloaded machine: it was reached, and no more is known."""
    slow = NodeState(node="here", sentence="no answer in 20 s", late=True)
    answer = diagnose(JobState(nodes=(slow,)))
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert (
        answer.sentence
        == "here was reached, but its answer did not come in time: no answer in 20 s"
    )


def test_a_job_that_ends_during_the_look_is_over() -> None:
    """All stood somewhere at the first look and are gone at the second: no rank is odd."""
    frames = collective("all_reduce", 41)
    answer = diagnose(job(4, lambda _: standing(frames, state="gone")))
    assert (answer.category, answer.culprits, answer.next) == (
        "no_job",
        (),
        "preflight explain LOG",
    )
    assert answer.sentence == "the job ended during the look: 4 ranks are gone"


def test_anothers_job_is_not_called_unstarted() -> None:
    """Its ranks are there and may not be read: ask as its user."""
    look = NodeLook(
        wire=1, nonce="n", host="a", time_s=2e9, boot_s=1e9, hidden=3,
        launchers=(Launcher(pid=7),),
    )  # fmt: skip
    answer = diagnose(JobState(nodes=(NodeState(node="a", look=look),)))
    assert answer.category == "unknown"
    assert "3 processes of other users cannot be read" in answer.sentence
    assert answer.advice == "run this as the job's user or as root"


def test_a_launcher_whose_ranks_are_gone_may_have_lost_them() -> None:
    """It ends seconds or minutes after a rank of its died: the log shows why, a start does not."""
    look = NodeLook(
        wire=1, nonce="n", host="a", time_s=2e9, boot_s=1e9, launchers=(Launcher(pid=7),)
    )
    answer = diagnose(JobState(nodes=(NodeState(node="a", look=look),)))
    assert (answer.category, answer.next) == ("unknown", "preflight explain LOG")
    assert answer.advice.startswith("if it has run, read its log")
    assert "on every node, with the same endpoint on all" in answer.advice


def test_ranks_that_cannot_be_read_say_why() -> None:
    """Looking longer would not help, so it is not advised."""
    why = "it belongs to alice: run preflight diagnose as root"
    answer = diagnose(job(4, lambda _: {"no_stacks": why}))
    assert answer.sentence == f"none of 4 ranks shows where it is: {why}"
    assert answer.next == "sudo preflight diagnose"


def test_a_job_is_also_chosen_by_its_master() -> None:
    """Jobs with a master on the loopback are named after their node; a user types the address."""

    def where(place: int) -> dict[str, Any]:
        port, rank = 29501 + place // 2, place % 2
        names = {"job": f"vm:{port}", "master": f"127.0.0.1:{port}"}
        size = {"world_size": 2, "local_world_size": 2}
        return {**WAITING, **names, **size, "rank": rank, "local_rank": rank}

    state = job(4, where)
    for name in ("127.0.0.1:29502", "vm:29502"):
        assert diagnose(replace(state, job=name)).category == "unknown", name
    answer = diagnose(replace(state, job="127.0.0.1:29999"))
    assert answer.category == "no_job"
    assert "2 jobs run on these nodes: vm:29501, vm:29502" in answer.sentence
    assert answer.advice.startswith("choose one of these: --job=NAME; or ")
    assert "choose one" in diagnose(state).advice


def test_this_machine_without_an_answer_is_checked_without_its_name() -> None:
    """By its name it would be checked over SSH, which may not even run here."""
    silent = NodeState(node="vm", sentence="python3: not found")
    for here, command in (
        (True, "preflight check -k reach"),
        (False, "preflight check --nodes=vm -k reach"),
    ):
        assert diagnose(JobState(nodes=(silent,), here=here)).next == command
