"""A made-up node whose GPUs tell their readings, so that a test states only what matters to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.unit.facts.builders import facts, gpus
from tests.unit.facts.gpu_readings import health

if TYPE_CHECKING:
    from preflight.facts.model import Facts

DAY_S = 86400.0


def node(odd: int | None = None, **changes: object) -> Facts:
    """A node that is up for a day; one of its eight GPUs, or (None) all of them, is changed.

    Changes are of `GpuHealth`, or of `Gpu` where that has such a field.
    """
    built = []
    for one in gpus():
        applied = changes if odd is None or one.index == odd else {}
        own = {name: applied[name] for name in applied if name in one.__struct_fields__}
        rest = {name: applied[name] for name in applied if name not in own}
        built.append(replace(one, **{"health": health(**rest), **own}))
    timed = facts(gpus=tuple(built), time_s=2 * DAY_S, boot_s=DAY_S)
    counted = replace(timed.driver, counted=8, init_s=0.2, slowest_s=0.01, slowest_call="x")
    return replace(timed, driver=counted)
