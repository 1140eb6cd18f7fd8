"""Run `ansible-inventory --list` and decode its JSON.

The command has a deadline and a limit on its output; its environment keeps the output plain JSON.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from preflight.core.files import refuse_untrusted_folder, shipped_table, typed_path
from preflight.core.remote_command import TIMED_OUT, Answer, LocalConnection
from preflight.core.text import excerpt
from preflight.errors import UsageError
from preflight.fleet.nodeset import MOST_NODES, check_host_name, expand

TABLE = shipped_table(__file__, "ansible_variables.toml")

DEEPEST = 32
"""Levels of groups within groups."""

_NO_GROUPS = ("all", "ungrouped")
"""Groups that every inventory has; a node in no other group gets the group "all"."""

_WRITE = "write it with: ansible-inventory --list > inventory.json"


class _Group(Struct, frozen=True):
    hosts: list[str] = []
    children: list[str] = []
    vars: dict[str, Raw] = {}


class _Meta(Struct, frozen=True):
    hostvars: dict[str, dict[str, Raw]]


class Listing(Struct, frozen=True):
    """An Ansible inventory; Ansible has already applied the precedence of variables."""

    hosts_of_group: dict[str, list[str]]
    """The hosts that each group itself lists, the outermost group first."""
    children: dict[str, list[str]]
    """The groups within each group; one without hosts may be missing."""
    group_of: dict[str, str]
    """The deepest group that lists a host; "all" if none does."""
    variables: dict[str, dict[str, Raw]]
    """Each host's variables; a value is decoded when a caller needs it."""


