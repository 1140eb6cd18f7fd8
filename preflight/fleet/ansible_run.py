"""Ansible reads its own inventories: INI, YAML, plugins, scripts and vaults are none of our trade.

`ansible-inventory --list` is run with a deadline and a cap on what it may write, and its
environment keeps what it prints plain JSON.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preflight.errors import UsageError
from preflight.fleet.files import refuse_all_below
from preflight.transport.legible import legible
from preflight.transport.local import LocalConnection
from preflight.transport.streams import TIMED_OUT

if TYPE_CHECKING:
    from preflight.transport.protocol import Answer

LIST_S = 60.0
"""Deadline; an inventory script that asks a cloud takes 10 to 30 s."""


LARGEST = 128 << 20
"""Bytes of JSON: every variable of a group is repeated for each of its hosts."""

_ENVIRON = (
    # Verbosity goes to standard output, before the JSON.
    "ANSIBLE_VERBOSITY=0",
    "ANSIBLE_DEBUG=0",
    "ANSIBLE_FORCE_COLOR=0",
    "ANSIBLE_NOCOLOR=1",
    "ANSIBLE_INVENTORY_EXPORT=0",
    # It would append to whatever lies there, also through a link.
    "ANSIBLE_LOG_PATH=/dev/null",
    # What cannot be parsed is only a warning otherwise, and its hosts are missing.
    "ANSIBLE_INVENTORY_UNPARSED_FAILED=1",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=1",
)

_LOADS = re.compile("PLUGIN|MODULE|COLLECTION|VAULT|PLAYBOOK|CONFIG_FILE")
"""In the name of a setting whose paths are code, or that are run or say what is."""

_PATH = re.compile("(?:[^/~@]*@)?(~?/.+)")
"""A vault has a label in front."""

_TROUBLE = re.compile(r"(?:\[?ERROR\]?[:!]|\[WARNING\]:)\s*(.*)", re.DOTALL)


def list_inventory(path: Path) -> bytes:
    """Return what `ansible-inventory --list` says of a path; UsageError when it says nothing."""
    program = shutil.which("ansible-inventory")
    if program is None:
        raise UsageError(
            f"{path} is neither TOML nor YAML of ours, so Ansible has to read it, and "
            "ansible-inventory is not installed here: install ansible-core, give the JSON that "
            "`ansible-inventory --list` writes elsewhere (as FILE.json), or write a TOML inventory"
        )
    _refuse_settings(Path(program).with_name("ansible-config"))
    answer = _run(program, "-i", str(path.absolute()), "--list")
    again = f"see: ansible-inventory -i {shlex.quote(str(path))} --list"
    if answer.overflow:
        raise UsageError(f"{path}: Ansible writes more than {LARGEST >> 20} MiB: split it")
    if answer.status in (None, TIMED_OUT) or answer.seconds >= LIST_S:
        raise UsageError(
            f"{path}: ansible-inventory gives no answer in {LIST_S:g} s (a script or a plugin "
            f"that hangs?): {again}"
        )
    if answer.status != 0:
        folder = "; in a folder Ansible passes over .ini and .cfg files" if path.is_dir() else ""
        raise UsageError(
            f"{path}: ansible-inventory ends with {answer.status} ({_reason(answer.stderr)}"
            f"{folder}): {again}"
        )
    return answer.stdout


def _refuse_settings(program: Path) -> None:
    """As root: UsageError for what Ansible is set to load, where another user could change it.

    Plugins and vault scripts are code, whatever the inventory says. `dump` loads none of them.
    """
    if os.geteuid() != 0:
        return
    try:
        answer = _run(str(program), "dump", "--format=json")
        settings = msgspec.json.decode(answer.stdout, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise UsageError(
            "as root preflight runs no ansible-inventory before it knows what Ansible loads, and "
            f"{program} does not say; see: ansible-config dump --format=json"
        ) from error
    for setting in settings:
        value = setting.get("value") if _LOADS.search(str(setting.get("name"))) else None
        for text in value if isinstance(value, list) else [value]:
            if path := _PATH.fullmatch(str(text)):
                refuse_all_below(Path(path[1]).expanduser())


def _run(program: str, *words: str) -> Answer:
    # From the folder we stand in, which may be anybody's, Ansible takes code and variables.
    chdir = ["--chdir=/"] if os.geteuid() == 0 or sys.flags.isolated else []
    argv = ["env", *chdir, *_ENVIRON, program, *words]
    remote = LocalConnection().start(argv, timeout_s=LIST_S, limit=LARGEST)
    try:
        remote.finish_input()
        return remote.wait(LIST_S)
    finally:
        remote.kill()


def _reason(stderr: bytes) -> str:
    """Its first complaint; not the line of the file that it quotes, which may be a password."""
    text = stderr.decode("utf-8", "replace")
    found = _TROUBLE.search(text)
    said = (found[1] if found else text).split("The offending line")[0]
    return (
        legible(re.split(r"\n(?:[^\S\n]*(?=\[?(?:ERROR|WARNING))|\n)", said)[0], 160) or "no reason"
    )
