"""The way in is the one that the user's own ssh would take."""

from __future__ import annotations

import getpass
import shutil
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.errors import UsageError
from preflight.fleet.model import Host
from preflight.transport.paramiko_ssh import ParamikoTransport
from preflight.transport.ssh_config import Route, SettingsCache, route_to
from tests.unit.transport.sshd import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(name="gpu017", address="gpu017")


def route(host: Host) -> Route:
    """Ask ssh of a node, once."""
    return route_to(host, SettingsCache().get(host, PATIENCE_S))


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
    found = route(HOST)
    assert (found.hostname, found.user, found.port) == ("gpu017.cluster.example", "ml", 2222)
    assert found.known_names == ("fleet",)
    assert found.identity_files == (f"{tmp_path}/key",)
    assert found.known_hosts == (f"{tmp_path}/known", "/dev/null")
    assert found.use_agent


def test_the_inventory_outranks_ssh(config: Path) -> None:
    """What the inventory says of the way in is taken; with its own key no agent is asked."""
    config.write_text("Host *\n User ml\n Port 2222\n IdentityFile ~/key\n")
    host = Host(
        name="h", address="h", user="root", port=22, identity_file="~/own", known_hosts="~/known"
    )
    found = route(host)
    assert (found.user, found.port) == ("root", 22)
    assert found.identity_files == (str(config.parent / "own"),)
    assert found.known_hosts == (str(config.parent / "known"),)
    assert not found.use_agent


@pytest.mark.parametrize("way", ["ProxyJump bastion", "ProxyCommand nc %h %p"])
def test_paramiko_says_that_a_jump_host_takes_openssh(config: Path, way: str) -> None:
    """A node behind a jump host is not tried directly."""
    config.write_text(f"Host gpu*\n {way}\n")
    with pytest.raises(ReachError, match="which the paramiko transport cannot") as caught:
        ParamikoTransport().connect(HOST, PATIENCE_S)
    assert caught.value.step == "route"
    assert 'transport = "openssh"' in caught.value.advice


def test_a_broken_configuration_is_named(config: Path) -> None:
    """What ssh itself cannot read is not guessed."""
    config.write_text("Host gpu*\n Prot 22\n")
    with pytest.raises(ReachError, match="line 2: Bad configuration option: prot") as caught:
        route(HOST)
    assert HOST.address not in caught.value.sentence + caught.value.advice, "one file, one finding"


def test_an_address_is_never_an_option(config: Path, tmp_path: Path) -> None:
    """An address that looks like an option of ssh does not become one."""
    config.touch()
    with pytest.raises(UsageError, match="is not a host name"):
        route(Host(name="h", address=f"-oProxyCommand=touch {tmp_path}/owned"))
    assert not (tmp_path / "owned").exists()


def test_without_ssh_there_are_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without OpenSSH's client still reaches nodes, on port 22 as the user that runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").touch()
    found = route(HOST)
    assert (found.hostname, found.port, found.user) == ("gpu017", 22, getpass.getuser())
    assert found.known_names == ("gpu017",)
    assert found.identity_files == (f"{tmp_path}/.ssh/id_ed25519",)
    assert found.known_hosts == (f"{tmp_path}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
