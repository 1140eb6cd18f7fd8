"""Asks NCCL's RAS service once what it knows of a job's communicators.

The protocol is that of NCCL's own client (src/ras/client.cc, client_support.cc): lines, each with
an answer, then one report until the service closes the connection. The ranks of a node share the
port, so that another connection may reach another rank.
"""

from __future__ import annotations

import base64
import os
import socket
import time
import zlib
from contextlib import suppress
from typing import Any

from probe import guard, procfs
from probe.node_files import TEXT_LIMIT, clean, whole_number, words

from . import Document, sockets

DEFAULT = "localhost:28028"
LARGEST = 64 << 20
"""Most bytes of a report: JSON takes 600 for each rank of each communicator."""

_PACKED = 8 << 20
_LINE = 1024
_GREET_S = 1.0
"""NCCL's own client gives a rank a second to greet, then tries another connection."""

_TRIES = 4
_RANKS_S = 3
"""How long the asked rank waits for the answers of the others."""

_OLD = (
    "RAS was not asked: an NCCL before 2.29.2 may crash when it is asked while a rank is missing "
    "or a communicator starts (NVIDIA/nccl issues 1669, 1762); --ras=always asks all the same"
)


_UNCHECKED = "could not check that its job's user listens there"


class NoAnswerError(Exception):
    """The service gave no usable answer, for this reason."""


class _NoGreetingError(NoAnswerError):
    """One rank does not greet; another may."""


def address(environ: dict[bytes, bytes]) -> str:
    """Return the address of a rank's service by its environment; "" if it is switched off."""
    if environ.get(b"NCCL_RAS_ENABLE", b"1").strip() == b"0":
        return ""
    return clean(environ.get(b"NCCL_RAS_ADDR", b"").strip() or DEFAULT)


def port_of(text: str) -> int:
    """Return the port of `host:port`; 0 if it has none."""
    port = whole_number(text.rpartition(":")[2]) or 0
    return port if port < 1 << 16 else 0


def answer(request: Document, until: float) -> Document:
    """Return a `RasLook` of the document: the report, or why there is none.

    It asks in a child, which enters the network namespace of the rank `pid`.
    """
    child = guard.spawn(_ask, request, until - 0.5)
    problems: list[str] = []
    report = guard.answer_of("RAS did not answer", child, until, problems.append)
    return report or {"why": clean(problems[0] if problems else "RAS did not answer", TEXT_LIMIT)}


def _ask(request: Document, until: float) -> Document:
    try:
        pid = int(request["pid"])
        _enter_network(pid)
        ends = _of_user(pid, _own_addresses(str(request["address"])))
        return _first_answer(ends, until, always=bool(request.get("always")))
    except NoAnswerError as error:
        why = str(error)
        return {"why": clean(why if why.startswith("RAS ") else f"RAS did not answer: {why}")}


def _enter_network(pid: int) -> None:
    own = ("", sockets.namespace(os.getpid()))
    if pid and sockets.namespace(pid) not in own and not sockets.enter(pid):
        raise NoAnswerError("its ranks are in another network namespace: run this as root")


def _first_answer(ends: list[tuple[int, Any]], until: float, *, always: bool) -> Document:
    """Ask the first connection that greets."""
    reason = _NoGreetingError("no time was left")
    for number in range(_TRIES):
        family, target = ends[number % len(ends)]
        if time.monotonic() >= until:
            break
        try:
            with socket.socket(family, socket.SOCK_STREAM) as link:
                return _Talk(link, until).report(target, always=always)
        except _NoGreetingError as error:
            reason = error
    raise reason


def _own_addresses(where: str) -> list[tuple[int, Any]]:
    """Return (family, address) of those that are this node's: a rank's variable chose the name."""
    host, port = where.rpartition(":")[0].strip("[]"), port_of(where)
    ends = []
    with suppress(OSError, UnicodeError):
        for family, _, _, _, target in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.bind((target[0], 0, *target[2:]))
                ends.append((int(family), target))
    if not port or not ends:
        raise NoAnswerError(f"{where} is no address of this node")
    return ends


