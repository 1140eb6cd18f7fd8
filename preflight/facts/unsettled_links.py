"""Dead links in a captured text of which nothing tells whether they should be up: nobody's proof.

A live node is known by its group and its inventory, and is not asked this. A text of one GPU has
neither: where its board is sold with and without a bridge, it clears nobody and condemns nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.board_links import must_be_up, settled
from preflight.facts.odd_gpus import usual_links
from preflight.facts.wiring import up_links

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.facts.model import Gpu


def unsettled(gpus: Sequence[Gpu], dark: Collection[int]) -> str:
    """Name the first GPU whose dead links neither peers nor board judge; "" where there is none.

    `dark`: the GPUs of which the text says that no link is up, and lists none.
    """
    if usual_links(gpus):
        return ""
    lit = {gpu.name for gpu in gpus if gpu.links and all(link.up for link in gpu.links)}
    for gpu in gpus:
        up, down = up_links(gpu) or 0, [link.link for link in gpu.links or () if not link.up]
        if not down and gpu.index not in dark:
            continue
        judged = settled(gpu) is not None and (up > 0 or len(gpus) > 1 or must_be_up(gpu, gpus))
        unbridged = not up and gpu.name in lit  # a pair with a bridge and a third card are sold so
        if not judged and not unbridged:
            which = f"its NVLink {', '.join(map(str, down))}" if up else "no NVLink of it"
            state = "is down" if up else "is up"
            return (
                f"GPU {gpu.index}: {which} {state}, and whether that is so by design "
                "only its peers or its bridge tell"
            )
    return ""
