"""`make bench-full`: 1,000 hooks on a healthy node beside random faults, and 100 on sick nodes.

    python -m tests.bench.full_prolog [--runs N] [--sick N] [--first SEED] [--minutes M] [--show]

It goes on where it stopped.

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

from tests.bench.hook_faults import BUDGET_S, Rig
from tests.bench.prolog import Run, false_drains, missed_drains, one_run, sick_run
from tests.bench.report import row_document, table
from tests.bench.resumed import append, lines
from tests.lab.nvml.build import build

_ROOT = Path(__file__).parents[2]


class Line(Struct, frozen=True):
    """One run and the code that was run."""

    code: str
    run: Run


SICK = "sick"


def main() -> int:
    """Go on with what is left; 1 if a healthy node was drained or a sick one was not."""
    options = _options()
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {
        (one.run.seed, one.run.kind == SICK): one.run for one in lines(options.results, code, Line)
    }
    wanted = [(options.first + n, False) for n in range(options.runs)]
    wanted += [(options.first + n, True) for n in range(options.sick)]
    left = [one for one in wanted if one not in done and not options.show]
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            rig = (
                Rig(folder / "rig", build(folder / "nvml").parent, options.budget) if left else None
            )
            for seed, sick in left:
                if rig is None or time.monotonic() >= ends:
                    break
                run = sick_run(rig, seed) if sick else one_run(rig, seed)
                done[seed, sick] = run
                append(options.results, Line(code, run))
                if run.drained is not sick or (run.false and not sick):
                    sys.stderr.write(f"{'MISSED' if sick else 'FALSE DRAIN'} {run}\n")
        except KeyboardInterrupt:
            sys.stderr.write("\nstopped; run it again to go on\n")
    runs = [done[one] for one in wanted if one in done]
    return _show(runs, code, options) if runs else 0


def _show(runs: list[Run], code: str, options: argparse.Namespace) -> int:
    well = [run for run in runs if run.kind != SICK]
    sick = [run for run in runs if run.kind == SICK]
    rows = [*([false_drains(well)] if well else []), *([missed_drains(sick)] if sick else [])]
    kinds = Counter(run.kind for run in runs)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    sys.stdout.write(f"{table(rows)}\n\nruns: {told}\n")
    document = {"code": code, "done": len(runs), "kinds": kinds, "rows": [*map(row_document, rows)]}
    target = options.results.with_name("prolog-full.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"{len(runs)} of {options.runs + options.sick} runs; written to {target}\n")
    return int(any(not row.met for row in rows))


def fingerprint() -> str:
    """Of everything that decides what a prolog does, and of the faults."""
    sources = [
        *_ROOT.glob("preflight/hook/*.py"),
        *_ROOT.glob("preflight/payload/probe/*.py"),
        *_ROOT.glob("preflight/facts/**/*.py"),
        *_ROOT.glob("checks/**/*.py"),
        _ROOT / "preflight/commands/check.py",
        _ROOT / "contrib/slurm/prolog.d/50-preflight",
        _ROOT / "contrib/slurm/healthcheck",
        _ROOT / "tests/bench/hook_faults.py",
        _ROOT / "tests/bench/hook_strangers.py",
    ]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_prolog", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="on a healthy node")
    parser.add_argument("--sick", type=int, default=100, help="on a sick node")
    parser.add_argument("--first", type=int, default=0, help="the first seed, for unseen ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument(
        "--budget", type=int, default=BUDGET_S, help="seconds of a prolog; more on a busy machine"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/prolog.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
