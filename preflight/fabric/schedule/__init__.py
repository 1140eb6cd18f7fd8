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
from preflight.fabric.schedule.repair import Repaired, fill, repair

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
    "repair",
    "rounds_among",
]
