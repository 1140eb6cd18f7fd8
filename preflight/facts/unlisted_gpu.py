"""A GPU that is not listed shows by its peers' dead NVLinks: they are well, it is what is missing.

Where GPUs are joined directly each link has a GPU at its other end. When one GPU of a usual number
is not there, and the dead links of the others are as many as one GPU has, they are its links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu

LOOK: Final = "look for the missing GPU: lspci, Xid 79 in dmesg; power-cycle the node, recheck"
_USUAL: Final = (4, 8, 16)


def unlisted_gpu(gpus: Sequence[Gpu]) -> str:
    """Say that one GPU is missing and which dead links lead to it; "" where nothing proves it."""
    dead = {gpu.index: [link.link for link in gpu.links or () if not link.up] for gpu in gpus}
    torn = {index: links for index, links in dead.items() if links}
    sizes = {len(gpu.links or ()) for gpu in gpus}
    switched = any(link.remote_kind == "switch" for gpu in gpus for link in gpu.links or ())
    if len(gpus) + 1 not in _USUAL or len(sizes) != 1 or switched:
        return ""
    of_one = sizes.pop()
    lost = sum(len(links) for links in torn.values())
    if lost != of_one or len(torn) < 2 or any(gpu.mig_enabled for gpu in gpus):  # noqa: PLR2004 - one GPU's own fault is no proof
        return ""
    listed = "; ".join(
        f"GPU{index} link {', '.join(str(link) for link in links)}" for index, links in torn.items()
    )
    return (
        f"a GPU is missing: {len(gpus)} are listed, {len(gpus) + 1} expected, and the {lost} dead "
        f"NVLinks of the others ({listed}) are as many as one GPU has"
    )
