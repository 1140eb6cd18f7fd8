"""A whole fabric as statistics and blame are given it, without making every iteration first.

Order statistics of a healthy stream are scaled, shifted, and mended where operations were hit: the
same as its iterations would come to, but for medians of long streams, which a few hit operations do
not move here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from preflight.fabric.observed import (
    CUT_MEDIANS,
    MOST_STANDOUTS,
    Digest,
    EndResult,
    Observed,
    PairResult,
    Standout,
)
from tests.simulate.stream import middle, rank

if TYPE_CHECKING:
    from tests.simulate.scene import Meeting, Part, Scene


_SHORT = 512
"""Up to so many operations medians are taken anew where some were hit."""


def observed(scene: Scene) -> Observed:
    """Everything that a sweep of the scene would have shown."""
    tried: list[PairResult] = []
    digests: list[Digest] = []
    nets = [scene.noise.net.format(rail=rail) for rail in range(scene.fabric.rails)]
    for one in scene.meetings():
        tried.append(
            PairResult(
                a=one.a,
                b=one.b,
                rail=one.rail,
                round=one.round,
                state=one.state,
                first=EndResult(error=one.error, net=nets[one.rail]),
                second=EndResult(error=one.error, net=nets[one.rail]),
            )
        )
        digests += [_digest(one, part) for part in one.parts]
    return Observed(
        nodes=scene.fabric.nodes,
        backend=scene.noise.backend,
        tried=tuple(tried),
        digests=tuple(digests),
        leaves=scene.fabric.leaves,
        retested=scene.fabric.retested,
    )


def _digest(meeting: Meeting, part: Part) -> Digest:
    rung, healthy, factor, shift, hits, began_s = part
    count = healthy.operations
    p50 = factor * healthy.p50 + shift
    if hits and count <= _SHORT:
        p50 = middle(sorted(min(_ends(part, at)) for at in range(count)))
    tail = _tail(part)
    spent_us = factor * healthy.spent[-1] + count * shift
    other_us = factor * healthy.spent_second + count * shift
    for hit in hits.values():
        spent_us += hit.first
        other_us += hit.second
    cut_us = CUT_MEDIANS * p50
    standouts: tuple[Standout, ...] = ()
    if hits or healthy.standing_out:
        standouts = _standouts(meeting.met_s + began_s, part, cut_us)
    return Digest(
        a=meeting.a,
        b=meeting.b,
        rail=meeting.rail,
        round=meeting.round,
        size_bytes=rung.size_bytes,
        phase=rung.phase,
        operations=count,
        loaded_s=max(spent_us, other_us) / 1e6,
        best_us=factor * healthy.best + shift,
        p50_us=p50,
        p99_us=tail[count - rank(count, 0.99)],
        p999_us=tail[count - rank(count, 0.999)],
        most_us=tail[0],
        standouts=standouts,
        cut_us=cut_us,
    )


def _tail(part: Part) -> list[float]:
    """The longest network times, longest first."""
    _, healthy, factor, shift, hits, _ = part
    kept = healthy.operations - rank(healthy.operations, 0.99) + 1
    if not hits:
        return [factor * time + shift for time, _ in healthy.tail[:kept]]
    times = [factor * time + shift for time, at in healthy.tail if at not in hits]
    times += [min(_ends(part, at)) for at in hits]
    return sorted(times, reverse=True)


def _ends(part: Part, at: int) -> tuple[float, float]:
    hit, columns = part.hits.get(at), part.template.stream
    one = part.factor * columns.first[at] + part.add_us
    other = part.factor * columns.second[at] + part.add_us
    return (one, other) if hit is None else (one + hit.first, other + hit.second)


def _standouts(began_s: float, part: Part, cut_us: float) -> tuple[Standout, ...]:
    healthy, hits = part.template, part.hits
    hit_at = sorted(hits)
    delays = [0.0]
    for at in hit_at:
        delays.append(delays[-1] + hits[at].first + hits[at].first_gap)
    found: list[Standout] = []
    for at in sorted({*healthy.standing_out, *hit_at}):
        one, other = _ends(part, at)
        if max(one, other) <= cut_us:
            continue
        gap, other_gap = healthy.stream.first_gap[at], healthy.stream.second_gap[at]
        before_us = healthy.idle[at] + part.factor * healthy.spent[at] + part.add_us * at
        if at in hits:
            gap, other_gap = gap + hits[at].first_gap, other_gap + hits[at].second_gap
        at_s = began_s + (before_us + delays[bisect_left(hit_at, at)] + gap) / 1e6
        found.append(Standout(at_s, at, one, other, gap, other_gap))
    longest = sorted(found, key=lambda one: -min(one.first_us, one.second_us))[:MOST_STANDOUTS]
    return tuple(sorted(longest, key=lambda one: one.operation))
