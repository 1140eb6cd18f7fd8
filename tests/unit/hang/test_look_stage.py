"""A fleet is looked at as a whole: what one node does or says costs the others nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.hang.look import LookRequest, look, look_here
from preflight.transport import bundle
from preflight.transport.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.hang.diagnose.job_state import JobState


@pytest.fixture
def rank() -> Iterator[int]:
    """Start a rank and return its pid."""
    seat = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=seat)
    yield process.pid
    process.kill()
    process.wait()


def node(name: str, *python: str) -> Host:
    """Describe this machine as a node with some Python."""
    return Host(name=name, address=name, transport="local", python=python or (sys.executable,))


def seen(hosts: Sequence[Host], *pids: int, deadline_s: float = 20.0) -> JobState:
    """Look at nodes that are this machine."""
    wanted = LookRequest(pids=pids, look_s=0.2)
    return look(hosts, Ways(hosts), "n", wanted=wanted, deadline_s=deadline_s)


def test_a_node_that_cannot_be_asked_costs_the_others_nothing(rank: int) -> None:
    """Every node has its place in the result, in order, and why it is silent in words."""
    state = seen([node("bare", "no-such-python"), node("sound")], rank)
    bare, sound = state.nodes
    assert (bare.node, bare.look) == ("bare", None)
    assert bare.sentence.startswith("no-such-python: not found")
    assert bare.advice.startswith("install Python")
    assert sound.look is not None
    assert [one.pid for one in sound.look.ranks] == [rank]


@pytest.mark.parametrize("reply", ['{"lacks": 1}', '{"lacks":"x","machine":7}', "[]", "{}"])
def test_a_node_that_talks_nonsense_is_refused(reply: str) -> None:
    """Neither a wish nor an answer that fits no schema is taken."""
    talk = f"head -c $4 > /dev/null; read -r request; echo '@preflight n {reply}'"
    liar = node("liar", "sh", "-c", talk, "sh")
    (state,) = seen([liar]).nodes
    assert state.look is None
    assert state.sentence


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$", "echo '@preflight n {}'"])
def test_a_node_that_was_reached_is_not_called_unreachable(end: str) -> None:
    """Whatever kept its answer back: its load, or the deadline that ends it."""
    ended = node("ended", "sh", "-c", f"head -c $4 > /dev/null; read -r request; {end}", "sh")
    (state,) = seen([ended]).nodes
    assert (state.look, state.late) == (None, True)


def test_this_machine_alone_needs_no_fleet(rank: int) -> None:
    """A process is looked at by its pid, with its place in the job."""
    (state,) = look_here([rank], look_s=0.2).nodes
    assert state.look is not None
    (one,) = state.look.ranks
    assert (one.rank, one.job) == (1, "a:7")


@pytest.mark.slow
def test_py_spy_goes_only_where_it_can_run() -> None:
    """A node of another architecture gets the reason why none comes."""
    (message,) = bundle.pyspy_messages("pdp11")
    assert "none" in message
