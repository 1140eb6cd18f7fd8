"""All wait in one place: retransmissions, ports and idle GPUs show what does not get through."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from preflight.facts.job import Connection, GpuLook, PortLook
from preflight.hang.diagnose.diagnosis import diagnose
from tests.unit.hang.diagnose.jobs import collective, job, standing

WAITING = collective("all_reduce", 41)


def ring(world: int, per_node: int, cut: Any) -> Any:
    """Each rank sends to the next; `cut` says of two node numbers whether nothing gets through."""

    def where(rank: int) -> dict[str, Any]:
        ends = []
        for mine, other, port in (
            (rank, (rank + 1) % world, rank),
            (rank, (rank - 1) % world, (rank - 1) % world),
        ):
            here, there = mine // per_node, other // per_node
            sends = port == rank
            local = f"[::ffff:10.0.0.{here + 1}]:{4000 + port if sends else 5000 + port}"
            peer = f"[::ffff:10.0.0.{there + 1}]:{5000 + port if sends else 4000 + port}"
            stuck: dict[str, Any] = (
                {"unacked": 1448, "retries": 5} if sends and cut(here, there) else {}
            )
            ends.append(Connection(local=local, peer=peer, **stuck))
        store = Connection(local="10.0.0.9:6000", peer="10.0.0.1:29500", received=4000)
        return standing(WAITING, connections=(*ends, store))

    return where


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_path_between_two_nodes(per_node: int) -> None:
    """Only between the second and the third node something is sent again."""
    answer = diagnose(
        job(
            4 * per_node,
            ring(4 * per_node, per_node, lambda a, b: {a, b} == {1, 2}),
            per_node=per_node,
        )
    )
    assert (answer.category, answer.culprits) == ("link", ("path gpu002-gpu003",))
    assert "nothing gets through between gpu002 and gpu003" in answer.sentence
    assert answer.confidence >= 0.85


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_node_that_reaches_nobody(per_node: int) -> None:
    """Both of its neighbours are cut off from it."""
    answer = diagnose(
        job(
            4 * per_node,
            ring(4 * per_node, per_node, lambda a, b: (a == 2) != (b == 2)),
            per_node=per_node,
        )
    )
    assert (answer.category, answer.culprits) == ("link", ("node gpu003",))


def test_many_paths_are_no_list_of_culprits() -> None:
    """A switch or a setting that all share."""
    answer = diagnose(job(8, ring(8, 1, lambda a, b: a != b), per_node=1))
    assert (answer.category, answer.culprits) == ("link", ())
    assert "a switch" in answer.sentence


def test_bytes_that_come_in_are_progress() -> None:
    """All were met twice in the same line, and data of other ranks came in meanwhile."""
    quiet = ring(4, 1, lambda _a, _b: False)

    def where(rank: int) -> dict[str, Any]:
        fields = quiet(rank)
        ends = [
            Connection(local=c.local, peer=c.peer, received=65536) for c in fields["connections"]
        ]
        return {**fields, "connections": tuple(ends)}

    assert diagnose(job(4, where, per_node=1)).category == "progresses"
    blind = {"stacks": None, "later": None}
    answer = diagnose(job(4, lambda rank: {**where(rank), **blind}, per_node=1))
    assert answer.category == "progresses"
    assert answer.confidence < 0.5
    assert diagnose(job(4, quiet, per_node=1)).category == "unknown"


def test_keep_alive_messages_of_nccl_are_no_progress() -> None:
    """What ranks of a real hang over NCCL 2.28.9 sent each other in 3 s: RAS, once a second."""
    quiet = ring(4, 1, lambda _a, _b: False)

    def where(rank: int, **traffic: Any) -> dict[str, Any]:
        fields = quiet(rank)
        first, second, store = fields["connections"]
        ends = [Connection(local=c.local, peer=c.peer, **traffic) for c in (first, second)]
        beat = Connection(local=store.local, peer=store.peer, sent=96, received=3)
        return {**fields, "ras": "localhost:28028", "connections": (*ends, beat)}

    alive = job(4, lambda rank: where(rank, sent=180, received=180), per_node=1)
    assert diagnose(alive).category == "unknown"
    data = job(4, lambda rank: where(rank, sent=180, received=1800), per_node=1)
    assert diagnose(data).category == "progresses"


def test_answers_of_ras_are_no_progress() -> None:
    """Seen while RAS was asked about a hanging job: ranks sent each other 552 bytes in 3 s."""
    quiet = ring(4, 1, lambda _a, _b: False)

    def where(rank: int, *, served: bool) -> dict[str, Any]:
        fields = quiet(rank)
        ends = [replace(end, sent=552, received=464, served=served and ":5" in end.local[-5:])
                for end in fields["connections"][:2]]  # fmt: skip
        return {**fields, "ras": "localhost:28028", "connections": tuple(ends)}

    asked = job(4, lambda rank: where(rank, served=True), per_node=1)
    assert diagnose(asked).category == "unknown"
    data = job(4, lambda rank: where(rank, served=False), per_node=1)
    assert diagnose(data).category == "progresses"


def port(name: str, **more: Any) -> PortLook:
    """A port that is up."""
    return PortLook(**{"name": name, "up": True, **more})


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (port("mlx5_0/1", up=False), "is down"),
        (port("mlx5_0/1", errors={"symbol_error": 7}), "counts errors (symbol_error +7)"),
    ],
)
def test_a_port_that_is_unlike_the_other_nodes(odd: PortLook, words: str) -> None:
    """RDMA leaves no trace in the kernel's connections; its counters do."""
    ports = {f"gpu{n:03}": {"ports": (port("mlx5_0/1"),)} for n in (1, 2, 4)}
    answer = diagnose(
        job(32, lambda _: standing(WAITING), nodes={**ports, "gpu003": {"ports": (odd,)}})
    )
    assert (answer.category, answer.culprits) == ("link", ("node gpu003", "port mlx5_0/1"))
    assert words in answer.sentence


