"""What NVML cannot tell just now: each call and each field, for one GPU or for all of them.

No healthy machine gets a failure by it, and no sick one passes.
"""

from __future__ import annotations

import ctypes
import json
import time
from _ctypes import dlclose
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pynvml
import pytest
from probe import nvml as nvml_probe
from probe.nvml_calls import Nvml

from preflight.core.registry import Registry
from preflight.core.registry import shipped_checks as checks
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import Driver, Gpu, GpuPair
from preflight.fleet.model import Expected, Fleet, Host
from preflight.hook.judging import FILES, JobGpus, job_view, judge
from preflight.verdict import Outcome
from tests.lab import sysfs
from tests.lab.nvml.machine import Link
from tests.lab.nvml.scenario import Scenario, h100
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preflight.facts.model import Facts

TIMEOUT, IN_USE, MEMORY, RESOURCES = 10, 19, 20, 23
CODES: Final = (MEMORY, TIMEOUT, RESOURCES, IN_USE)
PASSING: Final = {"gpu.readings", "gpu.count", "host.driver_hung"}
"""The checks that say so themselves where a GPU answers "Timeout" again and again."""

INDEX: Final = 2
"""The GPU that is odd, or sick."""

Refuses = tuple[str, int | None, int, int | None]
"""A call, the field if it is about one, the code, and of which GPU alone."""


@dataclass(frozen=True)
class Machine:
    """What is judged."""

    scenario: Scenario
    fails: str = ""
    """The check that its fault fails; "" for a healthy one."""
    share: JobGpus | None = None
    log: str = ""
    init_s: float = 0.1
    crossed: bool = False
    """The device files are numbered against the order of the bus."""
    nvlinks: int | None = None


def four(name: str = "", links: int = 18) -> Scenario:
    """A machine of four GPUs, and not of eight: it is read some thousand times."""
    whole = h100("h1")
    gpus = tuple(replace(gpu, links=gpu.links[:links]) for gpu in whole.gpus[:4])
    return replace(whole, gpus=gpus, nics=whole.nics[:4], name=name or whole.name)


def every(scenario: Scenario, change: Callable[[Scenario, int], Scenario]) -> Scenario:
    """Change all GPUs."""
    for index in range(len(scenario.gpus)):
        scenario = change(scenario, index)
    return scenario


def a100() -> Scenario:
    """GPUs that are joined directly."""
    plain = four("NVIDIA A100-SXM4-40GB")
    gpus = plain.gpus
    return replace(
        plain,
        gpus=tuple(
            replace(a, links=tuple(Link(b.bus_id, kind="gpu") for b in gpus if b is not a) * 4)
            for a in gpus
        ),
    )


def old(scenario: Scenario) -> Scenario:
    """A driver from before T.Limit, recovery actions and the SRAM's own word."""
    for name, code in (("recovery_action", 2), ("sram_threshold", 13), ("margin_c", 13)):
        scenario = every(scenario, lambda s, i, n=name, c=code: s.refused(i, n, c))  # type: ignore[misc]
    return scenario


def apart(near: int = 6) -> Scenario:
    """Some of eight PCIe GPUs hang elsewhere, and reach only each other."""
    eight = h100("h1").without_links()
    for a, b in combinations(range(8), 2):
        split = a < near <= b
        eight = eight.ancestor(a, b, 50 if split else 40).p2p(a, b, 5 if split else 0)
    return eight


def mesh() -> Scenario:
    """Six GPUs of an unknown model: every other one has four NVLinks, the others two."""
    whole = h100("h1")
    gpus = tuple(
        replace(gpu, links=gpu.links[: 4 if at % 2 else 2]) for at, gpu in enumerate(whole.gpus[:6])
    )
    return replace(whole, gpus=gpus, nics=(), name="Engineering Sample")


