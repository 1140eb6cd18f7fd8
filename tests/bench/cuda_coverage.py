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
from tests.lab.nvml.scenario import h100
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
_RACK = Machine(gpus=2, nvlink_domain="rack 7")

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
        "if interface": "gloo's interface",
    },
    "sweep/process_groups.py": {"_gloo": "connects CPUs"},
    "sweep/transports.py": {
        "not if self._rail.go.backend == 'nccl'": "gloo's interface",
        "Transport._tcp": "tells which interface carried gloo's data",
        "_local": "is called by _tcp",
        "gloo_interfaces": "the interfaces of gloo",
    },
    "sweep/verify.py": {
        "same": "compares data in the host's memory",
        "if not same(self.buffer, self._wanted)": "data in the host's memory",
    },
    "sweep/main.py": {"if first['event'] == 'no_torch'": "nothing runs without torch"},
    "burn/main.py": {"if found['event'] == 'no_torch'": "nothing runs without torch"},
    "burn/device.py": {
        "if bench.kind != 'cuda'": "of a CPU's memory a fixed part is tested",
        "if self._kind == 'cpu'": "CPUs that stand for devices",
    },
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
    """A Python program on a host, next to the run."""
    beside_on: str = "h2"
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


_STRIKES_ALL = """
import os, pathlib, signal, time
def all_of_them(signals):
    for place in pathlib.Path("/proc").glob("[0-9]*/comm"):
        try:
            if place.read_text().startswith("{name}"):
                os.kill(int(place.parent.name), signals)
        except OSError:
            pass
while True:
    all_of_them(signal.SIGSTOP)
    time.sleep(0.3)
    if {go_on}:
        all_of_them(signal.SIGCONT)
        time.sleep(0.3)
"""
"""Stops processes, also those that come later; for moments only, or for good."""

_STOPS_THE_AGENT = """
import os, pathlib, signal, time
def found():
    for place in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = place.read_text().partition("(")[2].rpartition(")")
            if name == "preflight-rank":
                return int(rest.split()[1])
        except OSError:
            pass
while not (pid := found()):
    time.sleep(0.01)
time.sleep(1.0)
os.kill(pid, signal.SIGSTOP)
time.sleep(300)
"""

_FINDS_THE_DRIVER = "/etc/ld.so.cache"

_LOSES_THE_DRIVER = f"""
import pathlib, subprocess, time
def there():
    return any(one.read_text().startswith("preflight-cuda")
               for one in pathlib.Path("/proc").glob("[0-9]*/comm"))
while True:
    try:
        if there():
            break
    except OSError:
        pass
    time.sleep(0.01)
subprocess.run(["umount", "{_FINDS_THE_DRIVER}"])
time.sleep(300)
"""
"""Its libraries are gone once the node was checked, as in an upgrade."""

_HOLDS_THE_NODE = """
import os, signal, socket
lock = socket.socket(socket.AF_UNIX)
lock.bind("\\0preflight-load-h2")
os.kill(os.getpid(), signal.SIGSTOP)
"""

_COUNTS = f"""
import pathlib, time
counter = pathlib.Path("/sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error")
xid = "NVRM: Xid (PCI:{h100("h2").gpus[1].bus_id.lower()[4:-2]}): 63, pid=1, name=x, remapping"
for number in range(1, 600):
    with open("/dev/kmsg", "a") as log:
        log.write(f"4,{{number}},{{time.monotonic() * 1e6:.0f}},-;{{xid}}\\n SUBSYSTEM=pci\\n")
    counter.write_text(f"{{number}}\\n")
    time.sleep(0.5)
"""
"""Errors of the NIC and the GPU of rail 1, all the time."""

_HOLDS_A_GPU = """
import time, torch
torch.zeros(1, device="cuda:1")
time.sleep(300)
"""


def _exclusive(rehearsal: Rehearsal) -> None:
    """NVML says so, too, and who holds it, once the node was checked; one pid is a stranger."""
    rehearsal.change("h2", exclusive=True)
    host = rehearsal.lab.hosts["h2"]
    held = host.scenario
    for index in range(2):
        held = held.process(index, 1, 500).process(index, 99999, 500)
    threading.Timer(20.0, host.set_scenario, (held,)).start()


def _perftest(rehearsal: Rehearsal) -> None:
    """NICs that perftest measures: on one it fails, on others it hangs or gives no figure."""
    tool = rehearsal.lab.folder / "sbin" / "ib_write_bw"
    tool.write_text(_PERFTEST)
    tool.chmod(0o755)


