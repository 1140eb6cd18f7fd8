"""Reads hook.toml, which only root may change: it decides which nodes a scheduler loses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from preflight.core.files import parse_toml, read_regular, refuse_others
from preflight.errors import UsageError
from preflight.hook.hook_values import HookConfig

if TYPE_CHECKING:
    from preflight.hook.hook_values import Occasion

DEFAULT: Final = Path("/etc/preflight/hook.toml")
_LARGEST: Final = 64 << 10

SPARE_S: Final = 1.0
"""Time that a hook needs beyond its budget, to start and end, within its caller's limit."""


def load(path: Path | None = None) -> HookConfig:
    """Read the operator's choices; UsageError that names the file and what to change.

    Without a path, reads the default file; if that does not exist, returns the defaults, which only
    observe.
    """
    if path is None and not os.path.lexists(DEFAULT):
        return HookConfig()
    return parse(read_trusted(path or DEFAULT), path or DEFAULT)


def parse(content: bytes, path: Path) -> HookConfig:
    """Parse the text of a hook.toml; UsageError for invalid TOML, values or unknown keys."""
    try:
        config = msgspec.convert(parse_toml(content.decode()), HookConfig, dec_hook=_path)
    except (ValueError, RecursionError) as error:
        problem = str(error).encode("ascii", "replace").decode()[:200]
        raise UsageError(f"{path}: {problem}; see docs/reference/prolog.md for its keys") from error
    names = ("inventory", "state_dir", "sysfs", "kernel_log", "slurm_bin")
    places: dict[str, Path | None] = {name: getattr(config, name) for name in names}
    places["breaker.directory"] = config.breaker.directory if config.breaker else None
    for name, place in places.items():
        if place is not None and not (place.is_absolute() and str(place).isprintable()):
            raise UsageError(f"{path}: {name} = {str(place)!a}: write a path that begins with /")
    if config.inventory is not None and config.inventory.suffix.lower() != ".toml":
        raise UsageError(f"{path}: inventory = {str(config.inventory)!a}: give a .toml file")
    return config


def refuse_longer(config: HookConfig, occasion: Occasion, limit_s: float | None) -> None:
    """Raise UsageError for a budget longer than the caller's time limit.

    A hook that is ended early would judge nothing on exactly the nodes that take that long.
    """
    key = "budget_s" if occasion == "prolog" else "healthcheck_budget_s"
    budget_s: float = getattr(config, key)
    if limit_s is not None and budget_s > limit_s - SPARE_S:
        raise UsageError(
            f"{key} = {budget_s:g} s is too long: the script that starts preflight ends it after "
            f"{limit_s:g} s; set at most {limit_s - SPARE_S:g} in hook.toml, or raise LIMIT_S in "
            "that script"
        )


def _path(kind: type, value: object) -> Path:
    """Convert a string, and nothing else, to a path."""
    if kind is not Path or not isinstance(value, str):
        raise ValueError(f"expected a path, got {value!a:.40}")
    return Path(value)


def read_trusted(path: Path, largest: int = _LARGEST) -> bytes:
    """Read a file that decides drains; UsageError where a user other than root may write it."""
    refuse_others(path)
    try:
        return read_regular(path, largest)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a readable file") from error
