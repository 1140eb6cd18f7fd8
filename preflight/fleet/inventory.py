"""The inventory file: who belongs to the fleet, how to reach them, what they were promised.

TOML (or YAML) with the tables `[defaults]`, `[job]`, `[group.NAME]`, `[node.NAME]`, `[checks]` and
`[[waive]]`. A key that is not known is refused, since a misspelled promise that is ignored would be
a false pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.fleet.groups import expand_written
from preflight.fleet.inventory_keys import plainly, refuse_unknown_keys
from preflight.fleet.inventory_tables import FILES, PROMISES, WAYS_IN, FileTable
from preflight.fleet.inventory_text import parse
from preflight.fleet.inventory_values import command, own_numbers, refuse_impossible
from preflight.fleet.model import Host, Promise
from preflight.fleet.nodeset import MOST_NODES, check_host_name
from preflight.fleet.waivers import Waiver, read_waivers, refuse_hiding
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from preflight.fleet.inventory_tables import GroupTable, Layer
    from preflight.numbers import Told

LARGEST = 4 << 20
"""Bytes of an inventory; 64 Ki nodes with a table each need about 3 MiB."""


class Inventory:
    """An inventory file that was read and found sound."""

    def __init__(self, path: Path, content: FileTable) -> None:
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
        self.switched()
        strangers = sorted(set(content.node) - set(self._group_of))
        if self._group_of and strangers:
            raise UsageError(
                f"{path}: [node.{strangers[0]}] is in no group: add it to the nodes "
                f"of one{did_you_mean(strangers[0], self._group_of)}"
            )
        origin = f"{path} [[waive]]"
        self.waivers: tuple[Waiver, ...] = read_waivers(
            content.waive, lambda text: expand_written(text, self), self.names, origin
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
        if group and (learned := self._content.group[group].learned):
            where += f", learned {learned}"
        known = name in self._group_of or own is not None
        promised = {key: said(key) for key in PROMISES} if known else {}
        return Host(
            name=name,
            address=(own.address if own else None) or name,
            group=group or "all",
            leaf=said("leaf") or "",
            python=command(said("python"), f"{self.path}: python"),
            promised=Promise(
                **promised,
                limits=self._joined(name, "limits") if known else {},
                baselines=self._joined(name, "baselines") if known else {},
                origin=f"{self.path} {where}" if known else "",
            ),
            off=self._off(name),
            **{key: value for key in WAYS_IN if (value := self._way(key, said(key))) is not None},
        )

    def names_way(self, name: str) -> bool:
        """Whether the file itself says by which transport a node is reached."""
        return any(layer.transport is not None for layer in self._layers_of(name))

    def _layers_of(self, name: str) -> list[Layer]:
        """All that is said of a node, the nearest last."""
        return [layer for _, layer in self._named_layers(name)]

    def _named_layers(self, name: str) -> list[tuple[str, Layer]]:
        group, own = self._group_of.get(name, ""), self._content.node.get(name)
        layers: list[tuple[str, Layer]] = [("[defaults]", self._content.defaults)]
        if group:
            layers.append((f"[group.{group}]", self._content.group[group]))
        return layers if own is None else [*layers, (f"[node.{name}]", own)]

    def _joined(self, name: str, kind: Literal["limits", "baselines"]) -> dict[str, Told]:
        """The numbers said of a node, name by name the nearest."""
        told: dict[str, Told] = {}
        for where, layer in self._named_layers(name):
            told |= own_numbers(layer, kind, f"{self.path} {where}")
        return told

    def _off(self, name: str) -> dict[str, str]:
        """The checks that are switched off for a node, and where."""
        off: dict[str, str] = {}
        layers = [(where, layer.checks or {}) for where, layer in self._named_layers(name)]
        for where, checks in [("[checks]", self._content.checks), *layers]:
            for check, table in checks.items():
                off.pop(check, None)
                if not table.enabled:
                    off[check] = f"{self.path} {where}"
        return off

    def switched(self) -> list[tuple[str, str]]:
        """Every check that a table speaks of, and where; UsageError for the ways in."""
        tables = [(where, layer.checks or {}) for where, layer in _layers(self._content)]
        spoken = [
            (check, f"{self.path} {where}")
            for where, checks in [("[checks]", self._content.checks), *tables]
            for check in checks
        ]
        for check, where in spoken:
            refuse_hiding(check, f"{check!a} in {where}")
        return spoken

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
    return inventory_of(path, text)


def inventory_of(path: Path, text: str) -> Inventory:
    """The inventory that a text is, whose sentences name that path; UsageError if it is none."""
    try:
        content = parse(path, text)
        refuse_unknown_keys(content)
        return Inventory(path, msgspec.convert(content, FileTable))
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {plainly(str(error))}: correct it") from error
    except UsageError as error:
        message = str(error)
        raise (
            error if message.startswith(str(path)) else UsageError(f"{path}: {message}")
        ) from error


def _groups(tables: dict[str, GroupTable]) -> dict[str, str]:
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


def _layers(content: FileTable) -> list[tuple[str, Layer]]:
    return [
        ("[defaults]", content.defaults),
        *((f"[group.{name}]", table) for name, table in content.group.items()),
        *((f"[node.{name}]", table) for name, table in content.node.items()),
    ]
