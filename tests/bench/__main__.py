"""`make bench`: how fast preflight is, as ratios to plain ways of doing the same, in one run.

Prints a table and writes bench-results/bench.json. A promise that was missed is printed as such;
the exit code says only whether it could be measured.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import (
    explaining,
    fabric,
    facts,
    hanging,
    harness,
    infra,
    judging,
    one_node,
    pairs,
    passive,
    prolog,
    ranks,
    sweep_memory,
    unused,
    watching,
    ways,
    writing,
    year,
)
from tests.bench.machine import machine
from tests.bench.report import Result, row_document, table, write
from tests.lab.cluster import Lab, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.bench.ratio import Row

_OF_LAB: dict[str, Callable[[Lab], Iterator[Row]]] = {
    "probe-ssh": one_node.measure,
    "facts": facts.measure,
    "testinfra": infra.measure,
    "pairs": pairs.measure,
    "harness": harness.measure,
    "ways": ways.measure,
    "torchrun": ranks.measure,
    "diagnose": hanging.measure,
}
_OF_THIS_MACHINE: dict[str, Callable[[], Iterator[Row]]] = {
    "unused": unused.measure,
    "probe": one_node.measure_here,
    "passive": passive.measure,
    "judging": judging.measure,
    "sweep-memory": sweep_memory.measure,
    "fabric": fabric.measure,
    "report": writing.measure,
    "history": year.measure,
    "prolog": prolog.measure,
    "explain": explaining.measure,
    "watch": watching.measure,
}
_LAB_HOSTS = ways.HOSTS


def main() -> int:
    """Measure, show, write; 1 if something that can be measured here could not be."""
    options = _options()
    started, began = datetime.now(UTC), time.monotonic()
    for folder in ("preflight", "checks"):  # as pip does; PYTHONDONTWRITEBYTECODE may be set here
        compileall.compile_dir(Path(__file__).parents[2] / folder, quiet=2)
    load_before = os.getloadavg()
    session = _Session(options.only or [*_OF_THIS_MACHINE, *_OF_LAB])
    session.run()
    result = Result(
        machine=machine(),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        load_before=load_before,
        load_after=os.getloadavg(),
        rows=tuple(row_document(row) for row in session.rows),
        not_measured={**session.cannot, **session.broke},
    )
    write(options.output, result)
    _show(result, session.rows, options.output)
    return 1 if session.broke else 0


class _Session:
    """What was wanted, what came of it; a measurement that breaks does not cost the others."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self.rows: list[Row] = []
        self.cannot: dict[str, str] = {}
        self.broke: dict[str, str] = {}

    def run(self) -> None:
        """Measure what needs this machine alone, then what needs the lab."""
        for name in self._chosen(_OF_THIS_MACHINE):
            self._measure(name, _OF_THIS_MACHINE[name])
        of_lab = self._chosen(_OF_LAB)
        if of_lab and (reason := why_not()):
            self.cannot = dict.fromkeys(of_lab, reason)
        elif of_lab:
            _say(f"bringing up {_LAB_HOSTS} lab hosts")
            with Lab(hosts=_LAB_HOSTS) as lab:
                for name in of_lab:
                    self._measure(name, partial(_OF_LAB[name], lab))

    def _chosen(self, offered: Iterable[str]) -> list[str]:
        return [name for name in offered if name in self._wanted]

    def _measure(self, name: str, work: Callable[[], Iterator[Row]]) -> None:
        _say(f"measuring {name} (load {os.getloadavg()[0]:.2f})")
        try:
            self.rows += work()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            self.broke[name] = f"{type(error).__name__}: {error}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = [*_OF_THIS_MACHINE, *_OF_LAB]
    parser.add_argument("--only", nargs="+", choices=names, help="measure these alone")
    parser.add_argument("--output", type=Path, default=Path("bench-results/bench.json"))
    return parser.parse_args()


def _show(result: Result, rows: list[Row], output: Path) -> None:
    here = result.machine
    lines = [
        table(rows),
        *(f"{name}: not measured: {reason}" for name, reason in result.not_measured.items()),
        "",
        (
            f"{here.cores} cores ({here.cpu}), Python {here.python}, {here.openssh}; "
            f"load {result.load_before[0]:.2f} before, {result.load_after[0]:.2f} after; "
            f"{result.seconds:.0f} s in all"
        ),
        f"written to {output}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
