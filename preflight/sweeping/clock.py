"""How long a sweep may take, and what of that each wave gets."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from preflight.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])")
_TIME = re.compile(r"(\d{1,2}):(\d{2})")

LONGEST_S, SHORTEST_S = 30 * 86400, 60

LEAST_SHARE = 1 / 12
"""Of a tier's usual time, what a wave is not begun with less of: 5 minutes of the hour of `deep`.
Chosen: that pays for the logins, the burn-in's first measures and every pair of 16 nodes once."""


def ends_at(until: str | None, budget: str | None, now: datetime) -> datetime | None:
    """When the sweep must end, of `--until=06:00` and `--budget=5h` the earlier; UsageError.

    `now` has the time zone in which the operator's clock hangs.
    """
    ends = [_until(until, now)] if until is not None else []
    if budget is not None:
        ends.append(now + timedelta(seconds=span_s(budget)))
    return min(ends, default=None)


def span_s(text: str) -> float:
    """Read 90m, 5h, 1.5h, 2d as seconds; UsageError."""
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--budget={text[:40]!a}: give the sweep's time as in 90m, 5h or 1.5h")
    return seconds


def _until(text: str, now: datetime) -> datetime:
    """The next time the clock shows that; a date may be given: 2026-11-23T06:00."""
    wrong = UsageError(f"--until={text[:40]!a}: give a time as in 06:00, or 2026-11-23T06:00")
    found = _TIME.fullmatch(text.strip())
    try:
        if found is None:
            ends = datetime.fromisoformat(text.strip())
            ends = ends if ends.tzinfo else ends.replace(tzinfo=now.tzinfo)
        else:
            ends = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
            ends += timedelta(days=ends <= now)
    except ValueError as error:
        raise wrong from error
    if ends <= now:
        raise UsageError(f"--until={text[:40]!a} has passed: give a time to come")
    return ends


def wave_budget_s(usual_s: float, left_s: float | None, waves: int) -> float | None:
    """What the next of so many waves gets, in seconds; None where the time is up.

    Its usual time; if not all waves have so much, each its share; if that is too little to say
    anything, fewer waves are begun. `left_s` None: the sweep has all the time it needs.
    """
    if left_s is None:
        return usual_s
    least_s = usual_s * LEAST_SHARE
    if left_s < least_s:
        return None
    return min(usual_s, left_s, max(left_s / waves, least_s))
