"""One end's account of a pair, or one size of it condensed: held to what times can be."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.fabric.digest import KEPT
from preflight.fabric.stored.refusal import absurd, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.digest import Digest, Standout
    from preflight.fabric.samples import End, Ladder

_SIZE = 1 << 50
_LONGEST_US, _LONGEST_S, _OPERATIONS = 1e12, 1e9, 10**12
_SHORTEST_US = 1e-4  # no clock is finer; 0 may be read once from a coarse one
_ROUNDED = 1.01
_LATEST_S = 1e12  # as far as a node's clock is believed in a run


def refuse_ladder(ladder: Sequence[Ladder]) -> None:
    """Hold the sizes that were asked for to what can be measured; UsageError as below."""
    for number, one in enumerate(ladder):
        where = f"ladder[{number}]"
        if not 1 <= one.size_bytes <= _SIZE:
            raise absurd(where, f"a size of {one.size_bytes} bytes", "correct size_bytes")
        if one.iterations < 1 or one.warmup < 0:
            said = f"{one.warmup} warm-ups and {one.iterations} iterations"
            raise absurd(where, said, "correct them")


def refuse_end(where: str, end: End, name: str, partner: str = "") -> None:
    """Hold an end to whose account it must be; UsageError that names the place and a way out."""
    if end.node != name:
        said = f"it is the account of {end.node[:60]!a}, not of {name}"
        both = end.node == partner
        raise absurd(where, said, "swap them" if both else "correct node, or leave the entry out")
    if not 0 <= end.started_s <= _LATEST_S:
        said = f"it started at {end.started_s:g} s"
        raise absurd(where, said, "correct started_s: seconds since 1970")
    kinds = [(timing.size_bytes, timing.phase) for timing in end.timings]
    if len(set(kinds)) < len(kinds):
        raise absurd(f"{where}.timings", "a size stands twice", "leave one of them out")
    for number, timing in enumerate(end.timings):
        place = f"{where}.timings[{number}]"
        if len(timing.times_us) != len(timing.gaps_us):
            said = f"{len(timing.times_us)} times and {len(timing.gaps_us)} gaps"
            raise absurd(place, said, "each operation has one of both")
        if not timing.times_us:
            raise absurd(place, "it has no times", "leave the timing out")
        # A GPU's clock may once say 0; a median of 0 would be an endless speed.
        if timing.times_us.count(0.0) * 2 > len(timing.times_us):
            raise absurd(place, "most of its times are 0 us", "store times as they were measured")
        if any(0 < time_us < _SHORTEST_US for time_us in timing.times_us):
            raise absurd(place, "a time is under 0.1 ns", "store times as they were measured")
        within(place, "size_bytes", timing.size_bytes, _SIZE)
        for resumed in timing.resumed:
            within(place, "resumed operation", resumed.operation, len(timing.times_us) - 1)


def refuse_digest(where: str, digest: Digest) -> None:
    """Hold one size's few numbers to each other; UsageError as above."""
    if not 0 < digest.size_bytes <= _SIZE:
        raise absurd(where, f"a size of {digest.size_bytes} bytes", "correct size_bytes")
    if not 0 < digest.operations <= _OPERATIONS:
        raise absurd(where, f"{digest.operations} operations", "correct operations")
    if not 0 <= digest.loaded_s <= _LONGEST_S:
        raise absurd(where, f"loaded for {digest.loaded_s:g} s", "correct loaded_s")
    ascending = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    if (
        ascending[0] < 0
        or ascending[-1] > _LONGEST_US
        or any(a > b for a, b in pairwise(ascending))
    ):
        said = "its times do not ascend from best_us over the percentiles to most_us"
        raise absurd(where, said, "correct them; none is negative or over 1e12 us")
    if not digest.p50_us:
        raise absurd(where, "its median is 0 us", "store times as they were measured")
    if any(0 < time_us < _SHORTEST_US for time_us in ascending):
        raise absurd(where, "a time is under 0.1 ns", "store times as they were measured")
    others = (digest.early_us, digest.late_us, digest.cut_us)
    if not all(0 <= time_us <= _LONGEST_US for time_us in others):
        raise absurd(where, "a time is negative or over 1e12 us", "correct early, late and cut_us")
    _refuse_standouts(where, digest)


def _refuse_standouts(where: str, digest: Digest) -> None:
    if len(digest.standouts) > digest.operations:
        said = f"{len(digest.standouts)} standouts of {digest.operations} operations"
        raise absurd(where, said, "correct either")
    if len(digest.standouts) > KEPT:
        said = f"{len(digest.standouts)} standouts"
        raise absurd(where, said, f"keep the longest {KEPT}")
    known: set[int] = set()
    for number, one in enumerate(digest.standouts):
        place = f"{where}.standouts[{number}]"
        if one.operation in known:
            raise absurd(place, f"operation {one.operation} stands twice", "leave one of them out")
        known.add(one.operation)
        _refuse_standout(place, one, digest)


def _refuse_standout(where: str, one: Standout, digest: Digest) -> None:
    if not 0 <= one.operation < digest.operations:
        said = f"operation {one.operation} of {digest.operations}"
        raise absurd(where, said, "they are counted from 0: correct either")
    if one.network_us > _ROUNDED * digest.most_us:
        said = f"{one.network_us:g} us at both ends, and most_us is {digest.most_us:g}"
        raise absurd(where, said, "correct either")
    if not 0 <= one.at_s <= _LATEST_S:
        raise absurd(where, f"at {one.at_s:g} s", "correct at_s: seconds since 1970")
    stalls = (one.first_stall_us, one.second_stall_us)
    times = (one.first_us, one.second_us, one.first_gap_us, one.second_gap_us, *stalls)
    if not all(0 <= time_us <= _LONGEST_US for time_us in times):
        raise absurd(where, "a time is negative or over 1e12 us", "correct it")
