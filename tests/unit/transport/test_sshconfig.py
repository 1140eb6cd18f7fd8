"""The way in is the one that the user's own ssh would take."""

from __future__ import annotations

import getpass
import shutil
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.transport.protocol import ReachError
from preflight.transport.sshconfig import route_to
from tests.unit.transport.sshd import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(name="gpu017", address="gpu017")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the real ssh a configuration of ours (it finds its own by passwd, not by $HOME)."""
    ssh = shutil.which("ssh")
    if ssh is None:
        pytest.skip("no ssh on this machine")
    file = tmp_path / "config"
    file.touch()
    wrapper = tmp_path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {ssh} -F {file} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return file


def test_sshs_configuration_fills_what_the_inventory_leaves_open(
    config: Path, tmp_path: Path
) -> None:
    """Name, user, port, keys, known_hosts and alias come from ssh, Include followed."""
    (tmp_path / "key").touch()
    (tmp_path / "included").write_text(
        "Host gpu*\n HostName %h.cluster.example\n User ml\n Port 2222\n HostKeyAlias fleet\n"
        f" IdentityFile ~/key\n IdentityFile ~/absent\n UserKnownHostsFile {tmp_path}/known\n"
        " GlobalKnownHostsFile /dev/null\n"
    )
    config.write_text(f"Include {tmp_path}/included\n")
    route = route_to(HOST, PATIENCE_S)
    assert (route.hostname, route.user, route.port) == ("gpu017.cluster.example", "ml", 2222)
    assert route.known_names == ("fleet",)
    assert route.identity_files == (f"{tmp_path}/key",)
    assert route.known_hosts == (f"{tmp_path}/known", "/dev/null")
    assert route.use_agent


def test_the_inventory_outranks_ssh(config: Path) -> None:
    """What the inventory says of the way in is taken; with its own key no agent is asked."""
    config.write_text("Host *\n User ml\n Port 2222\n IdentityFile ~/key\n")
    host = Host(
        name="h", address="h", user="root", port=22, identity_file="~/own", known_hosts="~/known"
    )
    route = route_to(host, PATIENCE_S)
    assert (route.user, route.port) == ("root", 22)
    assert route.identity_files == (str(config.parent / "own"),)
    assert route.known_hosts == (str(config.parent / "known"),)
    assert not route.use_agent


@pytest.mark.parametrize("way", ["ProxyJump bastion", "ProxyCommand nc %h %p"])
def test_a_jump_host_is_said_to_be_unsupported(config: Path, way: str) -> None:
    """A node behind a jump host is not tried directly."""
    config.write_text(f"Host gpu*\n {way}\n")
    with pytest.raises(ReachError, match="jump host is not supported yet") as caught:
        route_to(HOST, PATIENCE_S)
    assert caught.value.step == "route"


def test_a_broken_configuration_is_named(config: Path) -> None:
    """What ssh itself cannot read, nobody guesses at."""
    config.write_text("Host gpu*\n Prot 22\n")
    with pytest.raises(ReachError, match="line 2: Bad configuration option: prot"):
        route_to(HOST, PATIENCE_S)


def test_an_address_is_never_an_option(config: Path, tmp_path: Path) -> None:
    """An address that looks like an option of ssh does not become one."""
    config.touch()
    with pytest.raises(ReachError):
        route_to(Host(name="h", address=f"-oProxyCommand=touch {tmp_path}/owned"), PATIENCE_S)
    assert not (tmp_path / "owned").exists()


def test_without_ssh_there_are_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without OpenSSH's client still reaches nodes, on port 22 as the user that runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").touch()
    route = route_to(HOST, PATIENCE_S)
    assert (route.hostname, route.port, route.user) == ("gpu017", 22, getpass.getuser())
    assert route.known_names == ("gpu017",)
    assert route.identity_files == (f"{tmp_path}/.ssh/id_ed25519",)
    assert route.known_hosts == (f"{tmp_path}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
