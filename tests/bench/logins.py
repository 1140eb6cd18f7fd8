"""The OpenSSH client on lab hosts, with the lab's keys and its known hosts, checked as ours are."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host

PATIENCE_S = 120
"""Only so that a hang ends the measurement."""


def ssh(host: Host, *command: str) -> list[str]:
    """The command line of one login; `command` goes through the login's shell."""
    return [
        "ssh",
        *("-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"),
        *("-o", f"UserKnownHostsFile={host.known_hosts}", "-o", "GlobalKnownHostsFile=none"),
        *("-i", str(host.identity_file)),
        f"{host.user}@{host.address}",
        *command,
    ]


def bare_logins(hosts: Sequence[Host]) -> None:
    """`ssh host true` on all of them at once."""
    together([ssh(host, "true") for host in hosts])


def together(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands at once and return their standard outputs; RuntimeError if one fails."""
    running = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [one.communicate(timeout=PATIENCE_S) for one in running]
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
                one.wait()
    for one, (_, trouble) in zip(running, said, strict=True):
        if one.returncode:
            raise RuntimeError(f"{one.args!r} ended with {one.returncode}: {trouble[-2000:]}")
    return [out for out, _ in said]
