"""Where this run's nodes come from; the first source that says something wins, and is named.

Loopback leads from no node to another: every pair would fail, and healthy nodes would be blamed.
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

import msgspec
from msgspec import Struct

from preflight.core.files import read_regular, refuse_others
from preflight.core.text import did_you_mean, whole
from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.fleet.groups import expand_written, groups_in
from preflight.fleet.inventory import open_inventory
from preflight.fleet.inventory_tables import JobTable, command, refuse_unknown_transport
from preflight.fleet.job_environment import public, read_env_file
from preflight.fleet.launch import (
    ENVIRONMENT,
    ORIGIN,
    Launch,
    Ranked,
    choose_master,
    port_number,
    read_launch,
)
from preflight.fleet.model import Fleet, Host, Job, Shape, shape_of
from preflight.fleet.nodeset import expand, fold, sound_name, split
from preflight.fleet.topology import with_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fleet.inventory import AnyInventory
    from preflight.lint.lint import LintResult


def offers_srun(environ: Mapping[str, str]) -> bool:
    """Whether we run inside an allocation whose launcher is at hand."""
    return bool(environ.get("SLURM_JOB_ID")) and shutil.which("srun") is not None


def refuse_many(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several tasks: each would judge, and load, the whole fleet.

    Ranks of torchrun are another matter: those know of each other.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "TORCHELASTIC_RUN_ID" not in environ and (whole(tasks) or 1) > 1:
        raise UsageError(
            f"this is one of {tasks} tasks of a Slurm step, and each would judge the whole fleet: "
            "run pytest --preflight once, in the batch script or after salloc, without srun"
        )


def by_slurm(
    hosts: tuple[Host, ...], inventory: AnyInventory | None, wish: Wish
) -> tuple[Host, ...]:
    """Let srun reach the allocation's nodes, where neither an option nor the inventory says how.

    UsageError outside of an allocation, and if we are one of several tasks of a step.
    """
    asked = [host.name for host in hosts if host.transport == "srun"]
    if asked and not wish.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "the transport srun works inside a Slurm allocation only: "
            "start with sbatch or salloc, or leave --preflight-transport out"
        )
    ours = _allocated(wish.environ)
    inside = ours.issuperset(host.name for host in hosts)
    if asked or inside:
        refuse_many(wish.environ)
    if wish.transport is not None or not inside or not offers_srun(wish.environ):
        return hosts
    return tuple(
        host
        if host.transport in ("local", "torchrun") or (inventory and inventory.names_way(host.name))
        else msgspec.structs.replace(host, transport="srun")
        for host in hosts
    )


def _allocated(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes of the allocation that we run in; none outside of one."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return frozenset()
    try:
        return frozenset(expand(nodes))
    except UsageError:  # it is refused where it names the fleet
        return frozenset()


OPTION = "--preflight-interface"

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,14}")
"""IFNAMSIZ leaves 15 characters; a dash in front is refused with the rest."""

_LOOPBACK = "lo"


def sweep_interface(name: str | None, hosts: Sequence[Host], origin: str) -> str | None:
    """Return the name if it can be one; UsageError (exit 4) says what to type instead.

    `origin`: who named it, as the operator would find it.
    """
    if name is None:
        return None
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:40]!a} is not a network interface: give a name such as eth0")
    if name == _LOOPBACK and machines(hosts) > 1:
        raise UsageError(
            f"{origin} = {_LOOPBACK}: no node reaches another by loopback; leave it away (each "
            f"node then takes its way to the others), or name the network's, as in {OPTION}=eth0"
        )
    return name


def machines(hosts: Sequence[Host]) -> int:
    """How many there are behind these names; all that are local are this one."""
    here = [host.transport == "local" or _is_here(host.address) for host in hosts]
    away = {host.address for host, local in zip(hosts, here, strict=True) if not local}
    return len(away) + any(here)


def _is_here(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def lint_file(path: Path) -> LintResult:
    """Read and judge one file; UsageError where there is none to read."""
    from preflight.lint.lint import lint
    from preflight.lint.reading import LARGEST

    try:
        content = read_regular(path.expanduser(), LARGEST)
    except OSError as error:
        said = f"cannot read {path}: {error.strerror}"
        raise UsageError(f"{said}; give the training script itself") from error
    return lint(content, str(path))


BY_ADDRESS = ("ssh", "paramiko", "openssh")
"""Transports that log in to the address: processes here and Slurm's nodes go by name."""


