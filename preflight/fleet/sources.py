"""Where this run's nodes come from; the first source that names any wins.

Loopback connects no two nodes: every pair would fail, and good nodes would be blamed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import file_errors, read_regular, refuse_untrusted, typed_path
from preflight.core.text import did_you_mean, whole
from preflight.core.trust import who_may_change
from preflight.errors import UsageError, errors_about
from preflight.fleet import launch_line
from preflight.fleet.groups import expand_with_groups, groups_in
from preflight.fleet.inventory import open_inventory
from preflight.fleet.inventory_tables import JobTable, read_argv, refuse_unknown_transport
from preflight.fleet.job_environment import public_variables, read_env_file
from preflight.fleet.leaf_switches import with_leaves
from preflight.fleet.model import Fleet, Host, Job, TrainingScript
from preflight.fleet.nodeset import expand, fold, split, valid_host_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fleet.inventory import AnyInventory


class SiteNodes(Struct, frozen=True, kw_only=True):
    """The nodes that a site's hook named, with their settings if it gave `hosts`."""

    names: tuple[str, ...]
    hosts: dict[str, Host] = {}
    origin: str


class FleetRequest(Struct, frozen=True, kw_only=True):
    """What the operator asked for by option, ini file and environment; None = not given."""

    nodes: str | None = None
    inventory: str | None = None
    exclude: str | None = None
    transport: str | None = None
    python: str | None = None
    env_file: str | None = None
    launch: str | None = None
    script: str | None = None
    interface: str | None = None
    topology: str | None = None
    ask_slurm: bool = True
    """Whether to ask Slurm for its switches; one process of a run does."""
    logs_in: bool = True
    """Whether nodes are contacted; if a run is only judged again, ssh files may be missing."""
    site: SiteNodes | None = None
    ini_nodes: str | None = None
    ini_inventory: str | None = None
    environ: dict[str, str] = {}
    ranked: launch_line.RankedJob | None = None
    """The nodes of torchrun's ranks; they win over every other source."""


def resolve(request: FleetRequest) -> Fleet:
    """Return this run's fleet; UsageError if a source names no node or cannot be read."""
    fleet = _find_fleet(request)
    if request.logs_in:
        _refuse_untrusted_files(fleet.hosts)
    by_hook = request.site and request.site.hosts and request.site.origin == fleet.origin
    leaf_origin = fleet.origin if by_hook else "the inventory"
    environ = request.environ if request.ask_slurm else {}
    return with_leaves(fleet, request.topology, environ, leaf_origin=leaf_origin)


def _find_fleet(request: FleetRequest) -> Fleet:
    inventory = _inventory(request)
    if request.ranked is not None:
        return _rank_fleet(request, request.ranked, inventory)
    names, origin = _find_names(request, inventory)
    local = origin == THIS_MACHINE
    names = _without_excluded(names, request.exclude, inventory)
    site_hosts = request.site.hosts if request.site and request.site.origin == origin else {}
    chosen = [site_hosts[n] for n in names] if site_hosts else _hosts(names, inventory, local=local)
    hosts = tuple(_with_options(host, request) for host in chosen)
    if not site_hosts:
        hosts = with_srun(hosts, inventory, request)
    refuse_shared_addresses(hosts)
    fleet = Fleet(hosts=hosts, origin=origin, job=_job(request, hosts, inventory, local=local))
    return _complete(fleet, request, inventory)


def _rank_fleet(
    request: FleetRequest, ranked: launch_line.RankedJob, inventory: AnyInventory | None
) -> Fleet:
    """Return the nodes of torchrun's ranks; an inventory says what is expected of them."""
    all_hosts = ranked.hosts(inventory)
    names = set(_without_excluded(tuple(h.name for h in all_hosts), request.exclude, inventory))
    hosts = tuple(host for host in all_hosts if host.name in names)
    environ = ranked.environs(all_hosts)
    master, remark = launch_line.choose_master(
        hosts, launch=None, environ=environ[""].get("MASTER_ADDR"), table=None
    )
    port, origin = _master_port(None, environ[""], JobTable())
    uneven = {
        host.name: node.uneven
        for host, node in zip(all_hosts, ranked.nodes, strict=True)
        if node.uneven
    }
    job = Job(
        master=master,
        master_port=port,
        master_port_origin=origin + remark,
        nproc_per_node=ranked.per_node,
        environ=environ,
        uneven=uneven,
        environ_origin=launch_line.RANK_ORIGIN,
        script=_script(request),
    )
    ranks, restarts = ranked.ranks, ranked.restarts
    fleet = Fleet(hosts=hosts, origin=launch_line.TORCHRUN, job=job, ranks=ranks, restarts=restarts)
    return _complete(fleet, request, inventory)


