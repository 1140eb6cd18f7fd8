"""Whether the nodes have the network devices that the settings of the sweep select.

The settings are --preflight-interface, the job's environment and the nodes' nccl.conf. A setting
that selects nothing on any node is itself wrong, and counts against no node.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.checks.env.remark import show
from preflight.checks.env.test_nccl_conf import conf_settings
from preflight.checks.net.selected import (
    gloo_interfaces,
    hca_of,
    nccl_interfaces,
    nccl_ports,
    peer_interface,
)
from preflight.checks.rdma.ports import ports_of
from preflight.checks.rdma.test_devices import without_gid
from preflight.core.text import and_more, whole
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import INTERFACE_OPTION, count_machines

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.facts.model import Facts
    from preflight.facts.node_network import Interface
    from preflight.fleet.model import Fleet

_MOST_REPORTED = 64
"""The most interfaces that a node reports: an interface that is not among them may still exist."""

_SHOWN = 8
_TWO = 2
_LOOPBACK = "no node reaches another by loopback"
_OR_OMIT = "or leave it away: each node then takes its way to the others"
_RDMA_LAYERS = ("infiniband", "ethernet")


class Mismatches(Struct, frozen=True, kw_only=True):
    """By name, the nodes on which a setting selects nothing: why, and what to do."""

    reasons: dict[str, str] = {}
    advice: dict[str, str] = {}


class _Problem(Struct, frozen=True):
    """A setting that selects nothing on some node, and where it is set."""

    origin: str
    setting: str
    on_all: str
    """What is wrong if no node has what the setting selects."""
    on_node: str
    """What is wrong on a node that lacks it."""
    advice: str
    device: str
    """The device to bring up on a node that lacks it; "" if that would not help."""


def interface_mismatches(fleet: Fleet, facts: Mapping[str, Facts]) -> Mismatches:
    """Find the nodes on which a setting selects nothing; a node that reported nothing is fine.

    UsageError (exit 4) if it selects nothing on any node that reported: the setting is wrong.
    """
    backends, usual = _backends(facts), _usual_interface(facts)
    lacking: dict[_Problem, dict[str, Sequence[str]]] = {}
    for name, node in facts.items():
        for problem, devices in islice(_problems(fleet, name, node, backends, usual), 1):
            lacking.setdefault(problem, {})[name] = devices
    affected = {name for nodes in lacking.values() for name in nodes}
    if affected and affected >= {name for name, node in facts.items() if node.interfaces}:
        raise UsageError("; ".join(_fleet_message(*problem) for problem in lacking.items()))
    return Mismatches(
        reasons={n: _node_message(one, nodes) for one, nodes in lacking.items() for n in nodes},
        advice={n: _advice(one, nodes) for one, nodes in lacking.items() for n in nodes},
    )


def add_mismatches(sweep: Sweep, mismatches: Mismatches) -> Sweep:
    """Add to a sweep why these nodes took no part, so that this is a finding and not a pass."""
    return replace(
        sweep,
        troubles={**sweep.troubles, **mismatches.reasons},
        advice={**sweep.advice, **mismatches.advice},
    )


def _fleet_message(problem: _Problem, nodes: Mapping[str, Sequence[str]]) -> str:
    has = "has" if len(nodes) == 1 else "have"
    devices = f"{fold(nodes)} {has} {_devices(nodes)}"
    return f"{problem.origin}{problem.setting}: {problem.on_all}, {devices}; {problem.advice}"


def _node_message(problem: _Problem, nodes: Mapping[str, Sequence[str]]) -> str:
    return f"{problem.on_node} ({problem.origin}{problem.setting}); there is {_devices(nodes)}"


def _advice(problem: _Problem, nodes: Mapping[str, Sequence[str]]) -> str:
    if not problem.device:
        return problem.advice
    return f"{problem.advice}; where {problem.device} should be, bring it up on {fold(nodes)}"


def _devices(nodes: Mapping[str, Sequence[str]]) -> str:
    names = sorted({name for devices in nodes.values() for name in devices})
    return ", ".join(names[:_SHOWN]) + and_more(len(names) - _SHOWN) or "none but loopback"


def _problems(
    fleet: Fleet, name: str, node: Facts, backends: Container[str], usual: str
) -> Iterator[tuple[_Problem, Sequence[str]]]:
    """Yield each problem with a setting on this node, and the devices that the node has instead.

    The option wins over the environment; settings that the sweep does not use are not checked.
    """
    environ = _sweep_environ(fleet, name)
    interfaces = node.interfaces
    names = [interface.name for interface in interfaces if not interface.loopback]
    problems: list[Iterator[_Problem]] = []
    if interfaces and len(interfaces) < _MOST_REPORTED:
        if fleet.interface is not None:
            problems = [_option_problems(fleet.interface, fleet.interface_origin, interfaces)]
        elif len(fleet.hosts) >= _TWO or len(node.gpus or ()) >= _TWO:
            if "nccl" in backends:
                problems.append(_nccl_problems(fleet, environ, node, usual))
            if "gloo" in backends:
                problems.append(_gloo_problems(fleet, environ, node, usual))
    yield from ((problem, names) for problem in chain.from_iterable(problems))
    if "nccl" in backends:
        yield from _rdma_problems(fleet, environ, node)


def _option_problems(name: str, origin: str, interfaces: Sequence[Interface]) -> Iterator[_Problem]:
    if name not in [interface.name for interface in interfaces]:
        yield _Problem(
            origin, f" = {name}", "no node has such an interface", f"no interface {name} there",
            f"give one that all nodes have ({INTERFACE_OPTION}=NAME), {_OR_OMIT}", name,
        )  # fmt: skip


def _nccl_problems(
    fleet: Fleet, environ: Mapping[str, str], node: Facts, usual: str
) -> Iterator[_Problem]:
    """NCCL_SOCKET_IFNAME as NCCL reads it: prefixes, `=` exact, `^` all but."""
    name = "NCCL_SOCKET_IFNAME"
    origin, value = _source(fleet, environ, node, name)
    if len(value) < _TWO:
        return  # NCCL ignores a single character
    interfaces = nccl_interfaces(node, value, environ.get("NCCL_SOCKET_FAMILY", ""))
    loops = bool(interfaces) and interfaces[0].loopback and count_machines(fleet.hosts) >= _TWO
    if not interfaces or loops:
        yield _socket_problem(origin, name, value, usual, loops=loops)


def _gloo_problems(
    fleet: Fleet, environ: Mapping[str, str], node: Facts, usual: str
) -> Iterator[_Problem]:
    """GLOO_SOCKET_IFNAME as torch reads it: whole names, each of which must be there."""
    name = "GLOO_SOCKET_IFNAME"
    value = environ.get(name, "")
    interfaces, missing = gloo_interfaces(node, value) if value else ((), ())
    loops = any(link.loopback for link in interfaces) and count_machines(fleet.hosts) >= _TWO
    if missing or loops:
        yield _socket_problem(fleet.job.environ_origin, name, value, usual, loops=not missing)


def _socket_problem(origin: str, name: str, value: str, usual: str, *, loops: bool) -> _Problem:
    return _Problem(
        f"{origin}: ", show(name, value),
        _LOOPBACK if loops else "it selects no interface of any node",
        "the job selects loopback there" if loops else "no interface there that the job selects",
        f"write one that all nodes have (as in {name}={usual}), or measure over another than the "
        f"job's: {INTERFACE_OPTION}={usual}", "" if loops else "it",
    )  # fmt: skip


def _rdma_problems(
    fleet: Fleet, environ: Mapping[str, str], node: Facts
) -> Iterator[tuple[_Problem, Sequence[str]]]:
    """NCCL_IB_HCA without any device, NCCL_IB_GID_INDEX that no port has: NCCL's rules again."""
    ports = [port for port in ports_of(node) if port.layer in _RDMA_LAYERS]
    off = _source(fleet, environ, node, "NCCL_IB_DISABLE")[1].strip() == "1"
    if not ports or off or environ.get("NCCL_NET", "IB") != "IB":
        return
    hca = hca_of(environ)  # the sweep sets it if the environment does not: a file never counts
    chosen = [port for port in nccl_ports(node, hca) if port.layer in _RDMA_LAYERS]
    if not chosen:
        devices = [port.nic.name for port in ports]
        yield _Problem(
            f"{fleet.job.environ_origin}: ", show("NCCL_IB_HCA", hca),
            "it selects no RDMA device of any node", "no RDMA device there that the job selects",
            f"write one that is there (as in NCCL_IB_HCA={devices[0]}), or take it out", "",
        ), devices  # fmt: skip
        return
    origin, text = _source(fleet, environ, node, "NCCL_IB_GID_INDEX")
    roce = [port for port in chosen if port.active and port.layer == "ethernet"]
    index = whole(text.strip())
    if index is not None and roce and all(without_gid(port, index) for port in roce):
        indices = sorted({str(gid.index) for port in roce for gid in port.port.gids or ()})
        yield _Problem(
            f"{origin}: ", show("NCCL_IB_GID_INDEX", text),
            "no RoCE port of any node has that GID", "no RoCE port there has that GID",
            "take it out (NCCL 2.21 and newer chooses), or write one that is there "
            "(show_gids)", "",
        ), indices  # fmt: skip


