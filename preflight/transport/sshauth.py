"""Logging in with keys alone: never a password, never a prompt, nothing forwarded."""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.transport.legible import legible
from preflight.transport.sshconfig import read_key
from preflight.transport.sshwords import login_refused, login_slow, login_wants_more

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
    raise login_refused(route, tried, unusable)


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

    # paramiko opens a key twice, and waits for ever where it is a pipe.
    with os.fdopen(os.memfd_create("key"), "wb", buffering=0) as copy:
        copy.write(read_key(file))
        key = paramiko.PKey.from_path(f"/proc/self/fd/{copy.fileno()}")
    with suppress(FileNotFoundError):
        key.load_certificate(read_key(f"{file}-cert.pub").decode())
    return key


def _agent_twin(file: str) -> Iterator[_Key]:
    """The agent's copy of a key whose file has a passphrase, found by the public half beside it."""
    with suppress(OSError):
        public = read_key(f"{file}.pub").decode(errors="replace").split()
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
        raise login_wants_more(route, error.allowed_types) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if time.monotonic() >= ends:
            raise login_slow(route) from error
        return False
    if missing:
        raise login_wants_more(route, missing)
    return True