def test_counters_that_move_anywhere_blame_no_port() -> None:
    """Drops and pauses are daily life."""
    odd = {"gpu001": {"ports": (port("eth0", errors={"rx_dropped": 3, "rx_prio3_pause": 9}),)}}
    assert diagnose(job(16, lambda _: standing(WAITING), nodes=odd)).culprits == ()


def test_one_gpu_at_rest_while_31_spin() -> None:
    """The cable that nobody found for three days."""

    def gpus(node: int) -> dict[str, Any]:
        return {
            "gpus": tuple(
                GpuLook(
                    index=i,
                    uuid=f"GPU-{node}-{i}",
                    busy_percent=0 if (node, i) == (3, 1) else 100,
                    pids=(1000 + (node - 1) * 8 + i,),
                )
                for i in range(8)
            )
        }

    answer = diagnose(
        job(32, lambda _: standing(WAITING), nodes={f"gpu{n:03}": gpus(n) for n in (1, 2, 3, 4)})
    )
    assert (answer.category, answer.culprits) == ("link", ("rank 17", "gpu 1"))
    assert "GPU 1 of gpu003 (rank 17) is at 0 % while 31 GPUs are at 100 %" in answer.sentence
    assert answer.confidence < 0.7


def test_most_gpus_at_rest_are_not_the_odd_ones() -> None:
    """Six of eight are idle: the two busy ones differ as much, and no link is blamed."""
    gpus = tuple(
        GpuLook(index=i, uuid=f"GPU-1-{i}", busy_percent=0 if i < 6 else 100, pids=(1000 + i,))
        for i in range(8)
    )
    answer = diagnose(job(8, lambda _: standing(WAITING), nodes={"gpu001": {"gpus": gpus}}))
    assert "GPU" not in answer.sentence
    assert not [who for who in answer.culprits if who.startswith("gpu")]
