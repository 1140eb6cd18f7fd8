"""How to log in to a node, from the inventory and the user's own `ssh` configuration."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import threading
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from msgspec import Struct

from preflight.core.files import read_regular, typed_path
from preflight.core.text import excerpt
from preflight.transport import reach_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from preflight.core.remote_command import ReachError
    from preflight.fleet.model import Host


BEYOND_PARAMIKO = (
    *("ProxyJump", "ProxyCommand", "CertificateFile", "RevokedHostKeys", "KnownHostsCommand"),
    *("VerifyHostKeyDNS", "PKCS11Provider", "HostbasedAuthentication"),
    *("BindAddress", "BindInterface"),
)
"""Settings that paramiko ignores: it would reach the node in another way, or not at all."""

_SETTINGS_READ = frozenset((
    *map(str.lower, BEYOND_PARAMIKO), "addressfamily", "forkafterauthentication",
    "globalknownhostsfile", "gssapiauthentication", "hostkeyalias", "hostname", "identityagent",
    "identityfile", "port", "user", "userknownhostsfile",
))  # fmt: skip
"""Settings that preflight reads; all 90 of them for thousands of nodes would fill memory."""

_LoginKey: TypeAlias = tuple[str, str | None, int | None, str | None]


class SshSettings(Struct, frozen=True):
    """The settings of `ssh -G` in lower case, each with all its values; empty without an ssh."""

    settings: dict[str, tuple[str, ...]] = {}

    def first(self, key: str) -> str:
        """Return the first value of a setting, or "" if it has none."""
        return next(iter(self.settings.get(key, ())), "")


K = TypeVar("K")
V = TypeVar("V")


class FetchOnce(Generic[K, V]):
    """A cache for threads: the first caller of a key fetches its value, the others wait for it."""

    def __init__(self) -> None:
        self._answers: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def get(self, key: K, fetch: Callable[[], V], wait_s: float) -> V:
        """Return the value, or raise what `fetch` raised; TimeoutError after `wait_s`."""
        with self._lock:
            is_first = key not in self._answers
            answer = self._answers.setdefault(key, Future())
        if is_first:
            try:
                answer.set_result(fetch())
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result(wait_s)


class SettingsCache:
    """A cache of the settings that `ssh -G` prints."""

    def __init__(self) -> None:
        self._answers: FetchOnce[_LoginKey, SshSettings] = FetchOnce()

    def get(self, host: Host, timeout_s: float) -> SshSettings:
        """Return the settings for a node; ReachError if ssh cannot read them."""
        key = (host.address, host.user, host.port, host.ssh_config)
        try:
            return self._answers.get(key, partial(_ask_ssh, host, timeout_s), timeout_s)
        except TimeoutError as error:
            raise _config_error(host, f"no answer in {timeout_s:g} s") from error


def login_options(host: Host) -> list[str]:
    """Return ssh's options for the inventory's configuration file, port and user of a node."""
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    return [*config_option(host.ssh_config), *port, *user]


def config_option(ssh_config: str | None) -> list[str]:
    """Return ssh's option for a configuration file other than the user's own."""
    return ["-F", ssh_config] if ssh_config else []


def _ask_ssh(host: Host, timeout_s: float) -> SshSettings:
    ssh = shutil.which("ssh")
    if ssh is None:
        return SshSettings()
    argv = [ssh, "-G", *login_options(host), "--", host.address]
    try:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise _config_error(host, f"no answer in {timeout_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise _config_error(host, excerpt(error.stderr) or f"exit {error.returncode}") from error
    settings: dict[str, tuple[str, ...]] = {}
    for line in result.stdout.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        if key.lower() in _SETTINGS_READ:
            settings[key.lower()] = (*settings.get(key.lower(), ()), value)
    return SshSettings(settings)


def _config_error(host: Host, reason: str) -> ReachError:
    file = host.ssh_config or "~/.ssh/config"
    words = shlex.join(["ssh", "-G", *config_option(host.ssh_config)])
    return reach_error("bad_configuration", reason=reason, file=file, words=words)


PORT = 22
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_LARGEST_KEY = 64 << 10


class Route(Struct, frozen=True, kw_only=True):
    """Where to connect, as which user, with which keys and known_hosts files."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    use_agent: bool
    silent_agent: str = ""
    """The socket of an agent that does not answer, and is not used."""
    known_hosts: tuple[str, ...]
    alias: str | None = None
    typed: str = ""
    """The host as a user types it for `ssh`, whose configuration may map it to another name."""
    ssh_config: str | None = None
    via: str = ""
    """The jump host, if there is one."""

    @property
    def known_names(self) -> tuple[str, ...]:
        """The host's names in known_hosts files, the exact one first.

        As in OpenSSH, a key without a port counts for every port of the host.
        """
        if self.alias:
            return (self.alias,)
        if self.port == PORT:
            return (self.hostname,)
        return (f"[{self.hostname}]:{self.port}", self.hostname)

    @property
    def through(self) -> tuple[str, ...]:
        """What runs a command on the jump host: the words in front of it."""
        return ("ssh", *config_option(self.ssh_config), self.via) if self.via else ()

    @property
    def where(self) -> str:
        """Host, port and jump host, for messages."""
        return f"{self.hostname} port {self.port}" + (f" behind {self.via}" if self.via else "")

    @property
    def login(self) -> str:
        """USER@HOST, for messages."""
        return f"{self.user}@{self.hostname}"


