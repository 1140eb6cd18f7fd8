"""The site's own checks for commands that hold no test session: pytest alone reads its ini file."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.registry import load_folder
from preflight.trust import who_may_plant

if TYPE_CHECKING:
    from preflight.registered import Registered

_QUIET = ("--preflight", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider")
"""Only to read the ini file: no conftest runs."""

_NO_INI = Path(__file__).with_name("isolated.ini")
_ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_WITH_TABLE = ("pyproject.toml", "tox.ini", "setup.cfg")
_TABLE = re.compile(rb"^[ \t]*\[(?:tool[.:])?pytest[].]", re.MULTILINE)
_LARGEST = 4 << 20


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
        code = pytest.main([*_QUIET, *(_of_root() if os.geteuid() == 0 else ())], plugins=[grab])
    if code != 0:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise UsageError((lines or ["pytest cannot read its ini file here"])[0])
    absent = next((folder for folder in grab.folders if not folder.is_dir()), None)
    if absent is not None:
        raise UsageError(f"preflight_checks: {absent} is no folder: correct the ini file")
    return [check for folder in grab.folders for check in load_folder(folder)]


def _of_root() -> tuple[str, ...]:
    """Name the ini file to pytest, which itself takes the first in any folder above.

    Its `pythonpath` and `-p` are code: UsageError where another user could change it.
    """
    here = Path.cwd()
    found = (folder / name for folder in (here, *here.parents) for name in _ALWAYS + _WITH_TABLE)
    own = next(filter(_is_pytests, found), _NO_INI)
    return (f"-c{own}", "-ppreflight", "-o", "required_plugins=")


def _is_pytests(path: Path) -> bool:
    if not os.path.lexists(path):
        return False
    if said := who_may_plant(path):
        raise UsageError(
            f"root would take orders from {path}, and {said}: go to a folder of root's, or "
            "chown root: and chmod go-w it, with the folders above"
        )
    try:
        return path.name in _ALWAYS or bool(_TABLE.search(read_regular(path, _LARGEST)))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; remove it") from error
