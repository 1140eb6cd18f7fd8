"""Which GPUs are the job's: others' are left out, and a numbering that fits none blames none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.facts.gpu import GpuHealth
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import Driver
from preflight.fleet.model import Expected
from preflight.hook.hook_values import HookConfig
from preflight.hook.judging import VARIABLE, JobGpus, JobView, job_gpus, job_view
from tests.unit.facts.builders import facts, gpu, gpus, mig_gpu

ALL = JobGpus()
EIGHT = Expected(gpus=8)
ANSWERED = Driver("answered", counted=8)


def _log(*lines: str) -> KernelLog:
    return KernelLog("kmsg", 9, lines=tuple(LogLine(line, 10.0, 10.0) for line in lines))


def _xid(slot: str, number: int) -> str:
    return f"NVRM: Xid (PCI:{slot}): {number}, pid=1"


@pytest.mark.parametrize(
    ("text", "ids"),
    [("0", (0,)), ("0,1,5", (0, 1, 5)), ("2-4,7", (2, 3, 4, 7)), ("", ()), (" 1, 1 ", (1,))],
)
def test_slurms_list_is_read(text: str, ids: tuple[int, ...]) -> None:
    """Numbers and ranges, as slurmd writes them."""
    assert job_gpus({VARIABLE: text}, HookConfig()) == JobGpus(ids)


@pytest.mark.parametrize("text", ["7-0", "0,3-2", "1-", ",", "-1", "0-99999"])
def test_what_is_no_list_is_a_fault_of_ours(text: str) -> None:
    """A range that runs backwards names no GPU: then none is judged, and the log says so."""
    share = job_gpus({VARIABLE: text}, HookConfig())
    assert share.ids is None
    assert share.unclear == f"{VARIABLE} is {text!r}, which is not a list of GPUs"


def test_no_list_is_the_whole_node() -> None:
    """A cluster without GRES hands out whole nodes; one that uses it gives such a job no GPU."""
    assert job_gpus({}, HookConfig()) == ALL
    assert job_gpus({}, HookConfig(gpus_by_gres=True)) == JobGpus(())


@given(st.text(max_size=60))
def test_any_list_is_read_or_unclear(text: str) -> None:
    """Whatever the variable holds, no GPU is taken for the job's that it does not name."""
    share = job_gpus({VARIABLE: text}, HookConfig())
    assert share.unclear or share.ids is not None
    assert share.unclear.isprintable()


def test_the_others_are_left_out() -> None:
    """Of GPUs 1 and 6: facts, pairs, count, expectation and Xids are of these two alone."""
    slot0, slot6 = (gpu(at).bus_id.removesuffix(".0") for at in (0, 6))
    whole = facts(gpus=gpus(), driver=ANSWERED, kernel_log=_log(_xid(slot0, 48), _xid(slot6, 48)))
    seen = job_view(whole, EIGHT, JobGpus((1, 6)))
    assert [one.index for one in seen.facts.gpus or ()] == [1, 6]
    assert [(pair.a, pair.b) for pair in seen.facts.gpu_pairs or ()] == [(1, 6)]
    assert (seen.facts.driver.counted, seen.expected.gpus, seen.facts.topo_text) == (2, 2, None)
    assert seen.facts.kernel_log is not None
    assert [slot6 in line.text for line in seen.facts.kernel_log.lines] == [True]


def test_all_of_them_are_left_as_they_are() -> None:
    """A job with the whole node, or one without named GPUs, is judged by all GPUs."""
    whole = facts(gpus=gpus(), driver=ANSWERED)
    assert job_view(whole, EIGHT, ALL).facts is whole
    assert job_view(whole, EIGHT, JobGpus(tuple(range(8)))).facts == whole


def test_the_device_file_numbers_them() -> None:
    """Slurm's 0 is /dev/nvidia0, wherever that is in the order of the bus."""
    crossed = tuple(gpu(at, minor=7 - at) for at in range(8))
    seen = job_view(facts(gpus=crossed, driver=ANSWERED), EIGHT, JobGpus((0,)))
    assert [one.index for one in seen.facts.gpus or ()] == [7]


