"""What the last periodic health check read: a prolog has no time to read it all again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.facts.model import WIRE, Facts
from preflight.hook.config import read_trusted
from preflight.report.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.hook.model import HookConfig

NAME: Final = "facts.json"
_LARGEST: Final = 16 << 20
_SAME_BOOT_S: Final = 30.0
"""Two readings of when the machine was started differ by what its clock was set by meanwhile."""

_SLOW_TO_CHANGE: Final = ("software", "gpudirect", "topo_text", "nccl_conf")
"""What a job cannot change in an hour, and what takes long to read."""


class Patched(Struct, frozen=True):
    """Facts of now, with what is taken from earlier; `age_s` is None where nothing was."""

    facts: Facts
    age_s: float | None = None


def keep(folder: Path, facts: Facts) -> None:
    """Write them where only root may; OSError if that cannot be done."""
    write_atomically(folder / NAME, msgspec.json.encode(facts))


def patched(facts: Facts, config: HookConfig) -> Patched:
    """Fill what there was no time to read; facts of another boot, or too old, are no use."""
    earlier = _kept(config, facts)
    if earlier is None:
        return Patched(facts)
    changes: dict[str, object] = {
        name: getattr(earlier, name)
        for name in _SLOW_TO_CHANGE
        if getattr(facts, name) is None and getattr(earlier, name) is not None
    }
    # A matrix of other GPUs has nothing to be held to.
    if _places(facts) != _places(earlier):
        changes.pop("topo_text", None)
    if not changes:
        return Patched(facts)
    return Patched(replace(facts, **changes), facts.time_s - earlier.time_s)


def _places(facts: Facts) -> tuple[str, ...] | None:
    return None if facts.gpus is None else tuple(gpu.bus_id for gpu in facts.gpus)


def _kept(config: HookConfig, now: Facts) -> Facts | None:
    try:
        content = read_trusted(config.state_dir / NAME, _LARGEST)
        facts = msgspec.json.decode(content, type=Facts)
    except (UsageError, ValueError, RecursionError):
        return None
    fresh = 0 <= now.time_s - facts.time_s <= config.facts_max_age_s
    same = facts.wire == WIRE and abs(facts.boot_s - now.boot_s) <= _SAME_BOOT_S
    return facts if fresh and same and facts.host == now.host else None
