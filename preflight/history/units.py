"""By what a history keeps the numbers of a device: its GPU where it has one, else its node."""

from __future__ import annotations

OF_DEVICES = frozenset({"gemm_tflops", "sustained_tflops", "memory_gbs"})
"""What a GPU takes along when it moves; all else is its slot's, too, and counts where it is."""

_GPU = "GPU "


def unit_key(owner: str, measure: str, unit: str, under: str) -> str:
    """Name one series. `owner`: the GPU's UUID, or the node's name; `unit`: what is left of it."""
    return f"{owner} {measure} {unit} ({under})"


def of_slot(unit: str, slot: int) -> str | None:
    """What a unit's name says beside its GPU: "GPU 5 with NUMA node 1" is "with NUMA node 1".

    None for what is not that GPU's, or is a way between two.
    """
    own = f"{_GPU}{slot}"
    if unit == own:
        return ""
    if unit.startswith(f"{own} ") and not unit.startswith(f"{own} to "):
        return unit.removeprefix(f"{own} ")
    return None


def of_gpu(unit: str) -> bool:
    """Whether a unit is some GPU's."""
    return unit.startswith(_GPU)