def refuse_twins(hosts: Iterable[Host]) -> None:
    """UsageError when two nodes are logged in to at one address and port."""
    known: dict[tuple[str, int | None, str | None], str] = {}
    for host in hosts:
        if host.transport not in BY_ADDRESS:
            continue
        # One private address may be another machine in each cluster's own ssh_config.
        first = known.setdefault((host.address.lower(), host.port, host.ssh_config), host.name)
        if first != host.name:
            raise UsageError(
                f"{first} and {host.name} have the same address {host.address}: one machine would "
                "count as two; correct the address of one, or leave one out"
            )


_PARTED = re.compile(r"[\s=:;,'\"()]+|^-\w(?=/)")


class Found(Struct, frozen=True, kw_only=True):
    """The nodes that a hook of the site named, with their settings where it gave `hosts`."""

    names: tuple[str, ...]
    hosts: dict[str, Host] = {}
    origin: str


class Wish(Struct, frozen=True, kw_only=True):
    """What the operator asked for, by option, ini file and environment; None = said nothing."""

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
    """Whether Slurm may be asked for its switches: one process of a run does."""
    logs_in: bool = True
    """Whether nodes are asked: where a run is judged again, what leads to them need not be here."""
    found: Found | None = None
    ini_nodes: str | None = None
    ini_inventory: str | None = None
    environ: dict[str, str] = {}
    ranked: Ranked | None = None
    """The nodes that torchrun gives; they win over every other source."""


def resolve(wish: Wish) -> Fleet:
    """Find the fleet; UsageError when a source names nobody or cannot be read."""
    fleet = _fleet(wish)
    if wish.logs_in:
        _refuse_strangers(fleet.hosts)
    by_hook = wish.found and wish.found.hosts and wish.found.origin == fleet.origin
    told_by = fleet.origin if by_hook else "the inventory"
    environ = wish.environ if wish.ask_slurm else {}
    return with_leaves(fleet, wish.topology, environ, told_by=told_by)


def _refuse_strangers(hosts: Sequence[Host]) -> None:
    """As root: UsageError for a file of somebody else's that names code, is run, or vouches.

    Keys are neither: with a key of his a stranger opens what he could open himself.
    """
    named: dict[str, bool] = {}
    for host in hosts:
        named |= dict.fromkeys(filter(None, (host.ssh_config, host.known_hosts)), False)
    for host in hosts:
        named |= dict.fromkeys(_run_here(host.python) if host.transport == "local" else (), True)
    named.pop(os.devnull, None)
    for file, is_run in named.items():
        refuse_others(Path(file), is_run=is_run)


def _run_here(python: tuple[str, ...]) -> list[str]:
    """The files and folders that a command names, also as `NAME=/a:/b`, `-C/a` or relative to them.

    Whatever lies beside our own Python is run as it is.
    """
    first, *others = python
    typed = [word for word in (shutil.which(first), first if "/" in first else "", *others) if word]
    parts = [part for word in typed for part in (word, *_PARTED.split(word))]
    files = [part for part in parts if Path(part).is_absolute()]
    joined = (str(Path(base, part)) for base in ("", *parts) for part in parts)
    files += filter(os.path.lexists, joined)
    return [file for file in files if Path(file).parent != Path(sys.executable).parent]


def _fleet(wish: Wish) -> Fleet:
    inventory = _inventory(wish)
    if wish.ranked is not None:
        return _ranked(wish, wish.ranked, inventory)
    names, origin, is_here = _names(wish, inventory)
    names = _excluded(names, wish.exclude, inventory)
    brought = wish.found.hosts if wish.found and wish.found.origin == origin else {}
    chosen = [brought[n] for n in names] if brought else _hosts(names, inventory, here=is_here)
    hosts = tuple(_with_choices(host, wish) for host in chosen)
    if not brought:
        hosts = by_slurm(hosts, inventory, wish)
    refuse_twins(hosts)
    table = inventory.job if inventory else JobTable()
    launch_line = wish.launch if wish.launch is not None else table.launch
    launch = read_launch(launch_line) if launch_line is not None else None
    job = _job(wish, hosts, inventory, launch, here=is_here)
    interface, told_by = _interface(wish, inventory, hosts)
    return Fleet(
        hosts=hosts,
        origin=origin,
        job=job,
        waivers=inventory.waivers if inventory else (),
        spoken=_spoken(inventory),
        interface=interface,
        interface_origin=told_by,
    )


