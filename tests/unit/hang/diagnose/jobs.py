"""Jobs of any size whose ranks stand where a test wants them, with stacks as py-spy shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from preflight.facts.job import Frame, NodeLook, RankLook, Stacks, Thread
from preflight.hang.diagnose.job_state import JobState, NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIB = "/opt/py/lib/python3.11/site-packages/"
C10D = LIB + "torch/distributed/distributed_c10d.py"
LOGGER = LIB + "torch/distributed/c10d_logger.py"
LOADER = LIB + "torch/utils/data/dataloader.py"
TRAIN = "/home/u/train.py"
ROOT = [Frame("<module>", TRAIN, 120)]
LOOK_S = 3.0

Ranks = dict[int, dict[str, Any]]


def at(line: int, function: str = "train", file: str = TRAIN) -> list[Frame]:
    """A line of the user's, called from his script's end."""
    return [Frame(function, file, line), *ROOT]


def collective(op: str, line: int, function: str = "train") -> list[Frame]:
    """Inside of one of torch's functions."""
    inner = [Frame(op, C10D, 3252), Frame("_exception_logger.<locals>.wrapper", LOGGER, 83)]
    return [*inner, *at(line, function)]


def loading(line: int, function: str = "train") -> list[Frame]:
    """In the DataLoader, where its workers bring nothing."""
    return [
        Frame("_PollLikeSelector.select", "/opt/py/lib/python3.11/selectors.py", 415),
        Frame("Queue.get", "/opt/py/lib/python3.11/multiprocessing/queues.py", 113),
        Frame("_MultiProcessingDataLoaderIter._try_get_data", LOADER, 1291),
        Frame("_MultiProcessingDataLoaderIter._next_data", LOADER, 1505),
        Frame("_BaseDataLoaderIter.__next__", LOADER, 725),
        *at(line, function),
    ]


def stacks(frames: Iterable[Frame]) -> Stacks:
    """A main thread, and one of the kind that is always there."""
    main = Thread(frames=tuple(frames), main=True, name="MainThread")
    return Stacks(threads=(main, Thread(frames=(Frame("_bootstrap", "threading.py", 1002),))))


def standing(frames: list[Frame], later: list[Frame] | None = None, **more: Any) -> dict[str, Any]:
    """Fields of a rank that was seen there, twice."""
    return {"stacks": stacks(frames), "later": stacks(later or frames), **more}


def job(
    world: int,
    where: Callable[[int], dict[str, Any]],
    *,
    per_node: int = 8,
    nodes: dict[str, dict[str, Any]] | None = None,
    **of_each: Any,
) -> JobState:
    """A whole job: `where` gives each rank's fields, `nodes` further fields of a node's look."""
    per_node = min(per_node, world)
    states = []
    for number in range((world + per_node - 1) // per_node):
        name = f"gpu{number + 1:03}"
        ranks = []
        for local in range(per_node):
            rank = number * per_node + local
            fields = where(rank)
            if fields.get("state") == "absent":
                continue
            base = RankLook(
                pid=1000 + rank, job="j", rank=rank, local_rank=local, world_size=world,
                local_world_size=per_node, state="sleeping", look_s=LOOK_S, master="gpu001:29500",
                age_s=600.0, **of_each,
            )  # fmt: skip
            ranks.append(replace(base, **fields))
        look = NodeLook(
            wire=1, nonce="n", host=name, time_s=2e9, boot_s=1e9, ranks=tuple(ranks),
            **(nodes or {}).get(name, {}),
        )  # fmt: skip
        states.append(NodeState(node=name, look=look))
    return JobState(nodes=tuple(states))


def without(state: JobState, node: str, sentence: str = "no route to host") -> JobState:
    """The same, with one node that does not answer."""
    silent = NodeState(node=node, sentence=sentence)
    return replace(state, nodes=tuple(silent if n.node == node else n for n in state.nodes))


def changed(state: JobState, change: Callable[[RankLook], RankLook]) -> JobState:
    """The same, with each rank's look changed."""
    nodes = []
    for node in state.nodes:
        look = node.look
        if look is not None:
            look = replace(look, ranks=tuple(change(one) for one in look.ranks))
        nodes.append(replace(node, look=look))
    return replace(state, nodes=tuple(nodes))
