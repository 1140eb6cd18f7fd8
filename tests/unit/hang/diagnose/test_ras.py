"""NCCL's RAS service is asked once for the whole job, and names the rank without any stack."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.facts.job import GpuLook, NodeLook, RasLook
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.job_state import JobState, NodeState
from preflight.hang.look import look_here
from tests.lab.hangs.ras_jobs import draw
from tests.lab.hangs.ras_mesh import Comm, Job, Peer, RasMesh, report
from tests.lab.hangs.ras_score import asked, score
from tests.unit.hang.diagnose.jobs import at, changed, collective, job, standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORLD = 4


@pytest.fixture
def launch() -> Iterator[Callable[[str], list[int]]]:
    """Start the ranks of a job whose RAS service has this address, and end them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> list[int]:
        for rank in range(WORLD):
            seat = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "a", "MASTER_PORT": "7",
                    "NCCL_RAS_ADDR": address}  # fmt: skip
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            started.append(subprocess.Popen(command, env={**os.environ, **seat}))
        return [one.pid for one in started]

    yield start
    for one in started:
        one.kill()
        one.wait()


def behind(pids: list[int], rank: int, version: str) -> Job:
    """A job in which one rank has launched 41 of 42 collectives."""
    counts = {n: {"AllReduce": 41 if n == rank else 42} for n in range(len(pids))}
    peers = [Peer("10.0.0.1", pid, n) for n, pid in enumerate(pids)]
    return Job(peers, [Comm(0xABC, list(range(len(pids))), counts)], version)


