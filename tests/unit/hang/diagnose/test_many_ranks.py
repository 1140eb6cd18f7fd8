"""Many ranks or nodes take work in proportion to their number: any user may write state.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from preflight.facts.job import Frame, GpuLook
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.job_state import RankState
from tests.patterns.growth import steepness, work
from tests.unit.hang.diagnose.jobs import C10D, at, collective, job, standing

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING = standing(collective("all_reduce", 41))
FINISHED = standing([Frame("destroy_process_group", C10D, 2300), *at(119)])
LATE = standing(collective("all_reduce", 41), at(20), main_cpu_s=0.1)


def _half(odd: dict[str, Any], rest: dict[str, Any] = WAITING) -> Callable[[int], dict[str, Any]]:
    """Less than half of the ranks, of each node."""
    return lambda rank: odd if rank % 8 < 3 else rest


SITUATIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in_kernel": lambda _: {"state": "disk"},
    "finished": _half(FINISHED),
    "dead": _half({**WAITING, "state": "zombie"}),
    "stopped": _half({**WAITING, "state": "stopped"}),
    "elsewhere": _half(standing(at(88, "evaluate"))),
    "blind": _half({}, {**WAITING, "wait_channel": "futex_do_wait"}),
    "nothing": lambda _: {"wait_channel": "futex_do_wait"},
    "slow": _half(standing(at(20), at(21), main_cpu_s=2.9), LATE),
}
GPUS = tuple(
    GpuLook(index=at, uuid=f"GPU-{at:08}", busy_percent=100, throttled=("hot",)) for at in range(8)
)


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_rank_is_looked_for_among_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 ranks that hang in the kernel took 26 s: each was compared with all of them."""
    compared = 0

    def equal(_one: RankState, _other: object) -> bool:
        nonlocal compared
        compared += 1
        return False

    state = job(64, SITUATIONS[name])
    monkeypatch.setattr(RankState, "__eq__", equal)
    assert diagnose(state).sentence
    assert compared == 0


@pytest.mark.slow
@pytest.mark.parametrize("per_node", [1, 8])
@pytest.mark.parametrize("name", SITUATIONS)
def test_four_times_the_ranks_take_four_times_the_work(name: str, per_node: int) -> None:
    """Few nodes or many."""
    counts = []
    for world in (64, 128, 256):
        looks = {f"gpu{at + 1:03}": {"gpus": GPUS} for at in range(world)}
        state = job(world, SITUATIONS[name], per_node=per_node, nodes=looks)
        counts.append(work(lambda state=state: diagnose(state)))  # type: ignore[misc]
    assert steepness(counts) < 1.13, counts
