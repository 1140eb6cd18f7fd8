"""Which lines of the payload's sweep and burn-in run with CUDA: over real SSH hosts, fake GPUs.

    python -m tests.bench.cuda_coverage [--only burn ...] [--lines FOLDER]

Each case is a run of preflight over lab hosts whose torch is the rehearsal's. It prints how many of
the lines of each file were run, and which were not. `--lines`: keep what was traced in that folder,
and count what other runs left there, too.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab.cluster import Lab, why_not
from tests.lab.named import named
from tests.lab.rehearsal.scenario import Fault, Machine, rehearsed
from tests.lab.rehearsal.situations import SITUATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from tests.lab.rehearsal.scenario import Rehearsal

    Plant = Callable[[Rehearsal], None]

_PAYLOAD = Path(__file__).parents[2] / "preflight" / "payload"
_LONGEST_S = 400

BURN = ("--preflight-tier=standard", "-m", "preflight_local")

WITHOUT_CUDA = {
    "sweep/clocks.py": {"HostClock": "times operations of gloo"},
}
"""By file: classes and functions that only a torch without GPUs runs, and what they do there."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of preflight over lab hosts."""

    name: str
    machine: Machine = Machine(gpus=2)
    plant: Plant = lambda rehearsal: None
    nodes: int = 2
    options: tuple[str, ...] = ()


def _fault(*faults: Fault, host: str = "h2") -> Plant:
    return lambda rehearsal: rehearsal.plant(host, *faults)


def _situation(name: str) -> Case:
    one = next(each for each in SITUATIONS if each.name == name)
    return Case(name, plant=lambda rehearsal: one.plant(rehearsal, "h2", 1))


CASES = (
    *(_situation(one.name) for one in SITUATIONS),
    Case("torch 2.7", replace(Machine(gpus=2), torch="2.7.1", cuda="12.6", nccl="2.26.2")),
    Case("exclusive process", replace(Machine(gpus=2), exclusive=True)),
    Case("connect error", plant=_fault(Fault("connect error", slot=1, last_error="NET/IB : no"))),
    Case("burn", options=BURN),
    Case("burn, slow GPU", plant=_fault(Fault("slow gpu", slot=1, factor=0.5)), options=BURN),
    Case(
        "burn, wrong product",
        plant=_fault(Fault("wrong product", slot=1, rate=0.1)),
        options=BURN,
    ),
    Case("burn, slow copies", plant=_fault(Fault("slow p2p", slot=1, factor=0.5)), options=BURN),
    Case("burn, spinning kernel", plant=_fault(Fault("spinning kernel", slot=1)), options=BURN),
)


def main() -> int:
    """Run the cases, then count."""
    options = _options()
    if reason := why_not():
        sys.stderr.write(f"{reason}\n")
        return 1
    wanted = [one for one in CASES if options.only is None or one.name in options.only]
    with tempfile.TemporaryDirectory(prefix="preflight-lines-") as temporary:
        folder = (options.lines or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True, parents=True)
        folder.chmod(0o777)
        for nodes in sorted({one.nodes for one in wanted}):
            with Lab(hosts=nodes) as lab:
                for case in (one for one in wanted if one.nodes == nodes):
                    _run(lab, case, folder)
                    lab.heal()
        sys.stdout.write(table(traced(folder)))
    return 0


def _run(lab: Lab, case: Case, folder: Path) -> None:
    began = time.monotonic()
    with (
        rehearsed(lab, case.machine, folder) as rehearsal,
        tempfile.TemporaryDirectory(prefix="preflight-bench-") as working,
    ):
        case.plant(rehearsal)
        report = Path(working) / "report"
        done = _preflight(rehearsal, report, case.options)
        try:
            found = named(report)
            said = ", ".join((*found.components, *found.open)) or "nobody"
        except OSError:
            said = f"no report: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        if os.environ.get("SHOW"):
            sys.stderr.write(done.stdout)
    sys.stderr.write(f"{case.name}: exit {done.returncode}, named {said} ")
    sys.stderr.write(f"({time.monotonic() - began:.0f} s)\n")


def _preflight(
    rehearsal: Rehearsal, report: Path, options: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """As a person would, but from an environment that looks like nobody's allocation."""
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH", "NCCL_")
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"),
            *(f"--preflight-inventory={rehearsal.inventory()}", f"--preflight-report={report}"),
            *("--preflight-fail-fast=never", "--preflight-budget=240", *options),
        ],
        cwd=report.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )


def traced(folder: Path) -> dict[str, set[int]]:
    """The lines of each file that were run, as processes wrote them."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            file, _, number = line.partition(":")
            found[file].add(int(number))
    return found


def table(ran: dict[str, set[int]]) -> str:
    """Each file with its share, and the lines that were not run."""
    text = ["| file | run | of | not run |", "|---|---|---|---|"]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in _files():
        apart = without_cuda(file)
        wanted = executable(_PAYLOAD / file) - apart
        done = wanted & ran.get(file, set())
        for total in (sums[file.partition("/")[0]], sums["both"]):
            total[0] += len(done)
            total[1] += len(wanted)
        text.append(f"| {file} | {len(done)} | {len(wanted)} | {spans(wanted - done, wanted)} |")
    for name, (done_of, of) in sums.items():
        text.append(f"| **{name}** | {done_of} | {of} | {100 * done_of / max(1, of):.1f} % run |")
    return "\n".join(text) + "\n"


def _files() -> Iterator[str]:
    for room in ("sweep", "burn"):
        for path in sorted((_PAYLOAD / room).glob("*.py")):
            if path.name != "__init__.py":
                yield f"{room}/{path.name}"


def executable(path: Path) -> set[int]:
    """The lines at which Python can be; without those that only a type checker reads."""
    source = path.read_text()
    found: set[int] = set()
    waiting: list[CodeType] = [compile(source, path, "exec")]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, type(code))]
        # A frame begins at its `def`, which is no line of its own.
        found |= {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
        found |= {code.co_firstlineno} if code.co_name == "<module>" else set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            found -= set(range(node.body[0].lineno, _end(node.body[-1]) + 1))
    return found


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def without_cuda(file: str) -> set[int]:
    """The lines of a file that only run without GPUs."""
    names = WITHOUT_CUDA.get(file, {})
    found: set[int] = set()
    for node in ast.walk(ast.parse((_PAYLOAD / file).read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            found |= set(range(node.body[0].lineno, _end(node) + 1))
    return found


def _end(node: Any) -> int:
    return int(node.end_lineno or node.lineno)


def spans(lines: set[int], among: set[int]) -> str:
    """Lines in short: "12, 40-44", as one span where no other line lies between."""
    runs: list[list[int]] = []
    for line in sorted(among):
        if line not in lines:
            runs.append([])
        elif runs and runs[-1]:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(
        f"{run[0]}-{run[1]}" if run[0] != run[1] else str(run[0]) for run in runs if run
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cuda_coverage")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="as in: 'slow rail' burn")
    parser.add_argument("--lines", type=Path, help="keep what was traced in that folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
