"""`env.cuda_visible_devices`: the job's GPUs are there, its own, and enough for its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.checks.env.test_cuda_visible_devices import judge
from preflight.fleet.model import Job
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, gpu, gpus, mig_gpu

if TYPE_CHECKING:
    from preflight.facts.model import Facts

NODE = facts()
ORIGIN = "--preflight-env-file job.env"


def verdict_of(
    value: str | None,
    variables: dict[str, str] | None = None,
    *,
    nproc: int | None = None,
    node: Facts = NODE,
) -> Verdict:
    """The verdict on one value of the variable, the same on every node."""
    environ = dict(variables or {})
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    job = Job(environ={"": environ}, environ_origin=ORIGIN, nproc_per_node=nproc)
    return judge(environ, job, node, {"h1": node})


def test_without_a_job_environment_nothing_is_judged() -> None:
    """Our own login's variables are not the job's; the sentence says how to give them."""
    verdict = judge(None, Job(), NODE, {})
    assert verdict.outcome is Outcome.NOT_RUN
    assert "give --preflight-env-file, --preflight-launch" in verdict.sentence


def test_without_gpus_nothing_is_judged() -> None:
    """A machine without GPUs has nothing to hold the list against."""
    assert verdict_of("0", node=facts(gpus=None)).outcome is Outcome.NOT_RUN


@pytest.mark.proves("env.cuda_visible_devices", passes="a list of GPUs that exist")
@pytest.mark.parametrize(
    ("value", "nproc", "sentence"),
    [
        (None, 8, f"CUDA_VISIBLE_DEVICES is not set ({ORIGIN}): 8 devices visible"),
        ("0,1", 2, f"CUDA_VISIBLE_DEVICES is '0,1' ({ORIGIN}): 2 devices visible"),
        (NODE.gpus[0].uuid[:9] if NODE.gpus else "", 1, "1 device visible"),
    ],
)
def test_a_usable_list_is_ok_and_its_source_is_named(
    value: str | None, nproc: int, sentence: str
) -> None:
    """Indices and UUIDs are both legal; the source of the value is always reported."""
    verdict = verdict_of(value, nproc=nproc)
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence.endswith(sentence)


@pytest.mark.proves(
    "env.cuda_visible_devices", finds="the same GPU twice, too few, an unknown UUID"
)
@pytest.mark.parametrize(
    ("value", "nproc", "words"),
    [
        ("", None, "it is empty, so the job sees no GPU"),
        ("-1", None, "the job gets 0 of 8 GPUs"),
        (
            "0,1,9,2",
            None,
            "CUDA stops at '9': there are 8 GPUs here, numbered from 0; the job gets 2",
        ),
        ("0,0", None, "occurs twice, so CUDA hides every GPU"),
        ("GPU-dead", None, "no device here has this UUID"),
        ("0,1,2,3", 8, '8 ranks per node, 4 GPUs visible: rank 4 gets "invalid device ordinal"'),
    ],
)
def test_a_list_that_kills_ranks_fails(value: str, nproc: int | None, words: str) -> None:
    """What CUDA hides silently is reported before the job dies of it."""
    verdict = verdict_of(value, nproc=nproc)
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence
    assert verdict.advice


def test_uuids_copied_from_another_node_are_recognised() -> None:
    """UUIDs hold on one node only: the node they belong to is named."""
    there = facts("h1", gpus=(gpu(0, uuid="GPU-feed0000-0000-4000-8000-000000000001"),))
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-feed0000"}
    job = Job(environ={"": environ}, environ_origin=ORIGIN)
    verdict = judge(environ, job, NODE, {"h1": there, "h2": NODE})
    assert verdict.outcome is Outcome.FAIL
    assert "it names GPUs of h1; here the job gets 0 of 8 GPUs" in verdict.sentence


@pytest.mark.parametrize(
    ("value", "variables", "node", "outcome", "words"),
    [
        ("4,5", {"SLURM_JOB_GPUS": "4,5"}, NODE, "ok", "2 devices"),
        ("0,1", {"SLURM_JOB_GPUS": "4,5"}, NODE, "ok", "2 devices"),
        ("0,1", {"SLURM_JOB_GPUS": "4,5"}, facts(gpus=gpus(2)), "ok", "2 devices"),
        ("0,1", {"SLURM_GPUS_ON_NODE": "2"}, NODE, "ok", "2 devices"),
        (None, {"SLURM_GPUS_ON_NODE": "2"}, facts(gpus=gpus(2)), "ok", "2 devices"),
        ("0,1,2", {"SLURM_JOB_GPUS": "4,5"}, NODE, "fail", "it shows 3 GPUs; Slurm gave the job 2"),
        ("6,7", {"SLURM_JOB_GPUS": "4,5"}, NODE, "fail", "GPU 6,7 is not in the allocation (4,5)"),
        ("0", {"SLURM_STEP_GPUS": "0,1"}, NODE, "warn", "it shows 1 GPU; Slurm gave the job 2"),
        (None, {"SLURM_GPUS_ON_NODE": "a100:2"}, NODE, "warn", "8 GPUs are in sight"),
        ("4,5", {"SLURM_JOB_GPUS": "4,5"}, facts(gpus=gpus(2)), "warn", "the host's numbers"),
        ("0,1", {"SLURM_JOB_GPUS": "nonsense"}, NODE, "ok", "2 devices"),
        ("NoDevFiles", {"SLURM_JOB_GPUS": ""}, NODE, "fail", "Slurm's word for a step without"),
    ],
)
def test_the_allocation(
    value: str | None, variables: dict[str, str], node: Facts, outcome: str, words: str
) -> None:
    """Slurm counts GPUs as the host does, a job in its cgroup counts from 0: both are right."""
    verdict = verdict_of(value, variables, node=node)
    assert verdict.outcome == outcome
    assert words in verdict.sentence


def test_indices_on_mixed_models_are_ambiguous() -> None:
    """CUDA's default order is fastest first: index 0 may be another GPU than nvidia-smi's."""
    mixed = facts(gpus=(gpu(0), gpu(1, name="NVIDIA T4"), gpu(2)))
    assert verdict_of("0,1", node=mixed).outcome is Outcome.WARN
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in verdict_of("0,1", node=mixed).advice
    assert verdict_of("0,1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, node=mixed).outcome is Outcome.OK
    assert verdict_of("0,1,2", node=mixed).outcome is Outcome.OK
    assert verdict_of(gpu(0).uuid, node=mixed).outcome is Outcome.OK


def test_a_list_of_another_length_than_the_other_nodes_is_odd() -> None:
    """Three nodes with eight entries and one with four: the one is reported, not the three."""
    eight = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    four = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    job = Job(environ={"h1": eight, "h2": eight, "h3": eight, "h4": four}, environ_origin=ORIGIN)
    odd = judge(four, job, NODE, {"h4": NODE})
    assert odd.outcome is Outcome.WARN
    assert "4 entries here, 8 entries on 3 of 4 nodes" in odd.sentence
    assert judge(eight, job, NODE, {"h1": NODE}).outcome is Outcome.OK


def test_a_range_is_not_answered_with_fewer_ranks() -> None:
    """Who wrote 0-7 meant eight GPUs: the advice is the list, not --nproc-per-node=1."""
    verdict = verdict_of("0-7", nproc=8)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.advice == "write 0,1,2,3,4,5,6,7"
    assert verdict_of("0-7", nproc=1).outcome is Outcome.FAIL


def test_a_mig_instance_by_numbers_is_not_vouched_for() -> None:
    """The driver lists MIG instances by UUID: of GPU instance 99 nothing is known."""
    split = mig_gpu(0, 2)
    verdict = verdict_of(f"MIG-{split.uuid}/99/0", node=facts(gpus=(split,)))
    assert verdict.outcome is Outcome.WARN
    assert "cannot be seen here" in verdict.sentence
