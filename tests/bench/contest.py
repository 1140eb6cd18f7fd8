"""`make contest`: who names the culprit of a hang or of a dead job, and how often.

    python -m tests.bench.contest [--half even|odd] [--only dumps log] [--later N] [--show]

Every contestant reads the same cases as a user would give them. The cases and the recorded hangs
are under build/contest, the scores in bench-results/contest.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.bench import contest_cases, contest_hangs
from tests.bench.contest_cases import FIRST_DUMPS, FIRST_LOGS, FIRST_RAS, KINDS
from tests.bench.contestants import CONTESTANTS, Score
from tests.bench.machine import machine
from tests.bench.proportion import clopper_pearson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.bench.contest_cases import Case

BUILD = Path("build/contest")
_HEAD = ("half", "cases", "contestant", "right", "wrong", "unclear", "sure and wrong", "s")


def main(words: Sequence[str] | None = None) -> int:
    """Play all cases; print the table, and write the scores."""
    options = _options(words)
    found = list(play(pool(options), processes=options.processes))
    if options.show:
        lines = [one for one in found if one.contestant == "preflight" and one.verdict != "right"]
        sys.stdout.writelines(
            f"{one.kind} {one.seed} {one.fault}: {one.verdict}{' and sure' * one.confident}, "
            f"named {one.named}\n"
            for one in lines
        )
    options.results.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "scores": found}
    options.results.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    sys.stdout.write(f"{table(found)}\n")
    return 0


def pool(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    only, build = options.only, options.build
    halves = {"even": (0,), "odd": (1,), "both": (0, 1)}[options.half]

    def seeds(first: int, number: int) -> list[int]:
        begin = first + options.later
        return [seed for seed in range(begin, begin + number) if seed % 2 in halves]

    return [
        *(contest_hangs.hangs(options.hangs, halves, build) if "hang" in only else ()),
        *(contest_cases.ras(seeds(FIRST_RAS, options.ras), build) if "ras" in only else ()),
        *(contest_cases.dumps(seeds(FIRST_DUMPS, options.dumps), build) if "dumps" in only else ()),
        *(contest_cases.logs(seeds(FIRST_LOGS, options.logs), build) if "log" in only else ()),
        *(contest_cases.corpus() if "corpus" in only else ()),
    ]


def play(cases: Iterable[Case], *, processes: int) -> Iterator[Score]:
    """The scores of all contestants that read such cases."""
    games = [(one, case) for case in cases for one in range(len(CONTESTANTS))]
    # Each worker imports what the contestants need once, and answers in copies of itself.
    with ProcessPoolExecutor(processes, get_context("spawn")) as workers:
        scores = workers.map(_game, games, chunksize=4)
        yield from (one for one in scores if one is not None)


def _game(game: tuple[int, Case]) -> Score | None:
    number, case = game
    contestant = CONTESTANTS[number]
    return contestant.play(case) if case.kind in contestant.kinds else None


def table(found: Sequence[Score]) -> str:
    """A row per half, kind and contestant, and one for all kinds that a contestant reads."""
    rows: list[tuple[str, ...]] = [_HEAD]
    for unseen in (False, True):
        for kind in (*KINDS, "all"):
            for contestant in CONTESTANTS:
                some = [
                    one
                    for one in found
                    if one.unseen == unseen and one.contestant == contestant.name
                    and (one.kind == kind if kind != "all" else one.kind != "corpus")
                ]  # fmt: skip
                if some:
                    rows.append(_row("odd" if unseen else "even", kind, some))
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (rows[0], tuple("-" * width for width in widths), *rows[1:])
    )


def _row(half: str, kind: str, some: Sequence[Score]) -> tuple[str, ...]:
    verdicts = Counter(one.verdict for one in some)
    counts = [verdicts[each] for each in ("right", "wrong", "unclear")]
    low, high = clopper_pearson(counts[0], len(some))
    seconds = sum(one.cpu_s for one in some) / len(some)
    return (
        "real" if kind == "corpus" else half,
        kind,
        some[0].contestant,
        f"{counts[0]} of {len(some)} ({100 * low:.0f}-{100 * high:.0f} %)",
        *map(str, counts[1:]),
        str(sum(one.confident for one in some)),
        f"{seconds:.2f}",
    )


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.contest", description=__doc__)
    parser.add_argument("--half", choices=("even", "odd", "both"), default="both")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    most = contest_hangs.MOST
    parser.add_argument("--hangs", type=int, default=most, help="number of real hangs in the lab")
    parser.add_argument("--ras", type=int, default=88, help="number of jobs with answers of RAS")
    parser.add_argument("--dumps", type=int, default=120, help="number of jobs with dumps")
    parser.add_argument("--logs", type=int, default=160, help="number of generated logs")
    later = "begin with seeds that are later by this number: cases that nobody has read"
    parser.add_argument("--later", type=int, default=0, help=later)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="what preflight did not get right")
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--results", type=Path, default=Path("bench-results/contest.json"))
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
