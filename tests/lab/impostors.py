"""Pythons that are none: what answers when a node's Python is broken, hostile, or gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.cluster import Lab

NO_PYTHON = "/opt/no-such/python3"
"""A path that exists on no host."""

_BODIES = {
    "garbage": "head -c 65536 /dev/urandom",
    "flood": "head -c 104857600 /dev/zero | tr '\\0' x",
    "one_long_line": "printf '@preflight '; head -c 104857600 /dev/zero | tr '\\0' x; echo",
    "control_characters": r"printf '\033]0;owned\007\033[2J\033[31m<b>&\r\n\000\n\302\233[31m\n'",
    "empty": "true",
    "silent": "exec sleep 100000",
    "fails": "echo 'python3: error while loading shared libraries: libpython3.so' >&2; exit 127",
}
KINDS = tuple(_BODIES)


def python_that(lab: Lab, kind: str) -> Path:
    """Write an executable to be named as a node's `python` in the inventory.

    `kind`: garbage, flood (100 MB without a newline), one_long_line (the same behind our own mark),
    control_characters, empty, silent (never answers), fails (exit 127).
    """
    path = lab.folder / f"python-{kind}"
    path.write_text(f"#!/bin/sh\n{_BODIES[kind]}\n")
    path.chmod(0o755)
    return path
