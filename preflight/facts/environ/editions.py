"""Which NCCL and torch will read the job's variables here: an older one ignores the newer names.

Told from the job's Python (`software` of the facts). Where that does not tell a version, or another
library is put in front of it, nothing is judged by versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.facts.software import version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.model import Facts


class Editions(Struct, frozen=True):
    """Versions by owner of a variable: "NCCL" to "2.21.5"; of others nothing is known."""

    nccl: str = ""
    torch: str = ""

    def of(self, owner: str) -> str:
        """The version of whoever reads a variable; "" where it is not known."""
        return {"NCCL": self.nccl, "torch": self.torch}.get(owner, "")

    def before(self, owner: str, first: str) -> bool:
        """Whether the one here is known to be older than `first`, "2.24"."""
        here = version(self.of(owner))
        return bool(here) and here < version(first)


def editions(facts: Facts | None, environ: Mapping[str, str]) -> Editions:
    """Read the versions of a node, as far as this job will load them."""
    if facts is None or facts.software is None:
        return Editions()
    torch = facts.software.torch.version if facts.software.torch else ""
    preloaded = "nccl" in environ.get("LD_PRELOAD", "")
    return Editions(nccl="" if preloaded else facts.software.nccl or "", torch=torch)
