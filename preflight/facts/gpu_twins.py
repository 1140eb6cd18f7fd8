"""Two GPUs with one UUID or PCI address: an answer that cannot be true proves nobody healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu


def twins(gpus: Sequence[Gpu]) -> str:
    """Say which GPUs are told twice; "" where each is told once."""
    for words, told in (
        ("UUID", [gpu.uuid for gpu in gpus]),
        ("PCI address", [gpu.bus_id for gpu in gpus]),
        ("index", [str(gpu.index) for gpu in gpus]),
    ):
        twice = next((each for each in told if each and told.count(each) > 1), "")
        if twice:
            return f"{told.count(twice)} GPUs have the {words} {twice}"
    return ""
