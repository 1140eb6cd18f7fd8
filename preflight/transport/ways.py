"""Choose the transport of each node, and do the same work on many nodes at once.

Each transport is made once, for all the nodes that it serves. One slow node does not delay others:
work on many nodes has one deadline.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from preflight.core.remote_command import LocalConnection, ReachError, run_here
from preflight.core.statistics import grouped
from preflight.errors import PreflightError, UsageError
from preflight.transport import ssh_config, start_thread
from preflight.transport.host_keys import has_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from preflight.core.remote_command import Connection, Shortfall
    from preflight.fleet.model import Host
    from preflight.transport.ssh_config import SshSettings


@runtime_checkable
class RankConnections(Protocol):
    """A connection to a node through the job's own ranks, one per rail."""

    shortfall: Shortfall | None
    """Ranks of the node that do not answer; None when all do."""

    @property
    def ranks(self) -> Sequence[Connection]:
        """A connection to each rank of the node, in the order of its rails."""


class Transport(Protocol):
    """A way to reach nodes."""

    name: str

    def connect(self, host: Host, timeout_s: float) -> Connection:
        """Log in; raises ReachError that says which step failed."""

    def close(self) -> None:
        """Close what was set up for the whole fleet. Never raises."""


ASK_S = 10.0
"""Deadline of `ssh -G` for one node; a `Match exec` of the configuration may be slow."""

MOST_ASKED = 16


class Choice(Struct, frozen=True):
    """The transport of a node, and why it was chosen if none was configured."""

    transport: str
    why: str = ""


class Ways:
    """Connects to the nodes of one run. Cheap to make; contacts no node before `connect`."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts = grouped((host.transport, host) for host in hosts)
        self._settings = ssh_config.SettingsCache()
        self._chosen: dict[str, Choice] = {}
        self._open: dict[str, Transport] = {}
        self._lock = threading.Lock()

    def use(self, transport: Transport) -> None:
        """Use an open transport for the nodes that name it."""
        with self._lock:
            self._open[transport.name] = transport

    def way(self, host: Host) -> str:
        """Name the transport that serves a node."""
        return self.choose(host).transport

    def choose(self, host: Host, timeout_s: float = ASK_S) -> Choice:
        """Choose paramiko or OpenSSH if the inventory leaves it open; contacts no node.

        If `ssh -G` fails it is paramiko, whose `connect` reports the reason as a finding.
        """
        if host.transport != "ssh":
            return Choice(host.transport)
        if host.name not in self._chosen:
            try:
                why = why_openssh(host, self._settings.get(host, timeout_s))
            except ReachError:
                why = ""
            usable = why and shutil.which("ssh")
            self._chosen[host.name] = Choice("openssh", why) if usable else Choice("paramiko")
        return self._chosen[host.name]

    def choose_all(self, deadline_s: float) -> dict[str, Choice]:
        """Return the transport of every node by name, without those not found out in time."""
        hosts = [host for group in self._hosts.values() for host in group]
        fan_out(self._hosts.get("ssh", ()), self.choose, deadline_s=deadline_s, at_most=MOST_ASKED)
        known = (host for host in hosts if host.transport != "ssh" or host.name in self._chosen)
        return {host.name: self.choose(host) for host in known}

    def connect(self, host: Host, timeout_s: float) -> Connection:
        """Log in to a node; raises ReachError that says which step failed."""
        return self._transport(self.choose(host, timeout_s).transport).connect(host, timeout_s)

    def close(self) -> None:
        """Close everything that was set up for the whole fleet. Never raises."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _transport(self, name: str) -> Transport:
        with self._lock:
            if name not in self._open:
                self._open[name] = transport_for(name, self._hosts.get(name, ()), self._settings)
            return self._open[name]


def transport_for(
    name: str, hosts: Sequence[Host] = (), settings: ssh_config.SettingsCache | None = None
) -> Transport:
    """Return the transport of that name.

    `hosts`: all the nodes that it will serve, for a transport that connects to all at once.
    """
    if name == "local":
        return LocalTransport()
    if name == "paramiko":
        from preflight.transport.paramiko_ssh import ParamikoTransport

        return ParamikoTransport(settings)
    if name == "openssh":
        from preflight.transport.openssh import OpenSSHTransport

        return OpenSSHTransport(settings)
    if name == "srun":
        from preflight.transport.srun import SrunTransport

        return SrunTransport(hosts)
    raise UsageError(f"unknown transport {name[:40]!a}")  # every inventory checks it before


class LocalTransport:
    """Runs commands as local processes: no shell, no network, each in its own session."""

    name = "local"

    def connect(self, host: Host, timeout_s: float) -> LocalConnection:
        """Return a local connection; always succeeds."""
        del host, timeout_s
        return LocalConnection()

    def close(self) -> None:
        """Do nothing."""


_OFF = frozenset(("", "none", "no", "false"))

KLIST_S = 2.0


def why_openssh(host: Host, config: SshSettings) -> str:
    """Name the feature of a node's login that only OpenSSH has; "" if paramiko can reach it.

    `config`: the node's settings of `ssh -G`. Reads the key files, known_hosts and the ticket cache
    that they name; opens no connection to the node.
    """
    return next(_reasons(host, config), "")