H100: Final = four()
FEW: Final = four("Engineering Sample", links=3)
PCIE: Final = FEW.without_links()
HOT: Final = FEW.counted(INDEX, "slowdown_at", 2**64 - 2)
OFF: Final = every(PCIE, lambda s, i: s.counted(i, "persistence", 0))
BUSY: Final = every(PCIE, lambda s, i: s.counted(i, "reasons", 4).counted(i, "utilization_pct", 9))
LANES: Final = every(
    replace(apart(), name="NVIDIA H100 PCIe"),
    lambda s, i: s.counted(i, "pcie_width", 16 if i % 2 else 8),
)
MIXED: Final = every(PCIE, lambda s, i: s.counted(i, "pcie_width", 8) if i == INDEX else s)
XID: Final = "NVRM: Xid (PCI:{}): 95, pid=7, name=python, Uncontained"
SLOT: Final = H100.gpus[INDEX].bus_id[4:-2]
NEEDED: Final = ("reach.", "host.driver_hung", "gpu.count")
JOB: Final = JobGpus((1, 2))

HEALTHY: Final = {
    "h100": Machine(H100, nvlinks=18),
    "a100": Machine(a100()),
    "apart": Machine(apart()),
    "old": Machine(old(FEW).counted(INDEX, "sram_aggregate_uncorrected", 3)),
    "hot": Machine(HOT.counted(INDEX, "margin_c", 0)),
    "worn": Machine(PCIE.counted(INDEX, "remapped_uncorrected", 3)),
    "sram": Machine(PCIE.counted(INDEX, "sram_aggregate_uncorrected", 6)),
    "cut": Machine(every(a100(), lambda s, i: s.mig(i, 2)), nvlinks=12),
    "retired": Machine(old(PCIE).counted(INDEX, "retired_single", 20)),
    "cold": Machine(OFF, init_s=5.6),
    "job": Machine(PCIE.counted(0, "ecc_uncorrected", 4), share=JOB),
    "reset": Machine(FEW, log=XID.format(SLOT)),
    "busy": Machine(BUSY),
    "idle": Machine(every(PCIE, lambda s, i: s.counted(i, "pcie_gen", 1))),
    "lanes": Machine(LANES),
    "mesh": Machine(mesh()),
}
SICK: Final = {
    "beyond": Machine(HOT.counted(INDEX, "margin_c", 2**64 - 5), "gpu.temperature"),
    "hot, old": Machine(old(PCIE).counted(INDEX, "temperature_c", 99), "gpu.temperature"),
    "brake": Machine(PCIE.counted(INDEX, "reasons", 0x80), "gpu.throttle"),
    "ecc": Machine(PCIE.counted(INDEX, "ecc_uncorrected", 4), "gpu.ecc"),
    "sram": Machine(PCIE.counted(INDEX, "sram_threshold", 1), "gpu.ecc"),
    "remap": Machine(PCIE.counted(INDEX, "remap_pending", 1), "gpu.remap"),
    "retired": Machine(
        old(PCIE).counted(INDEX, "retired_single", 40).counted(INDEX, "retired_double", 40),
        "gpu.remap",
    ),
    "recovery": Machine(PCIE.counted(INDEX, "recovery_action", 4), "gpu.recovery"),
    "drain": Machine(old(PCIE).counted(INDEX, "drain_status", 1), "gpu.recovery"),
    "inforom": Machine(PCIE.refused(INDEX, "inforom_valid", 14), "gpu.inforom"),
    "lanes": Machine(MIXED, "gpu.pcie"),
    "slow": Machine(BUSY.counted(INDEX, "pcie_gen", 1), "gpu.pcie"),
    "nvlink": Machine(
        FEW.counted(INDEX, "nvlink_generation", 5).counted(INDEX, "nvlink1_recovery_failed", 3),
        "gpu.nvlink",
    ),
    "fabric": Machine(FEW.counted(INDEX, "fabric_state", 2), "gpu.fabric"),
    "torn": Machine(FEW.link_down(INDEX, 1), "gpu.topology"),
    "peers": Machine(PCIE.p2p(0, INDEX, 1), "gpu.topology"),
    "xid": Machine(FEW.counted(INDEX, "recovery_action", 1), "gpu.xid", log=XID.format(SLOT)),
    "wedged": Machine(PCIE, "gpu.driver_slow", init_s=5.6),
    "job": Machine(
        PCIE.counted(INDEX, "ecc_uncorrected", 4), "gpu.ecc", JobGpus((1,)), crossed=True
    ),
    "job, xid": Machine(
        PCIE.counted(INDEX, "recovery_action", 1), "gpu.xid", JOB, log=XID.format(SLOT)
    ),
    "mode": Machine(PCIE.counted(INDEX, "compute_mode", 2), "gpu.mode"),
    "memory": Machine(PCIE, "gpu.memory"),
}


