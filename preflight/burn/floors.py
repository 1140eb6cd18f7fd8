"""What a part must reach at least, whatever its peers do: floors of platforms, and shipped ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from preflight.burn.limits import known
from preflight.burn.units import FAR, NVLINK
from preflight.fleet.baselines import gpu_floor

if TYPE_CHECKING:
    from preflight.burn.units import Raw
    from preflight.facts.burned import Measure as Burned
    from preflight.fleet.baselines import Measure
    from preflight.fleet.model import Promise

_BASELINE: Final[dict[Burned, Measure]] = {
    "gemm_tflops": "gemm_bf16",
    "memory_gbs": "hbm_copy",
    "h2d_gbs": "h2d",
    "d2h_gbs": "d2h",
    "p2p_gbs": "p2p",
    "launch_us": "launch",
}


class Floor(NamedTuple):
    """A floor in the unit of its measure, and which number it is."""

    value: float
    origin: str


def floor(raw: Raw, promise: Promise) -> Floor | None:
    """The floor of one series by what is promised; None where nothing is known of it.

    A platform's numbers are about the near side of the host, and about GPUs joined by NVLink.
    """
    if raw.kind == "cpu":
        value = known("cpu", f"floor_{raw.measure}")
        return None if value is None else Floor(value, "shipped floor for a CPU")
    measure = baseline_of(raw)
    found = None if measure is None else gpu_floor(promise, measure)
    return None if found is None else Floor(found.value, found.origin)


def baseline_of(raw: Raw) -> Measure | None:
    """Which number of a platform a series is about; None for a CPU's, and for longer ways."""
    joined = raw.measure != "p2p_gbs" or raw.alike.endswith(NVLINK)
    if raw.kind == "cpu" or not joined or raw.alike.endswith(FAR):
        return None
    return _BASELINE.get(raw.measure)
