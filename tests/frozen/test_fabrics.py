"""Simulated fabrics: the decoder's findings, in order, with every number."""

from __future__ import annotations

import json

import pytest

from tests.frozen.adapter import decoded
from tests.frozen.golden import FOLDER, difference

CASES = {
    "rdma": [(2, 3), (3, 3), (4, 4), (8, 6), (16, 6), (17, 4), (64, 4), (256, 1)],
    "recorded": [(2, 3), (3, 2), (4, 3), (8, 4), (16, 4), (17, 2), (64, 3), (256, 1)],
}
"""By noise: (nodes, how many faulty fabrics)."""
SEEDS_FROM = 4000
HEALTHY = [
    f"{noise}:{nodes}:healthy:{SEEDS_FROM}"
    for noise in CASES
    for nodes in (2, 4, 8, 16, 64)
]  # fmt: skip


def _names(noise: str) -> list[str]:
    seeds = [(nodes, SEEDS_FROM + each) for nodes, many in CASES[noise] for each in range(many)]
    faulty = [f"{noise}:{nodes}:faulty:{seed}" for nodes, seed in seeds]
    return [*faulty, *(name for name in HEALTHY if name.startswith(f"{noise}:"))]


@pytest.mark.parametrize("noise", CASES)
def test_findings_of_simulated_fabrics(noise: str) -> None:
    """Which parts are named, in which order, how sure, and which of the planted faults they are."""
    told = {name: decoded(name) for name in _names(noise)}
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    wrong = difference(FOLDER / "fabrics" / f"{noise}.json", text)
    assert not wrong, wrong
