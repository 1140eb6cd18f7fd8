"""A site's plugins, checks and ini files in a session. Each fault is one line.

Plugins are called one by one. Root runs no other user's code, and follows no other user's link when
it writes. What pytest loads before it calls its plugins (`-p` in an ini file, `PYTEST_PLUGINS`,
modules beside `python -m pytest`) cannot be refused here; `preflight check` keeps it out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from contextlib import suppress
from glob import iglob
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _pytest.config.findpaths import locate_config

from preflight.core.files import file_errors, read_regular
from preflight.core.registry import Registered, load_folder
from preflight.core.trust import code_in, folders_below, safe_paths_for_root, who_may_plant
from preflight.errors import UsageError
from preflight.fleet.inventory_tables import refuse_unknown_transport
from preflight.fleet.model import Host
from preflight.fleet.nodeset import check_host_name, expand
from preflight.fleet.sources import SiteNodes
from preflight.run.site_sections import LoadedSection, Section, add

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.report.document import Report


NODES, SECTIONS, REPORT = (
    f"pytest_preflight_{what}" for what in ("nodes", "probe_sections", "report")
)


def ask_nodes(config: pytest.Config) -> SiteNodes | None:
    """Return the nodes that the first plugin names; None if none does."""
    for name, call in _plugins(config, NODES):
        origin = f"hook {NODES} of {name}"
        try:
            answer = _call_plugin(call, config=config)
            if answer is not None:
                return _nodes_of(answer, origin)
        except UsageError as error:
            raise UsageError(f"{origin} {error}; correct it, or give --preflight-nodes") from error
    return None


def ask_sections(config: pytest.Config) -> tuple[LoadedSection, ...]:
    """Load and check all sections that plugins name."""
    loaded: dict[str, LoadedSection] = {}
    for name, call in _plugins(config, SECTIONS):
        try:
            for section in _sections_of(_call_plugin(call, config=config)):
                add(loaded, section, config.rootpath)
        except UsageError as error:
            raise UsageError(f"hook {SECTIONS} of {name} {error}") from error
    return tuple(loaded.values())


def send_report(config: pytest.Config, report: Report, folder: Path) -> list[str]:
    """Pass the report to every plugin with a hook for it; return what went wrong, a line each."""
    troubles = []
    for name, call in _plugins(config, REPORT):
        try:
            _call_plugin(call, report=report, folder=folder, config=config)
        except UsageError as error:
            troubles.append(f"hook {REPORT} of {name} {error}: report.json has the whole report")
    return troubles


def _plugins(config: pytest.Config, hook: str) -> Iterator[tuple[str, Any]]:
    """Name and caller of every plugin that implements a hook, in pluggy's order."""
    manager = config.pluginmanager
    plugins = [impl.plugin for impl in reversed(getattr(config.hook, hook).get_hookimpls())]
    for plugin in dict.fromkeys(plugins):
        others = [other for other in plugins if other is not plugin]
        yield _plugin_name(config, plugin), manager.subset_hook_caller(hook, others)


def _plugin_name(config: pytest.Config, plugin: object) -> str:
    """The path of a conftest, else the name under which the plugin is registered."""
    file = getattr(plugin, "__file__", None)
    if file is not None and Path(file).name == "conftest.py":
        path = Path(file)
        inside = path.is_relative_to(config.rootpath)
        return str(path.relative_to(config.rootpath) if inside else path)
    name = config.pluginmanager.get_name(plugin) or ""
    return type(plugin).__name__ if not name or name.isdigit() else name


def _call_plugin(call: Any, **arguments: object) -> Any:
    """Call one plugin; any exception except Ctrl-C becomes a UsageError."""
    try:
        return call(**arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"raised {type(error).__name__}: {error}"[:300]) from error


def _nodes_of(answer: Any, origin: str) -> SiteNodes:
    if isinstance(answer, str):
        return SiteNodes(names=expand(answer), origin=origin)
    try:
        entries = list(answer)
    except TypeError:
        raise UsageError(f"returned {answer!r:.80}, expected names or Hosts") from None
    if entries and all(isinstance(entry, str) for entry in entries):
        return SiteNodes(names=expand(",".join(entries)), origin=origin)
    if not entries or not all(isinstance(entry, Host) for entry in entries):
        raise UsageError(f"returned {answer!r:.80}, expected names or Hosts")
    hosts = {host.name: host for host in map(_valid_host, entries)}
    if len(hosts) < len(entries):
        raise UsageError("returned two Hosts with the same name")
    return SiteNodes(names=tuple(hosts), hosts=hosts, origin=origin)


def _valid_host(host: Host) -> Host:
    """Check the types of a Host's fields, which Python does not."""
    try:
        valid = msgspec.convert(msgspec.to_builtins(host), Host)
    except (TypeError, ValueError) as error:
        raise UsageError(f"returned an invalid Host: {error}") from error
    check_host_name(valid.name)
    refuse_unknown_transport(valid.transport, f"Host {valid.name}")
    if not valid.python or not valid.address:
        raise UsageError(f"returned a Host {valid.name} without address or python")
    return valid


