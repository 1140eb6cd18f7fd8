"""A node is drained for its own hardware only, by leave of the breaker, and never from another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.hook.decision import OWN_FAULT, DecisionInput, decide
from preflight.hook.hook_values import (
    Decision,
    DrainRecord,
    HookConfig,
    NodeState,
    Tokens,
    Unjudged,
)
from preflight.verdict import Outcome
from tests.unit.hook.builders import BAD_ECC, HOT, STALE, call, config, results, state

if TYPE_CHECKING:
    from preflight.hook.decision import Ask
    from preflight.hook.hook_values import Assessment, Call

GRANTED = Tokens(granted=True, used=1, most=3)
OPEN = Tokens(granted=False, used=3, most=3)
OURS = "pf:gpu.throttle GPU 3 is hot [node] job 7"
MINE = DrainRecord(check="gpu.throttle", reason=OURS, time_s=1000.0, heals=True)


def known(
    found: Assessment,
    why: Call | None = None,
    seen: NodeState | None = None,
    *,
    tokens: Tokens | None = None,
    mine: DrainRecord | None = None,
    unread: str = "",
) -> DecisionInput:
    """Everything that is known; an hour after MINE."""
    return DecisionInput(
        call=why or call(),
        assessment=found,
        record_age_s=4600.0 - mine.time_s if mine is not None else 0.0,
        state=seen,
        tokens=tokens,
        record=mine,
        state_trouble=unread,
    )


def done(step: Decision | Ask) -> tuple[str, int]:
    """What came of it."""
    assert isinstance(step, Decision)
    assert step.log.isprintable()
    return step.action, step.exit_code


def test_a_healthy_node_costs_nothing() -> None:
    """No question to Slurm or to the breaker, no line in the log, exit 0."""
    for occasion in (call(), call("healthcheck")):
        assert decide(known(results(), occasion), config()) == Decision(action="none", exit_code=0)


def test_a_bad_gpu_drains_its_node() -> None:
    """The state is read first, the token is asked for last; the reason names check and job."""
    found = results(BAD_ECC)
    assert decide(known(found), config()) == "state"
    assert decide(known(found, seen=state()), config()) == "token"
    step = decide(known(found, seen=state(), tokens=GRANTED), config())
    assert done(step) == ("drain", 1)
    assert isinstance(step, Decision)
    assert step.reason == "pf:gpu.ecc GPU 3: 2 errors; 0 expected [node] job 81723"
    assert "drain 1 of 3" in step.log


def test_nothing_else_drains() -> None:
    """Not a user's left-overs, not what could not be judged, not warnings, not what is flaky."""
    flaky = replace(BAD_ECC, outcome=Outcome.FLAKY)
    warned = replace(BAD_ECC, outcome=Outcome.WARN)
    declared = replace(BAD_ECC, drains=False)
    users = replace(BAD_ECC, user=True)
    unknown = (Unjudged(check="gpu.count", why="no answer", out_of_time=True),)
    for found in (
        results(STALE),
        results(flaky),
        results(warned),
        results(declared),
        results(users),
    ):
        assert done(decide(known(found), config())) == ("none", 0)
    step = decide(known(results(unknown=unknown)), config())
    assert done(step) == ("none", 0)
    assert isinstance(step, Decision)
    assert "gpu.count unknown: no answer" in step.log


@pytest.mark.parametrize("chosen", [HookConfig(), HookConfig(enforce=True), config(enforce=False)])
def test_observing_is_the_default(chosen: HookConfig) -> None:
    """Without `enforce` or a breaker the hook logs what it would do, and exits 0."""
    step = decide(known(results(BAD_ECC)), chosen)
    assert done(step) == ("observe", 0)
    assert isinstance(step, Decision)
    assert step.log.startswith("would drain gpu041: pf:gpu.ecc ")
    assert ("breaker" in step.log) == (chosen.enforce)


