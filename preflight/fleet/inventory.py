"""Read an inventory file of any kind: preflight's TOML or YAML, Ansible's, or Ansible's JSON.

preflight's has the tables `[defaults]`, `[job]`, `[group.NAME]`, `[node.NAME]`, `[checks]` and
`[[waive]]`. An unknown key is an error: a misspelled key that is ignored would be a false pass.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from preflight.core.files import (
    file_errors,
    parse_toml,
    read_regular,
    read_text,
    refuse_untrusted,
    typed_path,
)
from preflight.core.statistics import grouped
from preflight.core.text import did_you_mean
from preflight.errors import UsageError, errors_about
from preflight.fleet import inventory_tables as tables
from preflight.fleet.groups import expand_with_groups
from preflight.fleet.model import Expected, Host, Waiver
from preflight.fleet.nodeset import MOST_NODES, check_host_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preflight.core.thresholds import Override
    from preflight.fleet.ansible import AnsibleInventory


DEEPEST = 32
"""Levels of nesting; an inventory needs four."""

_LONGEST_NUMBER = 64
"""YAML reads 1:30 as 90: time grows with the square of the length, and a float may overflow."""

_MULTILINE_KEYS = ("nodes", "launch")
"""Keys whose text may have several lines."""


def open_inventory(path: Path) -> AnyInventory:
    """Read an inventory of any kind; UsageError that names the path and what to change.

    It decides where preflight logs in and what runs there and here, so root refuses a file that
    another user can change.

    TOML is preflight's; YAML is preflight's unless it has Ansible's layout; JSON is the output of
    `ansible-inventory --list`; Ansible reads a folder, a script and anything else.
    """
    from preflight.fleet.ansible import read_ansible, read_ansible_json

    path = refuse_untrusted(path, is_run=os.access(path, os.X_OK))
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return read_inventory(path)
    if _is_folder(path):
        return read_ansible(path)
    if suffix in (".yaml", ".yml"):
        return read_ansible(path) if _has_ansible_layout(path) else read_inventory(path)
    return read_ansible_json(path) if suffix == ".json" else read_ansible(path)


def read_inventory(path: Path) -> Inventory:
    """Read a TOML or YAML inventory; UsageError that names the file and what to change."""
    advice = "give --preflight-inventory a readable TOML or YAML file"
    return inventory_of(path, read_text(path, LARGEST, f"the inventory {path}", advice))


def inventory_of(path: Path, text: str) -> Inventory:
    """Parse an inventory's text; UsageError names `path`."""
    with errors_about(str(path)):
        content = parse(path, text)
        tables.refuse_unknown_keys(content)
        try:
            file = msgspec.convert(content, tables.FileTable)
        except msgspec.ValidationError as error:
            raise UsageError(f"{tables.table_reason(content, str(error))}: correct it") from error
        return Inventory(path, file)


def parse(path: Path, text: str) -> Any:
    """Parse TOML, or YAML if the file's suffix says so; UsageError says what to correct."""
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    content = _parse_yaml(text) if is_yaml else _parse_toml(text)
    _refuse_control(content, "")
    return content


def _parse_toml(text: str) -> Any:
    try:
        return parse_toml(text)
    except RecursionError as error:
        raise UsageError("not TOML of an inventory: nested too deep; correct the file") from error
    except ValueError as error:
        raise UsageError(
            f"not TOML: {error}; correct that line (a YAML file must end in .yaml)"
        ) from error


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        for event in _parse_events(text):
            # A few lines of anchors and aliases can expand to more than all memory.
            if isinstance(event, yaml.AliasEvent):
                raise UsageError("uses YAML aliases (*name): write the values out")
            if getattr(event, "tag", None) is not None:
                raise UsageError("uses YAML tags (!name): write plain values")
        return yaml.load(text, Loader=_strict_loader()) or {}  # noqa: S506  a safe loader, made strict
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"not YAML: {reason}; correct the file") from error


def _parse_events(text: str) -> Iterator[Any]:
    """Yield every event of a YAML text in time and memory linear in its length, or UsageError.

    libyaml's time grows with the square of the depth and of the number of %TAG directives.
    """
    import yaml

    if text.count("%TAG") > DEEPEST:
        raise UsageError("not YAML of an inventory: many %TAG directives; correct the file")
    depth = 0
    for event in yaml.parse(text, Loader=_strict_loader()):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UsageError("not YAML of an inventory: nested too deep; correct the file")
        yield event


