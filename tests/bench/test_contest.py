"""The contest: its rules, and a small one with real commands."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251  of a dump that this test makes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.contest import main
from tests.bench.contest_cases import Case
from tests.bench.contestants import Answer, judge
from tests.lab.hangs.ras_jobs import draw
from tests.simulate.parallel_job import draw_case

RANK = frozenset({"rank 3"})
BOTH = frozenset({"rank 3", "rank 4"})
NOBODY = frozenset[str]()
OF_DUMPS = Case(kind="dumps", seed=0, fault="died", folder=Path(), culprits=RANK)
OF_LOG = Case(
    kind="log", seed=0, fault="oom", folder=Path(), besides=BOTH, must_name=True,
    categories=("oom_one_rank",),
)  # fmt: skip
HEALTHY = Case(kind="log", seed=0, fault="", folder=Path(), categories=("no_failure",))
OF_KERNEL = Case(kind="ras", seed=0, fault="kernel", folder=Path(), besides=BOTH, nameless=True)
NO_CAUSE = Case(kind="log", seed=0, fault="", folder=Path(), categories=("unknown",))
_RECORD = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
sys.stdout.buffer.write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("case", "answer", "expected"),
    [
        (OF_DUMPS, Answer(readings=(RANK,)), "right"),
        (OF_DUMPS, Answer(readings=(BOTH, RANK)), "right"),  # read in the better way
        (OF_DUMPS, Answer(readings=(BOTH,)), "wrong"),  # an innocent rank is named too
        (OF_DUMPS, Answer(), "unclear"),
        (OF_DUMPS, Answer(readings=(BOTH,), confidence=0.4), "unclear"),
        (OF_DUMPS, Answer(failure="KeyError: 7"), "unclear"),
        (OF_LOG, Answer(readings=(RANK | {"node a"},), category="oom_one_rank"), "right"),
        (OF_LOG, Answer(readings=(RANK,)), "right"),  # of a contestant without categories
        (OF_LOG, Answer(readings=(NOBODY,), category="oom_one_rank"), "unclear"),
        (OF_LOG, Answer(readings=(RANK,), category="shm"), "wrong"),
        (OF_LOG, Answer(readings=(frozenset({"rank 5"}),)), "wrong"),
        (HEALTHY, Answer(readings=(NOBODY,), category="no_failure"), "right"),
        (HEALTHY, Answer(readings=(NOBODY,)), "right"),
        (HEALTHY, Answer(readings=(RANK,)), "wrong"),
        (OF_KERNEL, Answer(readings=(RANK,), category="link", confidence=0.4), "right"),
        (OF_KERNEL, Answer(), "right"),  # of any contestant
        (OF_KERNEL, Answer(readings=(frozenset({"rank 5"}),)), "wrong"),
        (OF_KERNEL, Answer(failure="exit 3"), "unclear"),
        (NO_CAUSE, Answer(readings=(NOBODY,), category="unknown", confidence=0), "right"),
        (NO_CAUSE, Answer(readings=(NOBODY,)), "unclear"),
    ],
)
def test_an_answer_is_right_wrong_or_unclear(case: Case, answer: Answer, expected: str) -> None:
    """Whoever names an innocent rank, or another category, is wrong unless it says it is unsure."""
    assert judge(case, answer) == expected


@pytest.mark.parametrize(
    ("seed", "size", "fault", "nameless"),
    [
        (790082, 8, "kernel", True),  # the other tensor group may hang as well
        (790038, 256, "kernel", True),  # the communicator of all ranks
        (771036, 8, "kernel", False),  # the others wait for this one
        (790031, 16, "cut", True),  # neither of the only two nodes is the one that is cut off
        (771000, 32, "cut", False),
        (771000, 16, "stop", False),
    ],
)
def test_no_reader_can_name_what_the_files_do_not_show(
    seed: int,
    size: int,
    fault: str,
    nameless: bool,  # noqa: FBT001
) -> None:
    """The same files come from a fault of other ranks."""
    assert draw(seed, sizes=(size,), faults=(fault,)).nameless is nameless


@pytest.mark.slow
def test_a_small_contest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All read the same cases; torch's own analyzer can read the generated dumps."""
    results = tmp_path / "contest.json"
    each = ["--ras", "1", "--dumps", "1", "--logs", "1"]
    words = ["--only", "ras", "dumps", "log", *each, "--processes", "1"]
    assert (
        main([*words, "--half", "even", "--build", str(tmp_path), "--results", str(results)]) == 0
    )
    table = capsys.readouterr().out
    scores = json.loads(results.read_bytes())["scores"]
    played = sorted((one["contestant"], one["kind"], one["seed"]) for one in scores)
    assert played == [
        ("first error", "log", 4000),
        ("first error", "ras", 20000),
        ("last line", "log", 4000),
        ("last line", "ras", 20000),
        ("preflight", "dumps", 3000),
        ("preflight", "log", 4000),
        ("preflight", "ras", 20000),
        ("torchfrtrace", "dumps", 3000),
    ]
    assert all(one["cpu_s"] > 0 for one in scores if one["contestant"] == "preflight")
    assert table.count("| even ") == 12  # three read logs, three RAS, two dumps; four of all kinds
    (of_torch,) = (one for one in scores if one["contestant"] == "torchfrtrace")
    assert "rank" in of_torch["named"], of_torch["named"]


@pytest.mark.slow
def test_generated_dumps_have_the_fields_that_torch_writes() -> None:
    """A dump of this torch and a generated one: the same keys of the file and of its calls."""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "20", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _RECORD], env=env, capture_output=True, check=True)
    real = pickle.loads(done.stdout)  # noqa: S301  made here
    drawn = pickle.loads(next(iter(draw_case(0).dumps.values())))  # noqa: S301  made here
    assert drawn.keys() == real.keys()
    assert drawn["version"] == real["version"]
    (of_torch,), generated = real["entries"], drawn["entries"][0]
    assert generated.keys() == of_torch.keys()
    nullable = ("time_discovered_started_ns", "time_discovered_completed_ns")
    for key in generated.keys() - {*nullable}:
        assert type(generated[key]) is type(of_torch[key]), key
    (group,) = real["pg_config"].values()
    assert all(one.keys() == group.keys() for one in drawn["pg_config"].values())
