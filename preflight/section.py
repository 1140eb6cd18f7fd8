"""A site's own part of the probe: one file that travels to every node and answers from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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