@lru_cache(maxsize=1)
def _strict_loader() -> Any:
    """Return libyaml's loader if installed (40 times faster); it refuses repeated keys."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Strict(base):  # type: ignore[misc]  # which of the two is known only now
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  PyYAML's
            keys = set()
            for key, _ in node.value:
                if (key.tag, str(key.value)) in keys:
                    line = key.start_mark.line + 1
                    raise UsageError(f"line {line} repeats the key {key.value!a}: keep one of them")
                keys.add((key.tag, str(key.value)))
            return super().construct_mapping(node, deep)

        def construct_scalar(self, node: Any) -> Any:
            if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
                problem = f"a number is longer than {_LONGEST_NUMBER} characters"
                raise UsageError(f"{problem}: shorten it")
            return super().construct_scalar(node)

    return Strict


def _refuse_control(content: Any, key: str) -> None:
    """Refuse a NUL or an escape sequence in a name, a path or a command: a mistake or an attack."""
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_control(str(name), "a key")
            _refuse_control(value, str(name))
    elif isinstance(content, list):
        for value in content:
            _refuse_control(value, key)
    elif isinstance(content, str):
        text = re.sub("[\n\t\r]", " ", content) if key in _MULTILINE_KEYS else content
        if not text.isprintable():
            raise UsageError(f"{key} holds a control character: {content[:60]!a}; remove it")


LARGEST = 4 << 20
"""Bytes of an inventory; 64 Ki nodes with a table each need about 3 MiB."""


_MOST_CHECKS = 512
"""Checks in the tables of an inventory, a site's own included: each node may have its own."""