@pytest.mark.slow
def test_ras_names_the_rank_behind(launch: Callable[[str], list[int]]) -> None:
    """The service is asked exactly once, and only its own commands are sent."""
    with RasMesh(Job([], [])) as mesh:
        pids = launch(mesh.address)
        mesh.job = behind(pids, 2, "2.30.7")
        answer = diagnose(look_here(pids, look_s=0.2))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 2",)), json.dumps(
        answer.unseen
    )
    assert mesh.questions == 1
    assert "RAS: communicator 0xabc 0x1:0x2: rank 2 launched 41 AllReduce" in " ".join(
        answer.evidence
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.24.3", "2.27.3", "2.28.9"])
def test_a_version_that_may_crash_is_not_asked(
    version: str, launch: Callable[[str], list[int]]
) -> None:
    """The reason and the option that asks all the same are in the answer; then it is asked."""
    with RasMesh(Job([], [])) as mesh:
        pids = launch(mesh.address)
        mesh.job = behind(pids, 1, version)
        refused = diagnose(look_here(pids, look_s=0.2))
        assert mesh.questions == 0
        assert any("1762" in one and "--ras=always" in one for one in refused.unseen)
        answer = diagnose(look_here(pids, look_s=0.2, ras="always"))
        assert mesh.questions == 1
    assert answer.culprits == ("rank 1",)


SEEDS = range(6000, 6040)
"""Others than those with which the judge was tuned, and those of the one measurement."""


@pytest.mark.slow
def test_drawn_hangs_are_named_with_and_without_stacks() -> None:
    """Of forty simulated jobs nearly all are exact, and no healthy rank is named in any."""
    scores = [score(draw(seed, sizes=(8, 16, 32, 64))) for seed in SEEDS]
    assert not [one.drawn.seed for one in scores if one.innocent]
    assert [one.drawn.seed for one in scores if not one.exact][1:] == []


@pytest.mark.parametrize("seed", [20404, 20469, 30253])
def test_a_rank_that_skipped_or_swapped_a_call_is_named_where_all_ranks_wait(seed: int) -> None:
    """It waits itself, in another call, so that it is behind without having stopped."""
    assert score(draw(seed)).exact


@pytest.mark.parametrize("seed", [20832, 20980, 50074, 61305])
def test_no_healthy_rank_is_blamed_with_the_one_at_fault(seed: int) -> None:
    """All of a communicator are behind, or ahead, because of one rank that may not be listed."""
    assert not score(draw(seed)).innocent


def test_a_rank_whose_stack_is_not_seen_lacks_calls_and_made_no_others() -> None:
    """Only its counts are known, and its GPU works: it may have stopped."""
    busy = GpuLook(index=0, uuid="GPU-0", busy_percent=100)
    fields = {"no_stacks": "x", "wait_channel": "futex_do_wait", "gpus": ("GPU-0",)}
    state = job(4, lambda rank: {**fields, "pid": 100 + rank}, nodes={"gpu001": {"gpus": (busy,)}})
    ras = packed(report(behind(list(range(100, 104)), 2, "2.30.7"), is_json=True))
    answer = diagnose(replace(state, ras=ras))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 2",))
    assert "has launched fewer collectives" in answer.sentence
    assert "that line" not in answer.advice


def test_the_ranks_that_wait_are_not_counted_where_the_report_does_not_name_them() -> None:
    """The text form lists few: most of a job was called "the 0 ranks that wait for them"."""
    found = score(draw(20224))
    assert "than those that wait for them" in found.sentence


def hidden(ras: RasLook | None) -> JobState:
    """A node whose ranks belong to another user."""
    look = NodeLook(wire=1, nonce="n", host="gpu001", time_s=2e9, boot_s=1e9, hidden=8)
    return JobState(nodes=(NodeState(node="gpu001", look=look),), ras=ras)


def packed(text: str, *, is_json: bool = True) -> RasLook:
    """A report as a node sends it."""
    content = base64.b64encode(zlib.compress(text.encode())).decode()
    return RasLook(wire=1, nonce="n", host="h", time_s=1, boot_s=1, json=is_json, content=content)


def test_the_ranks_of_another_user_are_named_by_ras() -> None:
    """No process may be read: the report alone has the rank and the address of its node."""
    text = report(behind(list(range(100, 108)), 5, "2.30.7"), is_json=True)
    answer = diagnose(hidden(packed(text)))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 5",))
    assert "rank 5 (10.0.0.1)" in answer.sentence
    assert answer.confidence < 0.7
    assert diagnose(hidden(None)).category == "no_job"


def test_the_report_of_another_job_is_not_used() -> None:
    """Jobs of one user share the port on a node: neither world nor processes fit."""
    state = job(4, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    text = report(behind(list(range(100, 108)), 5, "2.30.7"), is_json=True)
    answer = diagnose(replace(state, ras=packed(text)))
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert (
        "RAS did not answer: another job on this node shares its port (NCCL_RAS_ADDR sets one)"
        in answer.unseen
    )


def test_a_report_of_a_job_of_the_same_size_is_not_used() -> None:
    """Seen with four jobs of four ranks on one node: NCCL lets all of them bind port 28028."""
    mine = job(4, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    other = changed(mine, lambda one: replace(one, pid=one.pid - 900, job="other", master="a:7"))
    both = [replace(a.look, ranks=(*a.look.ranks, *b.look.ranks))
            for a, b in zip(mine.nodes, other.nodes, strict=True) if a.look and b.look]  # fmt: skip
    nodes = tuple(NodeState(node=one.host, look=one) for one in both)
    ras = packed(report(behind(list(range(100, 104)), 1, "2.30.7"), is_json=True))
    state = JobState(nodes=nodes, job="j", ras=ras)
    answer = diagnose(state)
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert (
        "RAS did not answer: another job on this node shares its port (NCCL_RAS_ADDR sets one)"
        in answer.unseen
    )
    assert diagnose(replace(state, job="other")).culprits == ("rank 1",)


def test_ranks_in_a_container_are_known_by_their_own_pids() -> None:
    """NCCL reports the pid that the rank itself sees."""
    fields = {"no_stacks": "x", "wait_channel": "futex_do_wait"}
    ras = packed(report(behind(list(range(7, 11)), 3, "2.30.7"), is_json=True))
    contained = job(
        4, lambda rank: {**fields, "inner_pid": 7 + rank}, nodes={"gpu001": {"hidden": 4}}
    )
    assert diagnose(replace(contained, ras=ras)).culprits == ("rank 3",)
    elsewhere = job(
        4, lambda rank: {**fields, "inner_pid": 70 + rank}, nodes={"gpu001": {"hidden": 4}}
    )
    assert diagnose(replace(elsewhere, ras=ras)).culprits == ()


def test_of_two_jobs_of_other_users_none_is_named() -> None:
    """Whose report it is cannot be known; the only job's is used."""
    ras = packed(report(behind(list(range(100, 108)), 5, "2.30.7"), is_json=True))
    state = hidden(ras)
    assert diagnose(state).culprits == ("rank 5",)
    (node,) = state.nodes
    assert node.look is not None
    two = replace(state, nodes=(replace(node, look=replace(node.look, hidden=16)),))
    answer = diagnose(two)
    assert (answer.category, answer.culprits) == ("no_job", ())
    assert any("may be of another job" in one for one in answer.unseen)


def test_a_job_of_another_user_without_a_launcher_is_named_by_ras() -> None:
    """JAX needs no launcher: only the port of its RAS service shows that a job runs."""
    ras = packed(report(behind(list(range(100, 108)), 5, "2.30.7"), is_json=True))
    (node,) = hidden(None).nodes
    assert node.look is not None
    look = replace(node.look, hidden=0, ras="localhost:28028")
    state = JobState(nodes=(replace(node, look=look),), ras=ras)
    assert diagnose(state).culprits == ("rank 5",)
    refused = replace(ras, content="", why="RAS was not asked: it is too old")
    answer = diagnose(replace(state, ras=refused))
    assert (answer.category, answer.confidence) == ("no_job", 0.4)
    assert "another user's job has its RAS service on gpu001" in answer.sentence
    assert answer.unseen == ("RAS was not asked: it is too old",)
    assert diagnose(replace(state, job="a:7")).culprits == ()


@pytest.mark.parametrize("content", ["#", "\xe9", "AAAA", "eJ"])
def test_a_report_that_no_node_packed_is_a_sentence(content: str) -> None:
    """A node may answer anything, also text that is not even base64."""
    state = job(4, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    answer = diagnose(replace(state, ras=replace(packed(""), content=content)))
    (why,) = [one for one in answer.unseen if one.startswith("RAS")]
    assert "damaged on the way" in why


def test_a_text_whose_heading_does_not_fit_its_lines_is_read() -> None:
    """A line about a state under a heading about counts: such a text ended `preflight diagnose`."""
    text = report(behind(list(range(100, 104)), 2, "2.30.7"), is_json=False)
    stated = text.replace("has launched up to operation 41", "has status ABORT")
    assert stated != text
    assert diagnose(hidden(packed(stated, is_json=False))).unseen


def test_a_communicator_whose_kernel_hangs_is_named() -> None:
    """Its ranks launched the same, wait for no other rank, and the others wait for all of them."""
    drawn = draw(20083, faults=("kernel",))
    assert score(drawn).named == drawn.culprits


def test_a_kernel_that_hangs_is_named_though_others_wait_in_a_send_or_receive() -> None:
    """Also these are behind and wait for no rank by the counts, but their stacks show the wait."""
    drawn = draw(900743, sizes=(8,), faults=("kernel",))
    found = score(drawn)
    assert found.named == drawn.culprits == {2, 3}
    assert "do not come out of it" in found.sentence


def test_the_ranks_among_which_the_cause_is_are_listed_where_no_stack_is_read() -> None:
    """Two pipeline stages are behind, and nothing shows which of them waits for the other."""
    answer = diagnose(asked(draw(900786, sizes=(16,), faults=("kernel",))))
    assert answer.sentence.startswith("one of ranks 8-11 (gpu002) keeps the others waiting")
    assert answer.culprits == ()


def test_who_may_wait_for_a_rank_that_waits_itself_is_no_cause() -> None:
    """Rank 0 is in a send or receive with rank 2, which waits for rank 3; no GPU is read."""
    stages = {n: ([n, n + 4], {n: {"AllReduce": 1}, n + 4: {"AllReduce": 2}}) for n in range(4)}
    tensor = {8: ([0, 1], {0: {"AllReduce": 5}, 1: {"AllReduce": 5}}),
              9: ([2, 3], {2: {"AllReduce": 6}, 3: {"AllReduce": 5}})}  # fmt: skip
    none: dict[str, int] = {}
    pipes = {10 + n: ([n, n + 2], {n: none, n + 2: none}) for n in range(2)}
    comms = [Comm(name, *fields) for name, fields in {**stages, **tensor, **pipes}.items()]
    peers = [Peer("10.0.0.1", 1000 + n, n) for n in range(8)]
    state = job(8, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    answer = diagnose(replace(state, ras=packed(report(Job(peers, comms), is_json=True))))
    assert answer.culprits == ("rank 3",)


def test_of_two_halves_that_do_not_reach_each_other_neither_is_named_for_sure() -> None:
    """The rank that was asked may be on either side, and the processes of both sides live."""
    peers = [Peer("10.0.0.1", 1000 + n, n, "dead" if n > 3 else "yes") for n in range(8)]
    comm = Comm(1, list(range(8)), {n: {"AllReduce": 1} for n in range(8)})
    ras = packed(report(Job(peers, [comm]), is_json=True))
    state = job(8, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    answer = diagnose(replace(state, ras=ras))
    assert answer.confidence < 0.5
    assert "or the other half" in answer.sentence
    ended = job(8, lambda rank: {"state": "absent"} if rank > 3 else {"no_stacks": "x"})
    assert diagnose(replace(ended, ras=ras)).confidence > 0.5


@pytest.mark.parametrize("blind", [True, False])
def test_a_cut_between_the_only_two_nodes_names_their_path(blind: bool) -> None:  # noqa: FBT001
    """The answer comes from one of them, and shows nothing of the side on which the cut is."""
    peers = [Peer(f"10.0.0.{1 + n // 8}", 1000 + n, n % 8, "late" if n > 7 else "yes")
             for n in range(16)]  # fmt: skip
    comm = Comm(1, list(range(16)), {n: {"AllReduce": 1} for n in range(16)})
    waits = standing(collective("all_reduce", 41))
    state = job(16, lambda _: {"no_stacks": "x"} if blind else waits)
    answer = diagnose(replace(state, ras=packed(report(Job(peers, [comm]), is_json=True))))
    assert answer.culprits == ("path gpu001-gpu002",)
    assert answer.confidence == 0.7


@pytest.mark.parametrize("version", ["2.24.3", "2.27.7", "2.30.7"])
def test_a_collective_that_all_have_launched_does_not_end(version: str) -> None:
    """No rank is late. A busy GPU alone is not enough: a slow step looks the same."""
    counts = {n: {"AllReduce": 7} for n in range(8)}
    peers = [Peer("10.0.0.1", 1000 + n, n) for n in range(8)]
    ras = Job(peers, [Comm(1, list(range(8)), counts)], version)
    ras_look = packed(report(ras, is_json=ras.number >= (2, 28)), is_json=ras.number >= (2, 28))
    gpus = tuple(GpuLook(index=n, uuid=f"GPU-{n}", busy_percent=100) for n in range(8))
    nodes = {"gpu001": {"gpus": gpus}}
    stacks = standing(collective("all_reduce", 41))
    seen = diagnose(replace(job(8, lambda n: {**stacks, "gpus": (f"GPU-{n}",)}, nodes=nodes),
                            ras=ras_look))  # fmt: skip
    assert (seen.category, seen.culprits, seen.confidence) == ("link", (), 0.55)
    blind = diagnose(replace(job(8, lambda n: {"no_stacks": "x", "gpus": (f"GPU-{n}",)},
                                 nodes=nodes), ras=ras_look))  # fmt: skip
    assert (blind.category, blind.culprits, blind.confidence) == ("link", (), 0.45)
    unseen = diagnose(replace(job(8, lambda _: {"no_stacks": "x"}), ras=ras_look))
    assert unseen.category == "unknown"


@pytest.mark.parametrize("seed", [771253, 771314])
def test_equal_ranks_behind_a_rank_that_skipped_a_call_are_not_named(seed: int) -> None:
    """They are no communicator: one of its ranks launched more."""
    assert score(draw(seed, sizes=(8, 16), faults=("skip",))).innocent == frozenset()


def test_counts_are_stronger_than_a_line_of_its_own() -> None:
    """Rank 3 stands in another line than the others, but rank 0 has launched less."""
    counts = {n: {"AllReduce": 6 if n == 0 else 7} for n in range(8)}
    peers = [Peer("10.0.0.1", 1000 + n, n) for n in range(8)]
    ras = packed(report(Job(peers, [Comm(1, list(range(8)), counts)]), is_json=True))
    state = job(8, lambda rank: standing(collective("all_reduce", 42 if rank == 3 else 41)))
    assert diagnose(state).culprits == ("rank 3",)
    assert diagnose(replace(state, ras=ras)).culprits == ("rank 0",)


def test_the_only_rank_behind_is_named_though_the_text_lists_few() -> None:
    """No other rank is behind, so that it waits for none in a send or receive."""
    drawn = draw(31081, faults=("skip",))
    assert score(drawn).named == drawn.culprits


def test_one_of_two_ranks_that_are_behind_is_named_with_doubt() -> None:
    """The other one may wait for it in a send or receive, or be at fault, too."""
    answer = diagnose(asked(draw(120080, faults=("two",))))
    assert answer.culprits == ("rank 1002",)
    assert answer.confidence < 0.8


def test_a_job_that_moves_is_not_blamed_by_its_counts() -> None:
    """RAS counts once, and ranks of a healthy job differ by a few operations, too."""
    state = job(8, lambda rank: standing(collective("all_reduce", 41), at(40 + rank)))
    text = report(behind(list(range(1000, 1008)), 5, "2.30.7"), is_json=True)
    assert diagnose(state).category == diagnose(replace(state, ras=packed(text))).category
    assert diagnose(replace(state, ras=packed(text))).category == "progresses"


def test_two_ranks_in_the_wrong_order_name_nobody() -> None:
    """Each waits for the other in a group of two: which of them is wrong, no count shows."""
    pair = {0: {"AllReduce": 7}, 1: {"AllReduce": 8}}
    other = {0: {"AllReduce": 4}, 1: {"AllReduce": 3}}
    peers = [Peer("10.0.0.1", 1000 + n, n) for n in range(8)]
    every = {n: {"AllReduce": 1} for n in range(8)}
    comms = [Comm(1, [0, 1], pair), Comm(2, [0, 1], other), Comm(3, list(range(8)), every)]
    state = job(8, lambda _: {"no_stacks": "x", "wait_channel": "futex_do_wait"})
    answer = diagnose(replace(state, ras=packed(report(Job(peers, comms), is_json=True))))
    assert answer.culprits == ()


def test_counts_that_differ_are_shown_where_they_name_nobody() -> None:
    """As on a real GPU: rank 1 left out one call of a group of two, and all kernels spin."""
    groups = {1: ([0, 1], (9, 8)), 2: ([2, 3], (9, 9)), 3: (list(range(4)), (3, 3, 3, 3))}
    comms = [
        Comm(name, places, {n: {"AllReduce": made} for n, made in enumerate(counts)})
        for name, (places, counts) in groups.items()
    ]
    peers = [Peer("127.0.0.1", 1000 + n, 0) for n in range(4)]
    gpu = GpuLook(index=0, uuid="GPU-1", busy_percent=100)
    waits = standing(collective("barrier", 77), gpus=("GPU-1",))
    state = job(4, lambda _: waits, nodes={"gpu001": {"gpus": (gpu,)}})
    ras = packed(report(Job(peers, comms, "2.28.9"), is_json=True))
    answer = diagnose(replace(state, ras=ras))
    assert answer.culprits == ()
    assert "rank 1 launched 8 AllReduce; rank 0 launched 9 AllReduce" in " ".join(answer.evidence)
