"""The caching allocator's settings: torch stops at the first GPU tensor over an unknown key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.remark import Remark, told
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from preflight.facts.environ.variables import Variable

LEAST_SPLIT_MIB: Final = 20
"""max_split_size_mb must be above kLargeBuffer: c10/core/AllocatorConfig.h of torch 2.13."""

_BOOLEANS: Final = (
    "expandable_segments",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
    "pinned_free_catch_all",
)
_OTHERS: Final = (
    "backend",
    "garbage_collection_threshold",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "roundup_bypass_threshold_mb",
    "large_segment_size_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "per_process_memory_fraction",
)
"""Keys of AllocatorConfig.h and CUDAAllocatorConfig.h, torch 2.13 and before."""

KEYS: Final = frozenset((*_BOOLEANS, *_OTHERS))
_PART: Final = re.compile(r"([^:=\[\],]*)([:=]?)(\[[^\]]*\]|[^,]*)(?:,|$)")


def alloc(variable: Variable, value: str) -> Remark | None:
    """`key:value,key:value`; blanks do not count, a list stands in brackets."""
    text = value.replace(" ", "")
    said = told(variable.name, value)
    for part in _PART.finditer(text):
        key, sign, given = part.groups()
        if not part.group():
            continue
        wrong = _wrong(key, sign, given)
        if wrong:
            return Remark(f"{said}: {wrong}, and torch stops with it", _advice(key, sign))
    return None


def _wrong(key: str, sign: str, given: str) -> str:
    if key not in KEYS:
        return f"{key[:40]!a} is no setting of the allocator"
    if sign != ":":
        return f"{key} is not followed by a colon"
    if key in _BOOLEANS:
        return "" if given in ("True", "False") else f"{key} is neither True nor False"
    if key == "backend":
        good = given in ("native", "cudaMallocAsync", "hipMallocAsync")
        return "" if good else "backend is neither native nor cudaMallocAsync"
    return _wrong_number(key, given)


def _wrong_number(key: str, given: str) -> str:
    if key == "roundup_power2_divisions" and given.startswith("["):
        return ""
    if not re.fullmatch(r"-?[0-9]{1,15}(?:\.[0-9]{0,15})?", given):
        return f"{key} has no number"
    number = float(given)
    if key in ("garbage_collection_threshold", "per_process_memory_fraction"):
        whole = key.startswith("per") and number == 1
        return "" if 0 < number < 1 or whole else f"{key} is {given}, not between 0 and 1"
    if key == "max_split_size_mb" and number <= LEAST_SPLIT_MIB:
        return f"max_split_size_mb is {given}, not above {LEAST_SPLIT_MIB}"
    if key == "roundup_power2_divisions" and int(number) & (int(number) - 1):
        return f"roundup_power2_divisions is {given}, no power of 2"
    return "" if number >= 0 else f"{key} is {given}, below 0"


def _advice(key: str, sign: str) -> str:
    if key in KEYS:
        return f"write {key}:VALUE" if sign != ":" else f"correct {key}"
    return f"remove {key[:40]!a}{did_you_mean(key, KEYS)}"
