"""Sizes, speeds and names as operators write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB")
_MS = 1000
_FEW = 4
_HOUR_S, _TWO_DAYS_H = 3600, 48


def size(size_bytes: int) -> str:
    """4194304 → "4 MiB"."""
    value, unit = float(size_bytes), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:g} {_UNITS[unit]}"


def gbs(value: float) -> str:
    """Two digits that matter: "0.024 GB/s", "46 GB/s"."""
    return f"{value:.2g} GB/s" if value < 1 else f"{value:.3g} GB/s"


def time_us(value_us: float) -> str:
    """0.2 ms rather than 200 us once it is not RDMA any more."""
    if value_us < _MS / 10:
        return f"{value_us:.3g} us"
    value_ms = value_us / _MS
    if value_ms >= _MS:
        return f"{value_ms / _MS:.3g} s"
    return f"{value_ms:.2g} ms" if value_ms < _MS / 10 else f"{value_ms:.0f} ms"


def span(seconds: float) -> str:
    """Seconds up to an hour, then hours, from two days on days: "300.5 s", "412 days"."""
    if seconds < _HOUR_S:
        return f"{seconds:g} s"
    hours = seconds / _HOUR_S
    return f"{hours:.3g} hours" if hours < _TWO_DAYS_H else f"{hours / 24:,.0f} days"


def either(names: Sequence[str]) -> str:
    """Write "h1 or h2", "h1, h2 or h3"; many are counted."""
    if len(names) > _FEW:
        return f"one of {names[0]}, {names[1]} and {len(names) - 2} more"
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
