"""`gpu.count`, `host.driver_hung`: missing is no pass, never expected is no fault."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.checks.gpu.test_answers import judge_count, open_errors
from preflight.checks.host.test_driver import judge as judge_driver
from preflight.facts import Majority
from preflight.facts.model import Driver
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, gpus, process


@pytest.mark.proves("gpu.count", unknown="GPUs expected, and no reading")
@pytest.mark.parametrize(
    ("expected", "answered", "outcome", "words"),
    [
        (8, 8, "ok", "8 GPUs"),
        (None, 8, "ok", "8 GPUs"),
        (8, 7, "fail", "7 of 8 GPUs answer"),
        (8, 0, "fail", "0 of 8 GPUs answer"),
        (4, 8, "warn", "8 GPUs, 4 expected"),
        (8, None, "unknown", "NVML did not answer"),
        (None, None, "not_run", "no GPUs here"),
        (None, 0, "not_run", "no GPUs here"),
        (0, None, "not_run", "no GPUs here"),
    ],
)
def test_gpu_count(expected: int | None, answered: int | None, outcome: str, words: str) -> None:
    """Fewer than expected fails, more is an inventory to correct, nothing read is unknown."""
    verdict = judge_count(expected, None if answered is None else gpus(answered))
    assert (verdict.outcome, verdict.sentence) == (outcome, words)
    assert verdict.advice or not verdict.makes_not_ready


@pytest.mark.proves(
    "gpu.count", finds="a GPU that is counted and does not answer, with no number expected"
)
def test_a_gpu_that_is_counted_must_answer() -> None:
    """Without an expectation NVML's own count is one: a lost GPU passed where none was expected."""
    verdict = judge_count(None, gpus(7), None, 8)
    assert verdict.sentence == "7 of 8 GPUs answer; NVML counts the others too"
    assert verdict.outcome == "fail"
    assert judge_count(None, gpus(8), None, 8).outcome == "ok"


@pytest.mark.proves("gpu.count", unknown="two GPUs with one UUID or one PCI address")
@pytest.mark.parametrize("same", ["uuid", "bus_id"])
def test_two_gpus_are_never_one(same: str) -> None:
    """An answer that cannot be true does not make the node ready."""
    eight = gpus(8)
    doubled = (*eight[:7], replace(eight[7], **{same: getattr(eight[0], same)}))
    for expected in (8, None):
        verdict = judge_count(expected, doubled)
        assert verdict.outcome == "unknown"
        assert getattr(eight[0], same) in verdict.sentence
        assert verdict.advice


@pytest.mark.parametrize(
    ("answered", "words", "outcome"),
    [
        (7, "Insufficient Memory", "unknown"),
        (7, "Insufficient Resources", "unknown"),
        (6, "Insufficient Memory", "fail"),
        (7, "Timeout", "fail"),
    ],
)
def test_a_gpu_that_the_node_has_no_memory_to_open_is_not_missing(
    answered: int, words: str, outcome: str
) -> None:
    """One that NVML could not ask for want of memory; another beside it still is."""
    verdict = judge_count(8, gpus(answered), None, 8, errors=(f"GPU 7: {words}",))
    assert verdict.outcome == outcome
    assert f"{answered} of 8 GPUs answer; " in verdict.sentence or outcome == "fail"


def test_a_lost_gpu_is_reported_with_nvmls_error() -> None:
    """What NVML says of the one that is missing is in the sentence, and of no other."""
    problems = ("GPU 1: Corrupted infoROM", "GPU 3: GPU is lost", "nics: no answer in time")
    seven = tuple(gpu for gpu in gpus(8) if gpu.index != 3)
    lost = open_errors(facts(gpus=seven, problems=problems))
    assert lost == ("GPU 3: GPU is lost",)
    verdict = judge_count(8, seven, None, 8, errors=lost)
    assert verdict.sentence == "7 of 8 GPUs answer; GPU 3: GPU is lost"


def test_the_missing_gpu_is_named_by_its_peers() -> None:
    """Where the group shows which GPU is gone, its bus id is in the sentence."""
    eight = gpus(8)
    usual = Majority(tuple(gpu.bus_id for gpu in eight), votes=3, of=4)
    gone = eight[3].bus_id
    expected = judge_count(8, (*eight[:3], *eight[4:]), usual)
    assert expected.sentence == f"7 of 8 GPUs answer; missing: {gone}"
    unpromised = judge_count(None, (*eight[:3], *eight[4:]), usual)
    assert unpromised.outcome == "fail"
    assert "3 of 4 nodes of its group have 8" in unpromised.sentence
    assert judge_count(None, (*eight[:3],), Majority(usual.value, 1, 2)).outcome == "ok"


@pytest.mark.parametrize(
    ("expected", "driver", "outcome", "words"),
    [
        (8, Driver("answered", "570.86.15", seconds=0.31), "ok", "0.3 s, driver 570.86.15"),
        (8, Driver("hung", seconds=5), "fail", "no answer within 5 s"),
        (None, Driver("hung", seconds=5), "fail", "no answer within 5 s"),
        (8, Driver("hung", seconds=5, paused_s=9), "unknown", "itself could not run for 9 s"),
        (8, Driver("absent"), "unknown", "no NVIDIA driver library here, 8 GPUs expected"),
        (None, Driver("absent"), "not_run", "no GPUs expected, no NVIDIA driver here"),
        (8, Driver("error", error="Driver Not Loaded"), "fail", "Driver Not Loaded; 8 GPUs"),
        (None, Driver("error", error="Driver Not Loaded"), "not_run", "no GPUs expected"),
        (
            None,
            Driver("error", error="Driver/library version mismatch"),
            "unknown",
            "NVML refuses: Driver/library version mismatch",
        ),
    ],
)
def test_driver(expected: int | None, driver: Driver, outcome: str, words: str) -> None:
    """Silence fails, where nothing paused us; so does a refusal where GPUs are expected."""
    verdict = judge_driver(expected, driver)
    assert verdict.outcome == outcome
    assert words in verdict.sentence


def test_a_child_that_outlives_sigkill_is_named() -> None:
    """The survivor's pid and the kernel function it hangs in are in the sentence."""
    survivor = process(977, command="nvml", state="D", wchan="os_acquire_rwlock", user="root")
    verdict = judge_driver(8, Driver("hung", seconds=5, survivor=survivor))
    assert "pid 977 (nvml, user root" in verdict.sentence
    assert verdict.sentence.endswith("outlived SIGKILL in os_acquire_rwlock")
    assert "reboot" in verdict.advice


@pytest.mark.parametrize(
    "error",
    [
        "preflight's own reader broke: AttributeError: no 'read' in gpu_fabric",
        "preflight's own reader broke: its process ended without an answer",
        "libnvidia-ml.so.1: failed to map segment: Cannot allocate memory",
        "libnvidia-ml.so.1: cannot open shared object file: Too many open files",
        "Insufficient Memory",
        "Insufficient Resources",
    ],
)
def test_our_own_reader_is_not_the_driver(error: str) -> None:
    """What broke on our side says nothing of the driver: unknown, also where GPUs are expected."""
    verdict = judge_driver(8, Driver("error", error=error))
    assert verdict.outcome is Outcome.UNKNOWN
    assert not verdict.grant


@pytest.mark.proves("host.driver_hung", unknown="a login that may not open the GPUs")
def test_a_missing_privilege_is_reported_with_what_to_grant() -> None:
    """A login that may not open the GPUs is no fault of the node."""
    verdict = judge_driver(8, Driver("error", error="Insufficient Permissions"))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "/dev/nvidia*" in verdict.grant
    assert not verdict.makes_not_ready