def _reasons(host: Host, config: SshSettings) -> Iterator[str]:
    """Yield the features of a node's login that only OpenSSH has, the cheap tests first."""
    for label in ssh_config.BEYOND_PARAMIKO:
        if config.first(label.lower()).lower() not in _OFF:
            yield label
    if config.first("addressfamily") not in ("", "any"):
        yield "AddressFamily"
    agent = config.first("identityagent")
    if (
        not host.identity_file
        and agent != "none"
        and ssh_config.agent_socket(agent) != ssh_config.agent_socket()
    ):
        yield "IdentityAgent"
    route = ssh_config.route_to(host, config)
    for key_file in map(Path, route.identity_files):
        if key_file.with_name(f"{key_file.name}-cert.pub").is_file():
            yield "a user certificate"
        if _is_on_token(key_file):
            yield "a FIDO key"
    if has_authority(route.known_hosts, route.known_names):
        yield "@cert-authority"
    if config.first("gssapiauthentication") == "yes" and has_ticket():
        yield "Kerberos"


def _is_on_token(key_file: Path) -> bool:
    """Whether the private key is in a security key, according to its public half."""
    try:
        return ssh_config.read_key(f"{key_file}.pub").startswith(b"sk-")
    except OSError:
        return key_file.name.endswith("_sk")


@lru_cache(maxsize=1)
def has_ticket() -> bool:
    """Whether the user has a Kerberos ticket; Debian's ssh enables Kerberos for everyone."""
    klist = shutil.which("klist")
    result = run_here([klist, "-s"], KLIST_S) if klist else None
    return result is not None and result.returncode == 0


T = TypeVar("T")
R = TypeVar("R")

SETUP_AT_MOST = 64
"""Most nodes that are connected to and logged in to at once."""

PROGRESS_S = 0.5
"""Least time between two calls of `progress`."""


class TooSlowError(PreflightError, TimeoutError):
    """A node's work had not ended, or not begun, at the deadline of all nodes."""


def fan_out(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    deadline_s: float,
    at_most: int | None = SETUP_AT_MOST,
    progress: Callable[[int, int, list[str]], None] | None = None,
) -> dict[str, R | Exception]:
    """Do `work` on every item, `at_most` at a time; return each result by name, in order.

    Items are names, or have one (`item.name`). What `work` raises is its item's result. At the
    deadline (seconds from now) the rest get a TooSlowError; their daemon threads are left to end
    and start nothing new. `progress(done, total, waiting)` is called on changes, at most twice a
    second. `at_most=None` gives every item its own thread from the start: for work that waits for
    other items' work, which would deadlock behind a bound (see `Gate`).
    """
    by_name = {str(getattr(item, "name", item)): item for item in items}
    waiting, started = deque(by_name.items()), set[str]()
    finished: queue.SimpleQueue[tuple[str, R | Exception]] = queue.SimpleQueue()

    def serve() -> None:
        with suppress(IndexError):
            while True:
                name, item = waiting.popleft()
                started.add(name)
                finished.put((name, _result(work, item)))

    results: dict[str, R | Exception] = {}
    reported, reported_at = 0, 0.0
    deadline = time.monotonic() + deadline_s
    for number in range(len(by_name) if at_most is None else min(at_most, len(by_name))):
        start_thread(serve, name=f"preflight-fan-out-{number}")
    try:
        while len(results) < len(by_name) and (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                results.update([finished.get(timeout=min(left_s, PROGRESS_S))])
            done, now = len(results), time.monotonic()
            is_due = now - reported_at >= PROGRESS_S or done == len(by_name)
            if progress is not None and done != reported and is_due:
                reported, reported_at = done, now
                progress(done, len(by_name), [name for name in by_name if name not in results])
        while not finished.empty():  # a machine that was suspended reads them after the deadline
            results.update([finished.get()])
    finally:
        waiting.clear()
    for name in by_name.keys() - results.keys():
        late = "it had not ended" if name in started else "its turn had not come"
        results[name] = TooSlowError(f"{late} after {deadline_s:.3g} s")
    return {name: results[name] for name in by_name}


def _result(work: Callable[[T], R], item: T) -> R | Exception:
    try:
        return work(item)
    except Exception as error:  # noqa: BLE001 (it is this item's result)
        return error


class Gate:
    """Limits how many nodes are connected to at once, but not how many then run.

    A stage whose nodes wait for each other runs all of them (`fan_out(at_most=None)`) and holds
    `with gate.passage(deadline_s):` only while it connects.
    """

    def __init__(self, at_most: int = SETUP_AT_MOST) -> None:
        self._places = threading.BoundedSemaphore(at_most)

    @contextmanager
    def passage(self, deadline_s: float) -> Iterator[None]:
        """Hold a place during the body; TooSlowError if none comes free in time."""
        if not self._places.acquire(timeout=deadline_s):
            raise TooSlowError(f"its turn to connect had not come after {deadline_s:.3g} s")
        try:
            yield
        finally:
            self._places.release()
