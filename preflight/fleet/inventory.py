"""The inventory file: who belongs to the fleet, how to reach them, what they were promised.

TOML (or YAML) with four tables: `[defaults]`, `[job]`, `[group.NAME]`, `[node.NAME]`. A key that
is not known is refused, since a misspelled promise that is ignored would be a false pass.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.fleet.groups import expand_written
from preflight.fleet.inventory_text import parse
from preflight.fleet.model import Host, Promise
from preflight.fleet.nodeset import MOST_NODES, check_host_name
from preflight.fleet.switches import LEAF_NAME
from preflight.fleet.words import did_you_mean
from preflight.transport import TRANSPORTS

LARGEST = 4 << 20
"""Bytes of an inventory; 64 Ki nodes with a table each need about 3 MiB."""

Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(ge=0, le=1024)]
Device = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]


class _Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of all nodes, of a group, or of one node; the nearest wins."""

    transport: str | None = None
    user: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.@-]*\Z")] | None = None
    port: Port | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    python: str | list[str] | None = None
    gpus: Positive | None = None
    gpu_model: str | None = None
    nvlinks_per_gpu: Positive | None = None
    nics: Positive | None = None
    hcas: tuple[Device, ...] | None = None
    nic_gbits: Annotated[int, Meta(ge=1, le=10000)] | None = None
    nic_link: Literal["ib", "roce"] | None = None
    allreduce_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    intra_node_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    leaf: str | None = None


