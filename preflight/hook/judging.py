"""Turns this node's facts into findings; in a prolog, only about the job's GPUs.

A fault that can pass by itself counts only if two runs of the hook in a row find it. The previous
look is saved in state_dir, where only root may write.

Slurm numbers GPUs as the host does, by the minor number of their device file. A missing GPU shifts
NVML's own indices, so these are used only where the minor number is not known.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.checks.gpu.driver_log import gpu_faults, missing_slots, root_causes, slot_of
from preflight.checks.gpu.readings import MAY_PASS
from preflight.core.files import refuse_untrusted, remove, write_atomically
from preflight.errors import UsageError
from preflight.facts.model import DRIVER_S, WIRE, Driver, Facts, Gpu
from preflight.facts.node import Reach
from preflight.fleet.model import Expected, Fleet
from preflight.hook.hook_values import Assessment, Finding, Moment, Unjudged, now, read_trusted
from preflight.run.judgement import Judgement
from preflight.run.measured import Measured
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from preflight.check import Check
    from preflight.core.registry import Registered, Registry
    from preflight.facts.machine import KernelLog
    from preflight.hook.hook_values import HookConfig


HUNG: Final = "host.driver_hung"
SLOW: Final = "gpu.driver_slow"
FILES: Final = {
    HUNG: "hung.json",
    SLOW: "slow.json",
    "gpu.count": "count.json",
    "gpu.readings": "readings.json",
}
"""The checks whose fault two looks must see, and the file that records the first of these looks."""

IN_A_ROW_S: Final = 3600.0
"""Looks that are further apart do not count as consecutive."""

APART_S: Final = 30.0
"""Looks that are closer may see the same bad moment, as two prologs that start together."""

_NOT_LOADED: Final = ("OSError: ", "NVML Shared Library Not Found")
"""Errors of the loader and of pynvml, which also appear while the driver is being replaced."""

_FULL_S: Final = DRIVER_S - 1
_LARGEST_LOOK: Final = 4096


def is_late(driver: Driver) -> bool:
    """Whether the driver has not answered, but the time was too short to call it hung."""
    return driver.state == "hung" and driver.seconds < _FULL_S


def is_hung(driver: Driver) -> bool | None:
    """Whether this look saw a hung driver; None where it was too short, or interrupted by a pause.

    A driver that returns "Timeout" or "In use by another client" counts as hung.
    """
    passing = driver.error.endswith(MAY_PASS) or driver.error.startswith(_NOT_LOADED)
    if driver.state == "error" and passing:
        return True
    if driver.state != "hung":
        return False
    return None if is_late(driver) or driver.paused_s else True


def load_faults(folder: Path) -> frozenset[str]:
    """Return the checks whose fault each look saw, from an earlier one of this boot on."""
    ages = {check_id: _age_s(folder / name) for check_id, name in FILES.items()}
    return frozenset(check_id for check_id, age_s in ages.items() if age_s and age_s >= APART_S)


def save_look(folder: Path, saw: Mapping[str, bool]) -> None:
    """Record this look for the next one; OSError or UsageError where that is not safe.

    `saw`: whether this look saw a check's fault. The record of a check that is not in it stays: its
    state is unknown.
    """
    for check_id, has_fault in saw.items():
        path = folder / FILES[check_id]
        if has_fault:
            refuse_untrusted(folder)
            age_s, moment = _age_s(path), now()
            if age_s is None or age_s >= APART_S:
                # After a second look each later one counts, however soon.
                up_s = moment.up_s - (APART_S if age_s else 0)
                write_atomically(path, msgspec.json.encode(Moment(moment.boot_id, up_s)))
        elif os.path.lexists(path):
            refuse_untrusted(folder)
            with suppress(FileNotFoundError):  # another hook that saw the same was quicker
                remove(path)


def _age_s(path: Path) -> float | None:
    """Seconds since the recorded look; None without one, or where it is too old to count."""
    try:
        look = msgspec.json.decode(read_trusted(path, _LARGEST_LOOK), type=Moment)
    except (UsageError, ValueError, RecursionError):
        return None
    age_s = look.age_s()
    return age_s if age_s is not None and 0 <= age_s <= IN_A_ROW_S else None


CHECK_S: Final = 1.0
"""Chosen: a judge is a pure function of facts and takes milliseconds, unless it is broken."""

OF_GPUS: Final = "gpu."
OF_DRIVER: Final = (HUNG, SLOW)
"""Checks of the whole node's driver, independent of the job's GPUs."""

NO_ANSWER: Final = "no answer in time"
"""The probe's text for a section that it could not read in time."""

_PROBLEMS: Final = (Outcome.FAIL, Outcome.FLAKY, Outcome.WARN)