_PERFTEST = """#!/bin/sh
case "$*" in *127.0.0.1*) ;; *) sleep 1; exit ;; esac
case "$(hostname) $*" in
    h1*mlx5_1*) echo "Couldn't allocate MR"; exit 1 ;;
    h2*mlx5_0*) exec sleep 300 ;;
    h2*mlx5_1*) echo " 65536 27000 391.10 none 0.745"; exit ;;
esac
echo " 65536      27000            391.10             390.63             0.745"
"""


def _late(rehearsal: Rehearsal) -> None:
    """A new process starts after each hang, later than the others wait for it."""
    rehearsal.plant("h2", Fault("hang", slot=1, after=100))
    rehearsal.change("h2", init_s=45.0)


def _wrong_everywhere(rehearsal: Rehearsal) -> None:
    for where in ("network", "inside"):
        rehearsal.plant("h2", Fault("wrong sum", slot=1, rate=0.2, where=where))


def _rack(rehearsal: Rehearsal) -> None:
    """NVLink 5 counts all links of a GPU together; over it a kernel never ends."""
    host = rehearsal.lab.hosts["h2"]
    for index in range(2):
        host.set_scenario(host.scenario.counted(index, "nvlink_generation", 5))
    rehearsal.plant("h2", Fault("hang", slot=1, where="domain"))


def _no_device(rehearsal: Rehearsal) -> None:
    """CUDA does not come up on h1, and a stranger holds a GPU of h2."""
    rehearsal.change("h1", init_error="CUDA error: unknown")
    _exclusive(rehearsal)


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
    Case("GPU held by a stranger", _RACK, plant=_exclusive, beside=_HOLDS_A_GPU),
    Case("killed process", replace(_TWO_GPUS, exit_s=40.0), beside=_struck("KILL")),
    Case("stopped process", beside=_struck("STOP")),
    Case("stopped rail", beside=_struck("STOP", "preflight-rank", 0.0), nodes=3),
    Case("killed in CUDA's start", replace(_TWO_GPUS, init_s=5.0), beside=_struck("SEGV")),
    Case("errors counted", beside=_COUNTS),
    Case("moments stopped", beside=_STRIKES_ALL.format(name="preflight-pair", go_on=True)),
    Case("counters unread", beside=_STRIKES_ALL.format(name="preflight-count", go_on=False)),
    Case("no room", plant=lambda one: one.change("h2", free_mib=100)),
    Case("wrong sums everywhere", plant=_wrong_everywhere),
    Case("driver lost", replace(_TWO_GPUS, torch="2.4.1"), beside=_LOSES_THE_DRIVER),
    Case(
        "spikes, fail-fast",
        plant=_fault(Fault("spikes", rate=0.02)),
        options=("--preflight-fail-fast=first",),
    ),
    Case(
        "hung once of four nodes",
        plant=_fault(Fault("hang", slot=1, once=True, after=100)),
        nodes=4,
        options=("--preflight-keep-nccl-logs", "--preflight-budget=390"),
    ),
    Case("comes late", plant=_late, nodes=3),
    Case("rack, hangs over NVLink", _RACK, plant=_rack, nodes=3),
    Case("left by an earlier run", beside=_HOLDS_THE_NODE),
    Case("stopped host of the store", beside=_STOPS_THE_AGENT, beside_on="h1", nodes=3),
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
    Case("burn, no device", plant=_no_device, beside=_HOLDS_A_GPU, options=BURN),
    Case(
        "burn, driver lost",
        replace(_TWO_GPUS, torch="2.4.1"),
        beside=_LOSES_THE_DRIVER,
        options=BURN,
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
            lab.hosts[case.beside_on].spawn([rehearsal.python, "-c", case.beside])
            if case.beside
            else None
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
        if case.beside == _LOSES_THE_DRIVER:
            host = lab.hosts[case.beside_on]
            host.run(["mount", "--bind", host.lab / "ld.so.cache", _FINDS_THE_DRIVER])
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
        # As a device plugin does; the beginning of a UUID is enough for CUDA.
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(g.uuid[:16] for g in host.scenario.gpus)
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
        name = f"if {ast.unparse(branch.test)}"
        for part in (branch.body * (name in apart), branch.orelse * (f"not {name}" in apart)):
            found |= {line for one in part for line in range(one.lineno, _end(one) + 1)}
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
