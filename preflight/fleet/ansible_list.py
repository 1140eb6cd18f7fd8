"""What `ansible-inventory --list` says, decoded: who is in which group, with which variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from preflight.errors import UsageError
from preflight.fleet.nodeset import MOST_NODES, check_host_name, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

DEEPEST = 32
"""Levels of groups within groups."""

_NO_GROUPS = ("all", "ungrouped")
"""Groups that every inventory has; a node in no other is simply of the fleet."""

_AGAIN = "write it with: ansible-inventory --list > inventory.json"


class _Group(Struct, frozen=True):
    hosts: list[str] = []
    children: list[str] = []
    vars: dict[str, Raw] = {}


class _Meta(Struct, frozen=True):
    hostvars: dict[str, dict[str, Raw]]


class Listing(Struct, frozen=True):
    """An Ansible inventory, its precedence of variables already applied by Ansible."""

    hosts: dict[str, list[str]]
    """The hosts that each group itself lists, the outermost group first."""
    children: dict[str, list[str]]
    """The groups within each group; one without hosts may be missing."""
    group_of: dict[str, str]
    """The deepest group that lists a host; "all" if none does."""
    variables: dict[str, dict[str, Raw]]
    """Each host's own variables, undecoded: only those that are asked for will be."""


def decode(text: bytes) -> Listing:
    """Decode the JSON; UsageError, without any of its values, for what is not of that shape."""
    groups, hostvars = _tables(text)
    depth = _depths(groups)
    own: dict[str, list[str]] = {}
    group_of: dict[str, str] = {}
    for name in depth:
        own[name] = [_canonical(host) for host in groups[name].hosts]
        for host in own[name]:
            if host not in group_of or _is_nearer(name, group_of[host], depth):
                group_of[host] = name
    if len(group_of) > MOST_NODES:
        raise UsageError(f"names more than {MOST_NODES} hosts: split it")
    variables = {_canonical(host): said for host, said in hostvars.items()}
    strangers = sorted(set(variables) - set(group_of))
    if strangers:
        raise UsageError(f"host {strangers[0]} has variables and is in no group: {_AGAIN}")
    return Listing(
        hosts=own,
        children={name: groups[name].children for name in depth},
        group_of={
            host: "all" if name in _NO_GROUPS else name
            for name, hosts in own.items()
            for host in hosts
            if group_of[host] == name
        },
        variables=variables,
    )


def _tables(text: bytes) -> tuple[dict[str, _Group], dict[str, dict[str, Raw]]]:
    try:
        tables = msgspec.json.decode(text, type=dict[str, Raw])
        meta = msgspec.json.decode(tables.pop("_meta", Raw(b"{}")), type=_Meta)
        groups = {n: msgspec.json.decode(table, type=_Group) for n, table in tables.items()}
    except msgspec.ValidationError as error:
        # Of a type; its message holds no value of the file.
        raise UsageError(f"not what ansible-inventory --list writes ({error}): {_AGAIN}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        said = "" if text.lstrip()[:1] == b"{" else "; it does not begin with {"
        raise UsageError(f"not JSON{said}: {_AGAIN}") from error
    for name, group in groups.items():
        _refuse_odd_group(name, group)
    return groups, meta.hostvars


def _refuse_odd_group(name: str, group: _Group) -> None:
    if not name.isprintable() or len(name) > 100:  # noqa: PLR2004  fits two terminal lines
        raise UsageError(f"{name[:60]!a} is no name of a group: rename it")
    if group.vars:
        # Merging them is Ansible's precedence; left out, a promise would be lost.
        raise UsageError(f"group {name} has variables of its own: {_AGAIN}, without --export")


def _depths(groups: Mapping[str, _Group]) -> dict[str, int]:
    """How deep each group lies, in the inventory's order; a circle of groups is refused."""
    depth: dict[str, int] = {}
    below = {child for group in groups.values() for child in group.children}
    level = [name for name in groups if name not in below]
    for at in range(DEEPEST + 1):
        for name in level:
            depth[name] = at
        level = list(
            dict.fromkeys(
                child for name in level for child in groups[name].children if child in groups
            )
        )
        if not level:
            break
    if level or set(depth) != set(groups):
        raise UsageError(f"its groups lie in a circle, or over {DEEPEST} deep: correct them")
    return depth


def _is_nearer(name: str, than: str, depth: Mapping[str, int]) -> bool:
    return than in _NO_GROUPS or (name not in _NO_GROUPS and depth[name] > depth[than])


def members(listing: Listing, name: str) -> tuple[str, ...]:
    """All hosts at or below a group, each once."""
    level, seen, found = [name], {name}, dict[str, None]()
    while level:
        for each in level:
            found.update(dict.fromkeys(listing.hosts[each]))
        below = dict.fromkeys(child for each in level for child in listing.children[each])
        level = [child for child in below if child in listing.hosts and child not in seen]
        seen.update(level)
    return tuple(found)


def _canonical(host: str) -> str:
    check_host_name(host)
    return expand(host)[0] if ":" in host else host


def plain(value: Raw) -> Any:
    """One variable as Ansible would hand it on; a text it marks as not to be templated is text."""
    said = msgspec.json.decode(value)
    if isinstance(said, dict) and set(said) == {"__ansible_unsafe"}:
        return said["__ansible_unsafe"]
    return said
