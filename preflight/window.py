"""How far back the kernel log counts: what a repair has settled must not condemn a node again."""

from __future__ import annotations

import re
import time
from datetime import datetime

from preflight.errors import UsageError

OPTION = "--preflight-kernel-log-since"
LONGEST_S = 10 * 365 * 86400.0
_AGO = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_back(said: str | None) -> float | None:
    """Read "boot", "2h", "3d", or a time such as 2026-11-21T08:00; None for all since boot.

    A time without a zone is this machine's. UsageError for anything else.
    """
    if said is None or said == "boot":
        return None
    if ago := _AGO.fullmatch(said):
        return _sane(said, float(ago[1]) * _UNITS[ago[2]])
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise _refusal(said) from None
    return _sane(said, time.time() - moment.astimezone().timestamp())


def _sane(said: str, seconds: float) -> float:
    if not 0 < seconds <= LONGEST_S:
        raise _refusal(said)
    return seconds


def _refusal(said: str) -> UsageError:
    return UsageError(
        f"{OPTION} {said[:40]!a}: give boot, an age such as 90m, 2h or 3d, or a time in the past "
        "such as 2026-11-21T08:00"
    )
