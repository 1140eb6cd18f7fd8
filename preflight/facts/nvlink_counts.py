"""What an NVLink's error counters prove: a rate much, a total of unknown age little.

They run since the driver was loaded, at most since boot. A captured text says nothing of either, so
that a total in it is healthy only where it would be within the shortest time that is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.gpu_errors import uptime_s
from preflight.facts.gpu_verdict import healths, named
from preflight.facts.limits import limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.gpu_model import LinkErrors
    from preflight.facts.model import Facts

_FULL: Final = frozenset({2**16 - 1, 2**32 - 1})
"""Where counters of 16 and 32 bits stand still, however much comes after."""


def noise(link: LinkErrors, uptime: float) -> str:
    """What a link counted beyond the usual since the driver was loaded; "" if nothing."""
    if link.recoveries:
        return f"trained anew {link.recoveries} times since its driver was loaded, 0 expected"
    hours = max(1.0, uptime / 3600)
    for number, what, name in _counts(link):
        most = limit(name)
        if uptime and number / hours > most:
            return f"{number} {what}, {number / hours:.0f} an hour; at most {most:.0f} is usual"
        if not uptime and number in _FULL:
            return f"{number} {what}, which is all that its counter can hold; 0 expected"
    return ""


def undated(facts: Facts) -> tuple[str, ...]:
    """Totals that could be too high, or not: nothing says for how long they have counted."""
    if uptime_s(facts):
        return ()
    return tuple(
        f"{named(gpu)} NVLink {link.link}: {number} {what}"
        for gpu, health in healths(facts)
        for link in health.link_errors or ()
        for number, what, name in _counts(link)
        if number > limit(name)
    )


def _counts(link: LinkErrors) -> Iterator[tuple[int, str, str]]:
    """(number, what, its limit) of what the link counted."""
    yield link.replays or 0, "replays", "nvlink_replays_per_hour"
    yield link.crc or 0, "packets with a wrong checksum", "nvlink_crc_per_hour"