def route_to(host: Host, config: SshSettings) -> Route:
    """Return the route of the inventory, completed by `ssh -G`.

    It has the inventory's key, even if missing; else ssh's keys that exist.
    """
    if host.identity_file:
        keys = _expand_paths([host.identity_file])
    else:
        identities = _expand_paths(config.settings.get("identityfile") or IDENTITIES)
        keys = tuple(file for file in identities if Path(file).is_file())
    files = f"{config.first('userknownhostsfile')} {config.first('globalknownhostsfile')}"
    known_hosts = [host.known_hosts] if host.known_hosts else files.split() or KNOWN_HOSTS
    return Route(
        hostname=config.first("hostname") or host.address,
        port=host.port or int(config.first("port") or PORT),
        user=host.user or config.first("user") or getpass.getuser(),
        identity_files=keys,
        use_agent=not host.identity_file and config.first("identityagent") != "none",
        silent_agent=silent_agent(config.first("identityagent")),
        known_hosts=tuple(file for file in _expand_paths(known_hosts) if file != "none"),
        alias=config.first("hostkeyalias") or None,
        typed=host.address,
        ssh_config=host.ssh_config,
    )


def read_key(file: str) -> bytes:
    """Read a key or its public half, which any user may have put there; OSError."""
    return read_regular(Path(file), _LARGEST_KEY)


def _expand_paths(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(typed_path(file)) for file in files)


AGENT_S = 2.0
_AGENT = "SSH_AUTH_SOCK"
_LIST_KEYS = b"\0\0\0\1\x0b"
"""SSH_AGENTC_REQUEST_IDENTITIES (draft-ietf-sshm-ssh-agent)."""


def agent_socket(agent: str = "") -> str:
    """Return the socket that a value of IdentityAgent means; SSH_AUTH_SOCK's without one."""
    if agent in ("", _AGENT):
        return os.environ.get(_AGENT, "")
    return os.path.expandvars(str(typed_path(agent)))


def silent_agent(identity_agent: str = "") -> str:
    """Return the socket of IdentityAgent (or SSH_AUTH_SOCK) if its agent does not answer.

    ssh and paramiko would wait for it until the node's deadline, and the node would be blamed.
    """
    path = "" if identity_agent == "none" else agent_socket(identity_agent)
    return path if path and _is_silent(path) else ""


@lru_cache(maxsize=16)
def _is_silent(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(AGENT_S)
        try:
            agent.connect(path)
            agent.sendall(_LIST_KEYS)
            agent.recv(1)
        except OSError as error:
            return isinstance(error, TimeoutError)
    return False


def no_name(name: str, reason: str) -> ReachError:
    """Return the error for a name that does not resolve."""
    return reach_error("no_name", name=excerpt(name, 80), reason=reason)


def no_connection(where: str, reason: str, seconds: float) -> ReachError:
    """Return the error for a connection that the kernel, here or on a jump host, did not make."""
    if reason == "Connection refused":
        return reach_error("refuses", where=where)
    if "timed out" in reason:
        return reach_error("no_answer", where=where, seconds=seconds)
    return reach_error("unreachable", where=where, why=excerpt(reason))


def login_wants_more(route: Route, methods: Sequence[str]) -> ReachError:
    """Return the error for a login that needs more than a key."""
    return reach_error("wants_more", login=route.login, methods=excerpt(", ".join(methods), 80))


def login_refused(route: Route, tried: Sequence[str], unusable: Sequence[str]) -> ReachError:
    """Say what was tried, and give the command that shows the same refusal."""
    if route.silent_agent:
        unusable = [*unusable, f"the agent at {route.silent_agent} (silent for {AGENT_S:.0f} s)"]
    skipped = f"; not usable: {', '.join(unusable)}" if unusable else ""
    if tried:
        sentence = f"{route.login} is refused with {', '.join(tried)}{skipped}"
        remedy = "add the key's public half to that user's ~/.ssh/authorized_keys on the node"
    else:
        sentence = f"there is no key to log in with as {route.login}{skipped}"
        remedy = "make a key usable without a prompt (load it into ssh-agent)"
    identity = ["-i", route.identity_files[0]] if len(route.identity_files) == 1 else []
    options = [*config_option(route.ssh_config), "-o", "BatchMode=yes", "-p", str(route.port)]
    words = ["ssh", *options, *identity, f"{route.user}@{route.typed or route.hostname}", "true"]
    return reach_error("refused", sentence=sentence, remedy=remedy, words=shlex.join(words))
