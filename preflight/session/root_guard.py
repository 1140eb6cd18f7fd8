"""Keeps root from running somebody else's code, and from writing where somebody else leads.

What pytest has loaded before it asks its plugins (`-p` in an ini file, `PYTEST_PLUGINS`, modules
beside `python -m pytest`) cannot be refused here: for that there is `preflight run`. An ini file
is also found beside what follows an option after a blank: pytest knows no plugin's options yet.
"""

from __future__ import annotations

import os
from contextlib import suppress
from glob import iglob
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.core.trust import code_in, folders_below, roots_paths, who_may_plant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WRITTEN = ("log_file", "basetemp", "debug", "report_log", "htmlpath", "json_report_file")
"""Options that name a file: of pytest, pytest-reportlog, pytest-html and pytest-json-report."""

_ISOLATED = Path(__file__).with_name("isolated.ini")
"""Of `preflight run`, which offers no debugger."""


def refuse_strangers(config: pytest.Config) -> None:
    """Stop before the first conftest runs if another user than root could have written it.

    pytest.UsageError (exit 4) with the file, whose it is, and what to type instead.
    """
    if os.geteuid() != 0:
        return
    # xdist starts its workers as `python -c`, which would look for modules here first.
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in {"PATH", "LD_LIBRARY_PATH"} & os.environ.keys():  # as for every verb
        os.environ[name] = roots_paths(name, os.environ[name])[0]
    # The texts that it runs have any name, and lie in any folder.
    config.pluginmanager.set_blocked("doctest")
    for place in map(Path, config.getini("preflight_checks")):
        code = chain(_code_below(place), _code_around(place, config, has_tests=True))
        _refuse(code, "give it to root: chown -R root, chmod -R go-w")
    _refuse(_ini_of_a_value(config), _joined(config))
    _refuse(
        _would_run(config),
        "type `preflight run` instead of `pytest --preflight`, or go to a folder of root",
    )
    for path in _would_write(config):
        if said := who_may_plant(path):
            raise pytest.UsageError(
                f"root would write to {path}, and {said}: name a file in a folder of root's"
            )


def _would_write(config: pytest.Config) -> Iterator[Path]:
    """What pytest and its plugins write themselves, following links; JUnit XML is seen to."""
    here = config.invocation_params.dir
    named = [(here, getattr(config.known_args_namespace, option, None)) for option in _WRITTEN]
    for key, folder in (("log_file", here), ("cache_dir", config.rootpath)):
        with suppress(ValueError):  # its plugin is switched off
            named.append((folder, config.getini(key)))
    for folder, name in named:
        if name:  # some are expanded, and some are not
            yield folder / str(name)
            yield folder / os.path.expandvars(os.path.expanduser(str(name)))  # noqa: PTH111


def _refuse(files: Iterable[Path], remedy: str) -> None:
    try:
        for path in files:
            if said := who_may_plant(path):
                raise pytest.UsageError(f"root would run the code of {path}, and {said}: {remedy}")
    except OSError as error:
        raise pytest.UsageError(f"root cannot look for code: {error}; {remedy}") from error


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
    debugs = getattr(told, "trace", False) or getattr(told, "usepdb", False)
    for orders in (here / ".pdbrc", here / os.path.expanduser("~/.pdbrc")):  # noqa: PTH111  may fail
        if debugs or (os.path.lexists(orders) and config.inipath != _ISOLATED):
            yield orders
    typed = [here / argument.split("::")[0] for argument in told.file_or_dir]
    tests = [
        here / path
        for pattern in config.getini("testpaths")
        for path in iglob(pattern, root_dir=here, recursive=True)  # noqa: PTH207  takes absolute ones
    ]
    for place in typed or ([] if told.noconftest else tests or [here]):
        yield from _code_around(place, config, has_tests=bool(typed))
    for place in typed:
        yield place
        yield from _code_below(place)


def _code_around(place: Path, config: pytest.Config, *, has_tests: bool) -> Iterator[Path]:
    """What pytest loads of a place's folder, of those above, and of folders in it named test*.

    Each conftest.py down from the cut, and each __init__.py down from the root folder or of a
    package; the folders of these are searched for modules, and those that hold packages or a
    conftest.py, or `has_tests` that are loaded, for packages as well.
    """
    told, root = config.known_args_namespace, config.rootpath
    above_cut = Path(told.confcutdir).absolute().parents
    start = Path(os.path.abspath(place))  # noqa: PTH100  resolves ".." as pytest does
    below = start if start.is_dir() else start.parent
    is_package, is_loaded = True, has_tests or any(below.glob("test*/__init__.py"))
    for folder in (below, *below.parents):
        outside = not folder.is_relative_to(root) if told.noconftest else folder in above_cut
        if outside and not is_package:
            break
        is_loaded |= (folder / "conftest.py").exists()
        is_package = (folder / "__init__.py").exists()
        yield from code_in(folder, packages=is_loaded and not is_package)
        is_loaded &= is_package
    for folder in filter(Path.is_dir, below.glob("test*")):
        yield from code_in(folder, packages=(folder / "conftest.py").exists())


def _code_below(place: Path) -> Iterator[Path]:
    """All the code that pytest finds in a folder, links followed as it follows them."""
    for folder in folders_below(place):
        yield from code_in(folder)
