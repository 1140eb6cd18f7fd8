"""Whether a part is slower than it used to be: held against its own nights, and by nothing else.

A part that was always slow is as it always was; only peers and floors can tell that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST: Final = 5
"""Nights; of fewer a median and a scatter say too little to blame anybody."""

DEVIATIONS: Final = 6.0
SIGMA: Final = 1.4826
"""So many standard deviations off the median, one being 1.4826 MAD for normal noise (in log time).
Six, as against peers: a fleet of 8,000 GPUs and 365 nights is 3 million looks."""

RANGES: Final = 2.0
"""And twice what its nights differ by, without a tenth at either end: of five nights the MAD may be
small by chance. Simulated, 20,000 nights of 5 % noise after five such nights: 0.3 % were blamed by
the MAD alone, 0.1 % so; of 2 % noise none by either."""


class Usual(NamedTuple):
    """What a part reaches on its nights, as a speed (more is better)."""

    middle: float
    share: float
    """Below that part of the middle it is beyond its own scatter, and by an effect that counts."""
    nights: int

    @property
    def least(self) -> float:
        """The least speed that is still like its own past."""
        return self.middle * self.share


def usual(speeds: Sequence[float], *, effect: float, scatter: float) -> Usual | None:
    """Its median night and how far below it a night may be; None for too few nights.

    `effect`: the part that must be missing at least. `scatter`: in log time, what nights differ by
    at least. Of an even number of nights the slower of the middle two counts.
    """
    known = sorted(one for one in speeds if one > 0 and math.isfinite(one))
    if len(known) < FEWEST:
        return None
    middle = known[(len(known) - 1) // 2]
    logs = [math.log(one) for one in known]
    spread = SIGMA * median([abs(one - math.log(middle)) for one in logs])
    cut = len(known) // 10
    apart = logs[-1 - cut] - logs[cut]
    share = min(1 - effect, math.exp(-max(DEVIATIONS * max(spread, scatter), RANGES * apart)))
    return Usual(middle, share, len(known))