class Inventory:
    """A valid inventory file."""

    def __init__(self, path: Path, content: tables.FileTable) -> None:
        self.path = path
        self._content = content
        self.job = content.job
        self._group_of = _groups(content.group)
        if len(content.node) > MOST_NODES:
            raise UsageError(f"names more than {MOST_NODES} nodes: split the file")
        for name, own in content.node.items():
            check_host_name(name)
            check_host_name(own.address or name)
        for where, layer in _layers(content):
            tables.read_argv(layer.python, "python")
            tables.refuse_impossible(where, layer)
        self._off_by_group: dict[str, dict[str, str]] = {}
        self._cached: dict[tuple[str, int], Any] = {}
        if (checks := len({check for check, _ in self.switched_checks()})) > _MOST_CHECKS:
            raise UsageError(
                f"switches {checks} checks, at most {_MOST_CHECKS}: keep those that run"
            )
        strangers = sorted(set(content.node) - set(self._group_of))
        if self._group_of and strangers:
            raise UsageError(
                f"[node.{strangers[0]}] is in no group: add it to the nodes of one"
                f"{did_you_mean(strangers[0], self._group_of)}"
            )
        origin = f"{path} [[waive]]"
        self.waivers: tuple[Waiver, ...] = tables.read_waivers(
            content.waive, lambda text: expand_with_groups(text, self), self.names, origin
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every node of the file, group by group; single nodes if there are no groups."""
        return tuple(self._group_of or self._content.node)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each group, for `@inventory:NAME`."""
        members = grouped((group, name) for name, group in self._group_of.items())
        return {group: tuple(members.get(group, ())) for group in self._content.group}

    def host(self, name: str) -> Host:
        """Return one node with its settings; a node that is not in the file gets the defaults."""
        group = self._group_of.get(name, "")
        own = self._content.node.get(name)
        layers = [layer for _, layer in reversed(self._named_layers(name))]

        def nearest(key: str) -> Any:
            values = (getattr(layer, key) for layer in layers)
            return next((value for value in values if value is not None), None)

        def connection(key: str) -> Any:
            value = nearest(key)
            is_file = value and key in tables.FILES
            return self._make_once(self.resolve_path, value) if is_file else value

        where = f"[group.{group}]" if group else "[defaults]"
        if group and (learned := self._content.group[group].learned):
            where += f", learned {learned}"
        is_known = name in self._group_of or own is not None
        expected = tables.settings(tables.EXPECTATION_KEYS, nearest) if is_known else {}
        return Host(
            name=name,
            address=(own.address if own else None) or name,
            group=group or "all",
            leaf=nearest("leaf") or "",
            python=self._make_once(self._command, nearest("python")),
            expected=Expected(
                **expected,
                limits=self._overrides(name, tables.limit_overrides) if is_known else {},
                baselines=self._overrides(name, tables.baseline_overrides) if is_known else {},
                origin=f"{self.path} {where}" if is_known else "",
            ),
            off=self._off_of_group(name),
            **tables.settings(tables.CONNECTION_KEYS, connection),
        )

    def sets_transport(self, name: str) -> bool:
        """Whether the file sets the transport of a node."""
        return any(layer.transport is not None for _, layer in self._named_layers(name))

    def _named_layers(self, name: str) -> list[tuple[str, tables.Layer]]:
        """Return the tables that apply to a node, and their names: defaults, group, node."""
        group, own = self._group_of.get(name, ""), self._content.node.get(name)
        layers: list[tuple[str, tables.Layer]] = [("[defaults]", self._content.defaults)]
        if group:
            layers.append((f"[group.{group}]", self._content.group[group]))
        return layers if own is None else [*layers, (f"[node.{name}]", own)]

    def _overrides(
        self, name: str, read: Callable[[tables.Layer, str], dict[str, Override]]
    ) -> dict[str, Override]:
        """Return a node's own limits or baselines; for each name the most specific table wins."""
        numbers: dict[str, Override] = {}
        for where, layer in self._named_layers(name):
            numbers |= read(layer, f"{self.path} {where}")
        return numbers

    def _off_of_group(self, name: str) -> dict[str, str]:
        """Return `_off_checks`: one dict for the nodes of a group without switches of their own."""
        own = self._content.node.get(name)
        if own is not None and own.checks:
            return self._off_checks(name)
        group = self._group_of.get(name, "")
        if group not in self._off_by_group:
            self._off_by_group[group] = self._off_checks(name)
        return self._off_by_group[group]

    def _off_checks(self, name: str) -> dict[str, str]:
        """Return the checks that are switched off for a node, and the table that does it."""
        off: dict[str, str] = {}
        for where, checks in self._check_tables(self._named_layers(name)):
            for check, table in checks.items():
                off.pop(check, None)
                if not table.enabled:
                    off[check] = f"{self.path} {where}"
        return off

    def switched_checks(self) -> list[tuple[str, str]]:
        """Return every check that a table names, and where; UsageError for `reach.*`."""
        mentioned = [
            (check, f"{self.path} {where}")
            for where, checks in self._check_tables(_layers(self._content))
            for check in checks
        ]
        for check, where in mentioned:
            tables.refuse_hiding(check, f"{check!a} in {where}")
        return mentioned

    def _check_tables(
        self, layers: list[tuple[str, tables.Layer]]
    ) -> Iterator[tuple[str, dict[str, tables.CheckTable]]]:
        """Yield the table [checks], then those in other tables, each with its place."""
        yield "[checks]", self._content.checks
        yield from ((where, layer.checks) for where, layer in layers if layer.checks)

    def _make_once(self, make: Callable[[Any], Any], value: Any) -> Any:
        """Return `make(value)`, made once for all nodes that take the value from one table."""
        key = make.__name__, id(value)
        if key not in self._cached:
            self._cached[key] = make(value)
        return self._cached[key]

    def _command(self, words: str | list[str] | None) -> tuple[str, ...]:
        return tables.read_argv(words, f"{self.path}: python")

    def resolve_path(self, file: str) -> str:
        """Resolve a path relative to the file's folder, and `~` as home."""
        return str(self.path.parent / typed_path(file))


def _groups(groups: dict[str, tables.GroupTable]) -> dict[str, str]:
    """Return the group of each node; UsageError if a node is in two."""
    group_of: dict[str, str] = {}
    for group, table in groups.items():
        for name in expand_with_groups(table.nodes):
            if name in group_of:
                raise UsageError(
                    f"{name} is in [group.{group_of[name]}] and in [group.{group}]: "
                    "leave it in one of them"
                )
            group_of[name] = group
        if len(group_of) > MOST_NODES:
            raise UsageError(f"its groups name more than {MOST_NODES} nodes: split the file")
    return group_of


def _layers(content: tables.FileTable) -> list[tuple[str, tables.Layer]]:
    return [
        ("[defaults]", content.defaults),
        *((f"[group.{name}]", table) for name, table in content.group.items()),
        *((f"[node.{name}]", table) for name, table in content.node.items()),
    ]


_OWN_TABLES: Final = frozenset(("defaults", "job", "group", "node", "checks", "waive"))
_LARGEST_EXAMINED: Final = 32 << 20
"""Bytes of a YAML file whose layout is examined."""

_TOP_KEY: Final = re.compile(r"^[\"']?([\w-]+)[\"']?[ \t]*:", re.MULTILINE)
_ANSIBLE_GROUP: Final = re.compile(
    r"^[\"']?[\w-]+[\"']?[ \t]*:[ \t\r]*(?:#.*)?\n(?:[ \t\r]*+(?:#.*)?\n)*+"
    r"[ \t]++[\"']?(?:hosts|children|vars)[\"']?[ \t]*:",
    re.MULTILINE,
)
"""A key of the file, and right below it one that only a group of Ansible has."""


if TYPE_CHECKING:
    AnyInventory = Inventory | AnsibleInventory
    """An inventory in any notation."""


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; UsageError for what is neither that nor a file.

    Ansible would only warn about it, or wait for a pipe.
    """
    advice = (
        "give --preflight-inventory a readable file: TOML or YAML of preflight's, or an Ansible "
        "inventory"
    )
    with file_errors(f"cannot read the inventory {path}", advice):
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            reason = "it is not a regular file (a pipe or a device is not read)"
            raise OSError(errno.EINVAL, reason)
    return stat.S_ISDIR(mode)


def _has_ansible_layout(path: Path) -> bool:
    """Whether a YAML file has the layout of an Ansible inventory (or configures a plugin)."""
    try:
        text = read_regular(path, _LARGEST_EXAMINED).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False  # our own reader then raises the error
    keys = set(_TOP_KEY.findall(text))
    if _OWN_TABLES.issuperset(keys):
        return False
    return bool(keys & {"all", "plugin"}) or _ANSIBLE_GROUP.search(text) is not None
