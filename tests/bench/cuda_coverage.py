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
import threading
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
_TWO_GPUS = Machine(gpus=2)

BURN = ("--preflight-tier=standard", "-m", "preflight_local")

WITHOUT_CUDA = {
    "sweep/clocks.py": {
        "HostClock": "times operations of gloo",
        "Clock.restart": "is called by HostClock",
        "Clock.warm_up": "is called for HostClock",
    },
    "sweep/counters.py": {
        "ethernet": "gloo's interface",
        "tcp": "gloo's connections",
        "table": "reads what tcp() asks for",
    },
    "sweep/groups.py": {"_gloo": "connects CPUs"},
    "sweep/means.py": {
        "Means._tcp": "tells which interface carried gloo's data",
        "_local": "is called by _tcp",
        "gloo_interfaces": "the interfaces of gloo",
    },
    "sweep/same.py": {"same": "compares data in the host's memory"},
    "sweep/verify.py": {"if not same(self.buffer, self._wanted)": "data in the host's memory"},
    "sweep/watch.py": {"if interface": "gloo's interface"},
    "burn/clocks.py": {"if bench.kind != 'cuda'": "a CPU has no NVML"},
    "burn/device.py": {"if self._kind == 'cpu'": "CPUs that stand for devices"},
    "burn/integrity.py": {"if bench.kind != 'cuda'": "of a CPU's memory a fixed part is tested"},
}
"""By file: what only a torch without GPUs runs (a function, a branch), and what it does there."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of preflight over lab hosts."""

    name: str
    machine: Machine = _TWO_GPUS
    plant: Plant = lambda _: None
    nodes: int = 2
    beside: str = ""
    """A Python program on h2, next to the run."""
    options: tuple[str, ...] = ()
    twice: bool = False
    """A second run beside the first one."""
    ends_s: float = _LONGEST_S
    """After so long the controller is killed."""


_STRIKE = """
import os, pathlib, signal, time
def found():
    for place in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            if place.read_text().startswith("{name}"):
                return int(place.parent.name)
        except OSError:
            pass
while not (pid := found()):
    time.sleep(0.01)
time.sleep({after})
os.kill(pid, signal.SIG{signal})
"""


def _struck(signal: str, name: str = "preflight-pair", after: float = 1.0) -> str:
    return _STRIKE.format(signal=signal, name=name, after=after)


_HOLDS_A_GPU = """
import time, torch
torch.zeros(1, device="cuda:1")
time.sleep(300)
"""


def _exclusive(rehearsal: Rehearsal) -> None:
    """NVML says so, too, but not who holds it: that process is in another container."""
    rehearsal.change("h2", exclusive=True)


def _perftest(rehearsal: Rehearsal) -> None:
    """NICs that perftest measures; on one of them it fails."""
    tool = rehearsal.lab.folder / "sbin" / "ib_write_bw"
    tool.write_text(_PERFTEST)
    tool.chmod(0o755)


_PERFTEST = """#!/bin/sh
case "$*" in *127.0.0.1*) ;; *) sleep 1; exit ;; esac
case "$*" in *mlx5_1*) echo "Couldn't allocate MR"; exit 1 ;; esac
echo " 65536      27000            391.10             390.63             0.745"
"""


def _xids(rehearsal: Rehearsal) -> None:
    host = rehearsal.lab.hosts["h2"]
    bus_id = host.scenario.gpus[1].bus_id.lower()
    for after_s in range(3, 30):
        line = f"NVRM: Xid (PCI:{bus_id[4:-2]}): 79, pid=1, name=x, GPU has fallen off the bus."
        threading.Timer(after_s, host.kernel_says, (line,)).start()


def _fault(*faults: Fault, host: str = "h2") -> Plant:
    return lambda rehearsal: rehearsal.plant(host, *faults)


def _situation(name: str) -> Case:
    one = next(each for each in SITUATIONS if each.name == name)
    nodes = 4 if name == "slow rail" else 2  # with four, suspects are measured again
    return Case(name, plant=lambda rehearsal: one.plant(rehearsal, "h2", 1), nodes=nodes)


