"""Read an Ansible inventory as a fleet, so that a site need not write its nodes twice.

preflight does not run Ansible's ssh command line. It refuses options that it would not follow:
a ProxyJump that is silently dropped makes every node look unreachable.

It reads `ansible_host`, `ansible_port`, `ansible_user`, `ansible_ssh_private_key_file`,
`ansible_connection` and `preflight_*`. It takes no password, and never shows a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from preflight.core.files import file_errors, read_regular, refuse_untrusted_folder, typed_path
from preflight.core.text import did_you_mean
from preflight.errors import UsageError, errors_about
from preflight.fleet import ansible_list
from preflight.fleet import inventory_tables as tables
from preflight.fleet.model import Expected, Host, Waiver
from preflight.fleet.nodeset import check_host_name


def unsupported_argument(text: str) -> str:
    """Return the first argument that changes where or how ssh connects; '' if none does."""
    try:
        words = iter(shlex.split(text))
    except ValueError:
        return "a quote that is not closed"
    for word in words:
        if word in ansible_list.TABLE["harmless_flags"]:
            continue
        if not word.startswith("-o"):
            return word.partition("=")[0]
        option = word[2:] or next(words, "")
        key, _, value = option.replace(" ", "=", 1).partition("=")
        keeps_no_keys = key.lower() == "userknownhostsfile" and value.strip() == "/dev/null"
        if key.lower() not in ansible_list.TABLE["harmless_options"] and not keeps_no_keys:
            return key or word
    return ""


PREFIX: Final = "preflight_"
GROUP: Final = "preflight_group"
"""Names the group by which nodes are compared, where Ansible's groups mean something else."""

_PASSWORD: Final = re.compile(
    r"ansible_(\w+_)?(pass|password|passwd|passphrase|private_key)", re.IGNORECASE
)
_SSH_CONFIG: Final = "put it into ~/.ssh/config, where your own ssh finds it too"


def read_variables(
    variables: Mapping[str, Raw], where: str, folder: Path
) -> tuple[tables.NodeTable, str | None]:
    """Return a node's settings from its variables, and its group.

    `where` opens every message ("hosts.ini: host gpu1"); relative paths of `preflight_*` start
    at `folder`. UsageError names the variable, never its value.
    """
    _refuse_passwords(variables, where)
    fields, names = _connection_settings(variables, where)
    for name in variables:
        if not name.startswith(PREFIX) or name == GROUP:
            continue
        field = name.removeprefix(PREFIX)
        if field == "checks":
            raise UsageError(f"{where}: {name}: switch checks off in a TOML or YAML inventory")
        if field not in tables.NodeTable.__struct_fields__:
            choices = [GROUP, *(PREFIX + key for key in tables.NodeTable.__struct_fields__)]
            raise UsageError(
                f"{where}: unknown variable {name[:80]!a}{did_you_mean(name, choices)}"
            )
        value = _value(variables, name, where)
        if value is None:
            continue
        if field in tables.FILES and isinstance(value, str):
            value = str(folder / typed_path(value))
        fields[field], names[field] = value, name
    group = _text(variables, GROUP, where)
    return _convert(fields, names, where), group


def _connection_settings(
    variables: Mapping[str, Raw], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return NodeTable's fields, and the variable of each, by the rules of Ansible's ssh plugin."""
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for field, spellings in ansible_list.TABLE["settings"].items():
        for name in spellings:
            value = _value(variables, name, where)
            if value is None:
                continue
            if fields.get(field, value) != value:
                raise UsageError(f"{where}: {names[field]} and {name} differ: leave one of them")
            fields[field], names[field] = value, name
    if isinstance(fields.get("identity_file"), str):
        # Ansible passes it to ssh unchanged, so it is relative to the current directory.
        fields["identity_file"] = str(Path.cwd() / typed_path(fields["identity_file"]))
    if PREFIX + "transport" not in variables:
        fields |= _transport(variables, where)
    return fields, names


def _transport(variables: Mapping[str, Raw], where: str) -> dict[str, str]:
    connection = (_text(variables, "ansible_connection", where) or "ssh").split(".")[-1]
    if connection == "local":
        return {"transport": "local"}
    if connection not in ansible_list.TABLE["ssh_connections"]:
        raise UsageError(
            f"{where} is reached by ansible_connection {connection[:40]!a}, and preflight logs in "
            "by SSH: leave it out with --preflight-exclude, or set preflight_transport"
        )
    for name in ansible_list.TABLE["proxies"]:
        program = _text(variables, name, where)
        if program and not (name == "ansible_ssh_executable" and Path(program).name == "ssh"):
            raise UsageError(f"{where}: {name} is not followed here: {_SSH_CONFIG}")
    for name in ansible_list.TABLE["ssh_arguments"]:
        odd = unsupported_argument(_text(variables, name, where) or "")
        if odd:
            raise UsageError(f"{where}: {name} has {odd[:40]!a}, not followed here: {_SSH_CONFIG}")
    return {}


def _refuse_passwords(variables: Mapping[str, Raw], where: str) -> None:
    for name, value in variables.items():
        if _PASSWORD.fullmatch(name) and bytes(value).strip() not in (b"null", b'""'):
            raise UsageError(
                f"{where} has {name[:80]}: preflight logs in by key and wants no secret near it; "
                "keep it out of this inventory (ansible-playbook takes it by --extra-vars @FILE "
                "or --ask-pass)"
            )


def _text(variables: Mapping[str, Raw], name: str, where: str) -> str | None:
    value = _value(variables, name, where)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}: {name} is not text: correct it")
    return value


def _value(variables: Mapping[str, Raw], name: str, where: str) -> Any:
    """Return a variable's value, None if it is not set; UsageError for a template or a vault."""
    if name not in variables:
        return None
    try:
        value = ansible_list.value_of(variables[name])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where}: {name} cannot be read: correct it") from error
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, dict) and "__ansible_vault" in text:
            raise UsageError(f"{where}: {name} is encrypted (vault): give it in the clear")
        if isinstance(text, str) and ("{{" in text or "{%" in text):
            raise UsageError(
                f"{where}: {name} is a template, which Ansible fills in only when it runs a play: "
                "write the value out"
            )
        if isinstance(text, str) and not text.isprintable():
            raise UsageError(f"{where}: {name} holds a control character: remove it")
    return value


