"""`make bench-full`: every way in which a job of the lab hangs, ten times each, other ranks each.

    python -m tests.bench.full_diagnose [--turns N] [--minutes M] [--only dataloader ...] [--show]

Each run is a line of bench-results/diagnose.jsonl, with the code that made it: lines of other code
are kept in the file and counted no more. Ctrl-C costs nothing but the run under way. What was seen
in a run that was not right is kept under bench-results/diagnose-runs: `preflight diagnose DIR`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tests.bench.lab_shares import Share
from tests.bench.machine import machine
from tests.bench.proportion import clopper_pearson
from tests.bench.resumed import append, lines
from tests.lab.cluster import Lab, why_not
from tests.lab.hangs.asked import diagnose
from tests.lab.hangs.job import HOSTS, PER_HOST
from tests.lab.hangs.kept import KeptJob
from tests.lab.hangs.situations import situations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.lab.hangs.situations import Situation

TURNS = 10
_ROOT = Path(__file__).parents[2]


class Line(Struct, frozen=True, kw_only=True):
    """What was said of one hang."""

    code: str
    case: str
    what: str
    ranks: tuple[int, ...]
    off: str
    """What was not right; empty: who and where were named, and nobody else."""
    wrong: tuple[str, ...]
    """Healthy ones that were named."""
    category: str
    said: str
    seconds: float
    load: float


def main() -> int:
    """Go on with what is left; show and write what is there."""
    options = _options()
    if not options.show and (reason := why_not()):
        sys.stderr.write(f"{reason}\n")
        return 1
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {one.case: one for one in lines(options.results, code, Line)}
    wanted = [one for turn in range(options.turns) for one in cases(turn, options.only)]
    left = [one for one in wanted if one[0] not in done and not options.show]
    try:
        for line in _runs(left, code, ends, options.results.with_name("diagnose-runs")):
            append(options.results, line)
            done[line.case] = line
            _progress(line, len(done), len(wanted))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; run it again to go on\n")
    found = [done[case] for case, _ in wanted if case in done]
    target = options.results.with_name("diagnose-full.json")
    document = {"code": code, "machine": machine(), "runs": found}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"{table(found)}\n")
    sys.stdout.write(f"\n{len(found)} of {len(wanted)} runs; written to {target}\n")
    return 0


def cases(turn: int, only: Sequence[str] = ()) -> list[tuple[str, Situation]]:
    """The situations of a turn, with drawn ranks; not of rank 0's host, which has the store."""
    draw = random.Random(f"hangs {turn}")  # noqa: S311  # a draw, not a secret
    ranks = range(HOSTS * PER_HOST)
    one = draw.choice(ranks[PER_HOST:])
    three = tuple(sorted(draw.sample(ranks, 3)))
    every = situations(one, three)
    return [(f"{each.name}:{turn}", each) for each in every if not only or each.name in only]


def fingerprint() -> str:
    """Of everything that decides an outcome: preflight, the job, how it is brought to hang."""
    sources = [*_ROOT.glob("preflight/**/*.py"), *_ROOT.glob("preflight/**/*.toml")]
    sources += [*_ROOT.glob("tests/lab/hangs/*.py"), _ROOT / "tests/lab/wire.py"]
    digest = hashlib.sha256()
    for file in sorted(sources):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def table(found: Sequence[Line]) -> str:
    """By situation and together: right, healthy part named, no part named for sure."""
    kinds = dict.fromkeys(line.what for line in found)
    groups = {kind: [line for line in found if line.what == kind] for kind in kinds}
    groups["all"] = list(found)
    heads = ("right", "healthy part named", "unknown")
    rows = [f"{'hangs by':16} {heads[0]:>28} {heads[1]:>28} {heads[2]:>28} {'s':>6}"]
    for kind, some in groups.items():
        if some:
            cells = (
                _share([not one.off for one in some]),
                _share([bool(one.wrong) for one in some]),
                _share([one.category == "unknown" for one in some]),
            )
            longest = max(one.seconds for one in some)
            rows.append(
                f"{kind:16} {cells[0]!s:>28} {cells[1]!s:>28} {cells[2]!s:>28} {longest:6.1f}"
            )
    return "\n".join(rows)


def _share(some: Sequence[bool]) -> Share:
    hits = sum(some)
    return Share(hits, len(some), clopper_pearson(hits, len(some)))


def _runs(
    todo: Sequence[tuple[str, Situation]], code: str, ends: float, kept: Path
) -> Iterator[Line]:
    if not todo:
        return
    with Lab(hosts=HOSTS) as lab, KeptJob(lab) as job:
        inventory = lab.inventory("hang.toml")
        for case, situation in todo:
            if time.monotonic() >= ends:
                return
            if case.partition(":")[0] == "healthy":
                job.drop()  # a new turn: no run inherits what earlier ones left behind
                lab.heal()
            try:
                yield _run(job, case, situation, inventory=inventory, code=code, kept=kept)
            except (OSError, subprocess.SubprocessError) as error:
                sys.stderr.write(f"{case}: could not be made to hang, not counted: {error}\n")
                job.drop()
                lab.heal()


def _run(
    job: KeptJob, case: str, situation: Situation, *, inventory: Path, code: str, kept: Path
) -> Line:
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        seen = Path(name) / "seen"
        with job.hanging(situation):
            began, load = time.monotonic(), os.getloadavg()[0]
            told = diagnose(inventory, "--json", "--save", str(seen))
            took = time.monotonic() - began
        answer = told.answer
        off = situation.expected.off(answer)
        if off and seen.exists():
            place = kept / f"{code}-{case}".replace(" ", "-").replace(":", "-")
            shutil.copytree(seen, place, dirs_exist_ok=True)
    return Line(
        code=code,
        case=case,
        what=situation.name,
        ranks=situation.ranks,
        off=off,
        wrong=tuple(situation.expected.healthy(answer)),
        category=answer["category"],
        said=f"{', '.join(answer['culprits'])} {answer['line']}: {answer['sentence']}",
        seconds=round(took, 1),
        load=round(load, 1),
    )


def _progress(line: Line, done: int, of: int) -> None:
    what = "right" if not line.off else f"NOT RIGHT: {line.off}; {line.said}"
    text = f"{done}/{of} {line.case} {line.ranks}: {what} ({line.seconds} s, load {line.load})\n"
    sys.stderr.write(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.full_diagnose", description=__doc__
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="as in: healthy shapes"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/diagnose.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
