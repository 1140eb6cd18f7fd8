"""Faults of the network between lab hosts: each is a context that ends with a healthy wire."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.lab.net import ip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.host import Host

_OFFLOADS = ("tso", "gso", "gro", "tx", "sg")
_serial = itertools.count()


@contextmanager
def slow_link(host: Host, rate: str = "200mbit") -> Iterator[None]:
    """What the host sends is capped: bandwidth suffers, small messages do not."""
    tbf = f"rate {rate} burst 64kb latency 50ms"
    host.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *tbf.split()])
    try:
        yield
    finally:
        host.run(["tc", "qdisc", "delete", "dev", "eth0", "root"], check=False)


@contextmanager
def renamed(host: Host, name: str) -> Iterator[None]:
    """Its one network interface has another name than on the other hosts."""
    _rename(host, "eth0", name)
    try:
        yield
    finally:
        _rename(host, name, "eth0")


def _rename(host: Host, old: str, new: str) -> None:
    """Addresses stay; routes come back with the link."""
    for line in (f"{old} down", f"{old} name {new}", f"{new} up"):
        host.run(["ip", "link", "set", *line.split()])


@contextmanager
def more_networks(host: Host) -> Iterator[None]:
    """Two interfaces more: job0, a network of all hosts, and ib0, which leads to no other host."""
    lan, number = host.address.split(".")[2:]
    added = [
        "link add link eth0 name job0 type macvlan mode bridge",
        f"address add 10.97.{lan}.{number}/24 dev job0",
        "link set job0 up",
        "link add link eth0 name ib0 type macvlan mode private",
        f"address add 10.98.{number}.1/24 dev ib0",
        "link set ib0 up",
    ]
    try:
        for line in added:
            host.run(["ip", *line.split()])
        yield
    finally:
        for name in ("job0", "ib0"):
            host.run(["ip", "link", "delete", name], check=False)


@contextmanager
def lossy_link(host: Host, per_mille: int = 20, source: Host | None = None) -> Iterator[None]:
    """The host loses some TCP packets, from one peer or all: the tail grows, not the median."""
    lost = f"ip protocol tcp numgen random mod 1000 < {per_mille} drop"
    with _rules(host, [_from(source) + lost]):
        yield


@contextmanager
def firewall(
    host: Host,
    ports: str = "1024-65535",
    action: Literal["drop", "reject"] = "drop",
    source: Host | None = None,
) -> Iterator[None]:
    """New connections to these TCP ports ("29500", "1024-65535") are dropped or reset."""
    verdict = "reject with tcp reset" if action == "reject" else "drop"
    with _rules(host, [f"{_from(source)}tcp dport {ports} tcp flags syn / syn,ack {verdict}"]):
        yield


@contextmanager
def cut_path(one: Host, other: Host) -> Iterator[None]:
    """Nothing gets through between the two, all else does: a path is gone, and no card shows it."""
    with _rules(one, [f"{_from(other)}drop"]), _rules(other, [f"{_from(one)}drop"]):
        yield


@contextmanager
def cut_fabric(host: Host) -> Iterator[None]:
    """Of what comes to this host only logins get through: its way into the fabric is gone."""
    # nft joins two `!=` of neighbouring fields into one: "neither" becomes "not both".
    with _rules(host, ["tcp dport 22 accept", "tcp sport 22 accept", "meta l4proto tcp drop"]):
        yield


@contextmanager
def no_login_from_outside(host: Host, controller: str) -> Iterator[None]:
    """The controller's address may not log in; the other hosts may, as behind a bastion."""
    with _rules(host, [f"ip saddr {controller} tcp dport 22 drop"]):
        yield


@contextmanager
def silence(host: Host, port: int = 22) -> Iterator[None]:
    """All that goes to and from this TCP port is dropped: connections die without a sound."""
    to, back = f"tcp dport {port} drop", f"tcp sport {port} drop"
    with _rules(host, [to]), _rules(host, [back], hook="output"):
        yield


@contextmanager
def dead_link(host: Host) -> Iterator[None]:
    """The cable ends nowhere, though the card still shows a link: connects hang."""
    ip("link", "set", host.cable, "nomaster")
    try:
        yield
    finally:
        _plug_in(host)


@contextmanager
def unplugged(host: Host) -> Iterator[None]:
    """The cable is out: the card shows no carrier."""
    ip("link", "set", host.cable, "down")
    try:
        yield
    finally:
        ip("link", "set", host.cable, "up", check=False)


@contextmanager
def spiking_cable(
    host: Host,
    per_mille: int = 10,
    low_ms: float = 25,
    high_ms: float = 50,
    rest_ms: float = 0,
) -> Iterator[None]:
    """Some frames are held up, as by a loose cable: the median stays, the tail moves.

    `rest_ms`: after one that was held none is for so long, else volume is held up all the time.
    The frames pass through a process between the cable and the bridge, which also caps bandwidth
    near 0.1 GB/s: compare latencies under this fault, not rates.
    """
    near, far = f"{host.cable}n", f"{host.cable}f"
    ip(*f"link add {near} type veth peer name {far}".split())
    try:
        for end in (host.cable, near, far):
            subprocess.run(_offloads(end, "off"), check=True, capture_output=True)
        host.run(_offloads("eth0", "off"))
        # This machine must not answer ARP on the loose ends: it would short-circuit the fault.
        ip("link", "set", host.cable, "nomaster", "arp", "off")
        ip("link", "set", far, "up", "arp", "off")
        ip("link", "set", near, "master", host.bridge, "up")
        with _forwarder(host.cable, far, per_mille, low_ms, high_ms, rest_ms):
            yield
    finally:
        ip("link", "delete", near, check=False)
        host.run(_offloads("eth0", "on"), check=False)
        subprocess.run(_offloads(host.cable, "on"), check=False, capture_output=True)
        ip("link", "set", host.cable, "arp", "on", check=False)
        _plug_in(host)


def _from(source: Host | None) -> str:
    return f"ip saddr {source.address} " if source else ""


def _offloads(interface: str, switch: str) -> list[str]:
    return ["ethtool", "-K", interface, *(w for name in _OFFLOADS for w in (name, switch))]


def _plug_in(host: Host) -> None:
    ip("link", "set", host.cable, "master", host.bridge, check=False)


@contextmanager
def _forwarder(*words: object) -> Iterator[None]:
    script = Path(__file__).with_name("forwarder.py")
    argv = [sys.executable, "-I", str(script), *map(str, words)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.stdin.close()


@contextmanager
def _rules(host: Host, rules: list[str], hook: str = "input") -> Iterator[None]:
    """Put rules on what the host receives (or sends: "output"), in a table of their own."""
    table = f"inet fault{next(_serial)}"
    chain = f"type filter hook {hook} priority 0 ;"
    host.run(["nft", f"add table {table}"])
    try:
        host.run(["nft", f"add chain {table} {hook} {{ {chain} }}"])
        for rule in rules:
            host.run(["nft", f"add rule {table} {hook} {rule}"])
        yield
    finally:
        host.run(["nft", f"delete table {table}"], check=False)
