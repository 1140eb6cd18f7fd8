"""What the user's own `ssh` would do for a node: asked of OpenSSH once per node, never parsed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from preflight.fleet.model import Host

_KEPT = frozenset(
    (
        "addressfamily",
        "bindaddress",
        "bindinterface",
        "certificatefile",
        "forkafterauthentication",
        "globalknownhostsfile",
        "gssapiauthentication",
        "hostbasedauthentication",
        "hostkeyalias",
        "hostname",
        "identityagent",
        "identityfile",
        "knownhostscommand",
        "pkcs11provider",
        "port",
        "proxycommand",
        "proxyjump",
        "revokedhostkeys",
        "user",
        "userknownhostsfile",
        "verifyhostkeydns",
    )
)
"""Settings that somebody here reads; all 90 of them for thousands of nodes would fill memory."""

_Way: TypeAlias = tuple[str, str | None, int | None, str | None]


class Effective(Struct, frozen=True):
    """The settings of `ssh -G` in lower case, each with all its values; none without an ssh."""

    settings: dict[str, tuple[str, ...]] = {}

    def one(self, key: str) -> str:
        """Return its first value, or nothing."""
        return next(iter(self.settings.get(key, ())), "")

    def every(self, key: str) -> tuple[str, ...]:
        """Return all its values."""
        return self.settings.get(key, ())


class Asked:
    """Answers of `ssh -G`, each fetched once, whoever asks first."""

    def __init__(self) -> None:
        self._answers: dict[_Way, Future[Effective]] = {}
        self._lock = threading.Lock()

    def of(self, host: Host, timeout_s: float) -> Effective:
        """Return the settings for a node; ReachError where ssh itself cannot read them."""
        key = (host.address, host.user, host.port, host.ssh_config)
        with self._lock:
            answer = self._answers.get(key)
            is_first = answer is None
            if answer is None:
                answer = self._answers[key] = Future()
        if is_first:
            try:
                answer.set_result(_ask(host, timeout_s))
            except BaseException as error:
                answer.set_exception(error)
                raise
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            raise _unreadable(host, f"no answer in {timeout_s:g} s") from error


def config_option(ssh_config: str | None) -> list[str]:
    """Name the configuration file that ssh must read, if it is not the user's own."""
    return ["-F", ssh_config] if ssh_config else []


def _ask(host: Host, timeout_s: float) -> Effective:
    ssh = shutil.which("ssh")
    if ssh is None:
        return Effective()
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    argv = [ssh, "-G", *config_option(host.ssh_config), *port, *user, "--", host.address]
    try:
        asked = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(host, f"no answer in {timeout_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise _unreadable(host, legible(error.stderr) or f"exit {error.returncode}") from error
    settings: dict[str, tuple[str, ...]] = {}
    for line in asked.stdout.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        if key.lower() in _KEPT:
            settings[key.lower()] = (*settings.get(key.lower(), ()), value)
    return Effective(settings)


def _unreadable(host: Host, reason: str) -> ReachError:
    file = host.ssh_config or "~/.ssh/config"
    words = shlex.join(["ssh", "-G", *config_option(host.ssh_config)])
    return ReachError(
        "route",
        f"ssh's configuration for it cannot be read: {reason}",
        # No address, so that one file that fails every node is one finding.
        f"correct {file} on this machine until `{words} NODE` works",
    )