class _CheckResult(Struct, frozen=True, kw_only=True):
    """The result of one check: a finding, an unknown result, `passed`, or none of these."""

    finding: Finding | None = None
    unknown: Unjudged | None = None
    passed: bool = False
    broken: bool = False
    """The result is unknown since the check broke: an error of preflight."""
    lacks_grant: bool = False
    """The result is unknown only for lack of a privilege."""
    may_pass: bool = False
    """The fault may be gone in a moment."""


def judge(
    registry: Registry,
    fleet: Fleet,
    all_facts: Facts,
    view: JobView,
    end_s: float,
    *,
    before: frozenset[str] = frozenset(),
    plain: bool = False,
) -> tuple[Assessment, dict[str, bool]]:
    """Run every passive check on this node, those of GPUs only on the job's.

    Also return whether each check of `FILES` saw its fault this time, where that is known.
    `end_s`: the moment (time.monotonic) after which no check starts. `before`: the checks of
    `FILES` whose fault the previous look saw. `plain`: a lack of privilege counts as unknown; in
    Slurm's prolog, it is not reported at every job.
    """
    (host,) = fleet.hosts
    job_fleet = replace(fleet, hosts=(replace(host, expected=view.expected),))
    node_judgement = _judgement_of(registry, fleet, all_facts)
    gpu_judgement = _judgement_of(registry, job_fleet, view.facts)
    partly = len(view.facts.gpus or ()) < (all_facts.driver.counted or 0)
    results: dict[str, _CheckResult] = {}
    saw: dict[str, bool] = {}
    for registered in registry:
        check = registered.check
        if registered.subject != "node" or check.stage != "facts" or not check.within("prolog"):
            continue
        about_gpus = check.id.startswith(OF_GPUS) and check.id not in OF_DRIVER
        if about_gpus and view.unclear:
            result = _unjudged(check.id, view.unclear)
        elif time.monotonic() >= end_s:
            result = _unjudged(check.id, "no time was left for it", out_of_time=True)
        else:
            judgement = gpu_judgement if about_gpus else node_judgement
            result = _run_check(registered, judgement, host.name, end_s)
            if check.id in FILES:
                has_fault = _saw_fault(check.id, result, all_facts.driver, partly=partly)
                saw |= {check.id: has_fault} if has_fault is not None else {}
                if has_fault is not False:
                    result = _confirm(check.id, result, all_facts.driver, before)
        results[check.id] = result
    broken = (row.unknown for row in results.values() if row.broken and row.unknown)
    assessment = Assessment(
        node=host.name,
        findings=tuple(row.finding for row in results.values() if row.finding),
        unknown=tuple(
            row.unknown
            for row in results.values()
            if row.unknown and (plain or not row.lacks_grant)
        ),
        passed=tuple(check_id for check_id, row in results.items() if row.passed),
        trouble=next((f"{row.check}: {row.why}" for row in broken), ""),
    )
    return assessment, saw


def _judgement_of(registry: Registry, fleet: Fleet, facts: Facts) -> Judgement:
    name = fleet.hosts[0].name
    measured = Measured(nonce=facts.nonce, reach={name: Reach("local")}, facts={name: facts})
    return Judgement(fleet, registry, measured)


def _run_check(
    registered: Registered, judgement: Judgement, name: str, end_s: float
) -> _CheckResult:
    check_id = registered.check.id
    with _alarm(min(CHECK_S, end_s - time.monotonic())) as rang:
        verdict = judgement.verdict(check_id, (name,))
    if rang:
        return _unjudged(check_id, f"its judge took over {CHECK_S:g} s", out_of_time=True)
    return _check_result(registered, verdict, name)


def _check_result(registered: Registered, verdict: Verdict, name: str) -> _CheckResult:
    check_id, sentence = registered.check.id, verdict.sentence
    if verdict.outcome is Outcome.OK:
        return _CheckResult(passed=True)
    if verdict.outcome is Outcome.BROKEN:
        return replace(_unjudged(check_id, sentence), broken=True)
    if verdict.outcome is Outcome.UNKNOWN:
        unjudged = _unjudged(check_id, sentence, out_of_time=NO_ANSWER in sentence)
        return replace(unjudged, lacks_grant=bool(verdict.grant))
    if verdict.outcome not in _PROBLEMS:
        return _CheckResult()
    passing = verdict.evidence.get("may_pass") is True
    return _CheckResult(finding=_finding(registered.check, verdict, name), may_pass=passing)


def _finding(check: Check, verdict: Verdict, name: str) -> Finding:
    local = verdict.blame in ("", name) and set(verdict.culprits) <= {name} and not verdict.suspects
    user = check.user or verdict.evidence.get("user") is True
    gpus = verdict.evidence.get("gpus")
    return Finding(
        check=check.id,
        outcome=verdict.outcome,
        sentence=verdict.sentence,
        advice=verdict.advice,
        drains=check.drains and local and not user and verdict.makes_not_ready,
        user=user,
        heals=check.heals,
        gpus=tuple(gpus) if isinstance(gpus, list | tuple) else (),
    )


