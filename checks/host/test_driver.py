"""The NVIDIA driver answers: a hanging one takes every job down, and only a reboot helps."""

from __future__ import annotations

from preflight.check import Check
from preflight.checks.gpu.readings import SHORT_OF_MEMORY
from preflight.core.text import count
from preflight.facts import Driver, Node
from preflight.facts.gpu_users import name_process
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

CHECK = Check(
    "host.driver_hung",
    stage="facts",
    tier="prolog",
    requires=("reach.answer",),
    drains=True,
    heals=True,
)
NOT_LOADED = ("driver not loaded", "no devices", "could not find")
READER_FAULTS = (
    *("preflight's own reader broke", "cannot allocate memory", "too many open files"),
    # glibc's, of a library that it cannot map; it leaves out that memory is short.
    *("failed to map segment", "cannot map zero-fill", "cannot change memory", "out of memory"),
    *(words.lower() for words in SHORT_OF_MEMORY),
)
GRANT = "let this login open /dev/nvidia* (group video, or the job's device cgroup)"


def judge(expected: int | None, driver: Driver) -> Verdict:
    """Distinguish an answer, a refusal, and no answer."""
    expected_words = f"{count(expected, 'GPU')} expected" if expected else ""
    if driver.state == "answered":
        return ok(f"NVML answered in {driver.seconds:.1f} s, driver {driver.version}")
    if driver.state == "hung":
        return _hung_verdict(driver)
    if driver.state == "error":
        return _refusal_verdict(expected_words, driver.error)
    if not expected:
        return not_run("no GPUs expected, no NVIDIA driver here")
    advice = "install the driver, or mount it into the container, then recheck"
    return unknown(f"no NVIDIA driver library here, {expected_words}", advice=advice)


def _refusal_verdict(expected: str, error: str) -> Verdict:
    refusal = f"NVML refuses: {error}"
    if "permission" in error.lower():
        return unknown(refusal, advice=f"{GRANT}, then recheck", grant=GRANT)
    if any(words in error.lower() for words in READER_FAULTS):
        advice = "give the reader memory and files; install preflight again if it stays"
        return unknown(f"NVML could not be asked: {error}", advice=advice)
    if expected:
        advice = "look for NVRM in dmesg; reload the driver or reboot"
        return fail(f"{refusal}; {expected}", advice=advice)
    if any(words in error.lower() for words in NOT_LOADED):
        return not_run(f"no GPUs expected; {refusal}")
    return unknown(refusal, advice="reload the driver or reboot, then recheck")


def _hung_verdict(driver: Driver) -> Verdict:
    sentence = f"the driver gave NVML no answer within {driver.seconds:.0f} s"
    if driver.paused_s:
        paused = f"{sentence}, and preflight itself could not run for {driver.paused_s:.0f} s"
        advice = (
            "look for a process that takes all CPUs, a migration, a frozen container or "
            "SIGSTOP; run again"
        )
        return unknown(paused, advice=advice)
    if driver.survivor is not None:
        where = f" in {driver.survivor.wchan}" if driver.survivor.wchan else ""
        sentence += f"; our {name_process(driver.survivor)} even outlived SIGKILL{where}"
    advice = "look for Xid in dmesg; drain and reboot, no signal ends what waits in it"
    return fail(sentence, advice=advice, survivor=getattr(driver.survivor, "pid", None))


def test_host_driver_hung(node: Node, conclude: Conclude) -> None:
    """The NVIDIA driver answers: a hanging one takes every job down, and only a reboot helps."""
    conclude(judge(node.expected.gpus, node.facts.driver))
