"""What the plugin costs those who do not use it: pytest in somebody else's project."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.outside import PYTEST, Cost, cost
from tests.bench.ratio import Bound, Row, extremes, in_turns, interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BOUND = Bound("at most", 10)
_RUNS = 50


def measure() -> Iterator[Row]:
    """A project of one trivial test, with the plugin installed, and with it blocked."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        (folder / "test_one.py").write_text("def test_one():\n    assert True\n")

        def run(*words: str) -> Cost:
            return cost([*PYTEST, "-q", *words], folder, exits=0)

        in_turns(1, run, lambda: run("-p", "no:preflight"))  # writes what is compiled once
        ours, theirs = in_turns(_RUNS, run, lambda: run("-p", "no:preflight"))
    what = "pytest in an unrelated project: plugin installed, unused - plugin blocked"
    yield _row(
        "plugin.unused",
        what,
        [one.seconds for one in ours],
        [one.seconds for one in theirs],
        bound=_BOUND,
    )
    yield _row(
        "plugin.unused.cpu",
        "the same in processor time",
        [one.cpu_s for one in ours],
        [one.cpu_s for one in theirs],
    )


def _row(
    key: str, what: str, ours: Sequence[float], theirs: Sequence[float], bound: Bound | None = None
) -> Row:
    more_ms = [(mine - other) * 1000 for mine, other in zip(ours, theirs, strict=True)]
    return Row(
        id=key,
        what=what,
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=interval(more_ms),
        value_unit="ms more",
        runs=_RUNS,
        bound=bound,
        note="value: median of the differences, turn by turn, and its 95 % interval",
    )
