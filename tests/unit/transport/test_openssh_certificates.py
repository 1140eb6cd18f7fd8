"""An SSH certificate authority vouches for hosts and for users, as far as OpenSSH accepts it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.transport.paramiko_ssh import ParamikoTransport
from preflight.transport.ssh_config import SettingsCache
from preflight.transport.ways import why_openssh
from tests.unit.transport.sshd import PATIENCE_S, new_key

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fleet.model import Host
    from preflight.transport.ways import Transport
    from tests.unit.transport.sshd import Sshd

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(sshd: Sshd) -> Path:
    """Sign the host's key for 127.0.0.1, and trust nothing but the authority."""
    key = new_key(sshd.folder / "authority")
    certify(sshd, key, "127.0.0.1")
    sshd.known_hosts.write_text(f"@cert-authority 127.0.0.1,[127.0.0.1]:* {public(key)}")
    return key


def certify(sshd: Sshd, authority: Path, name: str, *options: str) -> None:
    """Give the host a certificate for a name."""
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "its id", "-h", "-n", name, *options]
    subprocess.run([*argv, f"{sshd.host_key}.pub"], check=True)
    sshd.reload(f"HostCertificate {sshd.host_key}-cert.pub")


def public(key: Path) -> str:
    """Return the public half of a key as known_hosts wants it."""
    return key.with_name(f"{key.name}.pub").read_text()


def fingerprint(key: Path) -> str:
    """Return a key's fingerprint as ssh-keygen prints it."""
    argv = ["ssh-keygen", "-l", "-f", f"{key}.pub"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]


def refused(way: Transport, host: Host) -> ReachError:
    """Return why the host's key is not accepted."""
    with pytest.raises(ReachError) as caught:
        way.connect(host, PATIENCE_S)
    assert caught.value.step == "hostkey", caught.value.sentence
    return caught.value


def test_a_host_certificate_is_accepted(openssh: Transport, sshd: Sshd, authority: Path) -> None:
    """A host that its authority vouches for is logged in to, and OpenSSH was chosen for that."""
    del authority
    host = sshd.host(transport="ssh")
    assert why_openssh(host, SettingsCache().get(host, PATIENCE_S)) == "@cert-authority"
    openssh.connect(host, PATIENCE_S).close()


def test_a_revoked_authority_vouches_for_no_host(
    openssh: Transport, sshd: Sshd, authority: Path
) -> None:
    """`@revoked` on the authority's key voids what it signed, and the sentence names the line."""
    with sshd.known_hosts.open("a") as known:
        known.write(f"@revoked * {public(authority)}")
    error = refused(openssh, sshd.host())
    assert f"signed by ssh-ed25519 {fingerprint(authority)}, is void" in error.sentence
    assert f"{sshd.known_hosts} line 2 revokes" in error.sentence


def test_a_revoked_host_key_is_not_saved_by_its_certificate(
    openssh: Transport, sshd: Sshd, authority: Path
) -> None:
    """`@revoked` on the host's own key outweighs its certificate."""
    del authority
    with sshd.known_hosts.open("a") as known:
        known.write(f"@revoked * {public(sshd.host_key)}")
    error = refused(openssh, sshd.host())
    assert fingerprint(sshd.host_key) in error.sentence
    assert f"{sshd.known_hosts} line 2 revokes" in error.sentence


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (("other",), "not a listed principal"),
        (("127.0.0.1", "-V", "20200101:20200102"), "expired"),
    ],
)
def test_a_certificate_for_another_name_or_time_is_refused(
    openssh: Transport,
    sshd: Sshd,
    authority: Path,
    certificate: tuple[str, ...],
    reason: str,
) -> None:
    """The sentence says whose certificate it is, what is wrong with it, and how to sign anew."""
    certify(sshd, authority, *certificate)
    error = refused(openssh, sshd.host())
    assert "its host certificate 'its id'" in error.sentence
    assert reason in error.sentence
    assert "ssh-keygen -s CA" in error.advice


def test_an_unknown_authority_is_named(openssh: Transport, sshd: Sshd, authority: Path) -> None:
    """A certificate of an authority that is not trusted here is refused, with its key."""
    sshd.known_hosts.write_text(f"@cert-authority other {public(authority)}")
    error = refused(openssh, sshd.host())
    assert fingerprint(authority) in error.sentence
    assert "@cert-authority" in error.advice


def test_a_changed_key_is_changed_whoever_signed_the_new_one(
    openssh: Transport, sshd: Sshd, authority: Path
) -> None:
    """Where a plain line has another key, that is what the finding says."""
    del authority
    sshd.vouch(new_key(sshd.folder / "old"))
    error = refused(openssh, sshd.host())
    assert "its host key changed" in error.sentence
    assert fingerprint(sshd.folder / "old") in error.sentence


def test_a_plain_key_where_a_certificate_is_due_is_refused(openssh: Transport, sshd: Sshd) -> None:
    """A host that lost its certificate is reported."""
    key = new_key(sshd.folder / "authority")
    sshd.known_hosts.write_text(f"@cert-authority * {public(key)}")
    assert "but it shows a plain ssh-ed25519 key" in refused(openssh, sshd.host()).sentence


def test_a_user_certificate_logs_in(openssh: Transport, sshd: Sshd) -> None:
    """A certificate beside the key opens a door that knows the authority alone."""
    host = sshd.host(transport="ssh")
    assert why_openssh(host, SettingsCache().get(host, PATIENCE_S)) == ""
    key = new_key(sshd.folder / "users")
    argv = ["ssh-keygen", "-q", "-s", str(key), "-I", "me", "-n", str(host.user)]
    subprocess.run([*argv, f"{sshd.identity}.pub"], check=True)
    (sshd.folder / "authorized_keys").unlink()
    sshd.reload(f"TrustedUserCAKeys {key}.pub")
    assert why_openssh(host, SettingsCache().get(host, PATIENCE_S)) == "a user certificate"
    openssh.connect(host, PATIENCE_S).close()
    ParamikoTransport().connect(host, PATIENCE_S).close()  # where there is no ssh to ask
