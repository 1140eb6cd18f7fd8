"""A fleet behind a jump host is judged as one that is reached directly."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.lab import wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

ALL = "--preflight-fail-fast=never"


def ssh_config(lab: Lab, bastion: str) -> Path:
    """Write what a user would have in ~/.ssh/config: h1 directly, the others behind a bastion."""
    behind = " ".join(host.address for name, host in lab.hosts.items() if name != "h1")
    file = lab.folder / "ssh_config"
    file.write_text(
        f"Host bastion\n  HostName {bastion}\n  User root\n  IdentityFile {lab.identity_file}\n"
        f"  UserKnownHostsFile {lab.known_hosts}\nHost {behind}\n  ProxyJump bastion\n"
    )
    return file


def test_a_fleet_behind_a_jump_host(preflight: Callable[..., Told], lab: Lab) -> None:
    """h1 lets us in, the others only from h1: the verdicts are those of direct logins."""
    lab.hosts["h3"].set_scenario(lab.hosts["h3"].scenario.without_gpu(3))
    direct = preflight("--preflight-inventory", str(lab.inventory()), ALL)
    config = ssh_config(lab, lab.hosts["h1"].address)
    inventory = lab.inventory(defaults={"transport": "ssh", "ssh_config": str(config)})
    with ExitStack() as doors:
        for name in ("h2", "h3", "h4"):
            doors.enter_context(wire.no_login_from_outside(lab.hosts[name], lab.controller))
        told = preflight("--preflight-inventory", str(inventory), ALL)
    assert told.exit == direct.exit == 1, told.out
    assert "reach    ssh (paramiko for h1; OpenSSH for h[2-4]: ProxyJump, known hosts" in told.out
    assert told.found() == direct.found() == {("gpu.count", "h3")}
    assert told.outcomes() == direct.outcomes()


def test_a_jump_host_that_is_down(preflight: Callable[..., Told], lab: Lab) -> None:
    """It is one finding under its own name; no node behind it is called down, or ready."""
    config = ssh_config(lab, lab.controller)  # nobody listens there
    inventory = lab.inventory(defaults={"transport": "ssh", "ssh_config": str(config)})
    told = preflight("--preflight-inventory", str(inventory), "-m", "not preflight_fabric")
    assert told.exit == 1
    assert told.out.count("FAIL   jump host bastion  reach.route\n") == 1
    assert "the jump host bastion is in the way" in told.out
    assert "this looks like" not in told.out
    assert told.report["fleet"]["not_ready"] == ["h2", "h3", "h4"]
    assert told.found() == {("reach.route", name) for name in ("h2", "h3", "h4")}
