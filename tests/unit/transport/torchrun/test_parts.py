"""The parts of the torchrun way that need no other process: notes, names, refusals, seats."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.core.remote_command import ReachError
from preflight.errors import UsageError, WireError
from preflight.fabric.agent_events import Event, PairAccount, Ready, Rest, Store, Trouble
from preflight.fabric.agent_events import decode_event as decode
from preflight.fabric.agents import RankAgents
from preflight.facts.burn import Alive, Done
from preflight.session.ranks import refuse_conflicting_options
from preflight.transport.job_store import (
    CHUNK,
    Ended,
    Feed,
    FromRank,
    Here,
    Leaving,
    Output,
    Present,
    ToRank,
    decode_note,
    read_place,
)
from preflight.transport.torchrun_ranks import JobRanks, missing
from tests.unit.transport.torchrun.conftest import NONCE, place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.transport.job_store import Reply

ENVIRON = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "j",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}

_IDS = st.integers(0, 2**31)
_DATA = st.binary(max_size=300)
_REPLIES = (
    st.builds(Output, _IDS, _DATA, _DATA)
    | st.builds(Ended, _IDS, st.none() | st.integers(-64, 255))
    | st.builds(Here, _IDS)
    | st.builds(Leaving, st.text(max_size=100))
)


@given(_REPLIES, _IDS)
def test_a_note_comes_out_as_it_went_in(reply: Reply, number: int) -> None:
    """Whatever bytes a payload writes travel whole, bound to rank, number and run."""
    words = FromRank(NONCE, 3, number, reply)
    assert decode_note(msgspec.json.encode(words), FromRank, NONCE) == words


@pytest.mark.parametrize("kind", [FromRank, ToRank, Present])
@given(note=st.binary(max_size=200))
def test_a_strange_note_is_a_sentence(kind: Any, note: bytes) -> None:
    """Nothing that lies in the store can raise anything but WireError."""
    with pytest.raises(WireError):
        decode_note(note, kind, NONCE)


def test_notes_of_another_run_or_without_bounds_are_refused() -> None:
    """A replayed note, and one with more bytes than a chunk, are none of this run."""
    with pytest.raises(WireError, match="another run"):
        decode_note(msgspec.json.encode(ToRank("other", Feed(1))), ToRank, NONCE)
    with pytest.raises(WireError):
        decode_note(msgspec.json.encode(ToRank(NONCE, Feed(1, b"x" * (CHUNK + 1)))), ToRank, NONCE)


def test_a_rank_knows_its_place() -> None:
    """Torchrun's variables give a rank its place; wrong ones are refused."""
    here = read_place(ENVIRON)
    assert (here.rank, here.index_on_node, here.group_rank, here.prefix) == (
        5,
        1,
        2,
        "preflight/j/0",
    )
    for wrong in ({"RANK": "x"}, {"RANK": "8"}, {"LOCAL_WORLD_SIZE": "0"}):
        with pytest.raises(UsageError):
            read_place({**ENVIRON, **wrong})


def present(rank: int, hostname: str, **changes: object) -> Present:
    """A rank of two per node, as it announces itself."""
    fields: dict[str, object] = {
        "nonce": NONCE,
        "version": "1",
        "rank": rank,
        "local_rank": rank % 2,
        "group": rank // 2,
        "per_node": 2,
        "hostname": hostname,
        "address": f"10.0.0.{rank // 2}",
        "pid": 100 + rank,
        "python": "/job/python",
        "environ": {"CUDA_VISIBLE_DEVICES": str(rank % 2), "MASTER_PORT": "29500"},
    }
    return msgspec.convert({**fields, **changes}, Present)


def crew(*ranks: Present, world: int = 4) -> JobRanks:
    """The ranks of a job of which these answered."""
    whole = place(0, 29500, world=world, per_node=2)
    return JobRanks.from_answers(whole, {one.rank: one for one in ranks})


def test_a_rank_that_never_answered_is_named_by_its_siblings() -> None:
    """The host is known from another rank of the node; else the group's number has to do."""
    some = crew(present(0, "h1"), present(1, "h1"), present(2, "h2.site"))
    assert missing(some) == "rank 3 (h2.site, local rank 1)"
    none = crew(present(0, "h1"), present(1, "h1"))
    assert "rank 2 (node of group rank 1, local rank 0)" in missing(none)
    assert [node.label for node in none.ranked().nodes] == ["h1", "group-1"]