class _Group(_Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    nodes: str


class NodeTable(_Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is said of one node alone."""

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
    node: dict[str, NodeTable] = {}


PROMISES = tuple(name for name in Promise.__struct_fields__ if name != "origin")
FILES = ("identity_file", "known_hosts", "ssh_config")
WAYS_IN = ("transport", "user", "port", *FILES)


class Inventory:
    """An inventory file that was read and found sound."""

    def __init__(self, path: Path, content: _File) -> None:
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
            command(layer.python, f"{path}: python")
            refuse_impossible(where, layer)
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

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each group, for `@inventory:NAME`."""
        members: dict[str, list[str]] = {group: [] for group in self._content.group}
        for name, group in self._group_of.items():
            members[group].append(name)
        return {group: tuple(names) for group, names in members.items()}

    def host(self, name: str) -> Host:
        """Join what the file says of one node; a node it does not know gets the defaults."""
        group = self._group_of.get(name, "")
        own = self._content.node.get(name)
        layers = self._layers_of(name)

        def said(key: str) -> Any:
            values = [getattr(layer, key) for layer in layers]
            return next((value for value in reversed(values) if value is not None), None)

        where = f"[group.{group}]" if group else "[defaults]"
        known = name in self._group_of or own is not None
        promised = {key: said(key) for key in PROMISES} if known else {}
        return Host(
            name=name,
            address=(own.address if own else None) or name,
            group=group or "all",
            leaf=said("leaf") or "",
            python=command(said("python"), f"{self.path}: python"),
            promised=Promise(**promised, origin=f"{self.path} {where}" if known else ""),
            **{key: value for key in WAYS_IN if (value := self._way(key, said(key))) is not None},
        )

    def names_way(self, name: str) -> bool:
        """Whether the file itself says by which transport a node is reached."""
        return any(layer.transport is not None for layer in self._layers_of(name))

    def _layers_of(self, name: str) -> list[_Settings]:
        """All that is said of a node, the nearest last."""
        group, own = self._group_of.get(name, ""), self._content.node.get(name)
        layers: list[_Settings] = [self._content.defaults]
        if group:
            layers.append(self._content.group[group])
        return layers if own is None else [*layers, own]

    def _way(self, key: str, value: Any) -> Any:
        return self.beside(value) if value and key in FILES else value

    def beside(self, file: str) -> str:
        """Read a relative path of the file as beside the file, and `~` as home."""
        return str(self.path.parent / Path(file).expanduser())


def read_inventory(path: Path) -> Inventory:
    """Read a TOML or YAML inventory; UsageError that names the file and what to change."""
    try:
        text = read_regular(path, LARGEST).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(
            f"cannot read the inventory {path}: {reason}; "
            "give --preflight-inventory a readable TOML or YAML file"
        ) from error
    try:
        content = parse(path, text)
        _refuse_unknown_keys(content)
        return Inventory(path, msgspec.convert(content, _File))
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {plainly(str(error))}: correct it") from error
    except UsageError as error:
        message = str(error)
        raise (
            error if message.startswith(str(path)) else UsageError(f"{path}: {message}")
        ) from error


def _groups(tables: dict[str, _Group]) -> dict[str, str]:
    """The group of each node; a node has one, or two promises would contradict each other."""
    group_of: dict[str, str] = {}
    for group, table in tables.items():
        for name in expand_written(table.nodes):
            if name in group_of:
                raise UsageError(
                    f"{name} is in [group.{group_of[name]}] and in [group.{group}]: "
                    "leave it in one of them"
                )
            group_of[name] = group
        if len(group_of) > MOST_NODES:
            raise UsageError(f"its groups name more than {MOST_NODES} nodes: split the file")
    return group_of


def _layers(content: _File) -> list[tuple[str, _Settings]]:
    return [
        ("[defaults]", content.defaults),
        *((f"[group.{name}]", table) for name, table in content.group.items()),
        *((f"[node.{name}]", table) for name, table in content.node.items()),
    ]


def refuse_impossible(where: str, layer: _Settings) -> None:
    """Refuse what has the right type and still cannot be."""
    if layer.transport is not None:
        refuse_unknown_transport(layer.transport, where)
    if layer.leaf is not None and not LEAF_NAME.fullmatch(layer.leaf):
        raise UsageError(
            f"leaf in {where} is {layer.leaf[:40]!a}: give a switch's name, up to 64 letters, "
            "digits and ._:/@+-"
        )
    for key in ("allreduce_min_gbs", "intra_node_min_gbs"):
        number = getattr(layer, key)
        if number is not None and not math.isfinite(number):
            raise UsageError(f"{key} in {where} is {number}: give a number of GB/s")


def refuse_unknown_transport(name: str, where: str) -> None:
    """Raise UsageError with the nearest name there is."""
    if name not in TRANSPORTS:
        hint = did_you_mean(name, TRANSPORTS)
        raise UsageError(f"unknown transport {name[:40]!a} in {where}{hint}")


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}


def plainly(reason: str) -> str:
    """Say a schema's complaint in words: "expected a whole number, got text, at job.port"."""

    def words(match: re.Match[str]) -> str:
        named = [_WORDS.get(word, word) for word in match[1].split(" | ")]
        # That a key may be left out is nobody's question.
        return " or ".join(word for word in named if word != "nothing" or len(named) == 1)

    said, _, place = reason.partition(" - at `")
    said = re.sub(r" matching regex .*", " without blanks, signs or a leading dash", said)
    said = re.sub(r"`([a-z |]+)`", words, said).replace("`", "'")
    place = place.rstrip("`").removeprefix("$").removeprefix(".") or "the top of the file"
    return f"{said[:1].lower()}{said[1:]}, at {place}"


def command(words: str | list[str] | None, where: str) -> tuple[str, ...]:
    """Read the job's Python as an argv prefix; no shell will ever see it."""
    if words is None:
        return ("python3",)
    try:
        argv = shlex.split(words) if isinstance(words, str) else words
    except ValueError as error:
        raise UsageError(f"{where}: {error}; quote it as the shell would") from error
    if not argv or not argv[0]:
        raise UsageError(f"{where} is empty: give a command such as /opt/venv/bin/python")
    if not all(word.isprintable() for word in argv):
        raise UsageError(f"{where} holds a control character: {' '.join(argv)[:60]!a}; remove it")
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
    for table, kind in (("group", _Group), ("node", NodeTable)):
        named = content.get(table)
        for name, keys in named.items() if isinstance(named, dict) else ():
            if isinstance(keys, dict):
                _refuse_others(keys, kind, f"[{table}.{name}]")


def _refuse_others(keys: dict[Any, Any], kind: type[Struct], where: str) -> None:
    for key in keys:
        if key not in kind.__struct_fields__:
            hint = did_you_mean(str(key), kind.__struct_fields__)
            raise UsageError(f"unknown key {str(key)!a} in {where}{hint}")
