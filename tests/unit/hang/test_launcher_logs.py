"""Logs of real jobs on CPUs: torchrun, Accelerate, Lightning, Ray, JAX, torch.multiprocessing.

`launcher_logs/` has what each printed (torch 2.13, Ray 2.60, Lightning 2.6, JAX 0.10; 2026-11-28).
In some logs two torchruns wrote. The folders of the machine were renamed, and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hang.logs import answer_in, explained_files

_LOGS = Path(__file__).with_name("launcher_logs")

_NAMED = {
    "accelerate_assert": ("other", "rank 0"),
    "accelerate_collate": ("other", "rank 1"),
    "accelerate_config": ("other", "rank 2"),
    "accelerate_kill": ("other", "rank 1"),
    "accelerate_save": ("other", "rank 0"),
    "accelerate_sleep": ("timeout_rank_missing", "rank 0"),
    "jax_raise": ("other", "rank 1"),
    "lightning_raise": ("other", "rank 0"),
    "ray_kill": ("other", "rank 2"),
    "spawn_kill": ("other", "rank 1"),
    "spawn_raise": ("other", "rank 1"),
    "torchrun_custom": ("other", "rank 2"),
    "torchrun_deadlock": ("timeout_rank_missing", "rank 2"),
    "torchrun_decode": ("other", "rank 0"),
    "torchrun_exit9": ("other", "rank 2"),
    "torchrun_faulthandler": ("other", "rank 0"),
    "torchrun_http": ("other", "rank 0"),
    "torchrun_int1": ("other", "rank 2"),
    "torchrun_json": ("other", "rank 1"),
    "torchrun_log": ("other", "rank 3"),
    "torchrun_nan": ("other", "rank 0"),
    "torchrun_oserror": ("other", "rank 1"),
    "torchrun_perm": ("other", "rank 1"),
    "torchrun_printed": ("other", "rank 1"),
    "torchrun_raise": ("other", "rank 2"),
    "torchrun_sleep": ("timeout_rank_missing", "rank 1"),
    "torchrun_term1": ("other", "rank 2"),
    "torchrun_threads": ("other", "rank 2"),
    "torchrun_type": ("other", "rank 1"),
    "torchrun_zero": ("other", "rank 1"),
}
"""Each has one rank at fault."""
_NO_RANK = {
    "jax_absent": "timeout_rank_missing",
    "jax_kill": "timeout_rank_missing",
    "ray_exit": "other",
    "ray_file": "other",
    "ray_raise": "other",
    "torchrun_argparse": "env_misconfig",
    "torchrun_config": "other",
    "torchrun_cuda": "version_mismatch",
    "torchrun_late": "timeout_rank_missing",
    "torchrun_module": "other",
    "torchrun_nccl_cpu": "other",
    "torchrun_size": "collective_mismatch",
    "torchrun_thread": "other",
}
"""The category is known. The rank is not read, or several are at fault."""
_UNCLEAR = ("accelerate_exit0", "ray_sleep", "torchrun_uneven")


@pytest.mark.parametrize("name", _NAMED)
def test_the_rank_at_fault_is_named(name: str) -> None:
    """The category and the rank, at 50 % or more; no other rank."""
    assert answer_in(_LOGS / f"{name}.txt.gz") == (*_NAMED[name], True)


@pytest.mark.parametrize("name", _NO_RANK)
def test_where_no_rank_is_known_none_is_named(name: str) -> None:
    """The category, at 50 % or more."""
    answer = explained_files(_LOGS / f"{name}.txt.gz")
    assert (answer.category, answer.culprits) == (_NO_RANK[name], ())
    assert answer.confidence >= 0.5


@pytest.mark.parametrize("name", _UNCLEAR)
def test_what_the_lines_do_not_show_is_unclear(name: str) -> None:
    """A rank left without an error, its peers only waited, or its data ended first."""
    answer = explained_files(_LOGS / f"{name}.txt.gz")
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert answer.confidence < 0.5


def test_a_checkpoint_that_no_rank_finds_is_every_ranks_fault() -> None:
    """Lightning's three ranks raise the same."""
    answer = explained_files(_LOGS / "lightning_ckpt.txt.gz")
    assert answer.culprits == ("rank 0", "rank 1", "rank 2")
