"""How our ssh differs from the user's own: it asks nothing, trusts nobody new, forwards nothing."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from preflight.transport.sshask import config_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preflight.fleet.model import Host
    from preflight.transport.sshask import Effective

_OURS: Final = {
    "AddKeysToAgent": "no",
    "BatchMode": "yes",
    "ClearAllForwardings": "yes",
    "ControlMaster": "yes",
    "ControlPersist": "no",
    "EscapeChar": "none",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "LogLevel": "DEBUG1",  # the level that tells fingerprints, and how far we came
    "NoHostAuthenticationForLocalhost": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "5",
    "StrictHostKeyChecking": "yes",
    "Tunnel": "no",
    "UpdateHostKeys": "no",
    "VisualHostKey": "no",
}

_GUEST: Final = {
    "BatchMode": "yes",
    "ControlMaster": "no",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
    "ProxyCommand": "false",  # without its master it must fail, not log in anew
}


def master_argv(
    ssh: str, host: Host, config: Effective, socket: Path, *, left_s: float, proxy: str = ""
) -> list[str]:
    """The ssh that logs in. `proxy`: a ProxyCommand that outranks the configuration's."""
    options = {**_OURS, "ConnectTimeout": str(max(1, math.ceil(left_s)))}
    if proxy:
        options["ProxyCommand"] = proxy
    if config.one("forkafterauthentication") == "yes":  # older ones do not know the word
        options["ForkAfterAuthentication"] = "no"
    if host.identity_file:
        options |= {"IdentityFile": _path(host.identity_file), "IdentitiesOnly": "yes"}
    if host.known_hosts:
        options["UserKnownHostsFile"] = _path(host.known_hosts)
        options["GlobalKnownHostsFile"] = "/dev/null"
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    where = [*config_option(host.ssh_config), *port, *user]
    return [ssh, *where, "-N", "-T", "-S", str(socket), *_words(options), "--", host.address]


def guest_argv(ssh: str, socket: Path, *words: str) -> list[str]:
    """An ssh that uses a master's connection or none, and reads no configuration."""
    return [ssh, "-F", "none", "-T", "-S", str(socket), *_words(_GUEST), *words]


def _words(options: dict[str, str]) -> Iterator[str]:
    for key, value in options.items():
        yield from ("-o", f"{key}={value}")


def _path(file: str) -> str:
    """A file name as ssh's options take it: quoted, and its % not read as a token."""
    return '"' + file.replace("%", "%%") + '"'


def proxy_through(ssh: str, socket: Path) -> str:
    """The ProxyCommand that reaches a node through a master on its jump host."""
    words = guest_argv(ssh, socket, "-W")
    return f"{shlex.join(words).replace('%', '%%')} '[%h]:%p' node"
