"""What is worth a warning before several workers start: groups that the installed versions lose."""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

Version = tuple[int, int, int]

FIRST_BAD_PYTEST: Final[Version] = (9, 2, 0)
LAST_BAD_XDIST: Final[Version] = (3, 8, 0)
"""With the one or newer beside the other or older, groups are lost (pytest-xdist issue 1386)."""


def warnings(config: pytest.Config) -> list[str]:
    """Lines for the header, none if all is well; each says which versions and what to do."""
    if getattr(config.option, "dist", "no") != "loadgroup" or not config.option.tx:
        return []
    said = {name: importlib.metadata.version(name) for name in ("pytest", "pytest-xdist")}
    if not misgroups(said["pytest"], said["pytest-xdist"]):
        return []
    line = (
        f"warning  --dist loadgroup does not group with pytest {said['pytest']} and pytest-xdist "
        f"{said['pytest-xdist']}: tests of one xdist_group run at the same time in several "
        "workers; to have them one after another, leave -n out, or: pip install 'pytest<9.2'"
    )
    return [line]


def misgroups(pytest_version: str, xdist_version: str) -> bool:
    """Whether `--dist loadgroup` is known to lose the groups with these two."""
    return _read(pytest_version) >= FIRST_BAD_PYTEST and _read(xdist_version) <= LAST_BAD_XDIST


def _read(version: str) -> Version:
    """Read the first three numbers; what comes behind them (rc1, .dev2) does not matter here."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third
