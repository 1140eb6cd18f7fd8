"""Equal times are kept once, and nothing that was measured changes for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from preflight.fabric.agent_events import PairAccount, Ready, decode_event
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.roster import build_roster
from preflight.fabric.samples import End, Rung, Stall, TimeInterner, Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import SweepPlan

_TIMES = st.lists(st.floats(0, 1e12), min_size=1, max_size=40).map(tuple)


def _end(times: tuple[float, ...]) -> End:
    timing = Timing(8, times, times[::-1], "soak", began_s=0.5, check_us=2.0, stopped="time")
    return End("h1", "measured", (timing,), started_s=1.0, stalls=(Stall(1.0, 2.0, "host"),))


@given(st.lists(_TIMES, max_size=5), st.integers(0, 50))
def test_an_account_is_the_same_afterwards(all_times: list[tuple[float, ...]], most: int) -> None:
    """Also once the table is full, and to the last byte of what is written of it."""
    thrift = TimeInterner(most)
    for end in map(_end, all_times):
        kept = thrift.end(end)
        assert kept == end
        assert json.encode(kept) == json.encode(end)


def test_every_account_of_a_pair_is_tidied_once() -> None:
    """What was collected says the same before and after, and then there is nothing left to do."""
    names = ("h1", "h2")
    ready = dict.fromkeys(names, Ready("2.13", cuda=False, gpus=0))
    plan = SweepPlan(nodes=names, rounds=circle_rounds(names), gloo=(Rung(8, 1, 5),))
    collected = SweepAccounts(build_roster(plan, ready))
    seen = PairAccount(
        round=0, rail=0, a="h1", b="h2", backend="gloo", state="measured", error="",
        started_s=1.0, setup_ms=2.0, timings=(Timing(8, (181.5, 182.25), (1.5, 2.5)),),
    )  # fmt: skip
    for name in names:
        event = decode_event(json.encode(replace(seen, setup_ms=3.0)))
        assert isinstance(event, PairAccount)
        assert collected.add(name, event)
    before = collected.pairs()
    assert collected.compact_one()
    assert collected.compact_one()
    assert not collected.compact_one()
    assert collected.pairs() == before
    first, second = collected.pairs()[0].first, collected.pairs()[0].second
    assert first is not None
    assert second is not None
    assert first.timings[0].times_us[0] is second.timings[0].times_us[0]
