"""Finds the secrets in a run: names of hosts, switches and users, serials, UUIDs and addresses.

The name of a field gives the kind of a secret in it; in sentences, secrets are found by their form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from preflight.check import FLEET
from preflight.facts.node_network import Resolved
from preflight.report.since import RunSummary, nodes_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.report.document import Report


_HEX = "[0-9a-fA-F]"

NAMING_FORMS: Final = r"""
  (?P<mail>(?P<mail_user>[\w.+-]{1,64})@(?P<mail_host>[A-Za-z0-9](?:[\w.-]*\w)?))
| (?P<home>/(?:home|Users|scratch)/(?P<home_user>[^/\s"',;:)]+))
| (?P<serial>\b(?:serial|s/n)(?:\ (?:number|no\.?))?[\ :=\#]++
    (?P<serial_no>(?=\S{0,100}\d)[A-Za-z0-9-]{4,}))
| (?P<user>\buser(?:name)?[\ :=]+(?:[\w.-]{1,64}\\)?
    (?P<user_name>(?!(?:root|guide)(?![\w.-]))[a-z_][\w.-]*[\w-](?=[,;)]|$)(?<!-)))
| (?P<server>\b(?P<server_host>[A-Za-z][\w.-]{1,253})(?=:/[A-Za-z]))
| (?P<jump>\bjump\ host\ (?P<jump_host>[A-Za-z0-9](?:[\w.-]*\w)?)(?=$|\ is\ in\ the\ way))
"""
"""Forms that hold a secret name, which is then hidden wherever it appears."""

PLAIN_FORMS: Final = rf"""
  (?P<uuid>(?:GPU-|MIG-)?{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})
| (?P<guid>0x{_HEX}{{16}}\b | \b{_HEX}{{4}}(?::{_HEX}{{4}}){{3}}\b(?!:))
| (?P<mac>\b{_HEX}{{2}}(?::{_HEX}{{2}}){{5,19}}\b)
| (?P<ip6>(?<!\w)(?:{_HEX}{{0,4}}:){{2,8}}(?:\d{{1,3}}(?:\.\d{{1,3}}){{3}}|{_HEX}{{1,4}}|(?<=::))
    (?!\w|:[\w:]))
| (?P<ip4>(?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w]))
"""

GROUPS: Final = {
    "mail_user": "user",
    "mail_host": "host",
    "home_user": "user",
    "serial_no": "serial",
    "user_name": "user",
    "server_host": "host",
    "jump_host": "host",
}
_NAMING = re.compile(NAMING_FORMS, re.VERBOSE | re.IGNORECASE)


def names_in_text(text: str) -> list[tuple[str, str]]:
    """The names in a sentence, each with its kind: ("alice", "user")."""
    return [
        (name, GROUPS[group])
        for match in _NAMING.finditer(text)
        for group, name in match.groupdict().items()
        if name and group in GROUPS
    ]


Kind = str
"""A kind of secret, numbered separately: "node", "leaf", "host", "user", ..."""

_FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "user": ("user", "users", "owner", "login", "username"),
    "host": ("host", "hosts", "hostname", "server", "master", "master_addr", "MASTER_ADDR"),
    "address": ("resolves_to", "address", "addresses", "ip", "mac", "gid"),
    "guid": ("guid", "node_guid", "sys_image_guid"),
    "uuid": ("uuid", "uuids", "gpu_uuid"),
    "leaf": ("switch", "leaf"),
}
_BY_FIELD = {field: kind for kind, fields in _FIELDS.items() for field in fields}
_PUBLIC = frozenset(("root", "nobody", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "unknown"))  # noqa: S104  names no machine
"""Names that are the same on every machine."""


def secrets(
    report: Report, *documents: object, earlier: Sequence[RunSummary] = ()
) -> dict[str, Kind]:
    """Every secret name with its kind, in the order in which they are numbered.

    `documents`: data of any shape from the nodes; the report's sentences may repeat them.
    `earlier`: the runs with which its page compares.
    """
    leaves = ((leaf, "leaf") for leaf in report.fleet.leaves.values())
    names = (*leaves, *_written_reasons(report), *_earlier_names(earlier, report))
    values = (report.verdicts, report.blames, list(report.suspicions), *documents)
    return secrets_of(report.fleet.nodes, *values, extra=names)


def secrets_of(
    nodes: Sequence[str], *documents: object, extra: Iterable[tuple[str, Kind]] = ()
) -> dict[str, Kind]:
    """The same without a report; `extra`: names that are secret wherever they appear."""
    kinds: dict[str, Kind] = dict.fromkeys(nodes, "node")
    for name, kind in extra:
        kinds.setdefault(name, kind)
    fleet_names = {name.lower() for name in nodes}
    fleet_names |= {name.partition(".")[0] for name in fleet_names}
    texts: set[str] = set()
    named = [*_named_values(documents, texts)]
    named += [pair for text in texts for pair in names_in_text(text)]
    for value, kind in named:
        in_the_fleet = kind == "host" and value.lower().partition(".")[0] in fleet_names
        if value not in _PUBLIC and len(value) > 1 and not in_the_fleet:
            kinds.setdefault(value, kind)
    hosts = [*nodes, *(value for value, kind in named if kind == "host")]
    for host in filter(short_name, hosts):
        # A domain of a single word is no secret.
        if "." in (domain := host.partition(".")[2]):
            kinds.setdefault(domain, "domain")
    return kinds


def short_name(name: str) -> str:
    """A host's name without its domain; empty for an address, and for a name without a domain."""
    first, dot, _ = name.partition(".")
    return first if dot and not first.isdecimal() and ":" not in name else ""


def _written_reasons(report: Report) -> Iterator[tuple[str, Kind]]:
    """Reasons of drains and waivers, written by people: they may name anything."""
    for waiver in report.overrides.waivers:
        yield waiver.reason, "reason"
    for words in report.fleet.left_out.values():
        if reason := words.partition(": ")[2]:
            yield reason, "reason"


def _earlier_names(nights: Iterable[RunSummary], report: Report) -> Iterator[tuple[str, Kind]]:
    """Nodes that have left the fleet, and other subjects of findings in those nights."""
    nights = tuple(nights)
    not_ready = dict.fromkeys(name for night in nights for name in night.not_ready)
    yield from ((name, "node") for name in not_ready)
    nodes, leaves = frozenset((*report.fleet.nodes, *not_ready)), set(report.fleet.leaves.values())
    for subject in dict.fromkeys(row.subject for night in nights for row in night.bad):
        of_fleet = subject == FLEET or subject.rpartition(" ")[2] in leaves
        if not of_fleet and not nodes_in(subject, nodes):
            yield subject, "other"


def _named_values(documents: Iterable[Any], texts: set[str]) -> Iterator[tuple[str, Kind]]:
    """Walk over all fields and keys; yield the strings in those whose name gives their kind.

    All other strings are added to `texts`.
    """
    todo = list(documents)
    while todo:
        value = todo.pop()
        fields = _fields(value)
        if isinstance(value, list | tuple):
            todo.extend(reversed(value))
        elif isinstance(value, str):
            texts.add(value)
        for name, child in reversed(fields):
            kind = _kind(str(name))
            if kind is not None:
                yield from ((text, kind) for text in _strings(child, kind))
            elif isinstance(child, str):
                texts.add(child)
            elif not isinstance(child, int | float | None):
                todo.append(child)


def _fields(value: Any) -> list[tuple[Any, Any]]:
    """(name, value) of each field of a structure or a table; a node's own host name is "host"."""
    if isinstance(value, Resolved):
        return [("host", value.name), ("addresses", value.addresses), ("error", value.error)]
    if isinstance(value, Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    return list(value.items()) if isinstance(value, dict) else []


def _kind(field: str) -> Kind | None:
    return "serial" if "serial" in field.lower() else _BY_FIELD.get(field)


def _strings(value: Any, kind: Kind) -> Iterator[str]:
    if isinstance(value, str):
        text = value.strip()
        if kind == "address" and "/" in text:
            text = text.partition("/")[0]
        if text and (kind == "serial" or not text.isdecimal()):
            yield text
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _strings(child, kind)
    elif isinstance(value, dict):
        for child in value.values():
            yield from _strings(child, kind)
