"""Asks the site's plugins, one by one, so that each fault is one line that names its plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preflight.carried import Carried, add
from preflight.errors import UsageError
from preflight.fleet.inventory_values import refuse_unknown_transport
from preflight.fleet.model import Host
from preflight.fleet.nodeset import check_host_name, expand
from preflight.fleet.sources import Found
from preflight.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

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


def ask_sections(config: pytest.Config) -> tuple[Carried, ...]:
    """Return all sections that plugins name, each found sound."""
    carried: dict[str, Carried] = {}
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