class Emulator:
    """NVML in this process, of which calls can be refused."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder, self.machine, self.calls = folder, machine, list[tuple[str, int | None]]()
        self._refuses: Refuses | None = None
        self._ask = pynvml._nvmlGetFunctionPointer
        (folder / "scenario").write_text(machine.scenario.text())
        sysfs.write(folder / "sys", machine.scenario)

    def function(self, name: str) -> Any:
        """In place of pynvml's own."""
        ask = self._ask(name)

        def call(*given: Any) -> int:
            if name == "nvmlDeviceGetFieldValues":
                return self._fields(ask, *given)
            self.calls.append((name, None))
            what, field, code, _ = self._refuses or ("", None, 0, None)
            return code if (what, field) == (name, None) else int(ask(*given))

        return ask if name in ("nvmlErrorString", "nvmlInitWithFlags", "nvmlShutdown") else call

    def _fields(self, ask: Any, handle: Any, number: Any, values: Any) -> int:
        code = int(ask(handle, number, values))
        for at in range(number.value):
            one = values._obj[at]
            self.calls.append(("field", one.fieldId))
            what, field, code_now, _ = self._refuses or ("", None, 0, None)
            if (what, field) == ("field", one.fieldId):
                one.nvmlReturn = code_now
        return code

    def open(self) -> None:
        """Ask the healthy driver."""
        pynvml.nvmlInit()
        self.handles = {
            at: pynvml.nvmlDeviceGetHandleByIndex(at)
            for at in range(len(self.machine.scenario.gpus))
        }
        self.gpus, _ = self._read(dict(self.handles), None)
        self.of_gpu = list(dict.fromkeys(self.calls))
        self.calls.clear()
        self.pairs, _ = self._pairs(None)
        self.of_pairs = list(dict.fromkeys(self.calls))

    def facts(self, refuses: Refuses | None = None) -> Facts:
        """What a node tells whose driver refuses that."""
        gpus, pairs, problems = dict(self.gpus), self.pairs, list[str]()
        if refuses is not None and refuses[:2] in self.of_gpu:
            asked = self.handles if refuses[3] is None else {refuses[3]: self.handles[refuses[3]]}
            again, problems = self._read(asked, refuses)
            gpus = {**{at: one for at, one in gpus.items() if at not in asked}, **again}
        if refuses is not None and refuses[:2] in self.of_pairs:
            pairs, more = self._pairs(refuses)
            problems += more
        driver = Driver(
            "answered", counted=len(self.gpus), version="550.90.07", init_s=self.machine.init_s,
            slowest_s=0.1,
        )  # fmt: skip
        log = KernelLog("kmsg", 9, lines=tuple(LogLine(text, 10.0, 10.0) for text in self._log()))
        return facts(
            gpus=msgspec.convert([gpus[at] for at in sorted(gpus)], tuple[Gpu, ...]),
            gpu_pairs=msgspec.convert(pairs, tuple[GpuPair, ...]),
            driver=driver, kernel_log=log, problems=tuple(problems), nics=(), topo_text=None,
        )  # fmt: skip

    def _log(self) -> list[str]:
        return [self.machine.log] if self.machine.log else []

    def _read(
        self, handles: dict[int, Any], refuses: Refuses | None
    ) -> tuple[dict[int, Any], list[str]]:
        self._refuses, nvml, found = refuses, Nvml(pynvml), dict[int, Any]()
        for index, handle in handles.items():
            nvml.subject = f"GPU {index}"
            gpu = nvml_probe.read(nvml, index, handle, str(self.folder / "sys"))
            if gpu is not None:
                if self.machine.crossed and gpu["minor"] is not None:
                    gpu["minor"] = len(self.machine.scenario.gpus) - 1 - index
                if (
                    self.machine.fails == "gpu.memory"
                    and index == INDEX
                    and gpu["memory_total_mib"]
                ):
                    gpu["memory_total_mib"] -= 40_000
                found[index] = json.loads(json.dumps(gpu))
        self._refuses = None
        return found, nvml.problems

    def _pairs(self, refuses: Refuses | None) -> tuple[list[Any], list[str]]:
        self._refuses, nvml = refuses, Nvml(pynvml)
        read = nvml_probe.read_pairs(nvml, self.handles)
        self._refuses = None
        return read, nvml.problems