def test_a_number_that_cannot_be_read_just_now_is_no_other() -> None:
    """Unless it is the only one that is left: its index would be another GPU's number."""
    crossed = [gpu(at, minor=7 - at) for at in range(8)]
    unnumbered = [
        replace(one, minor=None, health=GpuHealth(errors=("minor: Timeout",))) for one in crossed
    ]

    def seen(*numbers: int, mute: tuple[int, ...]) -> JobView:
        mixed = tuple(unnumbered[at] if at in mute else crossed[at] for at in range(8))
        return job_view(facts(gpus=mixed, driver=ANSWERED), EIGHT, JobGpus(numbers))

    assert "at the moment" in seen(0, mute=tuple(range(8))).unclear
    assert "at the moment" in seen(0, mute=(3, 7)).unclear
    assert [one.index for one in seen(0, 1, mute=(7,)).facts.gpus or ()] == [6, 7]
    assert [one.index for one in seen(0, 4, mute=(3, 7)).facts.gpus or ()] == [3, 7]
    assert [one.index for one in seen(1, mute=(7,)).facts.gpus or ()] == [6]


@pytest.mark.parametrize(("error", "gpus_that"), [("mig_enabled", 8), ("bus_id", 1)])
def test_a_job_whose_gpus_cannot_be_told_just_now(error: str, gpus_that: int) -> None:
    """They may be MIG instances, or lines of the log be theirs. One ill GPU is no such."""
    blind = GpuHealth(errors=(f"{error}: Insufficient Memory",))
    odd = tuple(gpu(at, health=blind) if at < gpus_that else gpu(at) for at in range(8))
    mixed = facts(gpus=odd, driver=ANSWERED)
    assert "at the moment" in job_view(mixed, EIGHT, JobGpus((0,))).unclear
    one = (gpu(0, health=GpuHealth(errors=("mig_enabled: Unknown Error",))), *gpus()[1:])
    assert not job_view(facts(gpus=one, driver=ANSWERED), EIGHT, JobGpus((0,))).unclear


def test_a_job_with_gpus_expects_a_driver() -> None:
    """Without an inventory, a node whose driver is not loaded looks like one without GPUs."""
    bare = facts(gpus=None)
    assert "is 0,9, and no NVIDIA driver" in job_view(bare, Expected(), JobGpus((0, 9))).unclear
    assert job_view(bare, EIGHT, JobGpus((0, 9))).unclear == ""  # the driver's own check reports it
    assert job_view(bare, Expected(), JobGpus(())).unclear == ""


def test_a_lost_gpu_of_the_job_is_missing() -> None:
    """It was given GPU 3, which NVML counts and cannot open: one of two answers."""
    left = tuple(one for one in gpus() if one.index != 3)
    lost = facts(gpus=left, driver=ANSWERED, problems=("GPU 3: GPU is lost",))
    seen = job_view(lost, EIGHT, JobGpus((2, 3)))
    assert (len(seen.facts.gpus or ()), seen.facts.driver.counted, seen.unclear) == (1, 2, "")
    assert seen.facts.problems == lost.problems
    theirs = job_view(lost, EIGHT, JobGpus((0, 1)))
    assert (len(theirs.facts.gpus or ()), theirs.facts.problems) == (2, ())


def test_a_numbering_of_its_own_blames_nobody() -> None:
    """All eight answer, and none is called 9: that is a way of counting, not a lost GPU."""
    seen = job_view(facts(gpus=gpus(), driver=ANSWERED), EIGHT, JobGpus((9,)))
    assert seen.unclear == f"{VARIABLE} is 9, the GPUs here are 0, 1, 2, 3, 4, 5, 6, 7"


def test_mig_instances_are_not_numbered_as_gpus() -> None:
    """Where one GPU is cut up, Slurm's numbers are of instances: nothing is judged by them."""
    cut = (mig_gpu(0, 7), *gpus()[1:])
    assert "MIG" in job_view(facts(gpus=cut, driver=ANSWERED), EIGHT, JobGpus((0,))).unclear


def test_an_echo_of_anothers_gpu_is_not_the_jobs() -> None:
    """GPU 5 fell off the bus, and its NVLink peers complain: they are well, and so is the job."""
    slot0, slot5 = (gpu(at).bus_id.removesuffix(".0") for at in (0, 5))
    left = tuple(one for one in gpus() if one.index != 5)
    log = _log(_xid(slot5, 79), _xid(slot0, 74))
    whole = facts(gpus=left, driver=ANSWERED, kernel_log=log)
    theirs = job_view(whole, EIGHT, JobGpus((0, 1))).facts.kernel_log
    assert theirs is not None
    assert theirs.lines == ()
    own = job_view(whole, EIGHT, JobGpus((0, 5))).facts.kernel_log
    assert own is not None
    assert len(own.lines) == 2


def test_unread_stays_unread() -> None:
    """Without an answer of the driver there is nothing to leave out, and nothing to pass."""
    silent = replace(facts(), gpus=None, driver=Driver("hung", seconds=3))
    assert job_view(silent, EIGHT, JobGpus((0,))).facts is silent
