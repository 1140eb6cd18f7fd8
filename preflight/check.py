"""One idea that can make a machine unfit, with a stable id that reports and drains refer to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Stage = Literal["reach", "facts", "net", "local", "fabric"]
Tier = Literal["prolog", "quick", "standard", "deep"]

STAGES: Final[tuple[Stage, ...]] = ("reach", "facts", "net", "local", "fabric")
"""Cheap first; a stage runs on the whole fleet at once. `net`: the second, load-free round trip."""

TIERS: Final[tuple[Tier, ...]] = ("prolog", "quick", "standard", "deep")
"""Each tier contains the ones before it."""

FLEET: Final = "fleet:all"
"""The subject of a check that judges the fleet as a whole; no node and no pair can be named so."""


_ID: Final = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def is_check_id(text: str) -> bool:
    """Whether it is written as an id is: gpu.count."""
    return _ID.fullmatch(text) is not None


def subject(names: tuple[str, ...]) -> str:
    """Name what a verdict is about: a node, a pair as a-b, or the whole fleet for nobody alone."""
    return "-".join(names) or FLEET


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    stage: Stage
    tier: Tier = "quick"
    requires: tuple[str, ...] = ()
    disturbs: bool = False
    drains: bool = False
    user: bool = False
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Check(_Declared):
    """What a file in `checks/` declares: who it is, when it runs and what it may cause.

    `requires` names checks whose failure on a subject makes this one `not_run` there.
    `disturbs` says that measuring it loads the node; `drains` that a scheduler may take a node
    out of service for it; `user` that what it finds was left or set by a user, which never drains;
    `heals` that its cause can go away by itself, so that a drain for it may be undone.
    """

    id: str

    def within(self, tier: Tier) -> bool:
        """Whether a run of this tier includes the check."""
        return TIERS.index(self.tier) <= TIERS.index(tier)