def _sections_of(answers: list[Any]) -> Iterator[Section]:
    """Flatten the answers of one plugin's implementations, which pluggy puts into a list."""
    for answer in answers:
        sections = [answer] if isinstance(answer, Section) else answer
        try:
            yield from sections
        except TypeError:
            raise UsageError(f"returned {answer!r:.80}, expected a list of Sections") from None


_ISOLATED = Path(__file__).with_name("isolated.ini")
"""The ini file of `preflight check`, which names nothing and offers no debugger."""

_INI_ONLY = ("--preflight", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider")
"""Options that only read the ini file: no conftest runs."""

_INI_NAMES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_WITH_TABLE = ("pyproject.toml", "tox.ini", "setup.cfg")
_TABLE = re.compile(rb"^[ \t]*\[(?:tool[.:])?pytest[].]", re.MULTILINE)
_LARGEST = 4 << 20


class _IniReader:
    """A plugin that reads `preflight_checks` of the ini file, then ends pytest."""

    def __init__(self) -> None:
        self.folders: tuple[Path, ...] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Read the folders and end pytest."""
        self.folders = tuple(map(Path, config.getini("preflight_checks")))
        return 0


def site_checks() -> list[Registered]:
    """Load the checks that the ini file of this folder names; UsageError if that fails."""
    reader, output = _IniReader(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        options = [*_INI_ONLY, *(_root_options() if os.geteuid() == 0 else ())]
        code = pytest.main(options, plugins=[reader])
    if code != 0:
        lines = [line for line in output.getvalue().splitlines() if line.strip()]
        raise UsageError((lines or ["pytest cannot read its ini file here"])[0])
    return load_site(reader.folders)


def load_site(folders: Sequence[Path]) -> list[Registered]:
    """Load the site's own checks; UsageError for what is not a folder."""
    absent = next((folder for folder in folders if not folder.is_dir()), None)
    if absent is not None:
        raise UsageError(f"preflight_checks: {absent} is not a folder: correct the ini file")
    return [check for folder in folders for check in load_folder(folder)]


def _root_options() -> tuple[str, ...]:
    """Options that name the ini file, which pytest would look for in every folder above.

    Its `pythonpath` and `-p` load code: UsageError if another user could change it.
    """
    here = Path.cwd()
    files = (folder / name for folder in (here, *here.parents) for name in _INI_NAMES + _WITH_TABLE)
    ini_file = next(filter(_configures_pytest, files), _ISOLATED)
    return (f"-c{ini_file}", "-ppreflight", "-o", "required_plugins=")


def _configures_pytest(path: Path) -> bool:
    if not os.path.lexists(path):
        return False
    if writer := who_may_plant(path):
        raise UsageError(
            f"root would take orders from {path}, and {writer}: go to a folder of root's, or "
            "chown root: and chmod go-w it, with the folders above"
        )
    with file_errors(f"cannot read {path}", "remove it"):
        return path.name in _INI_NAMES or bool(_TABLE.search(read_regular(path, _LARGEST)))


_OUTPUTS = ("log_file", "basetemp", "debug", "report_log", "htmlpath", "json_report_file")
"""Options that name a file: of pytest, pytest-reportlog, pytest-html and pytest-json-report."""


def refuse_untrusted_code(config: pytest.Config) -> None:
    """As root, stop before the first conftest runs if another user could have written any code.

    UsageError (exit 4) with the file, its owner, and what to type instead.
    """
    if os.geteuid() != 0:
        return
    # xdist starts its workers as `python -c`, which would look for modules here first.
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in {"PATH", "LD_LIBRARY_PATH"} & os.environ.keys():  # as for every verb
        os.environ[name] = safe_paths_for_root(name, os.environ[name])[0]
    # doctest runs text files of any name, in any folder.
    config.pluginmanager.set_blocked("doctest")
    for place in map(Path, config.getini("preflight_checks")):
        code = chain(_code_below(place), _code_around(place, config, has_tests=True))
        _refuse_untrusted(code, "give it to root: chown -R root, chmod -R go-w")
    _refuse_untrusted(
        _would_run(config),
        "type `preflight check` instead of `pytest --preflight`, or go to a folder of root",
    )
    for path in _would_write(config):
        if writer := who_may_plant(path):
            raise UsageError(
                f"root would write to {path}, and {writer}: name a file in a folder of root's"
            )


def _would_write(config: pytest.Config) -> Iterator[Path]:
    """Files that pytest and its plugins write, following links; not JUnit XML, which we write."""
    here = config.invocation_params.dir
    outputs = [(here, getattr(config.known_args_namespace, option, None)) for option in _OUTPUTS]
    for key, folder in (("log_file", here), ("cache_dir", config.rootpath)):
        with suppress(ValueError):  # the plugin of this key is switched off
            outputs.append((folder, config.getini(key)))
    for folder, name in outputs:
        if name:  # plugins expand some of these and not others, and resolve ".." of some as text
            expanded = folder / os.path.expandvars(os.path.expanduser(str(name)))  # noqa: PTH111
            yield from (folder / str(name), expanded, Path(os.path.abspath(expanded)))  # noqa: PTH100


def _refuse_untrusted(files: Iterable[Path], remedy: str) -> None:
    with file_errors("root cannot look for code", remedy):
        for path in files:
            if writer := who_may_plant(path):
                raise UsageError(f"root would run the code of {path}, and {writer}: {remedy}")


def refuse_other_settings(config: pytest.Config) -> None:
    """Refuse an ini file, or none, that pytest chose because it took an option's value for a path.

    It does so where a blank stands before the value: it knows no plugin's options yet.
    """
    here, options = config.invocation_params.dir, config.known_args_namespace
    words = [str(word) for word in config.invocation_params.args]
    separated = [
        number
        for number, (option, value) in enumerate(pairwise(words))
        if option.startswith("--preflight-") and "=" not in option and (here / value).exists()
    ]
    if not separated or options.inifilename or options.rootdir:
        return
    typed = [Path(os.path.abspath(here / word.split("::")[0])) for word in options.file_or_dir]  # noqa: PTH100
    folders = [path if path.is_dir() else path.parent for path in typed if path.exists()]
    top = Path(os.path.commonpath(folders)) if folders else here
    expected = locate_config(here, [top])[1]
    root = next((folder for folder in (top, *top.parents) if (folder / "setup.py").is_file()), top)
    if config.inipath == expected and (expected or config.rootpath == root):
        return
    for number in reversed(separated):
        words[number : number + 2] = [f"{words[number]}={words[number + 1]}"]
    actual, expected_words = config.inipath or "no ini file", expected or "none"
    if config.inipath == expected:
        actual, expected_words = config.rootpath, root
    loaded = " (code that it names may have run: check it)" if config.inipath else ""
    raise UsageError(
        "after a blank pytest takes a value for a path of tests: it uses "
        f"{actual}{loaded}, expected {expected_words}; type: pytest {shlex.join(words)}"
    )


def _would_run(config: pytest.Config) -> Iterator[Path]:
    """Every file that this session would execute, or read settings from."""
    if config.inipath is not None:
        yield config.inipath
    options = config.known_args_namespace
    here = config.invocation_params.dir
    debugs = getattr(options, "trace", False) or getattr(options, "usepdb", False)
    for debug_file in (here / ".pdbrc", here / os.path.expanduser("~/.pdbrc")):  # noqa: PTH111  may fail
        if debugs or (os.path.lexists(debug_file) and config.inipath != _ISOLATED):
            yield debug_file
    typed = [here / argument.split("::")[0] for argument in options.file_or_dir]
    tests = [
        here / path
        for pattern in config.getini("testpaths")
        for path in iglob(pattern, root_dir=here, recursive=True)  # noqa: PTH207  takes absolute ones
    ]
    for place in typed or ([] if options.noconftest else tests or [here]):
        yield from _code_around(place, config, has_tests=bool(typed))
    for place in typed:
        yield place
        yield from _code_below(place)


def _code_around(place: Path, config: pytest.Config, *, has_tests: bool) -> Iterator[Path]:
    """The code that pytest loads from a folder, the folders above, and folders in it named test*.

    It loads each conftest.py below `confcutdir`, and each __init__.py below the root folder or of
    a package. Their folders are searched for modules; those that hold packages or a conftest.py,
    or tests that are loaded (`has_tests`), for packages as well.
    """
    options, root = config.known_args_namespace, config.rootpath
    above_cut = Path(options.confcutdir).absolute().parents
    start = Path(os.path.abspath(place))  # noqa: PTH100  resolves ".." as pytest does
    below = start if start.is_dir() else start.parent
    is_package, is_loaded = True, has_tests or any(below.glob("test*/__init__.py"))
    for folder in (below, *below.parents):
        outside = not folder.is_relative_to(root) if options.noconftest else folder in above_cut
        if outside and not is_package:
            break
        is_loaded |= (folder / "conftest.py").exists()
        is_package = (folder / "__init__.py").exists()
        yield from code_in(folder, packages=is_loaded and not is_package)
        is_loaded &= is_package
    for folder in filter(Path.is_dir, below.glob("test*")):
        yield from code_in(folder, packages=(folder / "conftest.py").exists())


def _code_below(place: Path) -> Iterator[Path]:
    """All the code that pytest finds in and below a folder, following links as it does."""
    for folder, _ in folders_below(place):
        yield from code_in(folder)
