"""What judging a large fleet costs, without pytest and as pytest items, in time and memory."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.outside import PYTEST, Cost, cost
from tests.bench.ratio import Bound, Row, extremes, in_turns, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NODES, _RUNS = 1000, 3
_BOUND = Bound("at most", 2)
_EMPTY = """\
import pytest

@pytest.mark.parametrize("number", range({number}))
def test_empty(number):
    pass
"""
_PARTS = ("decode_s", "judge_s")
_COUNTED: dict[str, tuple[str, Callable[[Cost], float]]] = {
    "time": ("s", lambda one: one.seconds),
    "processor time": ("s", lambda one: one.cpu_s),
    "peak memory": ("MiB", lambda one: one.peak_mib),
}


def measure() -> Iterator[Row]:
    """A thousand synthetic nodes, all checks of the quick tier and all pairs of its rounds."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        yield from _measured(folder)


def _measured(folder: Path) -> Iterator[Row]:
    python, items, empty = [sys.executable, "-m"], folder / "items", folder / "empty"
    items.mkdir()
    empty.mkdir()
    cost([*python, "tests.bench.synthetic", str(folder), str(_NODES)], folder, exits=0)
    stored, fleet = str(folder / "measured.json"), str(folder / "fleet.toml")
    parts: list[dict[str, float]] = []

    def offline() -> Cost:
        one = cost([*python, "tests.bench.offline", stored, fleet], folder, exits=0)
        parts.append(json.loads((folder / "output.txt").read_text()))
        return one

    offline()
    verdicts = int(parts.pop()["verdicts"])
    (empty / "test_empty.py").write_text(_EMPTY.format(number=verdicts))
    replay = ["--preflight", f"--preflight-replay={stored}", f"--preflight-inventory={fleet}"]
    without, as_items, theirs = in_turns(
        _RUNS,
        offline,
        lambda: cost([*PYTEST, *replay, "--preflight-report=report"], items, exits=1),
        lambda: cost([*PYTEST, "-p", "no:preflight"], empty, exits=0),
    )
    what = f"{verdicts} verdicts on {_NODES} nodes"
    yield from _rows("judging.offline", f"{what}, without pytest", without, theirs)
    decode_s, judge_s = (statistics.median(one[key] for one in parts) for key in _PARTS)
    yield from _rows(
        "judging.items",
        f"{what}, as pytest items",
        as_items,
        theirs,
        bound=_BOUND,
        note=f"of it, without pytest: decoding {decode_s:.2f} s, judging {judge_s:.2f} s",
    )


def _rows(
    key: str,
    what: str,
    ours: Sequence[Cost],
    theirs: Sequence[Cost],
    *,
    bound: Bound | None = None,
    note: str = "",
) -> Iterator[Row]:
    """Time and memory against as many empty parametrized tests; the bound is for the time."""
    for name, (unit, read) in _COUNTED.items():
        mine, other = [read(one) for one in ours], [read(one) for one in theirs]
        yield Row(
            id=f"{key}.{name}",
            what=f"{what} / as many empty tests: {name}",
            ours=extremes(mine),
            theirs=extremes(other),
            unit=unit,
            value=times(mine, other),
            runs=len(mine),
            bound=bound if name == "time" else None,
            note=note if name == "time" else "",
        )
