"""`make bench-full`: thousands of simulated fabrics, decoded one by one; goes on where it stopped.

    python -m tests.bench.full [--minutes M] [--seed FIRST] [--jobs N] [--show]

Each fabric is a line of bench-results/fabric.jsonl, with the code that decoded it: lines of other
code are kept in the file and counted no more. Ctrl-C costs nothing but the fabric under way.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tests.bench.accuracy import by_kind, by_size, rows
from tests.bench.decoding import Outcome, decode
from tests.bench.fabric import plan
from tests.bench.fabrics import RECORDING
from tests.bench.report import row_document, table
from tests.bench.resumed import append, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.fabric import Quota
    from tests.bench.fabrics import Case, Name

FAULTY: dict[Name, Quota] = {
    "rdma": {2: 200, 3: 200, 4: 300, 8: 300, 16: 200, 17: 200, 64: 100, 256: 50, 1024: 12, 4096: 4},
    "recorded": {2: 200, 3: 200, 4: 300, 8: 300, 16: 200, 17: 200, 64: 100, 256: 30},
}
HEALTHY: dict[Name, Quota] = {
    "rdma": {2: 250, 3: 250, 4: 250, 8: 250, 16: 200, 17: 200, 64: 80, 256: 30, 1024: 8, 4096: 4},
    "recorded": {2: 220, 3: 220, 4: 220, 8: 220, 16: 200, 17: 200, 64: 150, 256: 48},
}
"""3,000 healthy ones in all."""

_ROOT = Path(__file__).parents[2]


class Line(Struct, frozen=True):
    """One decoded fabric and the code that did it."""

    code: str
    outcome: Outcome


def main() -> int:
    """Go on with what is left; show and write what is there."""
    options = _options()
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {one.outcome.case: one.outcome for one in lines(options.results, code, Line)}
    cases = plan(FAULTY, HEALTHY, options.seed)
    try:
        left = [one for one in cases if one.id not in done and not options.show]
        for outcome in _outcomes(left, options.jobs, ends):
            done[outcome.case] = outcome
            append(options.results, Line(code, outcome))
            _progress(outcome, len(done), len(cases))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; run it again to go on\n")
    outcomes = list(done.values())
    summary = list(rows(outcomes))
    sys.stdout.write(f"{by_size(outcomes)}\n\n{by_kind(outcomes)}\n{table(summary)}\n")
    document = {"code": code, "done": len(done), "rows": [row_document(row) for row in summary]}
    target = options.results.with_name("fabric-full.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"\n{len(done)} of {len(cases)} fabrics; written to {target}\n")
    return 0


def _outcomes(todo: Sequence[Case], jobs: int, ends: float) -> Iterator[Outcome]:
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(decode, todo):
            yield outcome
            if time.monotonic() >= ends:
                return


def fingerprint() -> str:
    """Of everything that decides an outcome: decoder, simulation, cases, recording."""
    sources = sorted([*_ROOT.glob("preflight/fabric/**/*.py"), *_ROOT.glob("preflight/stats/*.py")])
    files = [*sources, _ROOT / "preflight/fabric/limits.toml", _ROOT / "tests/bench/fabrics.py"]
    digest = hashlib.sha256()
    for file in (*files, RECORDING):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _progress(one: Outcome, done: int, of: int) -> None:
    bad = [f"{fault.fate}: {fault.what} {fault.where}" for fault in one.faults if _off(fault.fate)]
    bad += [f"WRONG {words}" for words in one.wrong]
    if bad:
        sys.stderr.write(f"{done}/{of} {one.case}: {'; '.join(bad)}\n")


def _off(fate: str) -> bool:
    return fate not in ("named", "inside")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--seed", type=int, default=0, help="first seed: others are other fabrics")
    parser.add_argument("--jobs", type=int, default=1, help="decode so many at once")
    parser.add_argument("--show", action="store_true", help="decode nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/fabric.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