def _sweep_environ(fleet: Fleet, name: str) -> Mapping[str, str]:
    """The job's variables with which the measuring processes run on a node."""
    job = fleet.job  # children of the job's own ranks inherit the whole environment
    return (job.environ_of(name) or {}) if fleet.ranks else job.measured_in(name)


def _source(fleet: Fleet, environ: Mapping[str, str], node: Facts, name: str) -> tuple[str, str]:
    """Where a variable of NCCL's is set on a node, and its value: the job wins over a file."""
    if name in environ:
        return fleet.job.environ_origin, environ[name]
    value = conf_settings(node.nccl_conf or ()).get(name, "")
    files = [file for file in node.nccl_conf or () if name in [row.name for row in file.settings]]
    return (files[0].path if files else "nccl.conf"), value


def _backends(facts: Mapping[str, Facts]) -> set[str]:
    """The backends of the sweep: NCCL if half of the nodes have GPUs and a torch with CUDA."""
    gpu_nodes = [node for node in facts.values() if node.gpus]
    if not gpu_nodes or 2 * len(gpu_nodes) < len(facts):
        return {"gloo"}
    torches = [node.software.torch for node in gpu_nodes if node.software and node.software.torch]
    return {"nccl"} if all(torch.cuda for torch in torches) else {"nccl", "gloo"}


def _usual_interface(facts: Mapping[str, Facts]) -> str:
    """The interface by which most nodes reach the others."""
    used = Counter(interface.name for node in facts.values() if (interface := peer_interface(node)))
    return used.most_common(1)[0][0] if used else "eth0"