@pytest.mark.parametrize(
    "seen",
    [
        state("DOWN"),
        state("IDLE", "FAIL"),
        state("IDLE", "MAINT"),
        state("IDLE", "REBOOT_REQUESTED"),
        state("IDLE", "A_LATER_WORD"),
        state(reason="PSU replaced yesterday"),
        state(reason="pf:gpu.ecc 1 error [node] job 7 RMA 12"),
        NodeState(states=frozenset()),
    ],
)
def test_what_somebody_else_holds_is_left_alone(seen: NodeState) -> None:
    """Exit 0 too: a prolog that fails would drain it all the same."""
    assert done(decide(known(results(BAD_ECC), seen=seen), config())) == ("withheld", 0)


@pytest.mark.parametrize("reason", ["RMA 4711", "Prolog error", OURS, ""])
def test_a_node_that_is_out_already_stays_as_it_is(reason: str) -> None:
    """Its reason is kept, no token is spent, and the job that was about to start stays away."""
    seen = state("IDLE", "DRAIN", reason=reason)
    assert done(decide(known(results(BAD_ECC), seen=seen), config())) == ("none", 1)


def test_the_health_check_says_once_that_a_node_is_out() -> None:
    """It comes by every few minutes: no line for what everybody knows."""
    seen = state("IDLE", "DRAIN", reason=OURS)
    step = decide(known(results(HOT), call("healthcheck"), seen, mine=MINE), config())
    assert step == Decision(action="none", exit_code=1)


def test_a_cause_that_stays_replaces_one_that_heals() -> None:
    """In our own reason only: else the node would come back with its bad memory."""
    ours, theirs = (state("IDLE", "DRAIN", reason=each) for each in (OURS, f"{OURS} RMA"))
    step = decide(known(results(HOT, BAD_ECC), seen=ours, mine=MINE), config())
    assert done(step) == ("drain", 1)
    assert isinstance(step, Decision)
    assert step.reason.startswith("pf:gpu.ecc ")
    assert done(decide(known(results(BAD_ECC), seen=theirs, mine=MINE), config())) == ("none", 1)
    down = state("DOWN", "DRAIN", reason=OURS)
    assert done(decide(known(results(BAD_ECC), seen=down, mine=MINE), config())) == ("none", 1)


def test_an_open_breaker_exits_0() -> None:
    """A withheld drain that exits 1 would drain anyway."""
    for answer in (OPEN, Tokens(granted=False, trouble="/shared: no answer")):
        step = decide(known(results(BAD_ECC), seen=state(), tokens=answer), config())
        assert done(step) == ("withheld", 0)
        assert isinstance(step, Decision)
        assert "breaker" in step.log


def test_a_state_that_nobody_tells_is_not_touched() -> None:
    """No word of slurmctld: the reason there may be a person's."""
    step = decide(known(results(BAD_ECC), unread="no answer within 2.0 s"), config())
    assert done(step) == ("withheld", 0)


def test_an_error_of_preflight_drains_no_node() -> None:
    """An error of preflight, beside a finding that does not drain, is logged with the finding."""
    found = results(STALE, trouble="cannot read the inventory /etc/preflight/fleet.toml")
    step = decide(known(found), config())
    assert done(step) == ("none", 0)
    assert isinstance(step, Decision)
    assert "could not check gpu041: cannot read the inventory" in step.log
    assert f"; found before: {STALE.check} fail" in step.log


def test_a_check_that_breaks_hides_no_fault_of_another() -> None:
    """A fault that one check has proven drains the node, even if another check broke."""
    found = results(BAD_ECC, trouble="host.stale_processes: IndexError")
    assert decide(known(found), config()) == "state"
    step = decide(known(found, seen=state(), tokens=GRANTED), config())
    assert done(step) == ("drain", 1)
    assert isinstance(step, Decision)
    assert step.reason.startswith(f"pf:{BAD_ECC.check} ")


