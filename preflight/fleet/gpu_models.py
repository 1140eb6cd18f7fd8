"""Which GPU a promise means: its numbers are chosen by that, never by what is found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.fleet.model import Promise

_FAMILY = re.compile(r"(?<![A-Z0-9])(A100|H100|H200|B200)(?![0-9])")
_OTHER_BOARD = re.compile(r"PCIE|NVL(?!INK)|MIG|VGPU|GRACE")
"""Boards of the same name with other clocks, memory and links; none of their numbers is shipped."""

_SXM = re.compile(r"SXM|HGX|DGX|HBM3")
_ALWAYS_SXM = ("H200", "B200")
"""NVML calls the other boards of these by a longer name ("H200 NVL")."""

_LINKS = {"A100": 12, "H100": 18}
_NODE = 8


def gpu_platform(promise: Promise) -> str | None:
    """The promised platform: "H100 SXM"; None where none is promised or none is surely meant.

    "H100" alone may be a PCIe card: it counts as SXM with eight GPUs and all links of the SXM.
    """
    text = (promise.gpu_model or "").upper()
    found = _FAMILY.search(text)
    if found is None or _OTHER_BOARD.search(text):
        return None
    family = found[1]
    eight_linked = promise.gpus == _NODE and promise.nvlinks_per_gpu == _LINKS.get(family)
    if family in _ALWAYS_SXM or _SXM.search(text) or eight_linked:
        return f"{family} SXM"
    return None
