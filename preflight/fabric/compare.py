"""Each pair against its peers, and against what was promised: which pairs are bad, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from preflight.fabric.measure import (
    Summary,
    bypass,
    lost_accounts,
    lost_words,
    summarise,
    wire_from,
)
from preflight.fabric.observed import failed_by_itself
from preflight.fabric.peers import Peers
from preflight.fabric.samples import PairState
from preflight.fabric.words import size
from preflight.fabric.yardstick import Bound, Yardstick, bound_of, floors, latency_limit_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.samples import End, PairSamples, Sweep
    from preflight.fleet.model import Host

Slow = Literal["", "bandwidth", "latency", "reach"]
"""`reach`: its time was up at sizes too small to judge, or where most peers' was not."""


_FEW_PEERS, _MOST_PEERS = 3, 0.75
"""Of so many peers at least such a share came further, where a pair that stopped is slow."""


class Seen(Struct, frozen=True, kw_only=True):
    """One pair on one rail, judged by itself: not yet whose fault it is."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState
    summary: Summary
    at_bytes: int = 0
    """The largest size that was measured; bandwidth is judged there."""
    busbw_gbs: float | None = None
    bound: Bound = Bound()
    latency_us: float | None = None
    peers_latency_us: float | None = None
    latency_limit_us: float | None = None
    slow: Slow = ""
    once: Slow = ""
    """How it was slow, where that was taken back since retests of the pair were quick."""
    hung_once: bool = False
    """It hung, and every retest of the pair went well."""
    suspect: str = ""
    """The end whose own measuring process hung or died; the other merely lost its partner."""
    lost: tuple[str, ...] = ()
    """Whose account of it was lost: it says nothing."""
    bypass: str = ""
    """The way past the NICs that its data took: it says nothing."""
    top_bytes: int = 0
    """The ladder's largest size."""
    judged_from: int = 0
    """The smallest size at which bandwidth can be judged."""
    spent_s: float = 0.0
    """What its timed operations took, at the end that took longer; 0 where it is not known."""

    @property
    def bad(self) -> bool:
        """Whether somebody must be blamed for it."""
        passes = self.lost or self.hung_once or self.state in ("measured", "not_run")
        return bool(self.slow) or not passes

    @property
    def good(self) -> bool:
        """Whether it clears both of its ends."""
        return self.state == "measured" and not self.slow and self.bound.gbs is not None

    @property
    def short(self) -> bool:
        """Whether its time was up before a size at which bandwidth can be judged."""
        return self.state == "measured" and self.at_bytes < min(self.judged_from, self.top_bytes)

    @property
    def how_far(self) -> str:
        """How far a short pair came, in words."""
        reached, top = size(self.at_bytes), size(self.top_bytes)
        spent = f", in {self.spent_s:.2g} s of the pair's time" if self.spent_s else ""
        return f"only {reached} of {top} were reached{spent}"

    @property
    def name(self) -> str:
        """The pair as reports write it."""
        return f"{self.a}-{self.b}"


def compare(
    sweep: Sweep,
    hosts: Sequence[Host],
    earlier: Mapping[str, Sequence[float]] | None = None,
    known: Sequence[Summary] = (),
) -> tuple[Seen, ...]:
    """Judge every pair of the sweep by itself, in the sweep's order.

    `earlier`: what pairs reached in earlier runs, GB/s by `speed_key`. `known`: what each pair's
    times come to, where the sweep does not hold them.
    """
    summaries = list(zip(sweep.pairs, known or map(summarise, sweep.pairs), strict=True))
    measured = [(pair, summary) for pair, summary in summaries if summary.state == "measured"]
    yardstick = Yardstick(
        Peers(measured),
        {host.name: host.promised for host in hosts},
        max((rung.size_bytes for rung in sweep.ladder), default=0),
        floors(measured),
        earlier or {},
    )
    return tuple(
        _seen(pair, summary, yardstick)
        if summary.state == "measured" and summary.sizes
        else _plain(pair, summary, lost_accounts(pair, sweep.troubles))
        for pair, summary in summaries
    )


def _seen(pair: PairSamples, summary: Summary, yardstick: Yardstick) -> Seen:
    least, most = summary.sizes[0], summary.sizes[-1]
    bound = bound_of(pair, most, yardstick)
    peers_us = yardstick.peers.latency(pair, least.size_bytes)
    most_us = latency_limit_us(pair.backend, peers_us)
    slow: Slow = ""
    # Even the fastest iteration: a slow link slows them all, a busy machine leaves some alone.
    if bound.gbs is not None and most.best_gbs < bound.gbs:
        slow = "bandwidth"
    elif most_us is not None and least.p50_us > most_us:
        slow = "latency"
    elif _stopped_early(pair, most.size_bytes, yardstick):
        slow = "reach"
    return Seen(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        state=summary.state,
        summary=summary,
        at_bytes=most.size_bytes,
        busbw_gbs=most.busbw_gbs,
        bound=bound,
        latency_us=least.p50_us,
        peers_latency_us=peers_us,
        latency_limit_us=most_us,
        slow=slow,
        top_bytes=yardstick.top_bytes,
        judged_from=wire_from(pair.backend),
        spent_s=max(_spent_s(pair.first), _spent_s(pair.second)),
    )


def _stopped_early(pair: PairSamples, at_bytes: int, yardstick: Yardstick) -> bool:
    """Whether its time was up where others' was not: any's below what is judged, most's above."""
    if at_bytes >= yardstick.top_bytes:
        return False
    beyond, peers = yardstick.peers.beyond(pair, at_bytes)
    if at_bytes < wire_from(pair.backend):
        return beyond > 0
    return peers >= _FEW_PEERS and beyond >= _MOST_PEERS * peers


def _plain(pair: PairSamples, summary: Summary, lost: tuple[str, ...]) -> Seen:
    if lost:
        summary = replace(summary, error=lost_words(lost))
    return Seen(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        state=summary.state,
        summary=summary,
        suspect=failed_by_itself(pair),
        lost=lost,
        bypass=bypass(pair),
    )


def _spent_s(end: End | None) -> float:
    timings = end.timings if end else ()
    return sum(sum(timing.times_us) + sum(timing.gaps_us) for timing in timings) / 1e6
