"""Keeps root from running somebody else's code: conftest files, ini files, checks of a folder.

What pytest has loaded before it asks its plugins (`-p` in an ini file, `PYTEST_PLUGINS`, modules
beside `python -m pytest`) cannot be refused here: for that there is `preflight run`. An ini file
is also found beside what follows an option after a blank: pytest knows no plugin's options yet.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.trust import folders_below, who_may_plant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CODE = ("conftest.py", "__init__.py", "test_*.py", "*_test.py")


def refuse_strangers(config: pytest.Config) -> None:
    """Stop before the first conftest runs if another user than root could have written it.

    pytest.UsageError (exit 4) with the file, whose it is, and what to type instead.
    """
    if os.geteuid() != 0:
        return
    site = [path for place in config.getini("preflight_checks") for path in _code_below(place)]
    _refuse(site, "give it to root: chown -R root, chmod -R go-w")
    _refuse(_ini_of_a_value(config), _joined(config))
    _refuse(
        _would_run(config),
        "type `preflight run` instead of `pytest --preflight`, or go to a folder of root",
    )


def _refuse(files: Iterable[Path], remedy: str) -> None:
    for path in files:
        if said := who_may_plant(path):
            raise pytest.UsageError(f"root would run the code of {path}, and {said}: {remedy}")


def _apart(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Our options whose value stands after a blank: pytest takes it for a path of tests."""
    for option, value in pairwise(map(str, config.invocation_params.args)):
        if option.startswith("--preflight-") and "=" not in option and not value.startswith("-"):
            yield option, value


def _ini_of_a_value(config: pytest.Config) -> Iterator[Path]:
    """The ini file that pytest found beside such a value, not above the working folder."""
    here = config.invocation_params.dir
    found = config.inipath
    if found is None or found.parent in (here, *here.parents):
        return
    if any(found.parent in (here / value).absolute().parents for _, value in _apart(config)):
        yield found


def _joined(config: pytest.Config) -> str:
    joined = " ".join(f"{option}={value}" for option, value in _apart(config))
    return (
        f"write {joined}: after a blank pytest takes it for a path of tests, and the ini file "
        "there for its own (what it names may have run: look into it)"
    )


def _would_run(config: pytest.Config) -> Iterator[Path]:
    """Every file that this session would execute, or take orders from."""
    if config.inipath is not None:
        yield config.inipath
    told = config.known_args_namespace
    here = config.invocation_params.dir
    typed = [here / argument.split("::")[0] for argument in told.file_or_dir]
    tests = [path for pattern in config.getini("testpaths") for path in here.glob(pattern)]
    if not told.noconftest:
        yield from _conftests(typed or tests or [here], Path(told.confcutdir))
    for place in typed:
        yield from _code_below(place)


def _conftests(starts: Iterable[Path], cut: Path) -> Iterator[Path]:
    """The conftest files that pytest loads at once: beside, above, and in folders named test*."""
    above_cut = cut.absolute().parents
    for start in starts:
        folder = start if start.is_dir() else start.parent
        for each in (folder, *folder.absolute().parents, *folder.glob("test*")):
            if each not in above_cut and (each / "conftest.py").is_file():
                yield each / "conftest.py"


def _code_below(place: Path) -> Iterator[Path]:
    """A file, or all the code that pytest finds in a folder, links followed as it follows them."""
    if not place.is_dir():
        yield place
        return
    for folder in folders_below(place):
        yield folder
        for pattern in _CODE:
            yield from folder.glob(pattern)