def _saw_fault(check_id: str, result: _CheckResult, driver: Driver, *, partly: bool) -> bool | None:
    """Whether this look saw the check's fault, which may pass; None where that is unknown.

    `partly`: only some GPUs were checked; that a job's GPUs are ok shows nothing about the others.
    """
    bad = result.finding is not None and result.finding.makes_not_ready
    if result.finding is None and not result.passed:
        return None
    if partly and not bad and check_id not in OF_DRIVER:
        return None
    return is_hung(driver) if check_id == HUNG else bad and (result.may_pass or check_id == SLOW)


def _confirm(
    check_id: str, result: _CheckResult, driver: Driver, before: frozenset[str]
) -> _CheckResult:
    """Report a fault that may pass, as a silent or slow driver, only if the previous look saw it.

    A lasting error needs no second look.
    """
    finding = result.finding
    if finding is None or not finding.makes_not_ready:
        return result
    if check_id in before:
        sentence = f"{finding.sentence}, as in the previous look"
        return _CheckResult(finding=replace(finding, sentence=sentence))
    late = is_late(driver)
    note = f"it may take {DRIVER_S:g} s" if late else "it counts as a fault if the next look agrees"
    return _unjudged(check_id, f"{finding.sentence}; {note}", out_of_time=late)


def _unjudged(check_id: str, why: str, *, out_of_time: bool = False) -> _CheckResult:
    return _CheckResult(unknown=Unjudged(check=check_id, why=why, out_of_time=out_of_time))


@contextmanager
def _alarm(seconds: float) -> Iterator[list[bool]]:
    """Interrupt the body after `seconds`; the yielded list is then not empty."""
    rang: list[bool] = []

    def ring(*_: object) -> None:
        rang.append(True)
        raise TimeoutError("the judge's time is up")

    old_handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield rang
    except TimeoutError:
        if not rang:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


VARIABLE: Final = "SLURM_JOB_GPUS"
_MOST_GPUS: Final = 1024
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class JobGpus(Struct, frozen=True):
    """The job's GPUs as the scheduler names them. `ids` is None for all GPUs of the node."""

    ids: tuple[int, ...] | None = None
    unclear: str = ""
    """Why it is unknown which GPUs they are; then none is checked."""


class JobView(Struct, frozen=True):
    """The node reduced to the job's GPUs."""

    facts: Facts
    expected: Expected
    unclear: str = ""