@pytest.mark.parametrize(
    ("hosts", "labels"),
    [
        (("a.x", "b.x"), ["a", "b"]),
        (("a.x", "a.y"), ["a.x", "a.y"]),
        (("a", "a"), ["a-0", "a-1"]),
        (("a", "-rm -rf"), ["a", "group-1"]),
        (("7.x", "10.0.0.8"), ["7.x", "10.0.0.8"]),
    ],
)
def test_nodes_have_names_of_their_own(hosts: tuple[str, str], labels: list[str]) -> None:
    """Short where that is enough, numbered where two agents share a host, never an option."""
    ranks = [present(rank, hosts[rank // 2]) for rank in range(4)]
    assert [node.label for node in crew(*ranks).ranked().nodes] == labels


def test_an_address_that_is_none_is_not_used() -> None:
    """It stands in sentences and commands: a rank that says another thing is called by its name."""
    ranks = [present(rank, f"h{rank // 2}", address="$(reboot)\x1b[31m") for rank in range(4)]
    assert [node.address for node in crew(*ranks).ranked().nodes] == ["h0", "h1"]


def test_the_devices_of_a_node_are_those_of_all_its_ranks() -> None:
    """Where each rank is given a GPU of its own, the node has them all."""
    ranked = crew(*(present(rank, f"h{rank // 2}") for rank in range(4))).ranked()
    environ = ranked.environs(ranked.hosts(None))
    assert environ["h1"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environ[""] == {"MASTER_PORT": "29500"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["-n2"],
        ["-x"],
        ["--maxfail=3"],
        ["--lf"],
        ["--ff"],
        ["--sw"],
        ["--preflight-nodes=a"],
        ["--preflight-transport=local"],
        ["--preflight-python=x"],
        ["--preflight-env-file=x"],
        ["--preflight-launch=x"],
        ["--preflight-replay=x"],
    ],
)
def test_what_torchrun_decides_is_not_for_options(
    pytester: pytest.Pytester, options: list[str]
) -> None:
    """Each option that cannot be meant is refused with a sentence that names it."""
    config = pytester.parseconfig("--preflight", *options)
    with pytest.raises(UsageError, match=options[0][:2]) as refused:
        refuse_conflicting_options(config, read_place(ENVIRON))
    assert "torchrun" in str(refused.value)


def test_what_goes_together_and_what_needs_a_store(pytester: pytest.Pytester) -> None:
    """An inventory is allowed; if torchrun hosts no store, the message says what to unset."""
    config = pytester.parseconfig("--preflight", "--preflight-inventory=x", "-n0")
    refuse_conflicting_options(config, read_place(ENVIRON))
    without = {**ENVIRON, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    with pytest.raises(UsageError, match="unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        refuse_conflicting_options(config, read_place(without))


class Scripted:
    """A rank's conversation that a test writes."""

    def __init__(self) -> None:
        self.says: queue.SimpleQueue[Event | ReachError] = queue.SimpleQueue()
        self.sent: list[Mapping[str, object]] = []
        self.closed = False

    def receive(self, within_s: float) -> bytes | None:
        """What the test lets it say next."""
        try:
            event = self.says.get(timeout=min(within_s, 0.05))
        except queue.Empty:
            return None
        if isinstance(event, ReachError):
            raise event
        return msgspec.json.encode(event)

    def send(self, message: Mapping[str, object]) -> None:
        """Keep it."""
        if "renew" not in message:
            self.sent.append(message)

    def close(self) -> None:
        """Note it."""
        self.closed = True


def next_event(agents: RankAgents) -> Event:
    """The node's next event."""
    document = agents.receive(10)
    assert document is not None
    return decode(document)


def test_the_ranks_of_a_node_speak_as_one() -> None:
    """Ready with all; the store from the first; then the order to the others; rest, done: all."""
    first, second = Scripted(), Scripted()
    agents = RankAgents([first, second])
    first.says.put(Ready("2.9", cuda=True, gpus=1))
    assert agents.receive(0.2) is None
    second.says.put(Ready("2.9", cuda=True, gpus=1))
    assert next_event(agents) == Ready("2.9", cuda=True, gpus=2, rails=2)
    agents.send({"go": {"store": None, "address": "h1"}})
    assert second.sent == []
    first.says.put(Store(4711))
    assert next_event(agents) == Store(4711)
    assert second.sent == [{"go": {"store": ["h1", 4711], "address": "h1"}}]
    second.says.put(Alive())
    seen = PairAccount(
        round=0, rail=1, a="a", b="b", backend="gloo", state="measured", error="",
        started_s=0.0, setup_ms=0.0, timings=(),
    )  # fmt: skip
    second.says.put(seen)
    assert next_event(agents) == seen
    first.says.put(Rest())
    assert agents.receive(0.2) is None
    second.says.put(Rest())
    assert next_event(agents) == Rest()
    agents.send({"more": {"turns": [None]}})
    assert first.sent[-1] == second.sent[-1] == {"more": {"turns": [None]}}
    second.says.put(Rest())
    first.says.put(Done())
    assert next_event(agents) == Rest()
    second.says.put(Done())
    assert next_event(agents) == Done()
    agents.send({"finish": True})
    assert {"finish": True} in first.sent
    assert {"finish": True} in second.sent
    agents.close()
    assert first.closed
    assert second.closed


def test_a_rank_that_breaks_off_costs_its_own_rail() -> None:
    """Before the start the node cannot begin; after it the other rails are measured."""
    early = [Scripted(), Scripted()]
    agents = RankAgents(early)
    early[1].says.put(ReachError("answer", "rank 1 (h1, local rank 1) stopped answering", "look"))
    with pytest.raises(ReachError, match="local rank 1"):
        agents.receive(10)
    late = [Scripted(), Scripted()]
    agents = RankAgents(late)
    for each in late:
        each.says.put(Ready("2.9", cuda=False, gpus=0))
    next_event(agents)
    late[0].says.put(ReachError("answer", "it was killed by a signal", "look"))
    assert next_event(agents) == Trouble("local rank 0: it was killed by a signal")
    late[1].says.put(Alive())
    assert next_event(agents) == Alive()
    late[1].says.put(Rest())
    assert next_event(agents) == Rest()
    late[1].says.put(Done())
    assert next_event(agents) == Done()