def _complete(fleet: Fleet, request: FleetRequest, inventory: AnyInventory | None) -> Fleet:
    """Add the sweep's network interface, and what the inventory waives and mentions."""
    if request.interface is not None:
        fleet = _with_interface(fleet, request.interface, INTERFACE_OPTION)
    elif inventory is not None and inventory.job.interface is not None:
        origin = f"{inventory.path}: [job] interface"
        fleet = _with_interface(fleet, inventory.job.interface, origin)
    if inventory is None:
        return fleet
    waived = [(waiver.check, waiver.origin) for waiver in inventory.waivers]
    mentioned = (*inventory.switched_checks(), *waived)
    return replace(fleet, waivers=inventory.waivers, mentioned_checks=mentioned)


def refuse_parallel_tasks(environ: Mapping[str, str]) -> None:
    """Refuse to run as one of several tasks of a step: each would check, and load, the whole fleet.

    Ranks of torchrun are allowed: they coordinate.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "TORCHELASTIC_RUN_ID" not in environ and (whole(tasks) or 1) > 1:
        raise UsageError(
            f"this is one of {tasks} tasks of a Slurm step, and each would check the whole fleet: "
            "run pytest --preflight once, in the batch script or after salloc, without srun"
        )


def with_srun(
    hosts: tuple[Host, ...], inventory: AnyInventory | None, request: FleetRequest
) -> tuple[Host, ...]:
    """Let srun reach the allocation's nodes, unless an option or the inventory says otherwise.

    UsageError outside an allocation, and in one of several tasks of a step.
    """
    by_srun = [host.name for host in hosts if host.transport == "srun"]
    if by_srun and not request.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "the transport srun works inside a Slurm allocation only: "
            "start with sbatch or salloc, or leave --preflight-transport out"
        )
    inside = allocated_nodes(request.environ).issuperset(host.name for host in hosts)
    if by_srun or inside:
        refuse_parallel_tasks(request.environ)
    if request.transport is not None or not inside or shutil.which("srun") is None:
        return hosts
    return tuple(
        host
        if host.transport in ("local", "torchrun")
        or (inventory and inventory.sets_transport(host.name))
        else replace(host, transport="srun")
        for host in hosts
    )


def allocated_nodes(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes of the current allocation; none outside one."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return frozenset()
    try:
        return frozenset(expand(nodes))
    except UsageError:  # raised again where this variable names the fleet
        return frozenset()


INTERFACE_OPTION = "--preflight-interface"

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,14}")
"""IFNAMSIZ leaves 15 characters; a leading dash is refused."""

_LOOPBACK = "lo"


def count_machines(hosts: Sequence[Host]) -> int:
    """Count the machines behind these names; all local ones are this machine."""
    local = [host.transport == "local" or _is_loopback(host.address) for host in hosts]
    remote = {host.address for host, is_local in zip(hosts, local, strict=True) if not is_local}
    return len(remote) + any(local)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


LARGEST_SCRIPT = 4 << 20
"""Bytes; a file of millions of lines is data."""


def read_script(path: Path) -> TrainingScript:
    """Read a training script; UsageError if that fails."""
    with file_errors(f"cannot read {path}", "give the training script itself"):
        return TrainingScript(str(path), read_regular(typed_path(path), LARGEST_SCRIPT))


BY_ADDRESS = ("ssh", "paramiko", "openssh")
"""Transports that log in by address; local processes and Slurm's nodes go by name."""


def refuse_shared_addresses(hosts: Iterable[Host]) -> None:
    """UsageError if two nodes have the same address and port to log in to."""
    owners: dict[tuple[str, int | None, str | None], str] = {}
    for host in hosts:
        if host.transport not in BY_ADDRESS:
            continue
        # With its own ssh_config each cluster may use the same private addresses.
        first = owners.setdefault((host.address.lower(), host.port, host.ssh_config), host.name)
        if first != host.name:
            raise UsageError(
                f"{first} and {host.name} have the same address {host.address}: one machine would "
                "count as two; correct the address of one, or leave one out"
            )


_WORD_ENDS = re.compile(r"[\s=:;,'\"()]+|^-\w(?=/)")


def _refuse_untrusted_files(hosts: Sequence[Host]) -> None:
    """As root: UsageError for another user's file that names code, is executed or trusts hosts.

    Private keys are exempt: another user's key opens only what that user could open.
    """
    files: dict[str, bool] = {}
    for host in hosts:
        files |= dict.fromkeys(filter(None, (host.ssh_config, host.known_hosts)), False)
    for host in hosts:
        files |= dict.fromkeys(_named_files(host.python) if host.transport == "local" else (), True)
    files.pop(os.devnull, None)
    for file, is_run in files.items():
        refuse_untrusted(Path(file), is_run=is_run)


