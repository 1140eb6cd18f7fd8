"""Everything a run has measured so far: what judges read, and what xdist workers are handed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.check import Stage
from preflight.fabric.samples import Sweep
from preflight.facts.model import Facts
from preflight.facts.node import Reach
from preflight.facts.ports import Ports
from preflight.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path


class Measured(Struct, frozen=True, kw_only=True):
    """By node name. A stage adds its own part and leaves the rest as it was."""

    nonce: str
    reach: dict[str, Reach] = {}
    facts: dict[str, Facts] = {}
    ports: dict[str, Ports] = {}
    port_troubles: dict[str, str] = {}
    """Why a node that took part in the port stage gave no usable report."""
    sweep: Sweep | None = None
    skipped: dict[Stage, Verdict] = {}
    """Stages that were not run, and the verdict that everyone gets instead."""

    def save(self, path: Path) -> None:
        """Write it for another process of the same run."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Measured:
        """Read what `save` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
