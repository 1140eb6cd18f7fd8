"""Nodes by way of the user's own `ssh`: all that it can do, with one login per node for a run."""

from __future__ import annotations

import atexit
import secrets
import shlex
import shutil
import threading
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.transport.openssh_jump import Gate, Jumps, hop
from preflight.transport.openssh_log import trouble
from preflight.transport.openssh_master import Master
from preflight.transport.openssh_options import guest_argv, master_argv, proxy_through
from preflight.transport.openssh_remote import OpenSSHRemote, marked
from preflight.transport.openssh_sockets import Sockets
from preflight.transport.pipes import spawn
from preflight.transport.protocol import OUTPUT_LIMIT, ReachError
from preflight.transport.sshask import Asked
from preflight.transport.sshconfig import route_to
from preflight.transport.streams import deadlined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host
    from preflight.transport.sshask import Effective


class OpenSSHTransport:
    """Starts one ssh per node, which the node's commands share; see `openssh_master`."""

    name = "openssh"

    def __init__(self, asked: Asked | None = None) -> None:
        self._asked = asked or Asked()
        self._jumps = Jumps(self._open_gate)
        self._masters: set[Master] = set()
        self._sockets: Sockets | None = None
        self._closed = False
        self._lock = threading.Lock()

    def connect(self, host: Host, timeout_s: float) -> OpenSSHConnection:
        """Log in within that time; ReachError says at which step it failed."""
        master = self._log_in(host, time.monotonic() + timeout_s)
        master.forget_log()
        return OpenSSHConnection(master)

    def close(self) -> None:
        """End every login, also those that are being made. Never raises."""
        with self._lock:
            self._closed = True
            masters, self._masters = self._masters, set()
            sockets, self._sockets = self._sockets, None
        for master in masters:
            master.ask_to_end()
        for master in masters:
            master.end()
        if sockets is not None:
            sockets.close()
        atexit.unregister(self.close)

    def _open_gate(self, host: Host, ends: float, before: tuple[str, ...]) -> Gate:
        return Gate(host, self._log_in(host, ends, before))

    def _log_in(self, host: Host, ends: float, before: tuple[str, ...] = ()) -> Master:
        """`before`: jump hosts to go through, where the configuration does not say it."""
        began = time.monotonic()
        config = self._asked.of(host, max(0.1, ends - began))
        hops = before or _hops(config)
        loops = not before and _is_last(host, config, hops)
        gate = self._jumps.to(hops, host.ssh_config, ends) if hops and not loops else None
        proxy = "none" if loops else proxy_through(_ssh(), gate.master.socket) if gate else ""
        master = self._started(host, config, proxy, ends)
        try:
            if master.logged_in(ends):
                return master
            timed_out = master.alive
        finally:
            if not master.socket.exists():
                self._drop(master)
        said, seconds = master.log.decode("utf-8", "replace"), time.monotonic() - began
        route = replace(route_to(host, config), via=gate.name if gate else "")
        behind = gate.trouble(said, route, seconds) if gate else None
        raise behind or trouble(said, route, seconds, timed_out=timed_out)

    def _started(self, host: Host, config: Effective, proxy: str, ends: float) -> Master:
        ssh = _ssh()
        with self._lock:
            if self._closed:
                raise ReachError("answer", "the run ended before its turn came", "run again")
            if self._sockets is None:
                self._sockets = Sockets()
                atexit.register(self.close)
            socket = self._sockets.new()
            left_s = ends - time.monotonic()
            argv = master_argv(ssh, host, config, socket, left_s=left_s, proxy=proxy)
            master = Master(argv, socket)
            self._masters.add(master)
        return master

    def _drop(self, master: Master) -> None:
        with self._lock:
            self._masters.discard(master)
        master.end()


def _ssh() -> str:
    ssh = shutil.which("ssh")
    if ssh is None:
        raise ReachError(
            "route",
            "there is no ssh on this machine, and the openssh transport needs it",
            'install openssh-client here, or write transport = "paramiko" in the inventory',
        )
    return ssh


def _hops(config: Effective) -> tuple[str, ...]:
    told = config.one("proxyjump")
    return () if told in ("", "none") else tuple(told.split(","))


def _is_last(host: Host, config: Effective, hops: tuple[str, ...]) -> bool:
    """Whether a node is its own jump host, by a `Host *` meant for the others: ssh would loop."""
    last = hop(hops[-1], None) if hops else None
    return last is not None and last.address in (host.address, config.one("hostname"))


class OpenSSHConnection:
    """One login; each command is an ssh of its own that uses it."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> OpenSSHRemote:
        """Start it through the user's shell, every word quoted; ReachError if the node is lost."""
        if not self._master.serves:
            raise ReachError(
                "answer",
                "the node runs no command for this login: line lost",
                "look at sshd's log on the node (a restart, ClientAlive), and at the network",
            )
        mark = f"@preflight-{secrets.token_hex(8)}"
        command = shlex.join(marked(deadlined(argv, timeout_s), mark))
        ssh = shutil.which("ssh") or "ssh"
        try:
            process = spawn(guest_argv(ssh, self._master.socket, "--", "node", command))
        except OSError as error:
            raise ReachError(
                "answer",
                f"cannot start ssh here: {error.strerror}",
                "free memory or processes here",
            ) from error
        return OpenSSHRemote(process, timeout_s, limit, mark=mark, connected=self._connected)

    def close(self) -> None:
        """Hang up; commands that still run lose their channels."""
        self._master.ask_to_end()

    def _connected(self) -> bool:
        return self._master.serves