def _named_files(python: tuple[str, ...]) -> list[str]:
    """Return the files and folders that a command names, also as `NAME=/a:/b`, `-C/a` or relative.

    It leaves out files beside our own Python, which are trusted.
    """
    first, *words = python
    typed = [word for word in (shutil.which(first), first if "/" in first else "", *words) if word]
    parts = [part for word in typed for part in (word, *_WORD_ENDS.split(word))]
    files = [part for part in parts if Path(part).is_absolute()]
    joined = (str(Path(base, part)) for base in ("", *parts) for part in parts)
    files += filter(os.path.lexists, joined)
    return [file for file in files if Path(file).parent != Path(sys.executable).parent]


def _with_interface(fleet: Fleet, name: str, origin: str) -> Fleet:
    """Set the sweep's network interface; UsageError says what to type instead."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:40]!a} is not a network interface: give a name such as eth0")
    if name == _LOOPBACK and count_machines(fleet.hosts) > 1:
        raise UsageError(
            f"{origin} = {_LOOPBACK}: no node reaches another by loopback; leave it out (each node "
            "then uses its route to the others), or name the network's, as in "
            f"{INTERFACE_OPTION}=eth0"
        )
    return replace(fleet, interface=name, interface_origin=origin)


def _inventory(request: FleetRequest) -> AnyInventory | None:
    path = request.inventory if request.inventory is not None else request.ini_inventory
    if path is None:
        return None
    if not path:
        raise UsageError(
            "--preflight-inventory is empty: give the path of a TOML, YAML or Ansible inventory"
        )
    return open_inventory(typed_path(path))


THIS_MACHINE = "this machine"

SourcedNames = tuple[tuple[str, ...], str]
"""Names of nodes, and the source that named them."""


def _find_names(request: FleetRequest, inventory: AnyInventory | None) -> SourcedNames:
    """Find the nodes in the first source that names any."""
    if request.nodes is not None:
        return _expand(request.nodes, "--preflight-nodes", inventory)
    if request.inventory is not None and inventory is not None:
        return _inventory_names(inventory)
    # The site's hook outranks the current allocation.
    slurm_variables = ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if request.site is None else ()
    for variable in ("PREFLIGHT_NODES", *slurm_variables):
        if variable in request.environ:
            return _names_in_variable(request.environ[variable], variable, inventory)
    if request.site is not None:
        return request.site.names, request.site.origin
    return _default_names(request, inventory)


def _default_names(request: FleetRequest, inventory: AnyInventory | None) -> SourcedNames:
    """Return the nodes of the ini file or the inventory, else this machine."""
    if request.ini_nodes:
        return _expand(request.ini_nodes, "preflight_nodes of the ini file", inventory)
    if inventory is not None:
        return _inventory_names(inventory)
    return (valid_host_name(socket.gethostname().split(".")[0], "localhost"),), THIS_MACHINE


def _names_in_variable(text: str, variable: str, inventory: AnyInventory | None) -> SourcedNames:
    with errors_about(variable):
        # Groups may start commands: only what the operator wrote may name them.
        if variable == "PREFLIGHT_NODES":
            return _expand(text, variable, inventory)
        return expand(text), variable


def _expand(text: str, origin: str, inventory: AnyInventory | None) -> SourcedNames:
    """Read a node list that the operator wrote; the origin shows the groups in it."""
    names = expand_with_groups(text, inventory)
    groups = groups_in(text)
    return names, f"{origin} ({groups})" if groups else origin


def _inventory_names(inventory: AnyInventory) -> SourcedNames:
    if not inventory.names:
        raise UsageError(
            f'{inventory.path} names no nodes: add a table [group.NAME] with nodes = "gpu[001-064]"'
        )
    return inventory.names, str(inventory.path)


def _without_excluded(
    names: tuple[str, ...], exclude: str | None, inventory: AnyInventory | None
) -> tuple[str, ...]:
    if exclude is None:
        return names
    excluded = set(expand_with_groups(exclude, inventory, may_be_empty=True))
    # A group may have nodes outside this fleet; a typed name may not.
    typed = ",".join(word for word in split(exclude) if "@" not in word)
    strangers = sorted(set(expand(typed) if typed else ()) - set(names))
    if strangers:
        raise UsageError(
            f"--preflight-exclude: {fold(strangers)} is not in this fleet"
            f"{did_you_mean(strangers[0], names)}"
        )
    remaining = tuple(name for name in names if name not in excluded)
    if not remaining:
        raise UsageError("--preflight-exclude leaves no node: exclude fewer")
    return remaining


def _hosts(names: Sequence[str], inventory: AnyInventory | None, *, local: bool) -> list[Host]:
    if inventory is not None:
        return [inventory.host(name) for name in names]
    local_host = Host(name="here", address="127.0.0.1", transport="local", python=(sys.executable,))
    return [
        replace(local_host, name=name)
        if local or name == "localhost"
        else Host(name=name, address=name)
        for name in names
    ]


def _with_options(host: Host, request: FleetRequest) -> Host:
    """Apply the command line's settings to a node."""
    if request.transport is not None:
        refuse_unknown_transport(request.transport, "--preflight-transport")
        host = replace(host, transport=request.transport)
    if request.python is not None:
        host = replace(host, python=read_argv(request.python, "--preflight-python"))
    return host