def _of_user(pid: int, ends: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Return those on which the user of a rank listens: any user can take the port elsewhere."""
    uid = procfs.uid(pid) if pid else None
    if uid is None:
        raise NoAnswerError(f"{_UNCHECKED}: no process of its ranks is known")
    try:
        users = sockets.listening_users()
    except OSError as error:
        raise NoAnswerError(f"{_UNCHECKED}: {words(error)}") from None
    own_ends = []
    for family, target in ends:
        host, port = target[0].partition("%")[0], target[1]
        if family == socket.AF_INET:
            names = [f"{host}:{port}", f"0.0.0.0:{port}", f"[::]:{port}"]
        else:
            names = [f"[{host}]:{port}", f"[::]:{port}"]
        # The kernel prefers the socket with the exact address.
        if uid == next((users[name] for name in names if name in users), None):
            own_ends.append((family, target))
    if not own_ends:
        raise NoAnswerError("no process of the ranks' user listens there")
    return own_ends


class _Talk:
    """One connection to a rank's service."""

    def __init__(self, link: socket.socket, until: float) -> None:
        self._link = link
        self._until = until
        self._input = b""

    def report(self, target: Any, *, always: bool) -> Document:
        """Greet, choose the format, check the version unless `always`, and ask."""
        greet_until = min(self._until, time.monotonic() + _GREET_S)
        try:
            self._link.settimeout(_GREET_S)
            self._link.connect(target)
            greeting = self._exchange("CLIENT PROTOCOL 2", greet_until)
        except OSError as error:
            raise _NoGreetingError(words(error)) from None
        if not greeting.upper().startswith("SERVER PROTOCOL "):
            raise NoAnswerError(f'no RAS service is on this port: it says "{greeting[:60]}"')
        is_json = self._command("SET FORMAT json") == "OK"
        # Only 2.29.2 and later know MONITOR; a group that does not exist changes nothing.
        is_new = not self._command("MONITOR preflight").startswith("ERROR: Unknown command")
        if not (always or is_new):
            raise NoAnswerError(_OLD)
        set_time = self._command(f"TIMEOUT {_RANKS_S}")
        if set_time != "OK":
            raise NoAnswerError(f'it refuses a time limit: "{set_time[:60]}"')
        self._send("VERBOSE STATUS")
        return {"json": is_json, "content": self._rest()}

    def _command(self, text: str) -> str:
        """Return the one line that answers a command."""
        try:
            return self._exchange(text, min(self._until, time.monotonic() + _GREET_S))
        except OSError as error:
            raise NoAnswerError(words(error)) from None

    def _exchange(self, text: str, until: float) -> str:
        self._send(text)
        while b"\n" not in self._input:
            if len(self._input) >= _LINE:
                raise NoAnswerError("its answer is no line of text")
            chunk = self._receive(until)
            if not chunk:
                raise _NoGreetingError("it closed the connection")
            self._input += chunk
        line, _, self._input = self._input.partition(b"\n")
        return clean(line).strip()

    def _send(self, text: str) -> None:
        try:
            self._link.sendall(text.encode("ascii") + b"\n")
        except OSError as error:
            raise _NoGreetingError(words(error)) from None

    def _receive(self, until: float) -> bytes:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise _NoGreetingError("no answer in time")
        self._link.settimeout(left_s)
        try:
            return self._link.recv(1 << 16)
        except socket.timeout:
            raise _NoGreetingError("no answer in time") from None

    def _rest(self) -> str:
        """Return everything until the service closes the connection, compressed, as base64."""
        packing, size, packed, chunk = zlib.compressobj(1), 0, bytearray(), self._input
        while chunk or not size:
            size += len(chunk)
            packed += packing.compress(chunk)
            if size > LARGEST or len(packed) > _PACKED:
                raise NoAnswerError(f"its report has more than {LARGEST >> 20} MiB")
            try:
                chunk = self._receive(self._until)
            except _NoGreetingError:
                raise NoAnswerError("its report did not end in time") from None
            except OSError as error:
                raise NoAnswerError(words(error)) from None
            if not chunk and not size:
                raise NoAnswerError("it closed the connection without a report")
        packed += packing.flush()
        return base64.b64encode(packed).decode("ascii")


def services(addresses: dict[str, str], others: list[int]) -> Document:
    """Return those of these addresses (by pid, as text) where anything listens; only in a child.

    By pid 0 the service of a job whose ranks this login may not read, and as "pid" one of `others`,
    such processes: one whose user listens there, if there is one.
    """
    own = sockets.namespace(os.getpid())
    spaces = {own: ["0"]}
    for pid in addresses:
        spaces.setdefault(sockets.namespace(int(pid)) or own, []).append(pid)
    document: Document = {"pid": next(iter(others), 0)}
    with suppress(OSError):
        ends, end = sockets.listening_users(), f":{port_of(DEFAULT)}"
        users = {user for name, user in ends.items() if name.endswith(end)}
        document["pid"] = next((pid for pid in others if procfs.uid(pid) in users), document["pid"])
    for space, pids in spaces.items():  # its own network first: it does not return there
        with suppress(OSError):
            inside = space == own or sockets.enter(int(pids[0]))
            ports = sockets.listeners() if inside else sockets.proc_listeners(int(pids[0]))
            service_of = {pid: addresses.get(pid, DEFAULT) for pid in pids}
            document.update({pid: at for pid, at in service_of.items() if port_of(at) in ports})
    return document
