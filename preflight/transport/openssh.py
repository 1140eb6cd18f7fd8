"""Reach nodes with the user's own `ssh` and all its features; one login per node for a run."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.core.files import shipped_table
from preflight.core.remote_command import OUTPUT_LIMIT, PipeRemote, ReachError, spawn, with_deadline
from preflight.core.trust import who_may_change
from preflight.transport import reach_error
from preflight.transport.openssh_logins import JumpHosts, Master, hop, login_error
from preflight.transport.ssh_config import SettingsCache, login_options, route_to, silent_agent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.ssh_config import SshSettings


class OpenSSHTransport:
    """Starts one ssh per node, which the node's commands share; see `Master`."""

    name = "openssh"

    def __init__(self, settings: SettingsCache | None = None) -> None:
        self._settings = settings or SettingsCache()
        self._jumps = JumpHosts(self._log_in)
        self._masters: set[Master] = set()
        self._sockets: Sockets | None = None
        self._closed = False
        self._lock = threading.Lock()

    def connect(self, host: Host, timeout_s: float) -> OpenSSHConnection:
        """Log in within that time; ReachError says at which step it failed."""
        master = self._log_in(host, time.monotonic() + timeout_s)
        master.close_log()
        return OpenSSHConnection(master)

    def close(self) -> None:
        """End every login, also those in progress. Never raises."""
        with self._lock:
            self._closed = True
            masters, self._masters = self._masters, set()
            sockets, self._sockets = self._sockets, None
        for master in masters:
            master.hang_up()
        for master in masters:
            master.end()
        if sockets is not None:
            sockets.close()
        atexit.unregister(self.close)

    def _log_in(self, host: Host, deadline: float, jumps: tuple[str, ...] = ()) -> Master:
        """Log in; `jumps`: jump hosts to go through, if the configuration names none."""
        started_at = time.monotonic()
        config = self._settings.get(host, max(0.1, deadline - started_at))
        hops = jumps or _hops(config)
        loops = not jumps and _is_own_jump_host(host, config, hops)
        jump = self._jumps.reach(hops, host.ssh_config, deadline) if hops and not loops else None
        proxy = "none" if loops else proxy_through(_ssh(), jump.master.socket) if jump else ""
        master = self._start_master(host, config, proxy, deadline)
        try:
            if master.wait_for_login(deadline):
                return master
            timed_out = master.alive
        finally:
            if not master.socket.exists():
                self._discard(master)
        log, seconds = master.log.decode("utf-8", "replace"), time.monotonic() - started_at
        route = replace(route_to(host, config), via=jump.name if jump else "")
        jump_error = jump.connect_error(log, route, seconds) if jump else None
        raise jump_error or login_error(log, route, seconds, timed_out=timed_out)

    def _start_master(self, host: Host, config: SshSettings, proxy: str, deadline: float) -> Master:
        ssh = _ssh()
        with self._lock:
            if self._closed:
                raise ReachError("answer", "the run ended before its turn came", "run again")
            if self._sockets is None:
                self._sockets = Sockets()
                atexit.register(self.close)
            socket = self._sockets.new()
            left_s = deadline - time.monotonic()
            argv = master_argv(ssh, host, config, socket, left_s=left_s, proxy=proxy)
            master = Master(argv, socket)
            self._masters.add(master)
        return master

    def _discard(self, master: Master) -> None:
        with self._lock:
            self._masters.discard(master)
        master.end()


class OpenSSHConnection:
    """One login; each command is a separate ssh that uses it."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> OpenSSHRemote:
        """Start it through the user's shell, every word quoted; ReachError if the node is lost."""
        if not self._master.serves:
            raise reach_error("lost")
        mark = f"@preflight-{secrets.token_hex(8)}"
        command = shlex.join(["sh", "-c", _REPORT_STATUS, mark, *with_deadline(argv, timeout_s)])
        ssh = shutil.which("ssh") or "ssh"
        try:
            process = spawn(client_argv(ssh, self._master.socket, "--", "node", command))
        except OSError as error:
            raise reach_error("no_process", reason=error.strerror) from error
        return OpenSSHRemote(process, timeout_s, limit, mark=mark, master=self._master)

    def close(self) -> None:
        """Hang up; commands that still run lose their channels."""
        self._master.hang_up()


