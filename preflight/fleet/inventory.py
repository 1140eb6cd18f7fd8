"""The inventory file: who belongs to the fleet, how to reach them, what they were promised.

TOML (or YAML) with four tables: `[defaults]`, `[job]`, `[group.NAME]`, `[node.NAME]`. A key that
is not known is refused, since a misspelled promise that is ignored would be a false pass.
"""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from preflight.errors import UsageError
from preflight.fleet.model import Host, Promise
from preflight.fleet.nodeset import check_host_name, expand

LARGEST = 4 << 20
"""Characters of an inventory; 64 Ki nodes with a table each need about 3 MiB."""

Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(ge=0, le=1024)]


class _Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of all nodes, of a group, or of one node; the nearest wins."""

    transport: str | None = None
    user: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.@-]*$")] | None = None
    port: Port | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    python: str | list[str] | None = None
    gpus: Positive | None = None
    gpu_model: str | None = None
    nvlinks_per_gpu: Positive | None = None
    nics: Positive | None = None
    allreduce_min_gbs: Annotated[float, Meta(gt=0)] | None = None


class _Group(_Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    nodes: str


class _Node(_Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    address: str | None = None


class JobTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[job]`: what the job that will be launched uses."""

    master: str | None = None
    master_port: Port | None = None
    nproc_per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    env_file: str | None = None
    launch: str | None = None
    interface: str | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    defaults: _Settings = _Settings()
    job: JobTable = JobTable()
    group: dict[str, _Group] = {}
    node: dict[str, _Node] = {}


_PROMISES = tuple(name for name in Promise.__struct_fields__ if name != "origin")
_WAYS_IN = ("transport", "user", "port", "identity_file", "known_hosts")


class Inventory:
    """An inventory file that was read and found sound."""

    def __init__(self, path: Path, content: _File) -> None:
        self.path = path
        self._content = content
        self.job = content.job
        self._group_of = {
            name: group for group, table in content.group.items() for name in expand(table.nodes)
        }
        for name, own in content.node.items():
            check_host_name(name)
            check_host_name(own.address or name)
        for layer in (content.defaults, *content.group.values(), *content.node.values()):
            command(layer.python, f"{path}: python")
        strangers = sorted(set(content.node) - set(self._group_of))
        if self._group_of and strangers:
            raise UsageError(
                f"{path}: [node.{strangers[0]}] is in no group: add it to the nodes "
                f"of one{did_you_mean(strangers[0], self._group_of)}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Every node of the file, group by group; single nodes if there are no groups."""
        return tuple(self._group_of or self._content.node)

    def host(self, name: str) -> Host:
        """Join what the file says of one node; a node it does not know gets the defaults."""
        group = self._group_of.get(name, "")
        layers: list[_Settings] = [self._content.defaults]
        if group:
            layers.append(self._content.group[group])
        own = self._content.node.get(name)
        if own is not None:
            layers.append(own)

        def said(key: str) -> Any:
            values = [getattr(layer, key) for layer in layers]
            return next((value for value in reversed(values) if value is not None), None)

        where = f"[group.{group}]" if group else "[defaults]"
        known = name in self._group_of or own is not None
        promised = {key: said(key) for key in _PROMISES} if known else {}
        return Host(
            name=name,
            address=(own.address if own else None) or name,
            group=group or "all",
            python=command(said("python"), f"{self.path}: python"),
            promised=Promise(**promised, origin=f"{self.path} {where}" if known else ""),
            **{key: value for key in _WAYS_IN if (value := self._way(key, said(key))) is not None},
        )

    def _way(self, key: str, value: Any) -> Any:
        return self.beside(value) if value and key in ("identity_file", "known_hosts") else value

    def beside(self, file: str) -> str:
        """Read a relative path of the file as beside the file, and `~` as home."""
        return str(self.path.parent / Path(file).expanduser())


def read_inventory(path: Path) -> Inventory:
    """Read a TOML or YAML inventory; UsageError that names the file and what to change."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(
            f"cannot read the inventory {path}: {reason}; "
            "give --preflight-inventory a readable TOML or YAML file"
        ) from error
    if len(text) > LARGEST:
        raise UsageError(f"{path} is larger than {LARGEST >> 20} MiB: fold the node lists")
    try:
        content = _parse(path, text)
        _refuse_unknown_keys(content)
        return Inventory(path, msgspec.convert(content, _File))
    except msgspec.ValidationError as error:
        where = str(error).replace("`", "'").replace("$.", "").replace("$", "the file")
        raise UsageError(f"{path}: {where}: correct it") from error
    except UsageError as error:
        message = str(error)
        raise (
            error if message.startswith(str(path)) else UsageError(f"{path}: {message}")
        ) from error


def _parse(path: Path, text: str) -> Any:
    if path.suffix.lower() in (".yaml", ".yml"):
        return _parse_yaml(text)
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"not TOML: {error}; correct that line (a YAML file must end in .yaml)"
        ) from error


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        # A few lines of anchors and aliases can stand for more than all memory.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise UsageError("uses YAML aliases (*name): write the values out")
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"not YAML: {reason}; correct the file") from error


def command(words: str | list[str] | None, where: str) -> tuple[str, ...]:
    """Read the job's Python as an argv prefix; no shell will ever see it."""
    if words is None:
        return ("python3",)
    try:
        argv = shlex.split(words) if isinstance(words, str) else words
    except ValueError as error:
        raise UsageError(f"{where}: {error}; quote it as the shell would") from error
    if not argv:
        raise UsageError(f"{where} is empty: give a command such as /opt/venv/bin/python")
    return tuple(argv)


def _refuse_unknown_keys(content: Any) -> None:
    """Name an unknown key by its table and the nearest known one, which msgspec does not do."""
    if not isinstance(content, dict):
        raise UsageError('holds no tables: write [group.NAME] with nodes = "gpu[001-064]"')
    _refuse_others(content, _File, "the file")
    tables: tuple[tuple[str, type[Struct]], ...] = (("defaults", _Settings), ("job", JobTable))
    for table, kind in tables:
        if isinstance(content.get(table), dict):
            _refuse_others(content[table], kind, f"[{table}]")
    for table, kind in (("group", _Group), ("node", _Node)):
        named = content.get(table)
        for name, keys in named.items() if isinstance(named, dict) else ():
            if isinstance(keys, dict):
                _refuse_others(keys, kind, f"[{table}.{name}]")


def _refuse_others(keys: dict[Any, Any], kind: type[Struct], where: str) -> None:
    for key in keys:
        if key not in kind.__struct_fields__:
            hint = did_you_mean(str(key), kind.__struct_fields__)
            raise UsageError(f"unknown key {str(key)!r} in {where}{hint}")


def did_you_mean(word: str, known: Any) -> str:
    """End a sentence with the nearest known word, or with all of them if they are few."""
    near = difflib.get_close_matches(word, list(known), n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    names = sorted(known)
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 16 else ""  # noqa: PLR2004  a line
