"""Logging in with keys alone: never a password, never a prompt, nothing forwarded."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import paramiko

    from preflight.transport.sshconfig import Route

MOST_KEYS = 5
"""sshd hangs up after six failures (MaxAuthTries), and newer ones then shut our address out."""


@dataclass(frozen=True, slots=True)
class _Key:
    label: str
    secret: paramiko.PKey


def log_in(transport: paramiko.Transport, route: Route, ends: float) -> None:
    """Try the keys in turn; ReachError("login") that names them if none is accepted."""
    tried: list[str] = []
    unusable: list[str] = []
    for key in _keys(route, unusable):
        if len(tried) == MOST_KEYS:
            unusable.append(f"more keys than {MOST_KEYS}")
            break
        tried.append(key.label)
        if _accepted(transport, route, key, ends):
            return
        if not transport.is_active():
            break
    raise _refused(route, tried, unusable)


def _keys(route: Route, unusable: list[str]) -> Iterator[_Key]:
    """The configured files, then the agent's; what cannot be used is added to `unusable`."""
    for file in route.identity_files:
        try:
            yield _Key(file, _load(file, Path(file).stat().st_mtime_ns))
        except Exception as error:  # noqa: BLE001 (cryptography raises whatever it likes)
            unusable.append(f"{file} ({legible(str(error), 80)})")
            yield from _agent_twin(file)
    if route.use_agent:
        yield from _agent_keys()


@lru_cache(maxsize=16)
def _load(file: str, _mtime_ns: int) -> paramiko.PKey:
    import paramiko

    return paramiko.PKey.from_path(file)


def _agent_twin(file: str) -> Iterator[_Key]:
    """The agent's copy of a key whose file has a passphrase, found by the public half beside it."""
    with suppress(OSError):
        public = Path(file + ".pub").read_text(encoding="utf-8", errors="replace").split()
        yield from (key for key in _agent_keys() if key.secret.get_base64() in public)


def _agent_keys() -> Iterator[_Key]:
    import paramiko

    if "SSH_AUTH_SOCK" not in os.environ:
        return
    with suppress(paramiko.SSHException, OSError), closing(paramiko.Agent()) as agent:
        for key in agent.get_keys():
            yield _Key(f"the agent's {legible(key.comment, 60) or key.fingerprint}", key)


def _accepted(transport: paramiko.Transport, route: Route, key: _Key, ends: float) -> bool:
    import paramiko

    transport.auth_timeout = max(0.1, ends - time.monotonic())
    try:
        missing = transport.auth_publickey(route.user, key.secret)
    except paramiko.BadAuthenticationType as error:
        raise _other_methods(route, error.allowed_types) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if time.monotonic() >= ends:
            raise _too_slow(route) from error
        return False
    if missing:
        raise _other_methods(route, missing)
    return True


def _other_methods(route: Route, methods: list[str]) -> ReachError:
    return ReachError(
        "login",
        f"{_whom(route)} wants more than a key: {legible(', '.join(methods), 80)}",
        "allow login by key alone for this user; preflight never answers a prompt",
    )


def _too_slow(route: Route) -> ReachError:
    return ReachError(
        "login",
        f"the login of {_whom(route)} had no answer in time",
        "look at the node's load, and at what its login waits for (LDAP, a network home)",
    )


def _refused(route: Route, tried: list[str], unusable: list[str]) -> ReachError:
    """Say what was tried, and give the command that shows the same refusal."""
    without = f"; not usable: {', '.join(unusable)}" if unusable else ""
    if tried:
        sentence = f"{_whom(route)} is refused with {', '.join(tried)}{without}"
        remedy = "add the key's public half to that user's ~/.ssh/authorized_keys on the node"
    else:
        sentence = f"there is no key to log in with as {_whom(route)}{without}"
        remedy = "make a key usable without a prompt (load it into ssh-agent)"
    identity = ["-i", route.identity_files[0]] if len(route.identity_files) == 1 else []
    by_hand = ["ssh", "-o", "BatchMode=yes", "-p", str(route.port), *identity, _whom(route), "true"]
    return ReachError(
        "login",
        sentence,
        f"{remedy}, or correct `user` and `identity_file` in the inventory; "
        f"this must work: `{shlex.join(by_hand)}`",
    )


def _whom(route: Route) -> str:
    return f"{route.user}@{route.hostname}"
