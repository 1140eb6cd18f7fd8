"""Logs of real jobs over NCCL on an H200: each failed, or hung, in a way that is known.

`h200_logs/` has what torchrun printed of each (torch 2.11, NCCL 2.28.9; 2026-11-28). Four ranks
shared one GPU. The folders of the machine were renamed, and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hang.logs import answer_in, explained_files

_LOGS = Path(__file__).with_name("h200_logs")

_NAMED = {
    "abort": ("other", "rank 0"),
    "bad_device": ("device_ordinal", "rank 2"),
    "caught_and_exit": ("other", "rank 2"),
    "cpp_exit": ("other", "rank 3"),
    "disk_full": ("other", "rank 0"),
    "duplicate_gpu": ("duplicate_gpu", "rank 0"),
    "hang_early_end": ("timeout_rank_missing", "rank 2"),
    "hang_eval_early": ("timeout_rank_missing", "rank 2"),
    "hang_file_lock": ("timeout_rank_missing", "rank 2"),
    "hang_left_quietly": ("timeout_rank_missing", "rank 0"),
    "hang_loss_item": ("timeout_rank_missing", "rank 2"),
    "hang_prefetch_died": ("other", "rank 2"),
    "hang_slow_storage": ("timeout_rank_missing", "rank 1"),
    "hang_stopped": ("timeout_rank_missing", "rank 3"),
    "hang_tokenizer": ("timeout_rank_missing", "rank 2"),
    "illegal_address": ("other", "rank 0"),
    "key_error": ("other", "rank 1"),
    "label_range": ("other", "rank 3"),
    "missing_shard": ("other", "rank 2"),
    "monitored": ("timeout_rank_missing", "rank 2"),
    "oom": ("oom_one_rank", "rank 0"),
    "pickle": ("other", "rank 0"),
    "rank0_error": ("other", "rank 0"),
    "read_only": ("other", "rank 0"),
    "segv": ("other", "rank 2"),
    "shape_detail": ("collective_mismatch", "rank 3"),
    "sigkill": ("other", "rank 1"),
    "stdin_eof": ("other", "rank 2"),
    "sys_exit_3": ("other", "rank 2"),
    "too_many_files": ("env_misconfig", "rank 0"),
    "triton": ("other", "rank 1"),
    "worker_error": ("other", "rank 0"),
    "worker_killed": ("other", "rank 1"),
    "worker_segv": ("other", "rank 0"),
}
"""Each has one rank at fault."""
_OF_ALL = {
    "bad_algo": "env_misconfig",
    "bad_proto": "env_misconfig",
    "corrupt_ckpt": "other",
    "jax_exit0": "timeout_rank_missing",
    "jax_kill": "timeout_rank_missing",
    "jax_raise": "other",
    "no_module": "other",
    "rdzv_alone": "timeout_rank_missing",
    "sigterm_outside": "other",
    "unused_params": "other",
}
"""The fault is no single rank's, or no line shows whose it is."""
_NOT_SHOWN = ("hang_gpu_loop", "hang_missing_send")
"""The lines are the same whichever rank is at fault."""


@pytest.mark.parametrize("name", _NAMED)
def test_the_rank_at_fault_is_named(name: str) -> None:
    """The category and the rank, at 50 % or more; no other rank."""
    assert answer_in(_LOGS / f"{name}.txt.gz") == (*_NAMED[name], True)


@pytest.mark.parametrize("name", _OF_ALL)
def test_a_fault_of_all_ranks_has_its_category(name: str) -> None:
    """At 50 % or more."""
    answer = explained_files(_LOGS / f"{name}.txt.gz")
    assert (answer.category, answer.confidence >= 0.5) == (_OF_ALL[name], True)


@pytest.mark.parametrize("name", _NOT_SHOWN)
def test_a_hang_whose_lines_show_no_rank_is_unclear(name: str) -> None:
    """No rank is named."""
    answer = explained_files(_LOGS / f"{name}.txt.gz")
    assert (answer.category, answer.culprits) == ("unknown", ())
    assert answer.confidence < 0.5
