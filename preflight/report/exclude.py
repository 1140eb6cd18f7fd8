"""The nodes that the next launch must leave out, as `sbatch --exclude=` takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.report.ready import Readiness

if TYPE_CHECKING:
    from preflight.report.document import FleetRow


def excluded(fleet: FleetRow) -> str:
    """Fold who is not ready, and one of each pair that must not be in one job; "" for nobody."""
    ready = Readiness(ready=fleet.ready, not_ready=fleet.not_ready, apart=fleet.apart)
    bad = {*fleet.not_ready, *fleet.ready} - {*ready.launchable}
    return fold([name for name in fleet.nodes if name in bad])
