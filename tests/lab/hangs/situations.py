"""What a job can hang in, and what a diagnosis has to say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tests.lab.hangs import ways
from tests.lab.hangs.job import PER_HOST, SCRIPT, host_name

if TYPE_CHECKING:
    from tests.lab.hangs.ways import Way


class Expected(Struct, frozen=True, kw_only=True):
    """What is right of an answer."""

    categories: tuple[str, ...]
    culprits: frozenset[str] = frozenset()
    """All of them must be named."""
    besides: frozenset[str] = frozenset()
    """May be named too; where nothing must be named, one of these has to be."""
    lines: tuple[str, ...] = ()
    """Names of lines of train.py, one of which must be told; none: any line, or no line."""

    def off(self, answer: dict[str, Any]) -> str:
        """Say what is not right; empty where all is."""
        named = frozenset(answer["culprits"])
        if healthy := self.healthy(answer):
            return f"healthy ones are named: {', '.join(healthy)}"
        if answer["category"] not in self.categories:
            return f"{answer['category']} in place of {' or '.join(self.categories)}"
        if missing := self.culprits - named:
            return f"not named: {', '.join(sorted(missing))}"
        if self.besides and not named:
            return "nobody is named"
        if self.lines and not any(stands_at(answer["line"], name) for name in self.lines):
            return f"the line {answer['line']!r} is none of {', '.join(self.lines)}"
        return ""

    def healthy(self, answer: dict[str, Any]) -> list[str]:
        """Who is named and has nothing to do with it."""
        return sorted(frozenset(answer["culprits"]) - self.culprits - self.besides)


class Situation(Struct, frozen=True, kw_only=True):
    """One way of hanging."""

    name: str
    way: Any
    """A `Way`."""
    ranks: tuple[int, ...]
    """Who goes astray, or stands for the host that does."""
    expected: Expected
    moves: bool = False
    """Nothing stands still: two looks should be some steps apart."""
    final: bool = False
    """The job does not go on after it."""
    fresh: bool = False
    """Not of a job that a final one has ended."""
    seldom: bool = False
    """Left to the long runs: a launch more, or another of its kind is tried in every test run."""


def situations(one: int, three: tuple[int, ...]) -> list[Situation]:
    """Every situation of a job, the final ones last: rank `one` goes astray, `three` are slow.

    `one` is neither 0 nor 1: the store of the job is on their host.
    """
    return [
        *_astray(one),
        *_of_rank_zero(),
        *_mixed_up(one),
        *_wires(one),
        _slow(three),
        *_ends(one),
    ]


def _astray(one: int) -> list[Situation]:
    rank, node = _names(one)
    of_rank: dict[str, Any] = {"culprits": rank, "besides": node}
    odd: dict[str, Any] = {"categories": ("odd_rank",), **of_rank}
    return [
        _situation("healthy", ways.healthy, (), categories=("progresses",), moves=True),
        _situation("dataloader", ways.dataloader, (one,), lines=("dataloader", "sample"), **odd),
        _situation("prepare", ways.prepare, (one,), lines=("prepare",), **odd),
        _situation("stopped", ways.stopped, (one,), categories=("stopped_rank",), **of_rank),
    ]


def _of_rank_zero() -> list[Situation]:
    rank, node = _names(0)
    odd: dict[str, Any] = {"categories": ("odd_rank",), "culprits": rank, "besides": node}
    return [
        _situation("checkpoint", ways.checkpoint, (0,), lines=("checkpoint",), **odd),
        _situation("evaluation", ways.evaluation, (0,), lines=("evaluation", "layer"), **odd),
    ]


def _mixed_up(one: int) -> list[Situation]:
    rank, node = _names(one)
    of_rank: dict[str, Any] = {"culprits": rank, "besides": node}
    either: dict[str, Any] = {"categories": ("desync", "odd_rank"), **of_rank}
    desync: dict[str, Any] = {"categories": ("desync",), **of_rank}
    return [
        _situation("collectives", ways.desync, (one,), lines=("broadcast",), **desync),
        _situation("shapes", ways.shapes, (one,), lines=("average",), **desync),
        _situation("barrier skipped", ways.skipped, (one,), lines=("average",), **either),
        _situation("data exhausted", ways.exhausted, (one,), lines=("end",), **either),
    ]


def _wires(one: int) -> list[Situation]:
    _, node = _names(one)
    twins = frozenset({f"rank {one}", f"rank {one ^ 1}"})
    before = one - PER_HOST
    path = frozenset({f"path {host_name(before)}-{host_name(one)}"})
    of_node: dict[str, Any] = {"culprits": node, "besides": twins}
    gone: dict[str, Any] = {"categories": ("node_unreachable",), **of_node}
    return [
        _situation("path cut", ways.path, (before, one), categories=("link",), culprits=path),
        _situation(
            "host cut off", ways.fabric, (one,), categories=("link",), seldom=True, **of_node
        ),
        _situation("unreachable", ways.unreachable, (one,), **gone),
    ]


def _slow(three: tuple[int, ...]) -> Situation:
    names = [_names(one) for one in three]
    ranks = frozenset().union(*(rank for rank, _ in names))
    nodes = frozenset().union(*(node for _, node in names))
    some: dict[str, Any] = {"culprits": ranks, "besides": nodes}
    return _situation("three slow", ways.slow, three, categories=("straggler",), moves=True, **some)


def _ends(one: int) -> list[Situation]:
    rank, node = _names(one)
    both = frozenset({*rank, f"rank {one ^ 1}", *node})
    dead: dict[str, Any] = {"categories": ("dead_rank",), "final": True}
    memory: dict[str, Any] = {"categories": ("out_of_memory",), "final": True}
    return [
        _situation("zombie", ways.zombie, (one,), culprits=rank, besides=node, **dead),
        _situation("killed", ways.killed, (one,), besides=both, **dead),
        _situation("out of memory", ways.out_of_memory, (one,), besides=both, **memory),
        _situation(
            "orphans",
            ways.orphaned,
            (one,),
            culprits=rank,
            besides=node,
            fresh=True,
            seldom=True,
            **dead,
        ),
    ]


def _situation(
    name: str,
    way: Way,
    ranks: tuple[int, ...],
    *,
    moves: bool = False,
    final: bool = False,
    fresh: bool = False,
    seldom: bool = False,
    **words: Any,
) -> Situation:
    return Situation(
        name=name,
        way=way,
        ranks=ranks,
        expected=Expected(**words),
        moves=moves,
        final=final,
        fresh=fresh,
        seldom=seldom,
    )


def _names(rank: int) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset({f"rank {rank}"}), frozenset({f"node {host_name(rank)}"})


def numbers(name: str) -> set[int]:
    """The lines of train.py that bear a name."""
    lines = enumerate(SCRIPT.read_text().splitlines(), 1)
    found = {number for number, text in lines if text.endswith(f"# HERE: {name}")}
    assert found, f"no line of {SCRIPT} ends in # HERE: {name}"
    return found


def stands_at(told: str, name: str) -> bool:
    """Whether a diagnosis' line ("/a/train.py:88 in evaluate") is one of that name."""
    return any(f"{told} ".startswith(f"{SCRIPT}:{number} ") for number in numbers(name))