def decode(text: bytes) -> Listing:
    """Decode the JSON; UsageError, which shows none of its values, for another layout."""
    groups, hostvars = _tables(text)
    depth = _depths(groups)
    hosts_of_group: dict[str, list[str]] = {}
    group_of: dict[str, str] = {}
    for name in depth:
        hosts_of_group[name] = [_canonical(host) for host in groups[name].hosts]
        for host in hosts_of_group[name]:
            if host not in group_of or _is_deeper(name, group_of[host], depth):
                group_of[host] = name
    if len(group_of) > MOST_NODES:
        raise UsageError(f"names more than {MOST_NODES} hosts: split it")
    variables = {_canonical(host): values for host, values in hostvars.items()}
    if strangers := sorted(set(variables) - set(group_of)):
        raise UsageError(f"host {strangers[0]} has variables and is in no group: {_WRITE}")
    return Listing(
        hosts_of_group=hosts_of_group,
        children={name: groups[name].children for name in depth},
        group_of={
            host: "all" if name in _NO_GROUPS else name
            for name, hosts in hosts_of_group.items()
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
        # msgspec's message names types only, no value of the file.
        raise UsageError(f"not what ansible-inventory --list writes ({error}): {_WRITE}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        remark = "" if text.lstrip()[:1] == b"{" else "; it does not begin with {"
        raise UsageError(f"not JSON{remark}: {_WRITE}") from error
    for name, group in groups.items():
        _refuse_bad_group(name, group)
    return groups, meta.hostvars


def _refuse_bad_group(name: str, group: _Group) -> None:
    if not name.isprintable() or len(name) > 100:  # noqa: PLR2004  fits two terminal lines
        raise UsageError(f"{name[:60]!a} is not a group name: rename it")
    if group.vars:
        # Only Ansible knows the precedence; without them an expected value would be missed.
        raise UsageError(f"group {name} has variables of its own: {_WRITE}, without --export")


def _depths(groups: Mapping[str, _Group]) -> dict[str, int]:
    """How deep each group lies, in the inventory's order; a circle of groups is refused."""
    depth: dict[str, int] = {}
    children = {child for group in groups.values() for child in group.children}
    level = [name for name in groups if name not in children]
    for number in range(DEEPEST + 1):
        for name in level:
            depth[name] = number
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


def _is_deeper(name: str, other: str, depth: Mapping[str, int]) -> bool:
    return other in _NO_GROUPS or (name not in _NO_GROUPS and depth[name] > depth[other])


def members(listing: Listing, name: str) -> tuple[str, ...]:
    """All hosts at or below a group, each once."""
    level, groups, hosts = [name], {name}, dict[str, None]()
    while level:
        for group in level:
            hosts.update(dict.fromkeys(listing.hosts_of_group[group]))
        children = dict.fromkeys(child for group in level for child in listing.children[group])
        level = [
            child for child in children if child in listing.hosts_of_group and child not in groups
        ]
        groups.update(level)
    return tuple(hosts)


def _canonical(host: str) -> str:
    check_host_name(host)
    return expand(host)[0] if ":" in host else host


def value_of(value: Raw) -> Any:
    """Decode one variable; text that Ansible marks as unsafe (not a template) is plain text."""
    decoded = msgspec.json.decode(value)
    if isinstance(decoded, dict) and set(decoded) == {"__ansible_unsafe"}:
        return decoded["__ansible_unsafe"]
    return decoded


LIST_S = 60.0
"""Deadline; an inventory script that asks a cloud takes 10 to 30 s."""


LARGEST = 128 << 20
"""Bytes of JSON: every variable of a group is repeated for each of its hosts."""

_CODE_SETTING = re.compile("PLUGIN|MODULE|COLLECTION|VAULT|PLAYBOOK|CONFIG_FILE")
"""Found in the name of a setting whose paths are code, are executed, or select code."""

_PATH = re.compile("(?:[^/~@]*@)?(~?/.+)")
"""A vault's path has a label in front: label@path."""

_ERROR = re.compile(r"(?:\[?ERROR\]?[:!]|\[WARNING\]:)\s*(.*)", re.DOTALL)


def list_inventory(path: Path) -> bytes:
    """Return the output of `ansible-inventory --list`; UsageError if there is none."""
    program = shutil.which("ansible-inventory")
    if program is None:
        raise UsageError(
            f"{path} is neither TOML nor YAML of ours, so Ansible has to read it, and "
            "ansible-inventory is not installed here: install ansible-core, give the JSON that "
            "`ansible-inventory --list` writes elsewhere (as FILE.json), or write a TOML inventory"
        )
    _refuse_settings(Path(program).with_name("ansible-config"))
    answer = _run(program, "-i", str(path.absolute()), "--list")
    see = f"see: ansible-inventory -i {shlex.quote(str(path))} --list"
    if answer.overflow:
        raise UsageError(f"{path}: Ansible writes more than {LARGEST >> 20} MiB: split it")
    if answer.status in (None, TIMED_OUT) or answer.seconds >= LIST_S:
        raise UsageError(
            f"{path}: ansible-inventory gives no answer in {LIST_S:g} s (a script or a plugin "
            f"may hang): {see}"
        )
    if answer.status != 0:
        folder = "; in a folder Ansible passes over .ini and .cfg files" if path.is_dir() else ""
        raise UsageError(
            f"{path}: ansible-inventory ends with {answer.status} ({_reason(answer.stderr)}"
            f"{folder}): {see}"
        )
    return answer.stdout


def _refuse_settings(program: Path) -> None:
    """As root: UsageError if another user could change what Ansible is configured to load.

    Plugins and vault scripts are code. `ansible-config dump` loads none of them.
    """
    if os.geteuid() != 0:
        return
    try:
        answer = _run(str(program), "dump", "--format=json")
        settings = msgspec.json.decode(answer.stdout, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            "as root preflight runs no ansible-inventory before it knows what Ansible loads, and "
            f"{program} does not say; see: ansible-config dump --format=json"
        ) from error
    for setting in settings:
        value = setting.get("value") if _CODE_SETTING.search(str(setting.get("name"))) else None
        for text in value if isinstance(value, list) else [value]:
            if path := _PATH.fullmatch(str(text)):
                refuse_untrusted_folder(typed_path(path[1]))


def _run(program: str, *words: str) -> Answer:
    # Ansible loads code and variables from the current directory, which another user may own.
    chdir = ["--chdir=/"] if os.geteuid() == 0 or sys.flags.isolated else []
    environ = [f"{name}={value}" for name, value in TABLE["environment"].items()]
    argv = ["env", *chdir, *environ, program, *words]
    remote = LocalConnection().start(argv, timeout_s=LIST_S, limit=LARGEST)
    try:
        remote.finish_input()
        return remote.wait(LIST_S)
    finally:
        remote.kill()


def _reason(stderr: bytes) -> str:
    """Return Ansible's first error without the line that it quotes: it may hold a password."""
    text = stderr.decode("utf-8", "replace")
    match = _ERROR.search(text)
    complaint = (match[1] if match else text).split("The offending line")[0]
    return (
        excerpt(re.split(r"\n(?:[^\S\n]*(?=\[?(?:ERROR|WARNING))|\n)", complaint)[0], 160)
        or "no reason"
    )
