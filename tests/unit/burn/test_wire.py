"""A node's burn-in events are typed, bounded, of its own devices, and sent once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.burn.burn_in import BURN_SHARE, BurnPlan, Devices, EventCollector, burn_plan, fit
from preflight.errors import WireError
from preflight.facts.burn import Reading, Ready, decode_burned
from preflight.run.measured import Measured
from tests.unit.burn.builders import burned, lost, proofs

if TYPE_CHECKING:
    from preflight.check import Tier

READY = Ready(torch="2.9.0", kind="cuda", devices=2)
GEMM = Reading(measure="gemm_tflops", samples=(1.0,), device=1)

_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_event(document: bytes) -> None:
    """Any bytes are an event or an error of one line."""
    with pytest.raises(WireError, match="sent an invalid event"):
        decode_burned(document)


@given(st.sampled_from(["reading", "proof", "clocks", "lost", "ready", "step"]), _JSON, _JSON)
def test_events_with_strange_fields(tag: str, samples: object, device: object) -> None:
    """Numbers that are none, nested lists, a device called 1e300: refused, never a crash."""
    strange = {"event": tag, "measure": "gemm_tflops", "samples": samples, "device": device}
    try:
        event = decode_burned(msgspec.json.encode(strange))
    except WireError:
        return
    assert isinstance(event, Reading)
    assert all(0 < value <= 1e9 for value in event.samples)


@pytest.mark.parametrize(
    "event",
    [
        READY,
        GEMM,
        msgspec.structs.replace(GEMM, device=2),
        msgspec.structs.replace(GEMM, device=0, to=7),
        lost(5),
    ],
    ids=["ready again", "sent again", "no such device", "no such partner", "lost a stranger"],
)
def test_what_it_cannot_have_seen_is_refused(event: object) -> None:
    """A repeated result would count twice in a vote; so would one of a device that is not there."""
    collected = EventCollector()
    collected.add(READY)
    collected.add(GEMM)
    with pytest.raises(WireError):
        collected.add(event)  # type: ignore[arg-type]


def test_devices_before_their_number_are_refused() -> None:
    """A result before `ready` is refused."""
    with pytest.raises(WireError):
        EventCollector().add(proofs(0)[0])


def test_a_burn_in_is_kept_whole() -> None:
    """Workers of xdist and replays decode exactly what was measured."""
    measured = Measured(nonce="n", burned={"h1": burned()})
    assert Measured.decode(measured.encode()) == measured


@pytest.mark.parametrize("tier", ["standard", "deep"])
@pytest.mark.parametrize("left_s", [20, 100, 300, 3600])
def test_a_burn_in_leaves_time_for_the_sweep(tier: Tier, left_s: float) -> None:
    """The sustained load is cut to what is left; every phase that is planned has its deadline."""
    plan = fit(burn_plan(tier), left_s, Devices())
    for load in (plan.cuda, plan.cpu):
        assert load.sustained is not None
        assert load.sustained.window_s <= load.sustained.seconds <= max(1.0, left_s * BURN_SHARE)
        assert load.sustained.seconds < load.limit_s["sustained"]
        planned = {name for name in load.__struct_fields__ if getattr(load, name) is not None}
        assert planned - {"limit_s"} <= load.limit_s.keys()
    assert msgspec.convert(msgspec.to_builtins(plan), BurnPlan) == plan
