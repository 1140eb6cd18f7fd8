"""What an interface counted: broken frames are the cable's, dropped ones a slow receiver's.

Drivers name one thing in many ways (rx_crc_errors, rx_fcs_errors, rx_crc_errors_phy), count the
same frame in several places, and again per queue and priority: the largest of a kind is taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from preflight.facts.limits import limit
from preflight.facts.odd_gpus import Oddity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.model import Facts
    from preflight.facts.network_model import Interface
    from preflight.facts.rdma_model import Counter

Kind = Literal["broken", "dropped", "flaps", "packets", ""]

_PER_QUEUE: Final = re.compile(
    r"(?:^|_)(?:[rt]x|ch|q|queue|prio|tc|ptp|xsk|xdp)_?[0-9]|^[\[(]?[0-9]"
)
_NEVER: Final = re.compile(r"xdp|xsk|vport|csum|cache|steer|if_down|tls|ipsec|filter|_bytes|octets")
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("flaps", re.compile(r"link_down(?:ed)?_events?|^carrier_downs$|link_failure_count")),
    ("broken", re.compile(r"crc|fcs|(?:symbol|code|align\w{0,80}|frame)_err|fragment|jabber")),
    ("dropped", re.compile(
        r"^(?:port[._])?rx.*(?:discard|missed|no_buf|out_of_buffer|fifo|over_err|overrun|no_dma)"
    )),
    ("packets", re.compile(
        r"^(?:port[._])?rx_(?:total_)?(?:ucast_|unicast_)?(?:packets|frames|pkts)(?:_phy)?$"
    )),
)  # fmt: skip
_CONGESTED: Final = (
    "look at flow control (ethtool -a {0}), at its ring (ethtool -g {0}) and at its host's load"
)
_FRAMES: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("broken", "broken_frames_per_million", "reseat or replace {0}'s cable and clean its ends"),
    ("dropped", "dropped_frames_per_million", _CONGESTED),
)
_LEAST: Final = 3
"""Frames: one or two prove nothing, of however few."""

_DAY_S: Final = 86400.0
_MILLION: Final = 1e6


def kind_of(name: str) -> Kind:
    """What a counter of a driver tells of; "" where it is no trouble, or is told elsewhere."""
    low = name.lower()
    if _PER_QUEUE.search(low) or _NEVER.search(low):
        return ""
    return next((kind for kind, pattern in _KINDS if pattern.search(low)), "")


def frame_troubles(one: Interface, facts: Facts) -> Iterator[Oddity]:
    """Frames that came broken or found no room, and a link that came and went."""
    counters = (one.ethernet.counters if one.ethernet else None) or ()
    packets = _largest(counters, "packets")
    for kind, name, advice in _FRAMES:
        worst = _largest(counters, kind)
        if worst is None or worst.value < _LEAST or packets is None:
            continue
        received = max(packets.value, worst.value)
        rate = worst.value / received * _MILLION
        if rate >= limit(name):
            seen = f"{one.name}: {worst.name} {worst.value} of {received} packets"
            share = f"{rate / 1e4:.3g} %" if rate >= 1e4 else f"{rate:.3g} in a million"  # noqa: PLR2004
            most = f"{share}, under {limit(name):g} in a million expected"
            yield Oddity(f"{seen}: {most}", advice.format(one.name), grave=False)
    yield from _flaps(one, facts)


def flaps_per_day(one: Interface, facts: Facts) -> float | None:
    """How often its link went down since boot, per day; None where nothing tells."""
    up_s = facts.time_s - facts.boot_s
    if one.carrier_downs is None or up_s <= 0:
        return None
    return one.carrier_downs / max(1.0, up_s / _DAY_S)


def undated_flaps(one: Interface, facts: Facts) -> str:
    """A total of lost links that could be too high, and nothing says since when; "" if none."""
    if facts.time_s > facts.boot_s or (one.carrier_downs or 0) < limit("link_flaps_per_day"):
        return ""
    return f"{one.name} lost its link {one.carrier_downs} times, and nothing says since when"


def _flaps(one: Interface, facts: Facts) -> Iterator[Oddity]:
    rate = flaps_per_day(one, facts)
    if rate is not None and rate >= limit("link_flaps_per_day"):
        seen = f"{one.name} lost its link {one.carrier_downs} times since boot, {rate:.3g} a day"
        sentence = f"{seen}; under {limit('link_flaps_per_day'):g} a day expected"
        yield Oddity(sentence, f"look at {one.name}'s cable and its switch port", grave=False)


def _largest(counters: tuple[Counter, ...], kind: str) -> Counter | None:
    own = [one for one in counters if kind_of(one.name) == kind]
    return max(own, key=lambda one: one.value, default=None)
