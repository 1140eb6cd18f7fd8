"""A check: one reason why a node may not be ready, with a stable id for reports and drains."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

Stage = Literal["reach", "facts", "net", "local", "fabric"]
Tier = Literal["prolog", "quick", "standard", "deep"]

STAGES: Final[tuple[Stage, ...]] = ("reach", "facts", "net", "local", "fabric")
"""Cheap first; a stage runs on the whole fleet at once. `net`: the second, load-free round trip."""

TIERS: Final[tuple[Tier, ...]] = ("prolog", "quick", "standard", "deep")
"""Each tier contains the ones before it."""

FLEET: Final = "fleet:all"
"""The subject of a check that judges the whole fleet; no node or pair can have this name."""


_ID: Final = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_LONGEST_ID: Final = 100


def is_check_id(text: str) -> bool:
    """Whether `text` has the form of a check id, such as gpu.count: a file can have its name."""
    return len(text) <= _LONGEST_ID and _ID.fullmatch(text) is not None


def subject(names: tuple[str, ...]) -> str:
    """Name the subject of a verdict: a node, a pair as a-b, or the whole fleet for no names."""
    return "-".join(names) or FLEET


@dataclass(frozen=True, slots=True)
class Check:
    """What a file in `checks/` declares: its id, when it runs and what it may cause.

    `requires`: checks whose failure on a subject makes this one `not_run` there. `drains`: a
    scheduler may drain a node for it. `user`: what it finds was left or set by a user; it never
    drains. `heals`: its cause can go away by itself, so a drain for it may be undone.
    """

    id: str
    _: KW_ONLY
    stage: Stage
    tier: Tier = "quick"
    requires: tuple[str, ...] = ()
    drains: bool = False
    user: bool = False
    heals: bool = False

    def within(self, tier: Tier) -> bool:
        """Whether a run of this tier includes the check."""
        return TIERS.index(self.tier) <= TIERS.index(tier)
