"""The launch line against the fleet, and the training script's own text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.checks.launch import test_launch
from preflight.errors import UsageError
from preflight.fleet.launch_line import read_launch, shape_of
from preflight.lint import lint
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.model import Shape

EIGHT = {"h1": 8, "h2": 8}
MEET = "--rdzv-backend=c10d --rdzv-endpoint=h1:29500"


def _shape(line: str, **environ: str) -> Shape | None:
    launch = read_launch(line)
    return shape_of(launch, environ)


def _fits(line: str, devices: Mapping[str, int | None], **environ: str) -> Verdict:
    return test_launch.judge_fits(_shape(line, **environ), len(devices), devices)


@pytest.mark.proves(
    "launch.fits", finds="a launch that waits for too many nodes; no rendezvous address"
)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"torchrun --nnodes=4 {MEET} t.py", "--nnodes=4 waits for 4 nodes, and this run has 2"),
        (f"torchrun --nnodes=3:8 {MEET} t.py", "--nnodes=3:8 waits for 3 nodes"),
        ("torchrun --nnodes=2 t.py", "neither --rdzv-endpoint nor --master-addr: each of 2 nodes"),
        ("torchrun --nnodes=2 --rdzv-backend=c10d t.py", "neither --rdzv-endpoint"),
        (
            "torchrun --nnodes=2 --rdzv-backend=c10d --master-addr=h1 t.py",
            "--master-addr count for the static rendezvous only",
        ),
        ("torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h1:0 t.py", "port 0 is a random"),
        ("torchrun --nnodes=2 --master-addr=h1 t.py", "every node takes itself for node 0"),
        (
            f"srun --ntasks-per-node=8 torchrun --nnodes=2 {MEET} t.py",
            "srun starts torchrun 8 times on each node, 1 is expected",
        ),
        (f"srun -N4 torchrun --nnodes=2 {MEET} t.py", "srun starts it on 4 nodes, and --nnodes"),
        (f"srun -N 4 torchrun --nnodes=2 {MEET} t.py", "srun starts it on 4 nodes, and --nnodes"),
        ("accelerate launch --num_machines 4 t.py", "--nnodes=4 waits for 4 nodes"),
        ("deepspeed --num_nodes=4 t.py", "--nnodes=4 waits for 4 nodes"),
    ],
)
def test_a_launch_that_will_not_come_up(line: str, words: str) -> None:
    """It fails with the option as it is and as it is expected."""
    verdict = _fits(line, EIGHT)
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence
    assert verdict.advice


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchrun --nproc-per-node=8 t.py", "--nnodes is 1, torchrun's default: each of 2 nodes"),
        ("torchrun --standalone --nproc-per-node=8 t.py", "--standalone: each of 2 nodes"),
        (f"torchrun --nnodes=2 {MEET} t.py", "1 rank per node, and the job sees 8 GPUs on 2 of 2"),
        (f"torchrun --nnodes=2 --nproc-per-node=4 {MEET} t.py", "4 idle on each"),
        (
            f"torchrun --nnodes=2 --nproc-per-node=8 --master-addr=h1 {MEET} t.py",
            "--master-addr beside --rdzv-endpoint: torchrun ignores it",
        ),
    ],
)
def test_a_launch_that_is_hardly_meant(line: str, words: str) -> None:
    """It warns: the job starts, on less than is there."""
    verdict = _fits(line, EIGHT)
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence


def test_fewer_nodes_than_the_run_has() -> None:
    """Spare nodes are a warning, with the option that says so."""
    verdict = _fits(f"torchrun --nnodes=2 --nproc-per-node=8 {MEET} t.py", {**EIGHT, "h3": 8})
    assert verdict.outcome is Outcome.WARN
    assert "1 will not be part of the job" in verdict.sentence
    assert "--preflight-need=2" in verdict.advice


@pytest.mark.proves("launch.fits", passes="two nodes with eight ranks and eight GPUs each")
@pytest.mark.parametrize(
    ("line", "devices"),
    [
        (f"torchrun --nnodes=2 --nproc-per-node=8 {MEET} t.py", EIGHT),
        (f"torchrun --nnodes=1:4 --nproc-per-node=gpu {MEET} t.py", EIGHT),
        ("torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=h1 t.py", EIGHT),
        ("torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 t.py", EIGHT),
        ("torchrun --standalone --nproc-per-node=8 t.py", {"h1": 8}),
        (f"srun -N2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=8 {MEET} t.py", EIGHT),
        ("torchrun --nproc-per-node=4 t.py", {"h1": 0}),
        ("torchrun --nproc-per-node=8 t.py", {"h1": 4}),  # env.cuda_visible_devices says it
        ("accelerate launch t.py", EIGHT),
    ],
)
def test_a_launch_that_fits(line: str, devices: Mapping[str, int | None]) -> None:
    """What fits, what the line does not show, and what another check reports."""
    assert _fits(line, devices).outcome is Outcome.OK


def test_torchrun_takes_its_options_from_the_environment_too() -> None:
    """PET_NNODES and the like, as operators of Kubernetes set them; the line wins."""
    pet = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_RDZV_ENDPOINT": "h1:1",
           "PET_RDZV_BACKEND": "c10d"}  # fmt: skip
    assert _fits("torchrun t.py", EIGHT, **pet).outcome is Outcome.OK
    assert _fits("torchrun --nnodes=4 t.py", EIGHT, **pet).outcome is Outcome.FAIL


@pytest.mark.proves("launch.fits", unknown="a node did not report how many GPUs it has")
def test_gpus_that_a_node_did_not_report() -> None:
    """Whether the ranks fit is not known then; a line that cannot come up fails all the same."""
    line = f"torchrun --nnodes=2 --nproc-per-node=8 {MEET} t.py"
    verdict = _fits(line, {"h1": 8, "h2": None})
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence == "8 ranks per node, and h2 did not report its GPUs"
    assert _fits("torchrun --nnodes=9 t.py", {"h1": None}).outcome is Outcome.FAIL


def test_no_launch_is_known() -> None:
    """None was given, or its launcher is one whose ranks we cannot count."""
    assert test_launch.judge_fits(None, 2, EIGHT).outcome is Outcome.NOT_RUN
    assert _shape("MASTER_ADDR=h1 srun ./train") is None


def test_a_number_of_nodes_that_is_none() -> None:
    """It is refused as torchrun would refuse it."""
    for text in ("zero", "0", "4:2", "1:2:3"):
        with pytest.raises(UsageError, match="give a number, or MIN:MAX"):
            _shape(f"torchrun --nnodes={text} t.py")


HANGS = b"import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.mark.proves("launch.script", finds="a barrier that only rank 0 reaches")
def test_a_script_that_will_hang() -> None:
    """The gravest finding is the verdict; its line, what will happen and the remedy are in it."""
    verdict = test_launch.judge_script(lint(HANGS, "train.py"))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("train.py line 3: only rank 0 calls barrier")
    assert "rank 0 waits in barrier (line 3)" in verdict.sentence
    assert verdict.evidence["findings"][0]["rule"] == "collective-on-some-ranks"


def test_a_script_that_may_go_wrong() -> None:
    """Warnings alone warn, with the number of others and the command that shows them."""
    text = (
        b"import os, torch\nfrom torch import distributed as d\nd.init_process_group('gloo')\n"
        b"x.to('cuda:0')\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
    )
    verdict = test_launch.judge_script(lint(text, "t.py"))
    assert verdict.outcome is Outcome.WARN
    assert verdict.advice.endswith("; 1 more finding: preflight lint t.py")


@pytest.mark.proves("launch.script", passes="a script in which all ranks reach every barrier")
def test_a_script_that_is_well() -> None:
    """Hints are counted and fail nothing; a script for one process is fine too."""
    well = HANGS.replace(b"if dist.get_rank() == 0:", b"if True:")
    assert test_launch.judge_script(lint(well, "t.py")).sentence == "t.py: nothing found"
    hinted = b"from torch import distributed as d\nd.init_process_group('gloo')\n"
    verdict = test_launch.judge_script(lint(hinted, "t.py"))
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence == "t.py: nothing found, 3 hints (preflight lint)"
    assert test_launch.judge_script(lint(b"x = 1\n", "t.py")).outcome is Outcome.OK
    assert test_launch.judge_script(None).outcome is Outcome.NOT_RUN


@pytest.mark.proves("launch.script", unknown="the script cannot be parsed as Python here")
def test_a_script_that_cannot_be_read() -> None:
    """It is not healthy for that: unknown, with the reason."""
    verdict = test_launch.judge_script(lint(b"print 'x'\n", "t.py"))
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence == "t.py was not judged: it is Python 2 (line 1)"
