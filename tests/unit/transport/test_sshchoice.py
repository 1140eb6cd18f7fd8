"""OpenSSH is chosen for what paramiko cannot do, and a header can show the reason."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.report.header import reach_words
from preflight.transport import ways
from preflight.transport.ssh_config import SettingsCache, SshSettings
from preflight.transport.ways import Choice, Ways, why_openssh
from tests.unit.transport.sshd import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(name="gpu017", address="gpu017", known_hosts="/dev/null", identity_file="/nowhere")
PLAIN: dict[str, tuple[str, ...]] = {
    "hostname": ("gpu017",),
    "user": ("ml",),
    "port": ("22",),
    "addressfamily": ("any",),
    "gssapiauthentication": ("no",),
    "hostbasedauthentication": ("no",),
    "verifyhostkeydns": ("false",),
}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("hostname", "10.0.0.17", ""),
        ("proxyjump", "none", ""),
        ("proxyjump", "bastion", "ProxyJump"),
        ("proxycommand", "nc %h %p", "ProxyCommand"),
        ("certificatefile", "~/.ssh/me-cert.pub", "CertificateFile"),
        ("revokedhostkeys", "/etc/ssh/krl", "RevokedHostKeys"),
        ("knownhostscommand", "/bin/keys %H", "KnownHostsCommand"),
        ("verifyhostkeydns", "true", "VerifyHostKeyDNS"),
        ("pkcs11provider", "/usr/lib/p11.so", "PKCS11Provider"),
        ("hostbasedauthentication", "yes", "HostbasedAuthentication"),
        ("bindaddress", "10.0.0.1", "BindAddress"),
        ("bindinterface", "ib0", "BindInterface"),
        ("addressfamily", "inet6", "AddressFamily"),
    ],
)
def test_each_setting_beyond_paramiko_is_a_reason(key: str, value: str, reason: str) -> None:
    """One setting of `ssh -G` decides, and names itself."""
    assert why_openssh(HOST, SshSettings({**PLAIN, key: (value,)})) == reason


def test_another_agent_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that SSH_AUTH_SOCK names is paramiko's too; another one is not."""
    host = Host(name="h", address="h", known_hosts="/dev/null")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    for socket, reason in (
        ("SSH_AUTH_SOCK", ""),
        ("none", ""),
        ("/run/agent", ""),
        ("${SSH_AUTH_SOCK}", ""),
        ("~/.1password/agent.sock", "IdentityAgent"),
    ):
        config = SshSettings({**PLAIN, "identityagent": (socket,), "identityfile": ("/nowhere",)})
        assert why_openssh(host, config) == reason, socket


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("id.pub", "ssh-ed25519 AAAA me", ""),
        ("id-cert.pub", "ssh-ed25519-cert-v01@openssh.com AAAA me", "a user certificate"),
        ("id.pub", "sk-ssh-ed25519@openssh.com AAAA me", "a FIDO key"),
    ],
)
def test_what_lies_beside_a_key_is_a_reason(
    tmp_path: Path, name: str, content: str, reason: str
) -> None:
    """Certificates and keys in tokens are found by the public files beside the key."""
    (tmp_path / "id").touch()
    (tmp_path / name).write_text(content)
    host = Host(name="h", address="h", identity_file=f"{tmp_path}/id", known_hosts="/dev/null")
    assert why_openssh(host, SshSettings(PLAIN)) == reason


@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "/proc/kmsg", "/proc/self/mountinfo"])
def test_what_lies_beside_a_key_may_have_no_end(tmp_path: Path, target: str) -> None:
    """A key may be any user's: a pipe or a device in place of its public half does not hang us."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "id_sk").touch()
    (tmp_path / "id_sk.pub").symlink_to(target)
    host = Host(name="h", address="h", identity_file=f"{tmp_path}/id_sk", known_hosts="/dev/null")
    assert why_openssh(host, SshSettings(PLAIN)) == "a FIDO key"


def test_kerberos_counts_only_with_a_ticket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Debian's ssh asks for GSSAPI everywhere; `klist -s` tells who means it."""
    config = SshSettings({**PLAIN, "gssapiauthentication": ("yes",)})
    klist = tmp_path / "klist"
    monkeypatch.setenv("PATH", str(tmp_path))
    for status, reason in ((1, ""), (0, "Kerberos")):
        klist.write_text(f"#!/bin/sh\nexit {status}\n")
        klist.chmod(0o755)
        ways.has_ticket.cache_clear()
        assert why_openssh(HOST, config) == reason
    ways.has_ticket.cache_clear()


def test_ways_choose_per_node_and_ask_ssh_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jump host for some nodes is OpenSSH for these alone; `Include` is followed; asked once."""
    (tmp_path / "included").write_text("Host h[2-9]\nHost h2 h3\n ProxyJump bastion\n")
    (tmp_path / "config").write_text(f"Include {tmp_path}/included\n")
    common = {"ssh_config": f"{tmp_path}/config", "identity_file": "/nowhere/key"}
    hosts = [Host(name=f"h{n}", address=f"h{n}", **common) for n in (1, 2, 3)]  # type: ignore[arg-type]
    hosts.append(Host(name="here", address="here", transport="local"))
    ways = Ways(hosts)
    known = ways.choose_all(PATIENCE_S)
    assert known == {
        "h1": Choice("paramiko"),
        "h2": Choice("openssh", "ProxyJump"),
        "h3": Choice("openssh", "ProxyJump"),
        "here": Choice("local"),
    }
    assert reach_words(hosts, known) == (
        "ssh (paramiko for h1; OpenSSH for h[2-3]: ProxyJump, known hosts only), local processes x1"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ways.way(hosts[1]) == "openssh"


def test_without_ssh_everything_goes_by_paramiko(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has no ssh has no choice, and `ssh -G` is not missed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    ways = Ways([HOST])
    assert ways.way(HOST) == "paramiko"
    assert SettingsCache().get(HOST, PATIENCE_S) == SshSettings()


def test_a_configuration_that_ssh_cannot_read_is_no_reason(tmp_path: Path) -> None:
    """Nothing is raised while choosing: connecting then says what is wrong, as a finding."""
    (tmp_path / "config").write_text("Nonsense yes\n")
    host = Host(name="h", address="h", ssh_config=f"{tmp_path}/config")
    assert Ways([host]).way(host) == "paramiko"


def test_the_header_of_a_list_decides_nothing() -> None:
    """Where ssh was not asked, both are possible; an explicit choice is reported unchanged."""
    hosts = [Host(name="a", address="a"), Host(name="b", address="b", transport="openssh")]
    assert reach_words(hosts[:1], {}) == "ssh (paramiko or OpenSSH, known hosts only)"
    assert reach_words(hosts[1:], {}) == "ssh (OpenSSH, known hosts only)"
