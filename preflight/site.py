"""The site's own checks for commands that hold no test session: pytest alone reads its ini file."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.registry import load_folder

if TYPE_CHECKING:
    from preflight.registered import Registered

_QUIET = ("--preflight", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider")
"""Only to read the ini file: no conftest runs, and root is refused a stranger's file."""


class _Grab:
    """A plugin that reads the ini key and has pytest stop before it does anything."""

    def __init__(self) -> None:
        self.folders: tuple[Path, ...] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Take what is wanted and leave."""
        self.folders = tuple(map(Path, config.getini("preflight_checks")))
        return 0


def site_checks() -> list[Registered]:
    """Load the checks that the ini file of this folder names; UsageError if they cannot be."""
    grab, said = _Grab(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main([*_QUIET], plugins=[grab])
    if code != 0:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise UsageError((lines or ["pytest cannot read its ini file here"])[0])
    absent = next((folder for folder in grab.folders if not folder.is_dir()), None)
    if absent is not None:
        raise UsageError(f"preflight_checks: {absent} is no folder: correct the ini file")
    return [check for folder in grab.folders for check in load_folder(folder)]
