"""Whether the nodes have the network devices that the settings of the sweep select.

The settings are --preflight-interface, the job's environment and the nodes' nccl.conf. A setting
that selects nothing on any node is itself wrong, and counts against no node.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.checks.env.remark import show
from preflight.checks.env.test_nccl_conf import settings
from preflight.checks.net.selected import (
    gloo_interfaces,
    hca_of,
    nccl_interfaces,
    nccl_ports,
    to_others,
)
from preflight.checks.rdma.ports import ports_of
from preflight.checks.rdma.test_devices import without_gid
from preflight.core.text import and_more, whole
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import OPTION, machines

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.facts.model import Facts
    from preflight.facts.node_network import Interface
    from preflight.fleet.model import Fleet

_MOST_REPORTED = 64
"""The most interfaces that a node reports: an interface that is not among them may still exist."""

_SHOWN = 8
_SEVERAL = 2
_LOOPBACK = "no node reaches another by loopback"
_LEAVE_AWAY = "or leave it away: each node then takes its way to the others"
_RDMA = ("infiniband", "ethernet")


class Mismatches(Struct, frozen=True, kw_only=True):
    """By name, the nodes on which a setting selects nothing: why, and what to do."""

    reasons: dict[str, str] = {}
    advice: dict[str, str] = {}


class _Setting(Struct, frozen=True):
    """A setting that selects nothing on some node, and its origin."""

    origin: str
    setting: str
    of_all: str
    """What is wrong if no node has what the setting selects."""
    of_one: str
    advice: str
    what: str
    """The device to bring up on a node that lacks it; "" if that would not help."""


def interface_mismatches(fleet: Fleet, facts: Mapping[str, Facts]) -> Mismatches:
    """Find the nodes on which a setting selects nothing; a node that reported nothing is fine.

    UsageError (exit 4) if it selects nothing on any node that reported: the setting is wrong.
    """
    backends, usual = _backends(facts), _usual(facts)
    lacking: dict[_Setting, dict[str, Sequence[str]]] = {}
    for name, node in facts.items():
        for wrong, there in islice(_wrong(fleet, name, node, backends, usual), 1):
            lacking.setdefault(wrong, {})[name] = there
    without = {name for nodes in lacking.values() for name in nodes}
    if without and without >= {name for name, node in facts.items() if node.interfaces}:
        raise UsageError("; ".join(_of_all(wrong, nodes) for wrong, nodes in lacking.items()))
    return Mismatches(
        reasons={n: _of_one(wrong, nodes) for wrong, nodes in lacking.items() for n in nodes},
        advice={n: _advice(wrong, nodes) for wrong, nodes in lacking.items() for n in nodes},
    )


def with_mismatches(sweep: Sweep, mismatches: Mismatches) -> Sweep:
    """Add why these nodes took no part, so that it is a finding and not a pass."""
    return replace(
        sweep,
        troubles={**sweep.troubles, **mismatches.reasons},
        advice={**sweep.advice, **mismatches.advice},
    )


def _of_all(wrong: _Setting, nodes: Mapping[str, Sequence[str]]) -> str:
    has = "has" if len(nodes) == 1 else "have"
    there = f"{fold(nodes)} {has} {_shown(nodes)}"
    return f"{wrong.origin}{wrong.setting}: {wrong.of_all}, {there}; {wrong.advice}"


def _of_one(wrong: _Setting, nodes: Mapping[str, Sequence[str]]) -> str:
    return f"{wrong.of_one} ({wrong.origin}{wrong.setting}); there is {_shown(nodes)}"


def _advice(wrong: _Setting, nodes: Mapping[str, Sequence[str]]) -> str:
    bring = f"; where {wrong.what} should be, bring it up on {fold(nodes)}" if wrong.what else ""
    return wrong.advice + bring


def _shown(nodes: Mapping[str, Sequence[str]]) -> str:
    names = sorted({name for there in nodes.values() for name in there})
    return ", ".join(names[:_SHOWN]) + and_more(len(names) - _SHOWN) or "none but loopback"


def _wrong(
    fleet: Fleet, name: str, node: Facts, backends: Container[str], usual: str
) -> Iterator[tuple[_Setting, Sequence[str]]]:
    """Yield each setting that selects nothing on this node, and the devices that it has instead.

    The option wins over the environment; settings that the sweep does not use are not checked.
    """
    environ = _measured_in(fleet, name)
    has = node.interfaces
    there = [interface.name for interface in has if not interface.loopback]
    if has and len(has) < _MOST_REPORTED:
        if fleet.interface is not None:
            unknown = _by_option(fleet.interface, fleet.interface_origin, has)
            yield from ((wrong, there) for wrong in unknown)
        elif len(fleet.hosts) >= _SEVERAL or len(node.gpus or ()) >= _SEVERAL:
            if "nccl" in backends:
                yield from ((wrong, there) for wrong in _nccl_socket(fleet, environ, node, usual))
            if "gloo" in backends:
                yield from ((wrong, there) for wrong in _gloo_socket(fleet, environ, node, usual))
    if "nccl" in backends:
        yield from _rdma(fleet, environ, node)


def _by_option(name: str, origin: str, has: Sequence[Interface]) -> Iterator[_Setting]:
    if name not in [interface.name for interface in has]:
        yield _Setting(
            origin, f" = {name}", "no node has such an interface", f"no interface {name} there",
            f"give one that all nodes have ({OPTION}=NAME), {_LEAVE_AWAY}", name,
        )  # fmt: skip


def _nccl_socket(
    fleet: Fleet, environ: Mapping[str, str], node: Facts, usual: str
) -> Iterator[_Setting]:
    """NCCL_SOCKET_IFNAME as NCCL reads it: prefixes, `=` exact, `^` all but."""
    name = "NCCL_SOCKET_IFNAME"
    origin, value = _source(fleet, environ, node, name)
    if len(value) < _SEVERAL:
        return  # NCCL ignores a single character
    interfaces = nccl_interfaces(node, value, environ.get("NCCL_SOCKET_FAMILY", ""))
    loops = bool(interfaces) and interfaces[0].loopback and machines(fleet.hosts) >= _SEVERAL
    if not interfaces or loops:
        yield _socket(origin, name, value, usual, loops=loops)


def _gloo_socket(
    fleet: Fleet, environ: Mapping[str, str], node: Facts, usual: str
) -> Iterator[_Setting]:
    """GLOO_SOCKET_IFNAME as torch reads it: whole names, each of which must be there."""
    name = "GLOO_SOCKET_IFNAME"
    value = environ.get(name, "")
    interfaces, missing = gloo_interfaces(node, value) if value else ((), ())
    loops = any(link.loopback for link in interfaces) and machines(fleet.hosts) >= _SEVERAL
    if missing or loops:
        yield _socket(fleet.job.environ_origin, name, value, usual, loops=not missing)


def _socket(origin: str, name: str, value: str, usual: str, *, loops: bool) -> _Setting:
    return _Setting(
        f"{origin}: ", show(name, value),
        _LOOPBACK if loops else "it selects no interface of any node",
        "the job selects loopback there" if loops else "no interface there that the job selects",
        f"write one that all nodes have (as in {name}={usual}), or measure over another than the "
        f"job's: {OPTION}={usual}", "" if loops else "it",
    )  # fmt: skip


def _rdma(
    fleet: Fleet, environ: Mapping[str, str], node: Facts
) -> Iterator[tuple[_Setting, Sequence[str]]]:
    """NCCL_IB_HCA without any device, NCCL_IB_GID_INDEX that no port has: NCCL's rules again."""
    ports = [port for port in ports_of(node) if port.layer in _RDMA]
    off = _source(fleet, environ, node, "NCCL_IB_DISABLE")[1].strip() == "1"
    if not ports or off or environ.get("NCCL_NET", "IB") != "IB":
        return
    hca = hca_of(environ)  # the sweep sets it if the environment does not: a file never counts
    chosen = [port for port in nccl_ports(node, hca) if port.layer in _RDMA]
    if not chosen:
        devices = [port.nic.name for port in ports]
        yield _Setting(
            f"{fleet.job.environ_origin}: ", show("NCCL_IB_HCA", hca),
            "it selects no RDMA device of any node", "no RDMA device there that the job selects",
            f"write one that is there (as in NCCL_IB_HCA={devices[0]}), or take it out", "",
        ), devices  # fmt: skip
        return
    origin, text = _source(fleet, environ, node, "NCCL_IB_GID_INDEX")
    roce = [port for port in chosen if port.active and port.layer == "ethernet"]
    index = whole(text.strip())
    if index is not None and roce and all(without_gid(port, index) for port in roce):
        has = sorted({str(gid.index) for port in roce for gid in port.port.gids or ()})
        yield _Setting(
            f"{origin}: ", show("NCCL_IB_GID_INDEX", text),
            "no RoCE port of any node has that GID", "no RoCE port there has that GID",
            "take it out (NCCL 2.21 and newer chooses), or write one that is there "
            "(show_gids)", "",
        ), has  # fmt: skip


