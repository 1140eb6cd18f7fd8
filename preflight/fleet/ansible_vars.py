"""What one host of an Ansible inventory says to us: the way in, and what it was promised.

Read are `ansible_host`, `ansible_port`, `ansible_user`, `ansible_ssh_private_key_file`,
`ansible_connection` and `preflight_*`; nothing that is a password, and no value ever shown.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from preflight.errors import UsageError
from preflight.fleet.ansible_list import plain
from preflight.fleet.ansible_ssh_args import odd_argument
from preflight.fleet.inventory_keys import plainly
from preflight.fleet.inventory_tables import FILES, NodeTable
from preflight.fleet.inventory_values import refuse_impossible
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msgspec import Raw

OURS: Final = "preflight_"
GROUP: Final = "preflight_group"
"""Names the group by which nodes are compared, where Ansible's groups mean something else."""

_SPELLINGS: Final = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "identity_file": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
_ARGUMENTS: Final = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_OTHER_WAYS: Final = (
    "ansible_paramiko_proxy_command",
    "ansible_proxy_command",
    "ansible_ssh_executable",
)
_PASSWORD: Final = re.compile(
    r"ansible_(\w+_)?(pass|password|passwd|passphrase|private_key)", re.IGNORECASE
)
_SSH: Final = frozenset(("ssh", "smart", "paramiko", "paramiko_ssh"))
_CONFIG: Final = "put it into ~/.ssh/config, where your own ssh finds it too"


def read_variables(
    variables: Mapping[str, Raw], where: str, folder: Path
) -> tuple[NodeTable, str | None]:
    """Return what the variables say of a node, and the group they put it in.

    `where` opens every sentence ("hosts.ini: host gpu1"); `folder` is what relative paths of
    `preflight_*` are beside. Raises UsageError that names the variable and no value.
    """
    _refuse_passwords(variables, where)
    said, names = _way_in(variables, where)
    for name in variables:
        if not name.startswith(OURS) or name == GROUP:
            continue
        field = name.removeprefix(OURS)
        if field == "checks":
            raise UsageError(f"{where}: {name}: switch checks off in a TOML or YAML inventory")
        if field not in NodeTable.__struct_fields__:
            known = [GROUP, *(OURS + each for each in NodeTable.__struct_fields__)]
            raise UsageError(f"{where}: unknown variable {name[:80]!a}{did_you_mean(name, known)}")
        value = _value(variables, name, where)
        if value is None:
            continue
        if field in FILES and isinstance(value, str):
            value = str(folder / Path(value).expanduser())
        said[field], names[field] = value, name
    group = _text(variables, GROUP, where)
    return _converted(said, names, where), group


def _way_in(variables: Mapping[str, Raw], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields and the variables they come from, as Ansible's own ssh would take them."""
    said: dict[str, Any] = {}
    names: dict[str, str] = {}
    for field, spellings in _SPELLINGS.items():
        for name in spellings:
            value = _value(variables, name, where)
            if value is None:
                continue
            if said.get(field, value) != value:
                raise UsageError(f"{where}: {names[field]} and {name} differ: leave one of them")
            said[field], names[field] = value, name
    if isinstance(said.get("identity_file"), str):
        # Ansible hands it to ssh as it is: relative to where the command runs.
        said["identity_file"] = str(Path.cwd() / Path(said["identity_file"]).expanduser())
    if OURS + "transport" not in variables:
        said |= _transport(variables, where)
    return said, names


def _transport(variables: Mapping[str, Raw], where: str) -> dict[str, str]:
    connection = (_text(variables, "ansible_connection", where) or "ssh").split(".")[-1]
    if connection == "local":
        return {"transport": "local"}
    if connection not in _SSH:
        raise UsageError(
            f"{where} is reached by ansible_connection {connection[:40]!a}, and preflight logs in "
            "by SSH: leave it out with --preflight-exclude, or set preflight_transport"
        )
    for name in _OTHER_WAYS:
        said = _text(variables, name, where)
        if said and not (name == "ansible_ssh_executable" and Path(said).name == "ssh"):
            raise UsageError(f"{where}: {name} is not followed here: {_CONFIG}")
    for name in _ARGUMENTS:
        odd = odd_argument(_text(variables, name, where) or "")
        if odd:
            raise UsageError(f"{where}: {name} has {odd[:40]!a}, not followed here: {_CONFIG}")
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
        raise UsageError(f"{where}: {name} is no text: correct it")
    return value


def _value(variables: Mapping[str, Raw], name: str, where: str) -> Any:
    """Return a variable's value; None if nothing is said. Templates and vaults are refused."""
    if name not in variables:
        return None
    try:
        value = plain(variables[name])
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


def _converted(said: dict[str, Any], names: dict[str, str], where: str) -> NodeTable:
    try:
        # INI and scripts know only texts for numbers.
        table = msgspec.convert(said, NodeTable, strict=False)
    except msgspec.ValidationError as error:
        reason, _, field = plainly(str(error)).rpartition(", at ")
        raise UsageError(f"{where}: {names.get(field, field)}: {reason}: correct it") from error
    try:
        refuse_impossible("its variables", table)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return table
