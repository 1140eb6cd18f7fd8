"""One `ssh` per node or jump host that logs in once and lends its connection.

A bastion lets few connections log in at once (sshd's MaxStartups); an ssh per node would be turned
away by it at random, and each of those nodes be called down.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, Final, TypeAlias

from preflight.core.remote_command import ReachError, signal_group
from preflight.core.text import legible
from preflight.fleet.model import Host
from preflight.transport.ssh_config import Once, config_option, no_connection, no_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from preflight.transport.ssh_config import Route


MOST_HOPS: Final = 8
NEWS_S: Final = 1.0
"""For the master's word on why a connection through it failed; it comes before ours fails."""

WAIT_SLACK_S: Final = 2.0
LINE: Final = 4096

_HOP: Final = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^\s,]+)@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:@/\[\],]+)"
    r"(?::(?P<port>\d{1,5}))?/?"
)
_FAILED: Final = re.compile(r"channel (\d+): open failed: (.*)")
_FREED: Final = re.compile(
    r"debug1: channel (\d+): free: direct-tcpip: .{0,200}? for (\S{1,255}) port (\d+),"
)

_Way: TypeAlias = tuple[tuple[str, ...], str | None]


def hop(text: str, ssh_config: str | None) -> Host | None:
    """Read one jump host as ProxyJump writes it; None if it says what we cannot read."""
    match = _HOP.fullmatch(text)
    if match is None:
        return None
    name = match["host"].strip("[]")
    port = int(match["port"]) if match["port"] else None
    return Host(name=name, address=name, user=match["user"], port=port, ssh_config=ssh_config)


class Gate:
    """A login on a jump host, and what it says of the connections that fail behind it."""

    def __init__(self, host: Host, master: Master) -> None:
        self.name = host.name
        self.master = master
        self._host = host
        self._reasons: dict[tuple[str, str], str] = {}
        self._news = threading.Condition()
        threading.Thread(
            target=self._listen, name=f"preflight-jump-{host.name}", daemon=True
        ).start()

    def trouble(self, said: str, route: Route, seconds: float) -> ReachError | None:
        """Say why there was no way on from here; None if the fault lies behind the node's port."""
        if "debug1: Remote protocol version" in said:
            return None
        if "forwarding request failed" in said:
            return self._why_closed(route, seconds)
        if not self.master.alive:
            return in_the_way(self._host, "the connection to it was lost")
        return None

    def _why_closed(self, route: Route, seconds: float) -> ReachError:
        reason = self._reason(route.hostname, route.port)
        kind, _, detail = reason.partition(": ")
        if kind != "connect failed":
            advice = "look at AllowTcpForwarding and PermitOpen in its sshd_config"
            return in_the_way(self._host, f"it forwards no connection: {reason}", advice)
        if re.search(r"not known|resol|nodename|No address", detail):
            return no_name(route.hostname, f"{legible(detail)} (asked on {self.name})")
        return no_connection(route.where, detail, seconds)

    def _reason(self, host: str, port: int) -> str:
        with self._news:
            self._news.wait_for(lambda: (host, str(port)) in self._reasons, NEWS_S)
            return legible(self._reasons.get((host, str(port)), "no reason given"))

    def _listen(self) -> None:
        """Take off what the master says until it ends; it would stop at a full pipe."""
        failed: dict[str, str] = {}
        stderr = self.master.stderr
        lines = BufferedReader(stderr)
        with suppress(OSError, ValueError):
            os.set_blocking(stderr.fileno(), True)
            while line := lines.readline(LINE):
                text = line.decode("utf-8", "replace").strip()
                if match := _FAILED.search(text):
                    failed[match[1]] = match[2]
                elif (match := _FREED.search(text)) and match[1] in failed:
                    with self._news:
                        self._reasons[match[2], match[3]] = failed.pop(match[1])
                        self._news.notify_all()


