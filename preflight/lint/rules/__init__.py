"""The rules, one mistake per file, the gravest first."""

from __future__ import annotations

from preflight.lint.rules import (
    barrier_after_long_work,
    checkpoint_on_one_rank,
    collective_on_some_ranks,
    cuda_visible_devices,
    fixed_device,
    global_rank_as_device,
    init_device_id,
    init_timeout,
    local_rank_argument,
    no_destroy,
    no_record,
    no_set_device,
    skipped_step,
    uneven_batches,
)

RULES = tuple(
    module.RULE
    for module in (
        collective_on_some_ranks,
        checkpoint_on_one_rank,
        skipped_step,
        uneven_batches,
        barrier_after_long_work,
        no_set_device,
        fixed_device,
        global_rank_as_device,
        local_rank_argument,
        cuda_visible_devices,
        init_timeout,
        init_device_id,
        no_record,
        no_destroy,
    )
)
"""Every rule; their ids are a promise, scripts name them in comments."""