def job_gpus(environ: Mapping[str, str], config: HookConfig) -> JobGpus:
    """Read which GPUs a job has; without the variable all, or none with `gpus_by_gres`."""
    text = environ.get(VARIABLE)
    if text is None:
        return JobGpus(() if config.gpus_by_gres else None)
    ids: list[int] = []
    for words in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(words.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        # A range that runs backwards would silently mean no GPU, one without an end only some.
        if not first <= last < _MOST_GPUS:
            return JobGpus(unclear=f"{VARIABLE} is {text[:80]!a}, which is not a list of GPUs")
        ids += range(first, last + 1)
        if len(ids) > _MOST_GPUS:
            return JobGpus(unclear=f"{VARIABLE} names more than {_MOST_GPUS} GPUs")
    return JobGpus(tuple(dict.fromkeys(ids)))


def job_view(facts: Facts, expected: Expected, job: JobGpus) -> JobView:
    """Leave out other jobs' GPUs. Numbers that fit no GPU of this node are `unclear`."""
    if job.unclear or job.ids is None:
        return JobView(facts, expected, job.unclear)
    numbers = ",".join(map(str, job.ids))[:80]
    if facts.gpus is None:
        surprise = job.ids and not expected.gpus
        why = f"{VARIABLE} is {numbers}, and no NVIDIA driver answers here" if surprise else ""
        return JobView(facts, expected, why)
    unnumbered = [gpu for gpu in facts.gpus if gpu.refused("minor")]
    if any(gpu.mig_enabled for gpu in facts.gpus):
        why = (
            f"a GPU is split into MIG instances, which {VARIABLE} does not number as the host does"
        )
        return JobView(facts, expected, why)
    gpus = tuple(g for g in facts.gpus if g not in unnumbered and _number(g) in job.ids)
    missing, absent = len(job.ids) - len(gpus), _absent(facts, expected)
    if missing == len(unnumbered) and not absent:  # then the job has all GPUs without a number
        gpus, missing = tuple(g for g in facts.gpus if g in gpus or g in unnumbered), 0
    blind = gpus and all(gpu.refused("mig_enabled") for gpu in facts.gpus)
    if (missing and unnumbered) or blind or any(gpu.refused("bus_id") for gpu in gpus):
        return JobView(facts, expected, "NVML does not show at the moment which GPUs are the job's")
    if missing > absent:
        present = ", ".join(str(_number(gpu)) for gpu in facts.gpus) or "none"
        return JobView(facts, expected, f"{VARIABLE} is {numbers}, the GPUs here are {present}")
    return JobView(
        _keep_gpus(facts, gpus, missing, len(job.ids)), replace(expected, gpus=len(job.ids))
    )


def _number(gpu: Gpu) -> int:
    return gpu.index if gpu.minor is None else gpu.minor


def _absent(facts: Facts, expected: Expected) -> int:
    """How many GPUs this node lacks, by NVML's count or the expected number."""
    answering = len(facts.gpus or ())
    return max(facts.driver.counted or 0, expected.gpus or 0, answering) - answering


def _keep_gpus(facts: Facts, gpus: tuple[Gpu, ...], missing: int, count: int) -> Facts:
    indices = {gpu.index for gpu in gpus}
    is_whole_node = len(gpus) == len(facts.gpus or ())
    pairs = facts.gpu_pairs
    return replace(
        facts,
        gpus=gpus,
        gpu_pairs=pairs and tuple(p for p in pairs if p.a in indices and p.b in indices),
        driver=replace(facts.driver, counted=count),
        # nvidia-smi's matrix covers all GPUs: it cannot be compared with some of them.
        topo_text=facts.topo_text if is_whole_node else None,
        kernel_log=facts.kernel_log and _job_log(facts.kernel_log, facts, gpus, missing),
        problems=facts.problems if missing else _present_problems(facts),
    )


def _job_log(log: KernelLog, facts: Facts, gpus: tuple[Gpu, ...], missing: int) -> KernelLog:
    """Leave out Xids of other jobs' GPUs, and those that these caused on the job's GPUs.

    Xids of a missing GPU count for the job if the job lacks a GPU.
    """
    slots = {slot_of(gpu.bus_id) for gpu in gpus} | {f"GPU{_number(gpu)}" for gpu in gpus}
    slots |= set(missing_slots(facts)) if missing else set()
    foreign = [xid for xid in gpu_faults(log.lines) if xid.slot not in slots]
    lines = tuple(
        line
        for line in log.lines
        if all(
            xid.slot in slots and xid in root_causes([xid, *foreign]) for xid in gpu_faults((line,))
        )
    )
    return replace(log, lines=lines)


def _present_problems(facts: Facts) -> tuple[str, ...]:
    """Leave out problems of a missing GPU: all of the job's GPUs are present."""
    prefixes = tuple(f"GPU {gpu.index}:" for gpu in facts.gpus or ())
    return tuple(
        line for line in facts.problems if not line.startswith("GPU ") or line.startswith(prefixes)
    )


NAME: Final = "facts.json"
_LARGEST: Final = 16 << 20
_SAME_BOOT_S: Final = 30.0
"""Tolerance between two readings of the boot time, which differ when the clock is set."""

_SLOW_TO_CHANGE: Final = ("software", "gpudirect", "nccl_conf")
"""Sections that a job cannot change in an hour and that take long to read. Not nvidia-smi's matrix:
a repair changes it."""


def save_facts(folder: Path, facts: Facts) -> None:
    """Save the facts in a folder that only root may change; OSError if that fails."""
    write_atomically(folder / NAME, msgspec.json.encode(facts))


def complete_facts(facts: Facts, config: HookConfig) -> tuple[Facts, float | None]:
    """Complete the facts from saved ones, and return their age; None where none were used.

    Those that are too old or from another boot are not used.
    """
    earlier = _stored_facts(config, facts)
    if earlier is None:
        return facts, None
    changes: dict[str, object] = {
        name: getattr(earlier, name)
        for name in _SLOW_TO_CHANGE
        if getattr(facts, name) is None and getattr(earlier, name) is not None
    }
    if not changes:
        return facts, None
    return replace(facts, **changes), facts.time_s - earlier.time_s


def _stored_facts(config: HookConfig, current: Facts) -> Facts | None:
    try:
        content = read_trusted(config.state_dir / NAME, _LARGEST)
        facts = msgspec.json.decode(content, type=Facts)
    except (UsageError, ValueError, RecursionError):
        return None
    is_recent = 0 <= current.time_s - facts.time_s <= config.facts_max_age_s
    is_same_boot = facts.wire == WIRE and abs(facts.boot_s - current.boot_s) <= _SAME_BOOT_S
    return facts if is_recent and is_same_boot and facts.host == current.host else None
