"""Size after size with one partner: how many operations, when a size is left, what is reported."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from sweep import plan

from tests.unit.fabric.ends import Partner, climb

pytestmark = pytest.mark.slow  # torch is imported


def test_right_data_is_measured() -> None:
    """Every size yields as many times as were agreed on, and gaps beside them."""
    climbed = climb(Partner())
    assert [timing["size_bytes"] for timing in climbed.timings] == [64, 4096]
    assert [len(timing["times_us"]) for timing in climbed.timings] == [10, 50]
    assert not climbed.spoilt


def test_a_soak_follows_the_ladder_and_all_have_their_place_in_time() -> None:
    """One size for longer, as often as fits its time; each size began after the one before."""
    climbed = climb(Partner(), ladder=[[64, 1, 4], [65536, 1, 4]], soak=[65536, 1, 30], soak_s=60.0)
    kinds = [(timing["size_bytes"], timing["phase"]) for timing in climbed.timings]
    assert kinds == [(64, "ladder"), (65536, "ladder"), (65536, "soak")]
    assert [len(timing["gaps_us"]) for timing in climbed.timings] == [4, 4, 30]
    began = [timing["began_s"] for timing in climbed.timings]
    assert began == sorted(began)
    spent_s = [sum(t["times_us"] + t["gaps_us"]) / 1e6 for t in climbed.timings]
    assert began[1] >= began[0] + spent_s[0]


class Spiky(Partner):
    """Holds one in five operations up for 10 ms, from the tenth on."""

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Late now and then; never in what both ends agree on."""
        super().reduce(tensor, smallest=smallest)
        if not smallest and self.operations > 10 and self.operations % 5 == 0:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("changes", "stopped", "times"),
    [
        ({}, "", 300),
        ({"stop_rule": [8000.0, 0.01, 0.1, 13.8]}, "spikes", 67),
        ({"stop_rule": [1e6, 0.01, 0.1, 13.8]}, "", 300),
        ({"pair_s": 0.1}, "time", 67),
    ],
)
def test_a_size_is_left_when_it_is_proven_bad_or_takes_too_long(
    changes: dict[str, Any], stopped: str, times: int
) -> None:
    """Both ends look every 64 operations; the samples say why there are no more of them."""
    asked = {"ladder": [[64, 2, 300], [4096, 1, 5]], "pair_s": 60.0}
    climbed = climb(Spiky(), **{**asked, **changes})
    timings = [(timing["stopped"], len(timing["times_us"])) for timing in climbed.timings]
    assert timings[0] == (stopped, times)
    assert timings[1:] == [("", 5)]
    assert not climbed.spoilt


class Tardy(Partner):
    """Takes 5 ms for each operation, but for the first few."""

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Quick only while the size is begun; what both ends agree on is always quick."""
        super().reduce(tensor, smallest=smallest)
        if not smallest and self.operations > 6:
            time.sleep(0.005)


@pytest.mark.parametrize(("partner", "times"), [(Tardy, 67), (Spiky, 300)])
def test_a_box_holds_what_fits_though_the_first_few_were_quick_and_spikes_cost_no_samples(
    partner: type[Partner], times: int
) -> None:
    """Both ends count again every 64 operations: it is the usual one that must fit."""
    climbed = climb(partner(), ladder=[[64, 2, 300]], box_s=0.3, pair_s=60.0)
    (timing,) = climbed.timings
    assert (timing["stopped"], len(timing["times_us"])) == ("", times)


@pytest.mark.parametrize(("free", "sizes"), [(6 << 28, 2), (4 << 28, 1)])
def test_a_large_size_is_left_out_where_the_device_has_no_memory_for_it(
    free: int, sizes: int
) -> None:
    """256 MiB take five times as much with what checks them; both ends decide it together."""

    class Device(Partner):
        device = SimpleNamespace(type="cuda")

    fits: Any = climb(Partner())
    fits._group = Device()
    fits._torch = SimpleNamespace(cuda=SimpleNamespace(mem_get_info=lambda _: (free, 80 << 30)))
    rooms = [plan.Rung(size, 1, 10) for size in (64 << 20, 256 << 20)]
    assert [fits._has_room(rung) for rung in rooms].count(True) == sizes