class OpenSSHRemote(PipeRemote):
    """One command through a master: a local ssh process, with the status that the node reports."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        timeout_s: float,
        limit: int,
        *,
        mark: str,
        master: Master,
    ) -> None:
        super().__init__(process, timeout_s, limit)
        self._mark = re.compile(re.escape(mark.encode()) + rb" (\d{1,3})\n")
        self._master = master
        self._node_status: int | None = None

    def _add_stderr(self, data: bytes) -> None:
        super()._add_stderr(data)
        if self._node_status is None and (match := self._buffer.cut_stderr(self._mark)):
            self._node_status = int(match[1])

    def _exited(self, wait_s: float) -> bool:
        return self._node_status is not None or super()._exited(wait_s)

    def _release_once(self) -> int | None:
        status = super()._release_once()
        if self._node_status is not None:
            return self._node_status
        if status != SSH_FAILED:
            return status
        return SIGNALLED if self._master.serves else None


_OPTIONS: Final = shipped_table(__file__, "openssh_options.toml")


def master_argv(
    ssh: str, host: Host, config: SshSettings, socket: Path, *, left_s: float, proxy: str = ""
) -> list[str]:
    """Return the ssh that logs in. `proxy`: a ProxyCommand that overrides the configuration's."""
    options = {**_OPTIONS["login"], "ConnectTimeout": str(max(1, math.ceil(left_s)))}
    if proxy:
        options["ProxyCommand"] = proxy
    if config.first("forkafterauthentication") == "yes":  # older ssh does not know the option
        options["ForkAfterAuthentication"] = "no"
    if silent_agent(config.first("identityagent")):
        options["IdentityAgent"] = "none"
    if host.identity_file:
        options |= {"IdentityFile": _quote_path(host.identity_file), "IdentitiesOnly": "yes"}
    if host.known_hosts:
        options["UserKnownHostsFile"] = _quote_path(host.known_hosts)
        options["GlobalKnownHostsFile"] = "/dev/null"
    words = [ssh, *login_options(host), "-N", "-T", "-S", str(socket), *_option_words(options)]
    return [*words, "--", host.address]


def client_argv(ssh: str, socket: Path, *words: str) -> list[str]:
    """Return an ssh that uses only a master's connection, and reads no configuration."""
    return [ssh, "-F", "none", "-T", "-S", str(socket), *_option_words(_OPTIONS["command"]), *words]


def _option_words(options: dict[str, str]) -> Iterator[str]:
    for key, value in options.items():
        yield from ("-o", f"{key}={value}")


def _quote_path(file: str) -> str:
    """Quote a file name for ssh's options, its % escaped."""
    return '"' + file.replace("%", "%%") + '"'


def proxy_through(ssh: str, socket: Path) -> str:
    """Return the ProxyCommand that reaches a node through a master on its jump host."""
    words = client_argv(ssh, socket, "-W")
    return f"{shlex.join(words).replace('%', '%%')} '[%h]:%p' node"


SSH_FAILED: Final = 255
SIGNALLED: Final = -1
"""Ended by a signal of unknown number."""

_REPORT_STATUS: Final = '"$@"; s=$?; echo "$0 $s" >&2; exit $s'
"""Makes the node write a command's exit status to stderr: `MARK 137`.

ssh's client exits with 255 for a command killed by a signal, for one that exits 255 and for a lost
connection alike, and does not exit while a grandchild holds the output open.
"""


LONGEST_SOCKET: Final = 104
"""Bytes of the longest Unix socket path that every system allows, its final NUL included."""

_SUFFIX: Final = len("/65535") + len(".0123456789abcdef") + 1
"""Bytes after the folder's path: our number, ssh's random suffix while it binds, the NUL."""

_GUARD: Final = """
read -r _
for socket in "$0"/*; do
    [ -S "$socket" ] && ssh -F none -o ProxyCommand=false -S "$socket" -O exit node 2>/dev/null
done
rm -rf "$0"
"""
"""Ends every login as soon as the process that holds its stdin is gone, however it ended."""

LEAVE_S: Final = 5.0

_TEMPORARY_FOLDERS: Final = (tempfile.gettempdir(), "/tmp")  # noqa: S108  mkdtemp makes a folder of ours


class Sockets:
    """A folder of mode 0700 with an unpredictable name, and a guard process that survives us."""

    def __init__(self) -> None:
        self.folder = _private_folder()
        self._numbers = itertools.count()
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def new(self) -> Path:
        """Return the path of a socket that does not exist yet."""
        return self.folder / str(next(self._numbers))

    def close(self) -> None:
        """Remove the folder; logins that still run lose their sockets. Never raises."""
        with suppress(OSError):
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        try:
            self._guard.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _private_folder() -> Path:
    troubles = []
    for base in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), *_TEMPORARY_FOLDERS)):
        if not base.startswith("/"):
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=base))
        except OSError as error:
            troubles.append(f"{base}: {error.strerror}")
            continue
        trouble = "" if os.geteuid() else who_may_change(folder)
        if len(os.fsencode(folder)) + _SUFFIX > LONGEST_SOCKET or not str(folder).isprintable():
            trouble = "its path is too long for a socket"
        if not trouble:
            return folder
        folder.rmdir()
        troubles.append(f"{base}: {trouble}")
    raise reach_error("no_folder", troubles="; ".join(troubles))


def _ssh() -> str:
    ssh = shutil.which("ssh")
    if ssh is None:
        raise reach_error("no_ssh")
    return ssh


def _hops(config: SshSettings) -> tuple[str, ...]:
    jumps = config.first("proxyjump")
    return () if jumps in ("", "none") else tuple(jumps.split(","))


def _is_own_jump_host(host: Host, config: SshSettings, hops: tuple[str, ...]) -> bool:
    """Whether a `Host *` meant for other nodes makes a node its own jump host: ssh would loop."""
    jump = hop(hops[-1], None) if hops else None
    return jump is not None and jump.address in (host.address, config.first("hostname"))