@pytest.fixture
def become(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Machine], Emulator]]:
    """Load the emulator into this process; afterwards it is gone again."""
    library = ctypes.CDLL(str(nvml_library / "libnvidia-ml.so.1"))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setenv("PREFLIGHT_NVML_SCENARIO", str(tmp_path / "scenario"))

    def begin(machine: Machine) -> Emulator:
        emulator = Emulator(tmp_path, machine)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", emulator.function)
        emulator.open()
        return emulator

    yield begin
    pynvml.nvmlShutdown()
    dlclose(library._handle)


@pytest.fixture(scope="module")
def registry() -> Callable[[str], Registry]:
    """One check of what the driver tells, or ("") all that may drain; and what these require."""
    shipped = checks()

    def of(name: str) -> Registry:
        return Registry(
            [
                one
                for one in shipped
                if one.check.id.startswith(NEEDED)
                or one.check.id == name
                or (not name and one.check.id.startswith("gpu.") and one.check.drains)
            ]
        )

    return of


def judged(registry: Registry, machine: Machine, facts: Facts) -> dict[str, str]:
    """How each check ends, where the look before saw every fault that needs two."""
    expectation = Expected(gpus=len(machine.scenario.gpus), nvlinks_per_gpu=machine.nvlinks)
    fleet = Fleet(
        hosts=(Host(name="h1", address="127.0.0.1", expected=expectation),), origin="here"
    )
    seen = job_view(facts, expectation, machine.share or JobGpus())
    ends = time.monotonic() + 60
    found, _ = judge(registry, fleet, facts, seen, ends, before=frozenset(FILES))
    assert not found.trouble
    results = dict.fromkeys(found.passed, "ok") | {one.check: "unknown" for one in found.unknown}
    return results | {one.check: one.outcome.value for one in found.findings}


def refusals(emulator: Emulator) -> Iterator[Refuses]:
    """Each call and field with each code: half of them of one GPU, half of all."""
    for at, (call, field) in enumerate(dict.fromkeys([*emulator.of_gpu, *emulator.of_pairs])):
        for number, alone in enumerate((INDEX, None)):
            yield call, field, CODES[(at + number) % len(CODES)], alone


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.slow
def test_no_healthy_machine_fails(
    become: Callable[[Machine], Emulator], registry: Callable[[str], Registry], name: str
) -> None:
    """Whatever NVML cannot tell: what it would excuse or outvote is no fault."""
    machine, asked = HEALTHY[name], registry("")
    emulator = become(machine)
    fails = {
        check
        for check, end in judged(asked, machine, emulator.facts()).items()
        if end == Outcome.FAIL
    }
    assert not fails
    bad = {}
    for refuses in refusals(emulator):
        ends = judged(asked, machine, emulator.facts(refuses))
        spared = PASSING if refuses[2] in (TIMEOUT, IN_USE) else set[str]()
        if fails := {check for check, end in ends.items() if end == Outcome.FAIL} - spared:
            bad[refuses] = fails
    assert bad == {}


@pytest.mark.parametrize("name", SICK)
@pytest.mark.slow
def test_no_sick_machine_passes(
    become: Callable[[Machine], Emulator], registry: Callable[[str], Registry], name: str
) -> None:
    """It fails, or is not known: what is left proves nothing."""
    machine, asked = SICK[name], registry(SICK[name].fails)
    emulator = become(machine)
    assert judged(asked, machine, emulator.facts())[machine.fails] == Outcome.FAIL
    bad = {}
    for refuses in refusals(emulator):
        end = judged(asked, machine, emulator.facts(refuses)).get(machine.fails)
        if end not in (Outcome.FAIL, "unknown"):
            bad[refuses] = end
    assert bad == {}