def _ranked(wish: Wish, ranked: Ranked, inventory: AnyInventory | None) -> Fleet:
    """The nodes of torchrun's ranks; an inventory says what they were promised to have."""
    every = ranked.hosts(inventory)
    names = _excluded(tuple(host.name for host in every), wish.exclude, inventory)
    hosts = tuple(host for host in every if host.name in names)
    environ = ranked.environs(every)
    master, remark = choose_master(
        hosts, launch=None, environ=environ[""].get("MASTER_ADDR"), table=None
    )
    port, origin = _master_port(None, environ[""], JobTable())
    interface, told_by = _interface(wish, inventory, hosts)
    return Fleet(
        hosts=hosts,
        origin=ORIGIN,
        job=Job(
            master=master,
            master_port=port,
            master_port_origin=origin + remark,
            nproc_per_node=ranked.per_node,
            environ=environ,
            uneven={
                host.name: node.uneven
                for host, node in zip(every, ranked.nodes, strict=True)
                if node.uneven
            },
            environ_origin=ENVIRONMENT,
            script=_script(wish),
        ),
        waivers=inventory.waivers if inventory else (),
        spoken=_spoken(inventory),
        interface=interface,
        interface_origin=told_by,
        ranks=ranked.ranks,
        restarts=ranked.restarts,
    )


def _spoken(inventory: AnyInventory | None) -> tuple[tuple[str, str], ...]:
    if inventory is None:
        return ()
    waived = [(one.check, one.origin) for one in inventory.waivers]
    return (*inventory.switched(), *waived)


def _first(*said: str | None) -> str | None:
    return next((text for text in said if text is not None), None)


def _interface(
    wish: Wish, inventory: AnyInventory | None, hosts: Sequence[Host]
) -> tuple[str | None, str]:
    """Return what the sweep is to go over, and who says so."""
    named = inventory.job.interface if inventory else None
    origin = OPTION if inventory is None or named is None else f"{inventory.path}: [job] interface"
    origin = OPTION if wish.interface is not None else origin
    return sweep_interface(_first(wish.interface, named), hosts, origin), origin


def _inventory(wish: Wish) -> AnyInventory | None:
    path = wish.inventory if wish.inventory is not None else wish.ini_inventory
    if path is None:
        return None
    if not path:
        raise UsageError(
            "--preflight-inventory is empty: give the path of a TOML, YAML or Ansible inventory"
        )
    return open_inventory(Path(path).expanduser())


def _names(wish: Wish, inventory: AnyInventory | None) -> tuple[tuple[str, ...], str, bool]:
    """Return names, the source that gave them, and whether it is just this machine."""
    if wish.nodes is not None:
        return *_written(wish.nodes, "--preflight-nodes", inventory), False
    if wish.inventory is not None and inventory is not None:
        return _all_of(inventory), str(inventory.path), False
    # What the site wrote down in a hook outranks the allocation that we happen to be in.
    around = ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if wish.found is None else ()
    for variable in ("PREFLIGHT_NODES", *around):
        if variable in wish.environ:
            try:
                return *_listed(wish.environ[variable], variable, inventory), False
            except UsageError as error:
                raise UsageError(f"{variable}: {error}") from error
    if wish.found is not None:
        return wish.found.names, wish.found.origin, False
    return _unless_told(wish, inventory)


def _unless_told(wish: Wish, inventory: AnyInventory | None) -> tuple[tuple[str, ...], str, bool]:
    """Return what the ini file says, else this machine."""
    if wish.ini_nodes:
        return *_written(wish.ini_nodes, "preflight_nodes of the ini file", inventory), False
    if inventory is not None:
        return _all_of(inventory), str(inventory.path), False
    return (sound_name(socket.gethostname().split(".")[0], "localhost"),), "this machine", True


def _listed(
    text: str, variable: str, inventory: AnyInventory | None
) -> tuple[tuple[str, ...], str]:
    """Read a variable; only the operator's own may name groups, which may start commands."""
    if variable == "PREFLIGHT_NODES":
        return _written(text, variable, inventory)
    return expand(text), variable


def _written(text: str, origin: str, inventory: AnyInventory | None) -> tuple[tuple[str, ...], str]:
    """Read what the operator wrote himself; the origin shows the groups he named."""
    names = expand_written(text, inventory)
    groups = groups_in(text)
    return names, f"{origin} ({groups})" if groups else origin


def _all_of(inventory: AnyInventory) -> tuple[str, ...]:
    if not inventory.names:
        raise UsageError(
            f'{inventory.path} names no nodes: add a table [group.NAME] with nodes = "gpu[001-064]"'
        )
    return inventory.names


def _excluded(
    names: tuple[str, ...], exclude: str | None, inventory: AnyInventory | None
) -> tuple[str, ...]:
    if exclude is None:
        return names
    out = set(expand_written(exclude, inventory, may_be_empty=True))
    # A group may well have nodes elsewhere; a name that was typed may not.
    typed = ",".join(word for word in split(exclude) if "@" not in word)
    strangers = sorted(set(expand(typed) if typed else ()) - set(names))
    if strangers:
        raise UsageError(
            f"--preflight-exclude names {fold(strangers)}, not of this fleet"
            f"{did_you_mean(strangers[0], names)}"
        )
    rest = tuple(name for name in names if name not in out)
    if not rest:
        raise UsageError("--preflight-exclude leaves no node: exclude fewer")
    return rest


