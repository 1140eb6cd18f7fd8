"""Who is measured with whom and when: numbered rounds of disjoint pairs, a round costs a pair."""

from preflight.fabric.schedule.circle import (
    Circle,
    Pairing,
    Rounds,
    circle_rounds,
    default_rounds,
    rounds_among,
)
from preflight.fabric.schedule.frame import Frame, frame_of
from preflight.fabric.schedule.leaves import LeafAware
from preflight.fabric.schedule.repair import Repaired, fill, nobody_sits_out, repair

__all__ = [
    "Circle",
    "Frame",
    "LeafAware",
    "Pairing",
    "Repaired",
    "Rounds",
    "circle_rounds",
    "default_rounds",
    "fill",
    "frame_of",
    "nobody_sits_out",
    "repair",
    "rounds_among",
]
