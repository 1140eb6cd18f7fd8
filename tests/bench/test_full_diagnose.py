"""What the long runs over hanging jobs count as right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.full_diagnose import TURNS, Line, cases, table
from tests.lab.hangs.job import SCRIPT
from tests.lab.hangs.situations import Expected, numbers, situations

AT = f"{SCRIPT}:{min(numbers('average'))} in average"


def answer(category: str = "odd_rank", line: str = AT, *culprits: str) -> dict[str, Any]:
    """What diagnose says, as far as it is held against what was done."""
    return {"category": category, "culprits": list(culprits), "line": line}


RANK = Expected(
    categories=("odd_rank", "desync"),
    culprits=frozenset({"rank 5"}),
    besides=frozenset({"node h3"}),
    lines=("average",),
)


@pytest.mark.parametrize(
    ("said", "off"),
    [
        (answer("odd_rank", AT, "rank 5"), ""),
        (answer("desync", AT, "rank 5", "node h3"), ""),
        (answer("odd_rank", AT, "rank 5", "rank 4"), "healthy ones are named: rank 4"),
        (answer("link", AT, "rank 5"), "link in place of odd_rank or desync"),
        (answer("unknown", AT), "unknown in place of odd_rank or desync"),
        (answer("odd_rank", AT, "node h3"), "not named: rank 5"),
        (answer("odd_rank", AT.replace("train.py:", "train.py:1"), "rank 5"), "is none of average"),
    ],
)
def test_right_is_who_and_where_and_nobody_else(said: dict[str, Any], off: str) -> None:
    """Another rank, another line or another kind of trouble is not right."""
    told = RANK.off(said)
    assert off in told
    assert bool(off) == bool(told)


def test_where_one_of_several_will_do_somebody_must_be_named() -> None:
    """Of a node whose ranks are all gone either may be named, but not nobody."""
    either = Expected(categories=("dead_rank",), besides=frozenset({"rank 4", "node h3"}))
    assert not either.off(answer("dead_rank", "", "node h3"))
    assert either.off(answer("dead_rank", "")) == "nobody is named"


def test_every_line_that_must_be_told_is_in_the_script() -> None:
    """By its mark, so that nobody counts lines."""
    names = {name for one in situations(5, (1, 4, 6)) for name in one.expected.lines}
    assert names > {"dataloader", "checkpoint", "evaluation"}
    assert all(numbers(name) for name in names)


def test_other_ranks_go_astray_in_each_turn() -> None:
    """None on the first host, which has the job's store; the same draw each time."""
    drawn = [dict(cases(turn))[f"dataloader:{turn}"].ranks[0] for turn in range(TURNS)]
    assert len(set(drawn)) >= 4
    assert min(drawn) >= 2
    assert cases(3) == cases(3)


def test_shares_stand_by_situation() -> None:
    """What was right, who was named wrongly, and where nobody was."""
    words: dict[str, Any] = {"ranks": (5,), "seconds": 5, "load": 0, "said": "", "code": "c0de"}
    found = [
        Line(case="slow:0", what="slow", off="", wrong=(), category="straggler", **words),
        Line(case="slow:1", what="slow", off="no", wrong=("rank 1",), category="link", **words),
        Line(case="cut:0", what="cut", off="no", wrong=(), category="unknown", **words),
    ]
    text = table(found)
    assert "1 of 2 (1.3% to 98.7%)" in text
    assert text.splitlines()[-1].startswith("all ")