def _hosts(names: Sequence[str], inventory: AnyInventory | None, *, here: bool) -> list[Host]:
    if here and inventory is None:
        return [_this_machine(names[0])]
    hosts = [inventory.host(name) if inventory else Host(name=name, address=name) for name in names]
    return [
        _this_machine(host.name) if inventory is None and host.name == "localhost" else host
        for host in hosts
    ]


def _this_machine(name: str) -> Host:
    return Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))


def _with_choices(host: Host, wish: Wish) -> Host:
    """Lay over a node what the command line says of all of them."""
    if wish.transport is not None:
        refuse_unknown_transport(wish.transport, "--preflight-transport")
        host = msgspec.structs.replace(host, transport=wish.transport)
    if wish.python is not None:
        host = msgspec.structs.replace(host, python=command(wish.python, "--preflight-python"))
    return host


def _job(
    wish: Wish,
    hosts: Sequence[Host],
    inventory: AnyInventory | None,
    launch: Launch | None,
    *,
    here: bool,
) -> Job:
    table = inventory.job if inventory else JobTable()
    env_file = wish.env_file
    if env_file is None and table.env_file and inventory:
        env_file = inventory.beside(table.env_file)
    environ, origin = _environ(wish, env_file, launch, [host.name for host in hosts], here=here)
    unsafe = ""
    if env_file is not None and os.geteuid() == 0:
        unsafe = _others(env_file, [host.name for host in hosts])
    common = (environ or {}).get("", {})
    port, port_origin = _master_port(launch, common, table)
    if inventory and table.master and table.master not in inventory.names:
        raise UsageError(
            f"{inventory.path}: [job] master = {table.master!a} is not one of its nodes"
            f"{did_you_mean(table.master, inventory.names)}"
        )
    elsewhere = inventory.names if inventory and wish.launch is None else ()
    master, remark = choose_master(
        hosts,
        launch=launch.master_addr if launch else None,
        environ=common.get("MASTER_ADDR"),
        table=table.master,
        elsewhere=elsewhere,
    )
    return Job(
        master=master,
        master_port=port,
        master_port_origin=port_origin + remark,
        nproc_per_node=(launch.nproc_per_node if launch else None) or table.nproc_per_node,
        environ=environ,
        environ_origin=origin,
        environ_unsafe=unsafe,
        launch=_shape(launch, common),
        script=_script(wish),
    )


def _others(env_file: str, names: Sequence[str]) -> str:
    """Who but root could have written the environment of a job; "" if nobody."""
    paths = dict.fromkeys(env_file.replace("{node}", name) for name in names)
    found = (who_may_change(Path(path).expanduser()) for path in paths)
    return next(filter(None, found), "")


def _shape(launch: Launch | None, environ: Mapping[str, str]) -> Shape | None:
    if launch is None:
        return None
    return shape_of(launch.launcher, launch.options, launch.before, environ, launch.nproc_per_node)


def _script(wish: Wish) -> LintResult | None:
    if wish.script is None:
        return None
    if not wish.script:
        raise UsageError("--preflight-script is empty: give the training script")
    return lint_file(Path(wish.script))


def _environ(
    wish: Wish, env_file: str | None, launch: Launch | None, names: Sequence[str], *, here: bool
) -> tuple[dict[str, dict[str, str]] | None, str]:
    """Return the job's environment by node, and the source that a sentence can name."""
    origins = []
    environ: dict[str, dict[str, str]] | None = None
    if env_file is not None:
        environ = read_env_file(env_file, names)
        origins.append(Path(env_file).name)
    elif "SLURM_JOB_ID" in wish.environ:
        environ = {"": public(wish.environ)}
        origins.append(f"Slurm job {wish.environ['SLURM_JOB_ID'][:20]}")
    elif here and launch is None:
        # A job started by hand on this machine inherits this very shell.
        environ = {"": public(wish.environ)}
        origins.append("this shell")
    if launch is not None:
        base: Mapping[str, dict[str, str]] = environ or {"": {}}
        environ = {name: {**own, **launch.environ} for name, own in base.items()}
        origins.append("the launch line")
    return environ, " and ".join(origins)


def _master_port(
    launch: Launch | None, environ: Mapping[str, str], table: JobTable
) -> tuple[int, str]:
    if launch is not None and launch.master_port is not None:
        return launch.master_port, "the launch line"
    port = port_number(environ.get("MASTER_PORT"), "MASTER_PORT in the job's environment")
    if port is not None:
        return port, "MASTER_PORT"
    if table.master_port is not None:
        return table.master_port, "the inventory"
    return Job().master_port, Job().master_port_origin
