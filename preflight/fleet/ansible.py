"""An Ansible inventory as a fleet: what a site keeps for its playbooks is not written twice."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.ansible_list import Listing, decode, members
from preflight.fleet.ansible_run import LARGEST, list_inventory
from preflight.fleet.ansible_vars import read_variables
from preflight.fleet.files import read_regular, refuse_all_below
from preflight.fleet.inventory_tables import PROMISES, WAYS_IN, JobTable
from preflight.fleet.inventory_values import command, own_numbers
from preflight.fleet.model import Host, Promise
from preflight.fleet.nodeset import check_host_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.waivers import Waiver


class AnsibleInventory:
    """What Ansible says of its hosts; only those that are asked for are looked at closely."""

    job = JobTable()
    waivers: tuple[Waiver, ...] = ()

    def __init__(self, path: Path, listing: Listing) -> None:
        self.path = path
        self._listing = listing
        self._folder = path if path.is_dir() else path.parent

    def switched(self) -> tuple[tuple[str, str], ...]:
        """Nothing: checks are switched in a TOML or YAML inventory."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every host, group by group."""
        return tuple(self._listing.group_of)

    @cached_property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The hosts of each group and of the groups in it."""
        return {name: members(self._listing, name) for name in self._listing.hosts}

    def host(self, name: str) -> Host:
        """Join what the inventory says of one host; one it does not know has nothing promised."""
        if name not in self._listing.group_of:
            return Host(name=name, address=name)
        where = f"{self.path}: host {name}"
        variables = self._listing.variables.get(name, {})
        own, named = read_variables(variables, where, self._folder)
        group = named or self._listing.group_of[name]
        if own.address is not None:
            _refuse_address(own.address, where)
        promised = {key: getattr(own, key) for key in PROMISES}
        return Host(
            name=name,
            address=own.address or name,
            group=group,
            leaf=own.leaf or "",
            python=command(own.python, f"{where}: preflight_python"),
            promised=Promise(
                **promised,
                limits=own_numbers(own, "limits", where),
                baselines=own_numbers(own, "baselines", where),
                origin=f"{self.path} [{group}]",
            ),
            **{key: said for key in WAYS_IN if (said := getattr(own, key)) is not None},
        )

    def names_way(self, name: str) -> bool:
        """Whether the inventory itself says by which transport a host is reached."""
        variables = self._listing.variables.get(name, {})
        return {"ansible_connection", "preflight_transport"} & variables.keys() != set()

    def beside(self, file: str) -> str:
        """Read a relative path as beside the inventory, and `~` as home."""
        return str(self._folder / Path(file).expanduser())


def read_ansible(path: Path) -> AnsibleInventory:
    """Ask Ansible about a file, a folder or a script; UsageError that names it."""
    for top in (path, path.parent / "group_vars", path.parent / "host_vars"):
        refuse_all_below(top)
    return _inventory(path, list_inventory(path))


def read_listed(path: Path) -> AnsibleInventory:
    """Read the JSON that `ansible-inventory --list` wrote elsewhere; needs no Ansible."""
    try:
        text = read_regular(path, LARGEST)
    except OSError as error:
        raise UsageError(
            f"cannot read the inventory {path}: {error.strerror}; "
            "write it with: ansible-inventory --list > inventory.json"
        ) from error
    return _inventory(path, text)


def _inventory(path: Path, text: bytes) -> AnsibleInventory:
    try:
        listing = decode(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if not listing.group_of:
        raise UsageError(f"{path} names no hosts: look at `ansible-inventory -i {path} --graph`")
    return AnsibleInventory(path, listing)


def _refuse_address(address: str, where: str) -> None:
    try:
        check_host_name(address)
    except UsageError as error:
        raise UsageError(f"{where}: its address {error}") from error
