"""Which SSH reaches a node: paramiko, unless the user's way in needs what it cannot do."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.transport.hostkeys import vouching
from preflight.transport.sshconfig import identity_files, known_hosts_files, read_key, route_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fleet.model import Host
    from preflight.transport.sshask import Effective

_OFF = frozenset(("", "none", "no", "false"))

_BEYOND_PARAMIKO: tuple[tuple[str, str], ...] = (
    ("ProxyJump", "proxyjump"),
    ("ProxyCommand", "proxycommand"),
    ("CertificateFile", "certificatefile"),
    ("RevokedHostKeys", "revokedhostkeys"),
    ("KnownHostsCommand", "knownhostscommand"),
    ("VerifyHostKeyDNS", "verifyhostkeydns"),
    ("PKCS11Provider", "pkcs11provider"),
    ("HostbasedAuthentication", "hostbasedauthentication"),
    ("BindAddress", "bindaddress"),
    ("BindInterface", "bindinterface"),
)
"""Settings that paramiko would ignore, and the node be reached otherwise or not at all."""

KLIST_S = 2.0


def why_openssh(host: Host, config: Effective) -> str:
    """Name what only OpenSSH can do for a node; empty where paramiko reaches it as well.

    `config`: what `ssh -G` says of it. Reads the key files, known_hosts and the ticket cache that
    this names, and contacts nobody.
    """
    return next(_reasons(host, config), "")


def _reasons(host: Host, config: Effective) -> Iterator[str]:
    """Cheap ones first; none is looked for once there is one."""
    for label, key in _BEYOND_PARAMIKO:
        if config.one(key).lower() not in _OFF:
            yield label
    if config.one("addressfamily") not in ("", "any"):
        yield "AddressFamily"
    if not host.identity_file and _is_other_agent(config.one("identityagent")):
        yield "IdentityAgent"
    for key_file in map(Path, identity_files(host, config)):
        if key_file.with_name(f"{key_file.name}-cert.pub").is_file():
            yield "a user certificate"
        if _is_on_a_token(key_file):
            yield "a FIDO key"
    if vouching(known_hosts_files(host, config), route_to(host, config).known_names):
        yield "@cert-authority"
    if config.one("gssapiauthentication") == "yes" and has_ticket():
        yield "Kerberos"


def _is_other_agent(socket: str) -> bool:
    if socket in ("", "none", "SSH_AUTH_SOCK"):
        return False
    return os.path.expandvars(str(Path(socket).expanduser())) != os.environ.get("SSH_AUTH_SOCK")


def _is_on_a_token(key_file: Path) -> bool:
    """Whether the secret is in a security key; its public half says so."""
    try:
        return read_key(f"{key_file}.pub").startswith(b"sk-")
    except OSError:
        return key_file.name.endswith("_sk")


@lru_cache(maxsize=1)
def has_ticket() -> bool:
    """Debian's ssh asks for Kerberos everywhere; only a ticket shows that the user does too."""
    klist = shutil.which("klist")
    if klist is None:
        return False
    try:
        asked = subprocess.run(
            [klist, "-s"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=KLIST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
