"""A site's own sections of the probe: checked before they travel to the nodes."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.check import is_check_id
from preflight.core.trust import who_may_plant
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


LONGEST_S: Final = 10.0
"""A section's deadline at most: the whole probe has 25 s, and the driver may take 10 of them."""

MOST: Final = 16
"""Sections of one run at most; each is a process of its own on every node."""


@dataclass(frozen=True, slots=True)
class Section:
    """What `pytest_preflight_probe_sections` returns a list of.

    `path`: a file for Python 3.8 and later that needs the standard library only and defines
    `collect(request)`; what that returns must be plain JSON, at most 60 KiB. A relative path is
    taken from pytest's rootdir. `request` is `{"id", "name", "deadline_s"}`, the node's name among
    them. It runs as the login user in a process of its own, which is ended after `deadline_s`.
    """

    id: str
    path: Path | str
    deadline_s: float = 5.0


_LONGEST_ID = 80
_LARGEST = 256 << 10
"""Bytes of a section's file: it travels to every node."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A section with the code that travels."""

    id: str
    source: bytes
    deadline_s: float


def modules(sections: Sequence[Carried]) -> tuple[tuple[str, bytes], ...]:
    """Name the code of sections as modules that travel beside the probe."""
    return tuple((f"site_section_{n}", each.source) for n, each in enumerate(sections))


def add(carried: dict[str, Carried], section: Section, root: Path) -> None:
    """Add a section to those that travel; UsageError that begins with what its plugin did."""
    one = _sound(section, root)
    if one.id in carried:
        raise UsageError(f"names {one.id} a second time: rename one")
    if len(carried) == MOST:
        raise UsageError(f"names more than {MOST} sections: join some")
    carried[one.id] = one


def _sound(section: Section, root: Path) -> Carried:
    if not isinstance(section, Section):
        raise UsageError(f"returned {section!r:.80}, expected preflight.run.site_sections.Section")
    if (
        not isinstance(section.id, str)
        or not is_check_id(section.id)
        or len(section.id) > _LONGEST_ID
    ):
        raise UsageError(f"names a section {section.id!r:.80}: write one such as site.image")
    seconds = section.deadline_s
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_S:
        raise UsageError(f"gives {section.id} {seconds!r:.20} s: give more than 0, at most 10")
    return Carried(section.id, _source(section.id, root / section.path), float(seconds))


def _source(section_id: str, path: Path) -> bytes:
    """Read a section's file and see that it can be asked, without running it."""
    try:
        if not path.is_file():
            raise UsageError(f"names {path} for {section_id}, which is no file: correct the path")
        if os.geteuid() == 0 and (said := who_may_plant(path)):
            raise UsageError(f"names {path}, and {said}: give it to root, it runs on every node")
        source = path.read_bytes()
        tree = ast.parse(source, path.name, feature_version=(3, 8))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"names {path}, which cannot be read: {error}") from error
    if len(source) > _LARGEST:
        raise UsageError(f"names {path}, {len(source) >> 10} KiB: {_LARGEST >> 10} KiB at most")
    if not any(isinstance(one, ast.FunctionDef) and one.name == "collect" for one in tree.body):
        raise UsageError(f"names {path}, which lacks collect(request): define it")
    return source
