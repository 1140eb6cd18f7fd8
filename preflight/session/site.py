"""What a site brings to a session: plugins, checks, ini files. Each fault is one line.

Plugins are asked one by one. Root runs nobody else's code, and writes nowhere where somebody else
leads. What pytest has loaded before it asks its plugins (`-p` in an ini file, `PYTEST_PLUGINS`,
modules beside `python -m pytest`) cannot be refused here: for that there is `preflight run`. An ini
file is also found beside what follows an option after a blank: pytest knows no plugin's options
yet.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from contextlib import suppress
from glob import iglob
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preflight.core.files import read_regular
from preflight.core.registry import load_folder
from preflight.core.trust import code_in, folders_below, roots_paths, who_may_plant
from preflight.errors import UsageError
from preflight.fleet.inventory_tables import refuse_unknown_transport
from preflight.fleet.model import Host
from preflight.fleet.nodeset import check_host_name, expand
from preflight.fleet.sources import Found
from preflight.run.site_sections import LoadedSection, Section, add

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from preflight.core.registry import Registered
    from preflight.report.document import Report


NODES, SECTIONS, REPORT = (
    f"pytest_preflight_{what}" for what in ("nodes", "probe_sections", "report")
)


def ask_nodes(config: pytest.Config) -> Found | None:
    """Return the nodes that the first plugin names; None if none does."""
    for who, call in _plugins(config, NODES):
        origin = f"hook {NODES} of {who}"
        try:
            said = _called(call, config=config)
            if said is not None:
                return _found(said, origin)
        except UsageError as error:
            raise UsageError(f"{origin} {error}; correct it, or give --preflight-nodes") from error
    return None


def ask_sections(config: pytest.Config) -> tuple[LoadedSection, ...]:
    """Return all sections that plugins name, each found sound."""
    carried: dict[str, LoadedSection] = {}
    for who, call in _plugins(config, SECTIONS):
        try:
            for section in _listed(_called(call, config=config)):
                add(carried, section, config.rootpath)
        except UsageError as error:
            raise UsageError(f"hook {SECTIONS} of {who} {error}") from error
    return tuple(carried.values())


def tell(config: pytest.Config, report: Report, folder: Path) -> list[str]:
    """Pass the report to every plugin that wants it; return what went wrong, a line each."""
    troubles = []
    for who, call in _plugins(config, REPORT):
        try:
            _called(call, report=report, folder=folder, config=config)
        except UsageError as error:
            troubles.append(f"hook {REPORT} of {who} {error}: it was not told all; report.json is")
    return troubles


def _plugins(config: pytest.Config, hook: str) -> Iterator[tuple[str, Any]]:
    """Name and caller of every plugin that implements a hook, in pluggy's order."""
    manager = config.pluginmanager
    each = [impl.plugin for impl in reversed(getattr(config.hook, hook).get_hookimpls())]
    for plugin in dict.fromkeys(each):
        others = [other for other in each if other is not plugin]
        yield _name(config, plugin), manager.subset_hook_caller(hook, others)


def _name(config: pytest.Config, plugin: object) -> str:
    """A conftest by its path, anything else by the name that it was registered under."""
    file = getattr(plugin, "__file__", None)
    if file is not None and Path(file).name == "conftest.py":
        path = Path(file)
        inside = path.is_relative_to(config.rootpath)
        return str(path.relative_to(config.rootpath) if inside else path)
    name = config.pluginmanager.get_name(plugin) or ""
    return type(plugin).__name__ if not name or name.isdigit() else name


def _called(call: Any, **given: object) -> Any:
    """Call one plugin; whatever it raises but Ctrl-C becomes a UsageError."""
    try:
        return call(**given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"raised {type(error).__name__}: {error}"[:300]) from error


def _found(said: Any, origin: str) -> Found:
    if isinstance(said, str):
        return Found(names=expand(said), origin=origin)
    try:
        listed = list(said)
    except TypeError:
        raise UsageError(f"returned {said!r:.80}, expected names or Hosts") from None
    if listed and all(isinstance(one, str) for one in listed):
        return Found(names=expand(",".join(listed)), origin=origin)
    if not listed or not all(isinstance(one, Host) for one in listed):
        raise UsageError(f"returned {said!r:.80}, expected names or Hosts")
    hosts = {host.name: host for host in map(_sound_host, listed)}
    if len(hosts) < len(listed):
        raise UsageError("returned two Hosts of one name")
    return Found(names=tuple(hosts), hosts=hosts, origin=origin)


def _sound_host(host: Host) -> Host:
    """Hold to its types what Python did not."""
    try:
        sound = msgspec.convert(msgspec.to_builtins(host), Host)
    except (TypeError, ValueError) as error:
        raise UsageError(f"returned a Host that is none: {error}") from error
    check_host_name(sound.name)
    refuse_unknown_transport(sound.transport, f"Host {sound.name}")
    if not sound.python or not sound.address:
        raise UsageError(f"returned a Host {sound.name} without address or python")
    return sound


def _listed(said: list[Any]) -> Iterator[Section]:
    """Flatten what one plugin's implementations returned: pluggy makes a list of their answers."""
    for answer in said:
        sections = [answer] if isinstance(answer, Section) else answer
        try:
            yield from sections
        except TypeError:
            raise UsageError(f"returned {answer!r:.80}, expected a list of Sections") from None


_ISOLATED = Path(__file__).with_name("isolated.ini")
"""Of `preflight run`; it names nothing, and offers no debugger."""

_QUIET = ("--preflight", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider")
"""Only to read the ini file: no conftest runs."""

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
    own = next(filter(_is_pytests, found), _ISOLATED)
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


_WRITTEN = ("log_file", "basetemp", "debug", "report_log", "htmlpath", "json_report_file")
"""Options that name a file: of pytest, pytest-reportlog, pytest-html and pytest-json-report."""


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
            raise UsageError(
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
        if name:  # some are expanded, and some are not; of some ".." is folded as text
            expanded = folder / os.path.expandvars(os.path.expanduser(str(name)))  # noqa: PTH111
            yield from (folder / str(name), expanded, Path(os.path.abspath(expanded)))  # noqa: PTH100


def _refuse(files: Iterable[Path], remedy: str) -> None:
    try:
        for path in files:
            if said := who_may_plant(path):
                raise UsageError(f"root would run the code of {path}, and {said}: {remedy}")
    except OSError as error:
        raise UsageError(f"root cannot look for code: {error}; {remedy}") from error


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
    for folder, _ in folders_below(place):
        yield from code_in(folder)