def test_fail_closed_works_within_the_breaker() -> None:
    """Our fault keeps the job away, under a reason that says whose fault, at most so many times."""
    closed = replace(call(), fail_closed=True)
    found, enforced = results(trouble="cannot read the inventory"), config()
    assert decide(known(found, closed), enforced) == "state"
    step = decide(known(found, closed, state(), tokens=GRANTED), enforced)
    assert done(step) == ("drain", 1)
    assert isinstance(step, Decision)
    assert step.reason == f"pf:{OWN_FAULT} cannot read the inventory [preflight] job 81723"
    refused = known(found, closed, state(), tokens=OPEN)
    assert done(decide(refused, enforced)) == ("withheld", 0)
    unread = known(found, closed, unread="no answer")
    assert decide(unread, enforced) == "token"
    assert done(decide(replace(unread, tokens=GRANTED), enforced)) == ("none", 1)
    assert done(decide(replace(unread, tokens=OPEN), enforced)) == ("withheld", 0)
    assert done(decide(known(found, call("healthcheck")), enforced)) == ("none", 0)
    assert done(decide(known(found, closed), config(enforce=False))) == ("observe", 0)
    silent = results(unknown=(Unjudged(check="reach.answer", why="no answer in 5 s"),))
    assert done(decide(known(silent, closed, state(), tokens=GRANTED), enforced)) == ("drain", 1)
    assert done(decide(known(silent), enforced)) == ("none", 0)


def test_a_drain_of_ours_that_healed_is_undone() -> None:
    """By the health check, once the check passes again."""
    found = results(passed=("gpu.throttle", "gpu.count"))
    out = state("IDLE", "DRAIN", reason=OURS)
    assert decide(known(found, call("healthcheck"), mine=MINE), config()) == "state"
    step = decide(known(found, call("healthcheck"), out, mine=MINE), config())
    assert done(step) == ("undrain", 0)
    again = results(passed=("gpu.count",))
    trouble = replace(MINE, check=OWN_FAULT)
    step = decide(known(again, call("healthcheck"), out, mine=trouble), config())
    assert done(step) == ("undrain", 0)


@pytest.mark.parametrize(
    ("found", "why", "seen", "mine"),
    [
        pytest.param(results(passed=("gpu.throttle",)), call(), None, MINE, id="a prolog"),
        pytest.param(results(passed=("gpu.count",)), None, None, MINE, id="not judged now"),
        pytest.param(results(passed=("gpu.throttle",)), None, None, None, id="not ours"),
        pytest.param(
            results(passed=("gpu.throttle",), unknown=(Unjudged(check="gpu.count", why="7 of 8"),)),
            *(None, None, MINE),
            id="maybe not of that GPU",
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None, None, replace(MINE, heals=False), id="hardware"
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None, None, replace(MINE, time_s=4500.0), id="soon"
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None, None, replace(MINE, time_s=9e9), id="to come"
        ),
        pytest.param(
            results(passed=("gpu.throttle",), trouble="disk full"), None, None, MINE, id="trouble"
        ),
        pytest.param(
            results(replace(BAD_ECC, outcome=Outcome.FLAKY), passed=("gpu.throttle",)),
            None, None, MINE, id="another fault",
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None,
            state("IDLE", "DRAIN", reason=f"{OURS} RMA 7"), MINE, id="edited by a person",
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None,
            state("IDLE", "DRAIN", reason="Prolog error"), MINE, id="another's reason",
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None,
            state("DOWN", "DRAIN", reason=OURS), MINE, id="down",
        ),
        pytest.param(
            results(passed=("gpu.throttle",)), None, state("IDLE", reason=OURS), MINE, id="in use",
        ),
    ],
)  # fmt: skip
def test_no_other_drain_is_undone(
    found: Assessment, why: Call | None, seen: NodeState | None, mine: DrainRecord | None
) -> None:
    """Hardware, people's drains, and whatever is not certain wait for a person."""
    step = decide(known(found, why or call("healthcheck"), seen, mine=mine), config())
    assert done(step) == ("none", 0)