def _measured_in(fleet: Fleet, name: str) -> Mapping[str, str]:
    """The job's variables with which the measuring processes run on a node."""
    job = fleet.job  # children of the job's own ranks inherit the whole environment
    return (job.environ_of(name) or {}) if fleet.ranks else job.measured_in(name)


def _source(fleet: Fleet, environ: Mapping[str, str], node: Facts, name: str) -> tuple[str, str]:
    """Where a variable of NCCL's is set on a node, and its value: the job wins over a file."""
    if name in environ:
        return fleet.job.environ_origin, environ[name]
    value = settings(node.nccl_conf or ()).get(name, "")
    files = [file for file in node.nccl_conf or () if name in [row.name for row in file.settings]]
    return (files[0].path if files else "nccl.conf"), value


def _backends(facts: Mapping[str, Facts]) -> set[str]:
    """The backends of the sweep: NCCL if half of the nodes have GPUs and a torch with CUDA."""
    seeing = [node for node in facts.values() if node.gpus]
    if not seeing or 2 * len(seeing) < len(facts):
        return {"gloo"}
    torches = [node.software.torch for node in seeing if node.software and node.software.torch]
    return {"nccl"} if all(torch.cuda for torch in torches) else {"nccl", "gloo"}


def _usual(facts: Mapping[str, Facts]) -> str:
    """The interface by which most nodes reach the others."""
    used = Counter(interface.name for node in facts.values() if (interface := to_others(node)))
    return used.most_common(1)[0][0] if used else "eth0"
