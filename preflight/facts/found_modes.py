"""How the GPUs of a group are set: what all of them share, an inventory may promise.

A setting is a person's choice, not hardware: nodes that differ in one stay in one group, and it is
left to a person which of them is right. What a judge warns of by itself is nobody's promise either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from preflight.facts.gpu_peers import reading
from preflight.facts.gpu_settings import is_workstation
from preflight.facts.limits import limit
from preflight.fleet.model import Promise
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.model import Facts, Gpu

MODES: Final = ("mig", "ecc", "persistence", "compute_mode", "power_limit_w")
"""The keys of a promise that are learned here."""

_READINGS: Final = {"mig": "mig_enabled", "ecc": "ecc_on"}
_PENDING: Final = {"mig": "mig_pending", "ecc": "ecc_pending"}
_PROMISED_MODES: Final = ("default", "exclusive_process")
"""Compute modes in which a job can start and that an inventory can name."""

_Each = dict[str, "list[Gpu]"]


class FoundModes(Struct, frozen=True):
    """The settings that all GPUs of a group share, and why others are left open."""

    promise: Promise
    """The promise that was given, with the settings."""
    left_open: tuple[str, ...] = ()
    """One sentence per setting that is not promised although GPUs tell it."""


def found_modes(has: Promise, facts: Mapping[str, Facts]) -> FoundModes:
    """Add the settings to what these nodes have, as far as they can be promised."""
    gpus = {name: list(one.gpus) for name, one in facts.items() if one.gpus}
    shared: dict[str, Any] = {}
    left_open = []
    for key in MODES:
        told = {gpu_value(gpu, key) for each in gpus.values() for gpu in each}
        if told <= {None}:
            continue
        if why := _untold(key, gpus) or _differing(key, gpus) or _unfounded(key, gpus):
            left_open.append(f"{key} is left open: {why}")
        else:
            shared[key] = max(told)
    return FoundModes(replace(has, **shared), tuple(left_open))


def gpu_value(gpu: Gpu, key: str) -> Any:
    """How one GPU is set, by the name that the promise has; None where it is not told."""
    value = reading(gpu, _READINGS.get(key, key))
    return value if isinstance(value, bool) else value or None


def _untold(key: str, gpus: _Each) -> str:
    silent = [name for name, each in gpus.items() if any(gpu_value(g, key) is None for g in each)]
    return f"not every GPU of {fold(silent)} tells it" if silent else ""


def _differing(key: str, gpus: _Each) -> str:
    """Who has which value, the most frequent first; power limits are alike within the slack."""
    have: dict[str, list[str]] = {}
    for name, each in gpus.items():
        words = " and ".join(sorted({_said(gpu_value(gpu, key)) for gpu in each}))
        have.setdefault(words, []).append(name)
    values = {gpu_value(gpu, key) for each in gpus.values() for gpu in each}
    if len(values) == 1 or _within_slack(key, values):
        return ""
    parts = sorted(have.items(), key=lambda one: -len(one[1]))
    return "; ".join(f"{fold(names)} {words}" for words, names in parts)


def _within_slack(key: str, values: set[Any]) -> bool:
    return key == "power_limit_w" and max(values) - min(values) <= limit("power_limit_slack_w")


def _unfounded(key: str, gpus: _Each) -> str:
    """Why what all share had better not be promised: a warning of a judge would fall silent."""
    every = [gpu for each in gpus.values() for gpu in each]
    value = gpu_value(every[0], key)
    for gpu in every:
        later = reading(gpu, _PENDING[key]) if key in _PENDING else None
        if later is not None and later != value:
            return f"{_said(value)} now, {_said(later)} after the next reset"
    if key == "ecc" and not value and not all(is_workstation(gpu.name) for gpu in every):
        return "off, on is what these boards are made for; write false if that is meant"
    if key == "compute_mode" and value not in _PROMISED_MODES:
        return f"no job is at home in {value}; write it if that is meant"
    default = max((reading(gpu, "power_default_w") or 0.0 for gpu in every), default=0.0)
    if key == "power_limit_w" and value + limit("power_limit_slack_w") < default:
        return f"{value:g} W, {default:g} W by default; write {value:g} if that is meant"
    return ""


def _said(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g} W" if isinstance(value, float) else str(value)
