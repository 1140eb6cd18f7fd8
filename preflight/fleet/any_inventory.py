"""Which kind of inventory a path is: ours, Ansible's, or what Ansible wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from preflight.errors import UsageError
from preflight.fleet.files import read_regular, refuse_others
from preflight.fleet.inventory import read_inventory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from preflight.fleet.inventory_tables import JobTable
    from preflight.fleet.model import Host
    from preflight.fleet.waivers import Waiver

OURS: Final = frozenset(("defaults", "job", "group", "node", "checks", "waive"))
_AFTER: Final = {"key": "value", "value": "key", "item": "item"}
_NOTHING: Final = ("", "~", "null")
_LARGEST: Final = 32 << 20
"""Bytes of an Ansible inventory whose layout is looked at."""

_OF_A_GROUP: Final = frozenset(("hosts", "children", "vars"))


class AnyInventory(Protocol):
    """What a fleet is drawn from, whoever's notation it is in."""

    path: Path
    job: JobTable
    waivers: tuple[Waiver, ...]

    def switched(self) -> Sequence[tuple[str, str]]:
        """Every check that a table switches on or off, and where."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every node, group by group."""

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes of each group, for `@inventory:NAME`."""

    def names_way(self, name: str) -> bool:
        """Whether it says itself by which transport a node is reached."""

    def host(self, name: str) -> Host:
        """Join what is said of one node."""

    def beside(self, file: str) -> str:
        """Read a relative path as beside the inventory."""


def open_inventory(path: Path) -> AnyInventory:
    """Read an inventory of any kind; UsageError that names the path and what to change.

    It decides whom we log in to and what is run there, or here: root takes none of somebody else.

    TOML is ours; YAML is ours unless it is laid out as Ansible's; JSON is the output of
    `ansible-inventory --list`; a folder, a script and anything else is for Ansible to read.
    """
    from preflight.fleet.ansible import read_ansible, read_listed

    refuse_others(path)
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return read_inventory(path)
    if path.is_dir():
        return read_ansible(path)
    _refuse_unreadable(path)
    if suffix in (".yaml", ".yml"):
        return read_ansible(path) if _is_ansibles(path) else read_inventory(path)
    return read_listed(path) if suffix == ".json" else read_ansible(path)


def _refuse_unreadable(path: Path) -> None:
    """Say here what Ansible would only warn of; a pipe or a device is left alone."""
    try:
        is_plain = path.is_file()
        path.stat()
        reason = "it is not a regular file (a pipe or a device is not read)"
    except OSError as error:
        is_plain, reason = False, error.strerror or "it cannot be read"
    except ValueError:
        is_plain, reason = False, "its name holds a NUL byte or is no text"
    if not is_plain:
        raise UsageError(
            f"cannot read the inventory {path}: {reason}; give --preflight-inventory a readable "
            "file: TOML or YAML of preflight's, or an Ansible inventory"
        )


def _is_ansibles(path: Path) -> bool:
    """Whether a YAML file is laid out as an Ansible inventory (or configures a plugin of it)."""
    import yaml

    try:
        below = _outline(read_regular(path, _LARGEST).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False  # read as ours, it gets its sentence
    if OURS.issuperset(below):
        return False
    if "all" in below or "plugin" in below:
        return True
    return any(below.values()) and all(keys <= _OF_A_GROUP for keys in below.values())


def _outline(text: str) -> dict[str, set[str]]:
    """The keys at the top of a YAML file, and those right below each; no value is made of it."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    below: dict[str, set[str]] = {}
    top = ""
    awaited: list[str] = []  # by each open collection: "key", "value" or "item"
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionEndEvent):
            awaited.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        word = str(getattr(event, "value", ""))
        if awaited == ["key"]:
            top = word
            below.setdefault(top, set())
        elif awaited == ["value", "key"] or (awaited == ["value"] and word not in _NOTHING):
            below[top].add(word)
        if awaited:
            awaited[-1] = _AFTER[awaited[-1]]
        if isinstance(event, yaml.CollectionStartEvent):
            awaited.append("key" if isinstance(event, yaml.MappingStartEvent) else "item")
    return below
