"""A site's own sections of the probe: loaded and checked before they are sent to the nodes."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preflight.check import is_check_id
from preflight.core.trust import who_may_plant
from preflight.errors import UsageError

LONGEST_S: Final = 10.0
"""The longest deadline of a section: the whole probe has 25 s; the driver may take 10 s of them."""

MOST: Final = 16
"""The most sections in one run; each is a process of its own on every node."""


@dataclass(frozen=True, slots=True)
class Section:
    """One file of the list that `pytest_preflight_probe_sections` returns.

    `path`: a file for Python 3.8 and later that imports only the standard library and defines
    `collect(request)`, which returns plain JSON of at most 60 KiB. A relative path starts at
    pytest's rootdir. `request` is `{"id", "name", "deadline_s"}`; `name` is the node's. It runs as
    the login user in a process of its own, which is ended after `deadline_s`.
    """

    id: str
    path: Path | str
    deadline_s: float = 5.0


_LONGEST_ID = 80
_LARGEST = 256 << 10
"""The most bytes of a section's file, which is sent to every node."""


@dataclass(frozen=True, slots=True)
class LoadedSection:
    """A section with the code that is sent to the nodes."""

    id: str
    source: bytes
    deadline_s: float


def modules(sections: Sequence[LoadedSection]) -> tuple[tuple[str, bytes], ...]:
    """(module name, code) of each section, to be sent beside the probe."""
    return tuple((f"site_section_{n}", section.source) for n, section in enumerate(sections))


def add(loaded: dict[str, LoadedSection], section: Section, root: Path) -> None:
    """Load a section and add it; UsageError begins with what its plugin did."""
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
    source = _source(section.id, root / section.path)
    if section.id in loaded:
        raise UsageError(f"names {section.id} a second time: rename one")
    if len(loaded) == MOST:
        raise UsageError(f"names more than {MOST} sections: join some")
    loaded[section.id] = LoadedSection(section.id, source, float(seconds))


def _source(section_id: str, path: Path) -> bytes:
    """Read a section's file and check that it defines `collect`, without running it."""
    try:
        if not path.is_file():
            raise UsageError(
                f"names {path} for {section_id}, which is not a file: correct the path"
            )
        if os.geteuid() == 0 and (writer := who_may_plant(path)):
            raise UsageError(f"names {path}, and {writer}: give it to root, it runs on every node")
        source = path.read_bytes()
        tree = ast.parse(source, path.name, feature_version=(3, 8))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"names {path}, which cannot be read: {error}") from error
    if len(source) > _LARGEST:
        raise UsageError(f"names {path}, {len(source) >> 10} KiB: {_LARGEST >> 10} KiB at most")
    if not any(isinstance(node, ast.FunctionDef) and node.name == "collect" for node in tree.body):
        raise UsageError(f"names {path}, which lacks collect(request): define it")
    return source