class Jumps:
    """The jump hosts of a run, each logged in to by whoever comes first."""

    def __init__(self, open_gate: Callable[[Host, float, tuple[str, ...]], Gate]) -> None:
        """`open_gate(host, ends, before)`: logs in to a jump host that has others before it."""
        self._open_gate = open_gate
        self._gates: Once[_Way, Gate] = Once()

    def to(self, hops: tuple[str, ...], ssh_config: str | None, ends: float) -> Gate | None:
        """Reach the last of these jump hosts; None if their names are ssh's own business.

        ReachError("route") that blames the jump host if it lets us not in: the same one for all.
        """
        host = hop(hops[-1], ssh_config)
        if host is None or len(hops) > MOST_HOPS:
            return None
        wait_s = max(0.0, ends - time.monotonic()) + WAIT_SLACK_S
        opened = partial(self._opened, host, ends, hops[:-1])
        try:
            return self._gates.get((hops, ssh_config), opened, wait_s)
        except TimeoutError as error:
            raise in_the_way(host, "its login had no answer in time") from error
        except ReachError as error:
            raise ReachError(error.step, error.sentence, error.advice, blame=error.blame) from error

    def _opened(self, host: Host, ends: float, before: tuple[str, ...]) -> Gate:
        # Those who wait must hear of a failure before their own time is over.
        soon = time.monotonic() + 0.8 * (ends - time.monotonic())
        try:
            return self._open_gate(host, soon, before)
        except ReachError as error:
            if error.blame:
                raise
            advice = error.advice if error.step == "hostkey" else ""
            raise in_the_way(host, error.sentence, advice) from error


def in_the_way(host: Host, sentence: str, advice: str = "") -> ReachError:
    """The jump host is at fault, and nobody knows anything of the nodes behind it."""
    login = [
        *(["-l", host.user] if host.user else []),
        *(["-p", str(host.port)] if host.port else []),
    ]
    words = [
        "ssh",
        *config_option(host.ssh_config),
        "-o",
        "BatchMode=yes",
        *login,
        host.name,
        "true",
    ]
    return ReachError(
        "route",
        f"the jump host {host.name} is in the way: {sentence}",
        advice or f"repair the jump host first, until this works: `{shlex.join(words)}`",
        blame=f"jump host {host.name}",
    )


LOG_KEPT: Final = 256 << 10
"""Bytes of what ssh says on its way in: the last ones; a node's banner may be endless."""

TICK_S: Final = 0.05
REAP_S: Final = 1.0


class Master:
    """An ssh that has logged in, or is about to."""

    def __init__(self, argv: Sequence[str], path: Path) -> None:
        self.socket = path
        self.log = b""
        """What it said until it had logged in (`ssh -v`)."""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is ours to handle; its ProxyCommand ends with it
            env=os.environ | {"SSH_ASKPASS_REQUIRE": "never"},
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs: it ends with the connection."""
        return self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether it still takes commands: one that is dying has closed its socket first."""
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(TICK_S)
            try:
                door.connect(str(self.socket))
            except TimeoutError:
                return self.alive  # too many wait at its door
            except OSError:
                return False
        return self.alive

    @property
    def stderr(self) -> FileIO:
        """What it goes on saying, unbuffered."""
        assert isinstance(self._process.stderr, FileIO)
        return self._process.stderr

    def logged_in(self, ends: float) -> bool:
        """Wait until commands can use it; False when it ended, or time is up."""
        os.set_blocking(self.stderr.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.stderr, selectors.EVENT_READ)
            while not self.socket.exists():
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    return False
                if selector.select(min(left_s, TICK_S)) and not self._heard():
                    self._reap(max(0.0, ends - time.monotonic()))
                    return False
        return True

    def forget_log(self) -> None:
        """Hear no more of it: what it says from now on is for nobody, and may be endless.

        ssh ignores SIGPIPE, so that it may speak to a closed pipe.
        """
        with suppress(OSError):
            self.stderr.close()

    def ask_to_end(self) -> None:
        """Hang up; `end` then reaps it. Never raises."""
        signal_group(self._process, signal.SIGTERM)

    def end(self) -> None:
        """Hang up, wait until it is gone, remove its socket. Never raises."""
        self.ask_to_end()
        if not self._reap(REAP_S):
            signal_group(self._process, signal.SIGKILL)
            self._reap(REAP_S)
        self.forget_log()
        with suppress(OSError):
            self.socket.unlink(missing_ok=True)

    def _heard(self) -> bool:
        """Take what it said; False at the end of it."""
        data = self.stderr.read(1 << 16)
        self.log = (self.log + (data or b""))[-LOG_KEPT:]
        return data != b""

    def _reap(self, wait_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode is not None
