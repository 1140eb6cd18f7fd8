"""torchrun's rendezvous without its dawdling, which took longer than a round of pairs.

Left alone, a node looks once a second whether all are there. And it names the method behind each of
its records, which nobody keeps, by reading the source of all frames: 0.3 s of processor time.

Neither has an option in torch 2.13. Where another torch has other names for them, a launch takes
as long as it did.
"""

from __future__ import annotations

import functools
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_S = 0.1  # at most 16 nodes ask one store, a small thing each time
_HOLDER = "_BackendRendezvousStateHolder"


def hasten(module: Any) -> None:
    """Set the pace of torch.distributed.elastic.rendezvous.dynamic_rendezvous."""
    # A node that comes late must not restart everyone's ranks, as elastic would do for it.
    module.DynamicRendezvousHandler.num_nodes_waiting = _nobody
    module.get_method_name = _nameless
    module._delay = _briefly  # noqa: SLF001 - see above
    holder = getattr(module, _HOLDER, None)
    if isinstance(holder, type):  # it answers from memory for a second
        setattr(module, _HOLDER, functools.partial(holder, cache_duration=0))


def _nobody(_handler: Any) -> int:
    return 0


def _nameless(_depth: int = 2) -> str:
    return "no_method_name"


def _briefly(seconds: Any) -> None:
    """Look again soon, however many seconds (or a range of them) were to pass."""
    del seconds
    time.sleep(_POLL_S)
