"""One pair of nodes as its check sees it: what was measured, what was expected, whose fault."""

from __future__ import annotations

from msgspec import Struct

from preflight.fabric.measure import SizeSummary
from preflight.fabric.samples import PairState
from preflight.fabric.words import gbs, size


class Pair(Struct, frozen=True, kw_only=True):
    """The worst rail of one pair, with its peers and the blame."""

    a: str
    b: str
    state: PairState
    backend: str = ""
    rail: int = 0
    rails: int = 1
    sizes: tuple[SizeSummary, ...] = ()
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    busbw_gbs: float | None = None
    peers_gbs: float | None = None
    """Median of the pairs that touch neither node; None where there are none."""
    peers: int = 0
    limit_gbs: float | None = None
    limit_origin: str = ""
    """"0.25 of the peers' median", "promised in fleet.toml", "shipped floor for gloo"."""
    decided_by: str = ""
    """"peers", "promise", "platform", "history", or "least": nothing is known of this network."""
    latency_us: float | None = None
    peers_latency_us: float | None = None
    latency_limit_us: float | None = None
    slow: str = ""
    """"bandwidth", "latency", or nothing."""
    error: str = ""
    """What the ends said, or why the pair was not measured."""
    blamed: str = ""
    """"h3", "pair h1-h2", "h1 or h2"; nothing for a pair that is fine."""
    why: str = ""
    """The blame in one sentence."""
    advice: str = ""
    culprits: tuple[str, ...] = ()
    """The nodes that must be left out for it, where the blamed part is no single node."""
    suspects: tuple[str, ...] = ()
    """The nodes among which the culprit lies, where no more is known."""
    events: int = 0
    """Of what comes and goes: how often, in how many operations through the blamed part."""
    operations: int = 0
    doubt: str = ""
    """Why it cannot be judged, though it was slow: once, and there was no time to look again."""
    note: str = ""
    """What else its readings showed, of a pair that is fine."""
    partial: str = ""
    """Which end lacks rails, so that the pair was measured on the others only."""
    short: str = ""
    """How far it came, when its time was up before bandwidth could be judged."""
    waited: bool = False
    """Not measured because its nodes waited for another that is blamed: they are not judged."""
    busy: tuple[str, ...] = ()
    """Not measured because somebody uses these nodes."""
    trouble: bool = False
    """Not measured because a node that should have taken part in the sweep could not."""

    @property
    def bad(self) -> bool:
        """Whether it was measured, or tried, and is not fine."""
        if self.lost:
            return False
        return bool(self.slow or self.blamed) or self.state not in ("measured", "not_run")

    @property
    def lost(self) -> bool:
        """Whether an end's account was lost: who did not come for a reason is blamed for it."""
        return self.state == "absent" and not self.blamed

    @property
    def remarks(self) -> str:
        """What to say besides of a pair that is fine."""
        once = f"; {self.note}, but not when it was measured again" if self.note else ""
        return once + (f"; on {self.rails} rails: {self.partial}" if self.partial else "")

    @property
    def unheld(self) -> str:
        """Why its bandwidth says nothing, though it was measured; nothing where it was judged."""
        if self.limit_gbs is None or self.busbw_gbs is None:
            return "no peers, no promise and no floor to compare with"
        if self.decided_by == "least" and self.backend == "nccl":
            # What any network reaches is no floor for one that carries NCCL.
            reached = f"{gbs(self.busbw_gbs)} at {size(self.at_bytes)}"
            return f"{reached}: no peers, nothing promised and no earlier runs to hold it against"
        return ""