def _job(
    request: FleetRequest, hosts: Sequence[Host], inventory: AnyInventory | None, *, local: bool
) -> Job:
    table = inventory.job if inventory else JobTable()
    line = request.launch if request.launch is not None else table.launch
    launch = launch_line.read_launch(line) if line is not None else None
    env_file = request.env_file
    if env_file is None and table.env_file and inventory:
        env_file = inventory.resolve_path(table.env_file)
    names = [host.name for host in hosts]
    environ, origin = _environ(request, env_file, launch, names, local=local)
    unsafe = ""
    if env_file is not None and os.geteuid() == 0:
        unsafe = _who_could_write(env_file, names)
    common = (environ or {}).get("", {})
    port, port_origin = _master_port(launch, common, table)
    if inventory and table.master and table.master not in inventory.names:
        raise UsageError(
            f"{inventory.path}: [job] master = {table.master!a} is not one of its nodes"
            f"{did_you_mean(table.master, inventory.names)}"
        )
    left_out = inventory.names if inventory and request.launch is None else ()
    launch_address = (launch.master_addr if launch else None) or ""
    master, remark = launch_line.choose_master(
        hosts,
        launch=launch_address,
        environ=common.get("MASTER_ADDR"),
        table=table.master,
        left_out=left_out,
    )
    return Job(
        master=master,
        launch_address="" if remark else launch_address,
        master_port=port,
        master_port_origin=port_origin + remark,
        nproc_per_node=(launch.nproc_per_node if launch else None) or table.nproc_per_node,
        environ=environ,
        environ_origin=origin,
        environ_unsafe=unsafe,
        launch=launch_line.shape_of(launch, common) if launch else None,
        script=_script(request),
    )


def _who_could_write(env_file: str, names: Sequence[str]) -> str:
    """Say who besides root could have written the job's environment; "" if no one could."""
    paths = dict.fromkeys(env_file.replace("{node}", name) for name in names)
    return next(filter(None, (who_may_change(typed_path(path)) for path in paths)), "")


def _script(request: FleetRequest) -> TrainingScript | None:
    if request.script is None:
        return None
    if not request.script:
        raise UsageError("--preflight-script is empty: give the training script")
    return read_script(Path(request.script))


def _environ(
    request: FleetRequest,
    env_file: str | None,
    launch: launch_line.Launch | None,
    names: Sequence[str],
    *,
    local: bool,
) -> tuple[dict[str, dict[str, str]] | None, str]:
    """Return the job's environment by node, and its source for messages."""
    origins = []
    environ: dict[str, dict[str, str]] | None = None
    if env_file is not None:
        environ = read_env_file(env_file, names)
        origins.append(Path(env_file).name)
    elif "SLURM_JOB_ID" in request.environ:
        environ = {"": public_variables(request.environ)}
        origins.append(f"Slurm job {request.environ['SLURM_JOB_ID'][:20]}")
    elif local and launch is None:
        # A job started by hand on this machine inherits this shell's environment.
        environ = {"": public_variables(request.environ)}
        origins.append("this shell")
    if launch is not None:
        base: Mapping[str, dict[str, str]] = environ or {"": {}}
        environ = {name: {**own, **launch.environ} for name, own in base.items()}
        origins.append("the launch line")
    return environ, " and ".join(origins)


def _master_port(
    launch: launch_line.Launch | None, environ: Mapping[str, str], table: JobTable
) -> tuple[int, str]:
    if launch is not None and launch.master_port is not None:
        return launch.master_port, "the launch line"
    port = launch_line.port_number(
        environ.get("MASTER_PORT"), "MASTER_PORT in the job's environment"
    )
    if port is not None:
        return port, "MASTER_PORT"
    if table.master_port is not None:
        return table.master_port, "the inventory"
    return Job().master_port, Job().master_port_origin
