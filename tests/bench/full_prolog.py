"""`make bench-full`: 1,000 prologs beside random faults of ours; goes on where it stopped.

    python -m tests.bench.full_prolog [--runs N] [--minutes M] [--show]

Each run is a line of bench-results/prolog.jsonl, with the code that was run. Ctrl-C costs nothing
but the run under way.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.bench.hook_faults import Rig
from tests.bench.prolog import Run, false_drains, one_run
from tests.bench.report import row_document, table
from tests.bench.resumed import append, lines
from tests.lab.nvml.build import build

_ROOT = Path(__file__).parents[2]


class Line(Struct, frozen=True):
    """One run and the code that was run."""

    code: str
    run: Run


def main() -> int:
    """Go on with what is left; 1 if a healthy node was drained."""
    options = _options()
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {one.run.seed: one.run for one in lines(options.results, code, Line)}
    left = [seed for seed in range(options.runs) if seed not in done and not options.show]
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            rig = Rig(folder / "rig", build(folder / "nvml").parent) if left else None
            for seed in left:
                if rig is None or time.monotonic() >= ends:
                    break
                done[seed] = one_run(rig, seed)
                append(options.results, Line(code, done[seed]))
                if done[seed].false:
                    sys.stderr.write(f"FALSE DRAIN {done[seed]}\n")
        except KeyboardInterrupt:
            sys.stderr.write("\nstopped; run it again to go on\n")
    if not done:
        return 0
    return _show(list(done.values()), code, options)


def _show(runs: list[Run], code: str, options: argparse.Namespace) -> int:
    row = false_drains(runs)
    kinds = Counter(run.kind for run in runs)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    sys.stdout.write(f"{table([row])}\n\nfaults: {told}\n")
    document = {"code": code, "done": len(runs), "kinds": kinds, "rows": [row_document(row)]}
    target = options.results.with_name("prolog-full.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"{len(runs)} of {options.runs} runs; written to {target}\n")
    return 1 if row.value.median else 0


def fingerprint() -> str:
    """Of everything that decides what a prolog does, and of the faults."""
    sources = [
        *_ROOT.glob("preflight/hook/*.py"),
        *_ROOT.glob("preflight/payload/probe/*.py"),
        *_ROOT.glob("preflight/facts/**/*.py"),
        *_ROOT.glob("checks/*.py"),
        _ROOT / "preflight/commands/hook_program.py",
        _ROOT / "contrib/slurm/prolog.d/50-preflight",
        _ROOT / "tests/bench/hook_faults.py",
    ]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_prolog", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many in all")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/prolog.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
