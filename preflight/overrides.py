"""What the site laid over the checks: switched off, other numbers, failures it accepts for a while.

Each of them shows in the verdict itself, so that none can be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fleet.waivers import NEVER
from preflight.numbers import words
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import date

    from preflight.fleet.model import Host
    from preflight.fleet.waivers import Waiver
    from preflight.numbers import Told

Names = tuple[str, ...]

_WAIVABLE = (Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.WARN)
_PAIR = "pair "


def off_for(check: str, hosts: Sequence[Host]) -> dict[str, str]:
    """Of these nodes those for which a check is switched off, and why it is not run there."""
    return {
        host.name: f"switched off for {host.name} in {host.off[check]}"
        for host in hosts
        if check in host.off
    }


def switched_off(why: str) -> Verdict:
    """The verdict of a check that the site does not want on a subject."""
    return not_run(why, off=True)


def with_numbers(verdict: Verdict, used: Mapping[str, Told]) -> Verdict:
    """Say which numbers of the site's decided in place of shipped ones."""
    if not used or verdict.outcome in (Outcome.NOT_RUN, Outcome.BROKEN):
        return verdict
    said = "; ".join(words(name, told) for name, told in sorted(used.items()))
    numbers = {name: {"value": told.value, "by": told.where} for name, told in used.items()}
    return replace(
        verdict,
        sentence=f"{verdict.sentence} ({said})",
        evidence={**verdict.evidence, "numbers": numbers},
    )


def corrupt(check: str, verdict: Verdict) -> bool:
    """Whether it says that data came back wrong, which nobody may accept."""
    wrong = verdict.evidence.get("state") == "corrupt" or verdict.evidence.get("corrupt") is True
    return check in NEVER or wrong


def waive(
    check: str,
    names: Names,
    verdict: Verdict,
    *,
    waivers: Sequence[Waiver],
    fleet: Collection[str],
    day: date,
) -> Verdict:
    """Turn a failure that the site knows of into a waived one, if it knows of all it condemns.

    Of several culprits those that are not waived stay. Corrupted data stay what they are.
    """
    alive = [one for one in waivers if one.check == check and not one.expired(day)]
    if not alive or verdict.outcome not in _WAIVABLE:
        return verdict
    condemned = _condemned(names, verdict, fleet)
    covering = [one for one in alive if not condemned.isdisjoint(one.nodes)]
    if not covering:
        return verdict
    known = {name for one in covering for name in one.nodes}
    if corrupt(check, verdict):
        told = "it is waived, but a waiver never hides corrupted data"
        return replace(verdict, sentence=f"{verdict.sentence}; {told}")
    until = "; ".join(f"until {one.until}: {one.reason}" for one in covering)
    if condemned <= known:
        return replace(
            verdict,
            outcome=Outcome.WAIVED,
            sentence=f"{verdict.sentence} (waived {until})",
            evidence={**verdict.evidence, "waived": str(verdict.outcome)},
            cause="",
        )
    left = tuple(name for name in verdict.culprits if name not in known)
    if len(left) == len(verdict.culprits) or not left:
        return verdict
    spared = ", ".join(name for name in verdict.culprits if name in known)
    told = f"{verdict.sentence} (for {spared} waived {until})"
    return replace(verdict, sentence=told, culprits=left)


def _condemned(names: Names, verdict: Verdict, fleet: Collection[str]) -> set[str]:
    """The nodes that a verdict would take out, as the run's readiness counts them."""
    named = {*verdict.culprits, *verdict.suspects}
    if named:
        return named
    if verdict.blame in fleet:
        return {verdict.blame}
    return set(names or fleet)
