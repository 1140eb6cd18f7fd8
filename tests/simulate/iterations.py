"""The same fabric with every iteration of every pair, as nodes would have sent it: a raw `Sweep`.

For fabrics of a few nodes: 4,000 operations of a pair take as much memory as 60 digests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.samples import End, PairSamples, Rung, Sweep, Timing

if TYPE_CHECKING:
    from tests.simulate.scene import Meeting, Part, Scene


def sweep(scene: Scene) -> Sweep:
    """Every iteration from both ends."""
    pairs = tuple(
        PairSamples(
            one.a,
            one.b,
            one.rail,
            one.round,
            scene.noise.backend,
            _end(scene, one, second=False),
            _end(scene, one, second=True),
        )
        for one in scene.meetings()
    )
    return Sweep(
        ladder=tuple(Rung(rung.size_bytes, 0, rung.operations) for rung in scene.noise.program),
        rounds=scene.fabric.rounds,
        pairs=pairs,
        leaves=scene.fabric.leaves,
    )


def _end(scene: Scene, meeting: Meeting, *, second: bool) -> End:
    return End(
        node=meeting.b if second else meeting.a,
        state=meeting.state,
        timings=tuple(_timing(part, second=second) for part in meeting.parts),
        error=meeting.error,
        started_s=meeting.met_second_s if second else meeting.met_s,
        net=scene.noise.net.format(rail=meeting.rail),
    )


def _timing(part: Part, *, second: bool) -> Timing:
    columns = part.template.stream
    own, own_gaps = (
        (columns.second, columns.second_gap) if second else (columns.first, columns.first_gap)
    )
    times = [part.factor * time + part.add_us for time in own]
    gaps = list(own_gaps)
    for at, hit in part.hits.items():
        times[at] += hit.second if second else hit.first
        gaps[at] += hit.second_gap if second else hit.first_gap
    return Timing(part.rung.size_bytes, tuple(times), tuple(gaps), part.rung.phase, part.began_s)
