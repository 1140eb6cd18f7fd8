"""`make bench-full`: flight recorder dumps of 1,000 drawn jobs, some of them unseen.

    python -m tests.bench.full_dumps [--first SEED] [--jobs N] [--torch] [--show]
    python -m tests.bench.full_dumps --large RANKS  # one job, whose buffers of 2,000 calls are full

A job is right if exactly its ranks at fault are named. The seeds 900-999 and those from 2000 were
not used during the work; those below 900 were. The rows "- all calls" are the jobs whose dumps are
as torch writes them by default, "- unfinished" those with the unfinished calls only
(TORCH_INCLUDE_ONLY_ACTIVE). `--torch` gives the same dumps to torch's own analyzer, which needs the
package `tabulate`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from preflight.commands import cli
from tests.bench.outside import cost
from tests.bench.proportion import clopper_pearson
from tests.simulate import large_job
from tests.simulate.parallel_job import Case, draw_case

_UNSEEN, _LATER = range(900, 1000), 2000
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_MISSING = re.compile(r"missing ranks: \{([^}]*)\}")


def write(case: Case, folder: Path) -> None:
    """Write the dumps as torch names them."""
    for rank, content in case.dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)


def explained(folder: Path) -> set[int]:
    """The ranks that `preflight explain` names."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        cli.main(["explain", "--json", str(folder)])
    return {int(one.split()[1]) for one in json.loads(out.getvalue())["culprits"]}


def by_torch(folder: Path) -> set[int] | None:
    """The ranks that torchfrtrace calls culprits or missing in the first mismatch of any group.

    None if it fails: it needs the package `tabulate`, and does not survive every dump.
    """
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchfrtrace")), "--prefix", "nccl_trace_rank_",
         "--allow-incomplete-ranks", str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        return None
    text = done.stdout + done.stderr
    missing = {
        int(one) for some in _MISSING.findall(text) for one in some.split(",") if one.strip()
    }
    return missing | {int(one) for one in _CULPRIT.findall(text)}


Judged = tuple[int, str, str, list[int], list[int], bool]
"""(seed, fault, right or what was wrong, the truth, the ranks named, only unfinished calls)."""


def judge(seed: int, *, torch: bool) -> Judged:
    """Explain the dumps of a drawn job."""
    case = draw_case(seed)
    with tempfile.TemporaryDirectory(prefix="preflight-dumps-") as name:
        write(case, Path(name))
        named = by_torch(Path(name)) if torch else explained(Path(name))
    truth = case.culprits
    if named is None:
        verdict, named = "did not run", set()
    elif named - truth:
        verdict = "innocent"
    elif named == truth:
        verdict = "right"
    else:
        verdict = "partly" if named else "unnamed"
    return seed, case.fault, verdict, sorted(truth), sorted(named), case.active


def large(ranks: int) -> str:
    """What `preflight explain` takes for the full dumps of a job in which one rank stops."""
    with tempfile.TemporaryDirectory(prefix="preflight-dumps-") as name:
        folder = Path(name, "dumps")
        folder.mkdir()
        truth = large_job.write(folder, ranks, 2000, "host_stop")
        words = [sys.executable, "-m", "preflight", "explain", "--json", str(folder)]
        spent = cost(words, Path(name), exits=1)
        named = {*json.loads(Path(name, "output.txt").read_text())["culprits"]}
    right = "right" if named == {f"rank {rank}" for rank in truth} else f"wrong: {named}"
    return (
        f"{ranks} ranks: {right}, {spent.seconds:.0f} s, {spent.cpu_s:.0f} s of CPU, "
        f"{spent.peak_mib:.0f} MiB"
    )


def _work(seed_and_torch: tuple[int, bool]) -> Judged:
    return judge(seed_and_torch[0], torch=seed_and_torch[1])


def main() -> None:
    """Print a row per fault, for seen and unseen seeds apart."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_dumps", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--large", type=int, metavar="RANKS", help="a multiple of 512")
    options = parser.parse_args()
    if options.large:
        sys.stdout.write(f"{large(options.large)}\n")
        return
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    seeds = range(options.first, options.first + options.jobs)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, fault, verdict, truth, named, active in pool.map(
            _work, [(seed, options.torch) for seed in seeds], chunksize=4
        ):
            half = "unseen" if seed in _UNSEEN or seed >= _LATER else "seen"
            counts[half, fault][verdict] += 1
            counts[half, "all"][verdict] += 1
            counts[half, "- unfinished" if active else "- all calls"][verdict] += 1
            if options.show and verdict != "right":
                line = f"seed {seed} {fault}: {verdict}, at fault {truth}, named {named}\n"
                sys.stdout.write(line)
    for (half, fault), count in sorted(counts.items()):
        low, high = clopper_pearson(count["right"], count.total())
        right = f"right: {low:.1%} to {high:.1%}"
        sys.stdout.write(f"{half:7}{fault:14}{dict(count)}  {right}\n")


if __name__ == "__main__":
    main()
