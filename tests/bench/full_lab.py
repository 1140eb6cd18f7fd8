"""`make bench-full`: each fault of wire and worker, planted 20 times among eight real hosts.

    python -m tests.bench.full_lab [--minutes M] [--only lossy ...] [--seed FIRST] [--show]

Each run is a line of bench-results/lab.jsonl, with the code that made it: lines of other code are
kept in the file and counted no more. Ctrl-C costs nothing but the run under way. What a run
measured that did not name exactly the culprit is kept under bench-results/lab-runs.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.bench.lab_runs import HOSTS, Line, cases, run
from tests.bench.lab_shares import rows, table
from tests.bench.machine import machine
from tests.bench.resumed import append, lines
from tests.lab.cluster import Lab, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.lab_runs import Case

_ROOT = Path(__file__).parents[2]


def main() -> int:
    """Go on with what is left; show and write what is there."""
    options = _options()
    if not options.show and (reason := why_not()):
        sys.stderr.write(f"{reason}\n")
        return 1
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {one.case: one for one in lines(options.results, code, Line)}
    wanted = [one for one in cases(options.seed) if _chosen(one.what, options.only)]
    left = [one for one in wanted if one.id not in done and not options.show]
    try:
        for line in _runs(left, code, ends, options.results.with_name("lab-runs")):
            append(options.results, line)
            done[line.case] = line
            _progress(line, len(done))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; run it again to go on\n")
    found = [done[one.id] for one in wanted if one.id in done]
    summary = rows(found)
    target = options.results.with_name("lab-full.json")
    document = {"code": code, "machine": machine(), "rows": summary, "runs": found}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"{table(summary)}\n")
    sys.stdout.write(f"\n{len(found)} of {len(wanted)} runs; written to {target}\n")
    return 0


def fingerprint() -> str:
    """Of everything that decides an outcome: preflight, its checks, how faults are planted."""
    sources = [*_ROOT.glob("preflight/**/*.py"), *_ROOT.glob("preflight/**/*.toml")]
    sources += [*_ROOT.glob("checks/**/*.py"), *_ROOT.glob("tests/lab/*.py")]
    digest = hashlib.sha256()
    for file in sorted([*sources, _ROOT / "tests/bench/lab_runs.py"]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _runs(todo: Sequence[Case], code: str, ends: float, kept: Path) -> Iterator[Line]:
    if not todo:
        return
    with Lab(hosts=HOSTS) as lab:
        for one in todo:
            if time.monotonic() >= ends:
                return
            yield run(lab, one, code, kept)
            lab.heal()


def _progress(line: Line, done: int) -> None:
    what = "right"
    if not line.right:
        said = line.named and ", ".join((*line.named.components, *line.named.open))
        what = f"NOT RIGHT, named: {said or 'nobody'} {line.trouble}"
    where = ", ".join(line.planted) or "nothing"
    text = f"{done} {line.case} {where}: {what} ({line.seconds:.0f} s, load {line.load:.1f})\n"
    sys.stderr.write(text)


def _chosen(what: str, only: Sequence[str]) -> bool:
    return not only or any(what.startswith(word) for word in only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_lab", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="KIND", help="as in: healthy slow 'dead link'"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed: others are other draws")
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/lab.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
