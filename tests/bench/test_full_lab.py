"""What the long runs over the lab count, and that they go on where they stopped."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.bench.lab_runs import HEALTHY, RUNS, Line, cases
from tests.bench.lab_shares import rows, table
from tests.bench.resumed import append, lines
from tests.lab.named import Named, named
from tests.lab.planted import Fault

if TYPE_CHECKING:
    from pathlib import Path

H3, PATH = Fault("slow link", ("h3",)), Fault("firewall", ("h1", "h2"))


def line(case: str, *, right: bool = True, code: str = "c0de") -> Line:
    """A run of that case."""
    return Line(
        code=code,
        case=case,
        what=case.partition(":")[0],
        planted=(),
        named=None,
        right=right,
        wrong=(),
        seconds=1,
        load=0,
    )


def test_each_kind_has_its_turns_and_a_seed_draws_the_same_hosts() -> None:
    """Nine faults and health, 20 each; another seed draws others."""
    drawn = cases(0)
    assert set(Counter(one.what for one in drawn).values()) == {RUNS}
    assert len({one.what for one in drawn}) == 10
    assert [one.faults() for one in drawn] == [one.faults() for one in cases(0)]
    assert [one.faults() for one in drawn] != [one.faults() for one in cases(1)]
    assert len({one.faults()[0].nodes for one in drawn if one.faults()}) > 8


@pytest.mark.parametrize(
    ("said", "right", "wrong"),
    [
        (Named(1, components=("pair h1-h2", "h3")), True, ()),
        (Named(1, components=("h3",)), False, ()),
        (Named(1, components=("h3", "pair h1-h2", "h5")), False, ("h5",)),
        (Named(1, components=("h3", "h1")), False, ("h1",)),
        (Named(1, components=("h3", "pair h1-h2"), open=("h4 or h5",)), False, ()),
        (Named(0), False, ()),
        (Named(1, lost=1, components=("h3", "pair h1-h2")), False, ()),
    ],
)
def test_right_is_exactly_the_culprits_at_their_levels(
    said: Named,
    right: bool,  # noqa: FBT001  a column of the table above
    wrong: tuple[str, ...],
) -> None:
    """A node in place of a path is wrong, and a set among which it lies is not right."""
    assert said.right([H3, PATH]) is right
    assert said.wrong([H3, PATH]) == wrong


def test_health_is_right_when_nobody_is_named() -> None:
    """And the exit code says ready."""
    assert Named(0).right([])
    assert not Named(1).right([])
    assert Named(1, components=("h3",)).wrong([]) == ("h3",)


def test_a_report_is_read(tmp_path: Path) -> None:
    """Nodes, paths and blames are told apart from what is open."""
    report = {
        "exit": 1,
        "missing": 0,
        "fleet": {"not_ready": ["h3"], "unjudged": ["h7"], "apart": [["h1", "h2"]]},
        "blames": [
            {"kind": "node", "component": "h3", "sentence": "slow"},
            {"kind": "unresolved", "component": "h4 or h5"},
        ],
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert named(tmp_path) == Named(1, components=("h3", "pair h1-h2"), open=("h4 or h5", "h7"))


def test_lines_of_other_code_and_half_a_line_count_not(tmp_path: Path) -> None:
    """After a crash the run that was cut off is made again."""
    results = tmp_path / "lab.jsonl"
    assert list(lines(results, "c0de", Line)) == []
    append(results, line("healthy:0:0"))
    append(results, line("healthy:1:0", code="old"))
    with results.open("ab") as file:
        file.write(b'{"code":"c0de","case":"heal\n')
    append(results, line("healthy:2:0"))
    assert [one.case for one in lines(results, "c0de", Line)] == ["healthy:0:0", "healthy:2:0"]


def test_shares_stand_with_their_intervals() -> None:
    """By kind, and all faults together; health is no fault."""
    found = [line("slow link:0:0"), line("slow link:1:0", right=False), line(f"{HEALTHY}:0:0")]
    text = table(rows(found))
    assert "1 of 2 (1.3% to 98.7%)" in text
    assert [row.right.tries for row in rows(found)] == [2, 1, 2]
