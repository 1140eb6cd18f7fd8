"""`host.clock`: the intervals of most clocks meet, and only who is out of them is off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.checks.host.test_drift import agreed_time, clocks_off, judge_clock
from preflight.core.thresholds import SHIPPED
from preflight.facts import Clock, Reach
from preflight.run.probe_stage import clock_of
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts
from tests.unit.facts.machines import machine


def judged(*clocks: tuple[float, float] | None, kept: bool | None = True) -> Verdict:
    """Judge h1, h2, ... by (seconds ahead of this machine, uncertainty)."""
    reaches = {
        f"h{number}": Reach("paramiko", clock=None if clock is None else Clock(*clock))
        for number, clock in enumerate(clocks, 1)
    }
    return judge_clock(
        reaches, dict.fromkeys(reaches, facts(machine=machine(clock_kept=kept))), limit=SHIPPED
    )


@pytest.mark.proves("host.clock", passes="clocks that agree as far as the round trips show")
def test_clocks_that_agree() -> None:
    """Also where one answer took so long that it shows little."""
    verdict = judged((0.01, 0.05), (-0.02, 0.04), (0.9, 1.2))
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence == "3 clocks within 1.20 s, as far as the answers show"


@pytest.mark.proves("host.clock", finds="a clock that is 40 s ahead of the others")
def test_a_clock_that_is_off() -> None:
    """Named, with how far, of how many, and what it breaks."""
    verdict = judged((0.0, 0.1), (40.0, 0.1), (0.0, 0.1), kept=False)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.culprits == ("h2",)
    assert verdict.sentence.startswith(
        "the clock of h2 is 40.0 s ahead of the 3 of 4 that agree; no time service adjusts it; "
        "beyond 10 s torchrun's c10d rendezvous"
    )


@pytest.mark.proves("host.clock", finds="a clock that is 4 s behind, as a warning")
def test_a_clock_that_is_a_little_off() -> None:
    """Logs lose their order; nothing else breaks."""
    verdict = judged((0.0, 0.1), (0.0, 0.1), (-4.0, 0.1))
    assert (verdict.outcome, verdict.culprits) == (Outcome.WARN, ("h3",))
    assert "4.0 s behind" in verdict.sentence


def test_this_machines_clock_is_a_voice_and_no_part_of_the_job() -> None:
    """Nodes that agree among themselves are ready, and the controller hears what its own is."""
    verdict = judged((-60.0, 0.1), (-60.1, 0.1), (-59.9, 0.1))
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence.endswith("this machine's is 60.0 s ahead")


def test_this_machines_clock_decides_between_two_nodes() -> None:
    """Three clocks make a majority; two alone do not, and three that all differ do not."""
    assert judged((0.0, 0.1), (30.0, 0.1)).culprits == ("h2",)
    alone = judged((30.0, 0.1))
    assert (alone.outcome, alone.culprits) == (Outcome.WARN, ())
    apart = judged((30.0, 0.1), (-30.0, 0.1))
    assert (apart.outcome, apart.culprits) == (Outcome.FAIL, ())
    assert "no majority among 3 clocks" in apart.sentence


@pytest.mark.proves("host.clock", unknown="an answer without a clock, or one that took too long")
def test_clocks_that_were_not_compared_are_unknown() -> None:
    """A recording of an older run; a round trip that hides more than matters."""
    assert judged((0.0, 0.1), None).outcome is Outcome.UNKNOWN
    assert judged((0.0, 0.1), (0.0, 12.0)).outcome is Outcome.UNKNOWN


def test_one_machine_has_one_clock() -> None:
    """Judged on itself it has nothing to be compared with."""
    own = {"here": Reach("local", clock=Clock(0.0, 0.1))}
    assert judge_clock(own, {"here": facts()}, limit=SHIPPED).outcome is Outcome.NOT_RUN


def test_the_probes_own_time_does_not_make_a_clock_uncertain() -> None:
    """A driver that hung for ten seconds hides nothing: the clock was read before."""
    answer = facts(time_s=1000.3, seconds=10.0)
    clock = clock_of(answer, asked_at_s=1000.0, round_trip_s=10.4)
    assert [clock.ahead_s, clock.uncertain_s] == pytest.approx([0.1, 0.2])
    assert clock_of(answer, asked_at_s=1000.0, round_trip_s=5.0).uncertain_s == 0


@given(
    errors=st.lists(st.floats(0, 5), min_size=3, max_size=20),
    true_s=st.floats(-1e6, 1e6),
    far=st.sampled_from([-500.0, -20.0, 20.0, 500.0]),
)
def test_no_round_trip_counts_against_a_good_clock(
    errors: list[float], true_s: float, far: float
) -> None:
    """However uncertain each answer is, right clocks stay and the one that is far off is named."""
    good = {f"h{i}": Clock(true_s + (-1) ** i * e, e + 1e-3) for i, e in enumerate(errors)}
    clocks = {**good, "bad": Clock(true_s + far, 0.5)}
    assert list(
        clocks_off(clocks, agreed_time([*clocks.values()], limit=SHIPPED), limit=SHIPPED)
    ) == ["bad"]