def _convert(fields: dict[str, Any], names: dict[str, str], where: str) -> tables.NodeTable:
    try:
        # INI files and scripts give numbers as text.
        table = msgspec.convert(fields, tables.NodeTable, strict=False)
    except msgspec.ValidationError as error:
        reason, _, field = tables.schema_reason(str(error)).rpartition(", at ")
        raise UsageError(f"{where}: {names.get(field, field)}: {reason}: correct it") from error
    with errors_about(where):
        tables.refuse_impossible("its variables", table)
    return table


class _HostsByGroup(Mapping[str, tuple[str, ...]]):
    """The hosts of each group and of the groups in it, found when a group is asked for."""

    def __init__(self, listing: ansible_list.Listing) -> None:
        self._listing = listing

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return ansible_list.members(self._listing, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listing.hosts_of_group)

    def __len__(self) -> int:
        return len(self._listing.hosts_of_group)


class AnsibleInventory:
    """The hosts of an Ansible inventory; a host's variables are decoded when it is asked for."""

    job = tables.JobTable()
    waivers: tuple[Waiver, ...] = ()

    def __init__(self, path: Path, listing: ansible_list.Listing) -> None:
        self.path = path
        self._listing = listing
        self._folder = path if path.is_dir() else path.parent

    def switched_checks(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: only a TOML or YAML inventory switches checks."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every host, group by group."""
        return tuple(self._listing.group_of)

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The hosts of each group and of the groups in it."""
        return _HostsByGroup(self._listing)

    def host(self, name: str) -> Host:
        """Return one host with its settings; nothing is expected of a host it does not know."""
        if name not in self._listing.group_of:
            return Host(name=name, address=name)
        where = f"{self.path}: host {name}"
        variables = self._listing.variables.get(name, {})
        table, group_variable = read_variables(variables, where, self._folder)
        group = group_variable or self._listing.group_of[name]
        try:
            check_host_name(name if table.address is None else table.address)
        except UsageError as error:
            raise UsageError(f"{where}: its address {error}") from error
        value_of = partial(getattr, table)
        return Host(
            name=name,
            address=table.address or name,
            group=group,
            leaf=table.leaf or "",
            python=tables.read_argv(table.python, f"{where}: preflight_python"),
            expected=Expected(
                **tables.settings(tables.EXPECTATION_KEYS, value_of),
                limits=tables.limit_overrides(table, where),
                baselines=tables.baseline_overrides(table, where),
                origin=f"{self.path} [{group}]",
            ),
            **tables.settings(tables.CONNECTION_KEYS, value_of),
        )

    def sets_transport(self, name: str) -> bool:
        """Whether the inventory sets the transport of a host."""
        variables = self._listing.variables.get(name, {})
        return "ansible_connection" in variables or "preflight_transport" in variables

    def resolve_path(self, file: str) -> str:
        """Read a relative path as beside the inventory, and `~` as home."""
        return str(self._folder / typed_path(file))


def read_ansible(path: Path) -> AnsibleInventory:
    """Ask Ansible about a file, a folder or a script; UsageError that names it."""
    for top in (path, path.parent / "group_vars", path.parent / "host_vars"):
        refuse_untrusted_folder(top)
    return _decode_inventory(path, ansible_list.list_inventory(path))


def read_ansible_json(path: Path) -> AnsibleInventory:
    """Read the JSON that `ansible-inventory --list` wrote elsewhere; needs no Ansible."""
    advice = "write it with: ansible-inventory --list > inventory.json"
    with file_errors(f"cannot read the inventory {path}", advice):
        text = read_regular(path, ansible_list.LARGEST)
    return _decode_inventory(path, text)


def _decode_inventory(path: Path, text: bytes) -> AnsibleInventory:
    with errors_about(str(path)):
        listing = ansible_list.decode(text)
    if not listing.group_of:
        raise UsageError(f"{path} names no hosts: look at `ansible-inventory -i {path} --graph`")
    return AnsibleInventory(path, listing)
