"""Facts of this node become findings by the judges of every run; the unjudged blames nobody."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from preflight.facts.node import Reach
from preflight.hook.model import Finding, Unjudged
from preflight.hook.second_look import FILES, HUNG, is_hung, is_late
from preflight.judgement import Judgement
from preflight.registry import Registry, load_folder, shipped_folder
from preflight.stages.measured import Measured
from preflight.stages.probe import DRIVER_S
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.check import Check
    from preflight.facts.model import Driver, Facts
    from preflight.fleet.model import Fleet
    from preflight.hook.job_gpus import View
    from preflight.registered import Registered
    from preflight.verdict import Verdict

CHECK_S: Final = 1.0
"""Chosen: a judge is a pure function of facts and takes milliseconds; one that does not is ill."""

OF_GPUS: Final = "gpu."
NO_ANSWER: Final = "no answer in time"
"""What the probe says of a section that was not done when its time was up."""

_BAD: Final = (Outcome.FAIL, Outcome.FLAKY, Outcome.WARN)


class Found(Struct, frozen=True, kw_only=True):
    """What the checks say of this node."""

    findings: tuple[Finding, ...] = ()
    unknown: tuple[Unjudged, ...] = ()
    passed: tuple[str, ...] = ()
    broken: str = ""
    """A check that broke: our own fault."""
    saw: dict[str, bool] = {}
    """Of the checks whose fault a second look must see: whether this one did, where it can tell."""


def checks() -> Registry:
    """The shipped checks; a node's own prolog runs no others."""
    return Registry(load_folder(shipped_folder()))


def judge(
    registry: Registry,
    fleet: Fleet,
    whole: Facts,
    view: View,
    ends: float,
    *,
    before: frozenset[str] = frozenset(),
) -> Found:
    """Ask every passive check about this node, those of GPUs about the job's alone.

    `ends`: the moment (time.monotonic) after which nothing is asked any more. `before`: the checks
    whose fault the look before this one saw, of those that a second look must see.
    """
    (host,) = fleet.hosts
    own = replace(fleet, hosts=(replace(host, promised=view.promised),))
    of_node, of_gpus = _asking(registry, fleet, whole), _asking(registry, own, view.facts)
    found: list[Found] = []
    for registered in registry:
        check = registered.check
        if registered.subject != "node" or check.stage != "facts" or not check.within("prolog"):
            continue
        about_gpus = check.id.startswith(OF_GPUS)
        if about_gpus and view.unclear:
            found.append(_unjudged(check.id, view.unclear))
        elif time.monotonic() >= ends:
            found.append(_unjudged(check.id, "the time for this was up", out_of_time=True))
        else:
            asked = of_gpus if about_gpus else of_node
            one = _asked(registered, asked, host.name, ends)
            twice = check.id in FILES
            found.append(_in_a_row(one, check.id, whole.driver, before) if twice else one)
    return Found(
        findings=tuple(each for one in found for each in one.findings),
        unknown=tuple(each for one in found for each in one.unknown),
        passed=tuple(each for one in found for each in one.passed),
        broken=next((one.broken for one in found if one.broken), ""),
        saw={check_id: bad for one in found for check_id, bad in one.saw.items()},
    )


def _asking(registry: Registry, fleet: Fleet, facts: Facts) -> Judgement:
    name = fleet.hosts[0].name
    measured = Measured(nonce=facts.nonce, reach={name: Reach("local")}, facts={name: facts})
    return Judgement(fleet, registry, measured)


def _asked(registered: Registered, judgement: Judgement, name: str, ends: float) -> Found:
    check_id = registered.check.id
    with _alarm(min(CHECK_S, ends - time.monotonic())) as rang:
        verdict = judgement.verdict(check_id, (name,))
    if rang:
        return _unjudged(check_id, f"its judge took over {CHECK_S:g} s", out_of_time=True)
    return _found(registered, verdict, name)


def _found(registered: Registered, verdict: Verdict, name: str) -> Found:
    check_id, said = registered.check.id, verdict.sentence
    if verdict.outcome is Outcome.OK:
        return Found(passed=(check_id,))
    if verdict.outcome is Outcome.BROKEN:
        broken = Unjudged(check=check_id, why=said)
        return Found(unknown=(broken,), broken=f"{check_id}: {said}")
    if verdict.outcome is Outcome.UNKNOWN and not verdict.grant:
        return _unjudged(check_id, said, out_of_time=NO_ANSWER in said)
    if verdict.outcome not in _BAD:
        return Found()
    return Found(findings=(_finding(registered.check, verdict, name),))


def _finding(check: Check, verdict: Verdict, name: str) -> Finding:
    here = verdict.blame in ("", name) and set(verdict.culprits) <= {name} and not verdict.suspects
    user = check.user or verdict.evidence.get("user") is True
    gpus = verdict.evidence.get("gpus")
    return Finding(
        check=check.id,
        outcome=verdict.outcome,
        sentence=verdict.sentence,
        advice=verdict.advice,
        drains=check.drains and here and not user and verdict.condemns,
        user=user,
        heals=check.heals,
        gpus=tuple(gpus) if isinstance(gpus, list | tuple) else (),
    )


def _in_a_row(found: Found, check_id: str, driver: Driver, before: frozenset[str]) -> Found:
    """A driver that is silent or slow has a fault where the look before saw the same.

    One that refuses needs no second look.
    """
    bad = any(each.condemns for each in found.findings)
    saw = {check_id: bad} if found.findings or found.passed else {}
    if check_id == HUNG:
        hung = is_hung(driver)
        saw = {} if hung is None else {HUNG: hung}
    if not bad or (check_id == HUNG and driver.state != "hung"):
        return replace(found, saw=saw)
    (one,) = found.findings
    if check_id in before:
        again = replace(one, sentence=f"{one.sentence}, as at the look before")
        return Found(findings=(again,), saw=saw)
    late = is_late(driver)
    more = f"it may take {DRIVER_S:g} s" if late else "it is a fault if the next look sees the same"
    return replace(_unjudged(check_id, f"{one.sentence}; {more}", out_of_time=late), saw=saw)


def _unjudged(check_id: str, why: str, *, out_of_time: bool = False) -> Found:
    return Found(unknown=(Unjudged(check=check_id, why=why, out_of_time=out_of_time),))


@contextmanager
def _alarm(seconds: float) -> Iterator[list[bool]]:
    """End what runs under it after that time; the list then is not empty."""
    rang: list[bool] = []

    def ring(*_: object) -> None:
        rang.append(True)
        raise TimeoutError("the judge's time was up")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield rang
    except TimeoutError:
        if not rang:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