CASES = (
    *(_situation(one.name) for one in SITUATIONS),
    Case("torch 2.7", replace(_TWO_GPUS, torch="2.7.1", cuda="12.6", nccl="2.26.2")),
    Case("exclusive process", replace(_TWO_GPUS, exclusive=True)),
    Case("connect error", plant=_fault(Fault("connect error", slot=1, last_error="NET/IB : no"))),
    Case("CUDA error", plant=lambda one: one.change("h2", init_error="CUDA error: unknown")),
    Case("GPU held by a stranger", plant=_exclusive, beside=_HOLDS_A_GPU),
    Case("killed process", beside=_struck("KILL")),
    Case("stopped process", beside=_struck("STOP")),
    Case("stopped rail", beside=_struck("STOP", "preflight-rank", 0.0), nodes=3),
    Case("killed in CUDA's start", replace(_TWO_GPUS, init_s=5.0), beside=_struck("SEGV")),
    Case("Xid", plant=_xids),
    Case("no PCI address", replace(_TWO_GPUS, torch="2.4.1")),
    Case("two runs at once", twice=True),
    Case("killed controller", ends_s=14.0),
    Case("torchrun"),
    Case("burn", options=BURN, plant=_perftest),
    Case("burn, killed process", beside=_struck("KILL", "preflight-cuda1"), options=BURN),
    Case(
        "burn, killed copies, two runs at once",
        beside=_struck("KILL", "preflight-p2p", 0.2),
        options=BURN,
        twice=True,
    ),
    Case("burn, no time", options=(*BURN, "--preflight-budget=25")),
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
                    _run(lab, case, folder, verbose=options.verbose)
                    lab.heal()
        sys.stdout.write(table(traced(folder)))
    return 0


def _run(lab: Lab, case: Case, folder: Path, *, verbose: bool) -> None:
    began = time.monotonic()
    with (
        rehearsed(lab, case.machine, folder) as rehearsal,
        tempfile.TemporaryDirectory(prefix="preflight-bench-") as working,
    ):
        case.plant(rehearsal)
        report = Path(working) / "report"
        beside = (
            lab.hosts["h2"].spawn([rehearsal.python, "-c", case.beside]) if case.beside else None
        )
        other = threading.Timer(3.0, _preflight, (rehearsal, report.with_name("other"), case))
        if case.twice:
            other.start()
        done = (
            _torchrun(rehearsal, report)
            if case.name == "torchrun"
            else _preflight(rehearsal, report, case)
        )
        if case.twice:
            other.join()
        if beside is not None:
            beside.kill()
        try:
            found = named(report)
            said = ", ".join((*found.components, *found.open)) or "nobody"
        except OSError:
            said = f"no report: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    sys.stderr.write(f"{case.name}: exit {done.returncode}, named {said} ")
    sys.stderr.write(f"({time.monotonic() - began:.0f} s)\n")
    if verbose:
        sys.stderr.write(done.stdout)


def _preflight(rehearsal: Rehearsal, report: Path, case: Case) -> subprocess.CompletedProcess[str]:
    """As a person would, but from an environment that looks like nobody's allocation."""
    words = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"),
        *(f"--preflight-inventory={rehearsal.inventory()}", f"--preflight-report={report}"),
        *("--preflight-fail-fast=never", "--preflight-budget=240", *case.options),
    ]
    try:
        return subprocess.run(words, cwd=report.parent, env=_environment(), capture_output=True,
                              text=True, timeout=case.ends_s, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:  # the controller was killed
        time.sleep(20)  # the nodes notice by themselves
        return subprocess.CompletedProcess(words, -9, "", "")


def _torchrun(rehearsal: Rehearsal, report: Path) -> subprocess.CompletedProcess[str]:
    """Two torchruns of two ranks each, on their hosts; the first one's output."""
    hosts = list(rehearsal.lab.hosts.values())
    running = []
    for number, host in enumerate(hosts):
        words = [
            *(str(rehearsal.python), "-m", "torch.distributed.run", f"--nnodes={len(hosts)}"),
            *("--nproc-per-node=2", f"--node-rank={number}", "--master-port=29500"),
            *(f"--master-addr={hosts[0].address}", "-m", "pytest", "-p", "no:cacheprovider"),
            *("--preflight", f"--preflight-report={report}", "--preflight-fail-fast=never"),
        ]
        environment = {**_environment(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        running.append(
            subprocess.Popen(host.command(words), cwd=report.parent, env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )  # fmt: skip
    outputs = [one.communicate(timeout=_LONGEST_S)[0] for one in running]
    return subprocess.CompletedProcess([], running[0].returncode, "".join(outputs), "")


def _environment() -> dict[str, str]:
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH", "NCCL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(_PAYLOAD.parents[1])}


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
    found: set[int] = set()
    apart = WITHOUT_CUDA.get(file, {})
    tree = ast.parse((_PAYLOAD / file).read_text())
    for branch in (one for one in ast.walk(tree) if isinstance(one, ast.If)):
        if f"if {ast.unparse(branch.test)}" in apart:
            found |= set(range(branch.body[0].lineno, _end(branch.body[-1]) + 1))
    for node in tree.body:
        parts: list[tuple[ast.stmt, str]] = [(node, "")]
        if isinstance(node, ast.ClassDef):
            parts += [(each, f"{node.name}.") for each in node.body]
        for one, prefix in parts:
            if isinstance(one, ast.ClassDef | ast.FunctionDef) and prefix + one.name in apart:
                found |= set(range(one.body[0].lineno, _end(one) + 1))
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
    parser.add_argument("--verbose", action="store_true", help="show what each run printed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
