"""Nodes behind a jump host: one login on it for all of them, and its faults are its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.fleet.model import Host
from preflight.transport.openssh_logins import hop
from preflight.transport.ways import fan_out
from tests.unit.transport.sshd import PATIENCE_S, Sshd, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preflight.transport.ways import Transport

pytestmark = pytest.mark.slow


@pytest.fixture
def serve(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sshd]]:
    """Start further sshd's, beside the one that stands for the nodes."""
    del sshd  # only because it knows when none can run
    servers: list[Sshd] = []

    def start(extra: str = "") -> Sshd:
        servers.append(Sshd(tmp_path_factory.mktemp("bastion"), extra))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def behind(sshd: Sshd, *blocks: str, jump: str = "bastion") -> list[Host]:
    """Describe six nodes as hosts that an ssh configuration reaches through a jump host."""
    file = sshd.folder / "ssh_config"
    file.write_text("".join([*blocks, sshd.ssh_config("h*", f"ProxyJump {jump}")]))
    return [
        Host(name=f"h{n}", address=f"h{n}", ssh_config=str(file), transport="openssh")
        for n in range(1, 7)
    ]


def reached(way: Transport, host: Host) -> str:
    """Log in and have the node say something."""
    connection = way.connect(host, PATIENCE_S)
    return (
        connection.start(["echo", host.name], timeout_s=PATIENCE_S).wait(PATIENCE_S).stdout.decode()
    )


def refused(way: Transport, host: Host, timeout_s: float = PATIENCE_S) -> ReachError:
    """Return why a node cannot be reached."""
    with pytest.raises(ReachError) as caught:
        way.connect(host, timeout_s)
    return caught.value


def test_a_bastion_sees_one_login_for_all_nodes(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """A bastion with `MaxStartups 2` lets six nodes be reached at once, by one login of ours."""
    bastion = serve("MaxStartups 2")
    hosts = behind(sshd, bastion.ssh_config("bastion"))
    answers = fan_out(hosts, lambda host: reached(openssh, host), deadline_s=PATIENCE_S * 2)
    assert answers == {f"h{n}": f"h{n}\n" for n in range(1, 7)}
    assert bastion.log().count("Accepted publickey") == 1
    assert sshd.log().count("Accepted publickey") == 6
    openssh.close()
    wait_until(lambda: not bastion.sessions() and not sshd.sessions(), "all have logged out")


def test_a_jump_host_is_not_reached_through_itself(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """`Host *` with a ProxyJump, as many write it, means the nodes."""
    every = "Host *\n  ProxyJump bastion\n"
    host = behind(sshd, serve().ssh_config("bastion"), every)[0]
    assert reached(openssh, host) == "h1\n"


def test_a_chain_of_jump_hosts_is_gone_through_in_order(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """`ProxyJump outer,inner` logs in once to each, and to the second through the first."""
    outer, inner = serve(), serve()
    blocks = outer.ssh_config("outer"), inner.ssh_config("inner")
    hosts = behind(sshd, *blocks, jump="outer,inner")
    assert [reached(openssh, host) for host in hosts[:2]] == ["h1\n", "h2\n"]
    assert outer.log().count("Accepted publickey") == 1
    assert inner.log().count("Accepted publickey") == 1


def test_a_bastion_that_is_down_is_blamed_itself(openssh: Transport, sshd: Sshd) -> None:
    """No node is blamed: all of them have the same message, which names the bastion."""
    block = f"Host bastion\n HostName 127.0.0.1\n Port {free_port()}\n"
    errors = [refused(openssh, host) for host in behind(sshd, block)[:3]]
    assert {error.step for error in errors} == {"route"}
    assert {error.blame for error in errors} == {"jump host bastion"}
    assert len({(error.sentence, error.advice) for error in errors}) == 1
    assert "the jump host bastion is in the way: 127.0.0.1 port" in errors[0].sentence
    assert "refuses connections" in errors[0].sentence
    assert "bastion true`" in errors[0].advice


def test_a_bastion_with_an_unknown_key_is_blamed_with_it(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """The fingerprint to compare and the command that adds the key are the bastion's."""
    bastion = serve()
    bastion.known_hosts.write_text("")
    error = refused(openssh, behind(sshd, bastion.ssh_config("bastion"))[0])
    assert (error.step, error.blame) == ("route", "jump host bastion")
    assert "its host key is unknown: it shows ssh-ed25519 SHA256:" in error.sentence
    assert f"ssh-keyscan -t ed25519 -p {bastion.port} -- 127.0.0.1 >>" in error.advice


def test_a_bastion_that_forwards_nothing_is_blamed(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """`AllowTcpForwarding no` on the bastion is the bastion's setting, not a dead node."""
    bastion = serve("AllowTcpForwarding no")
    error = refused(openssh, behind(sshd, bastion.ssh_config("bastion"))[0])
    assert error.blame == "jump host bastion"
    assert "forwards no connection: administratively prohibited" in error.sentence
    assert "AllowTcpForwarding" in error.advice


def test_a_node_that_refuses_behind_a_bastion_is_the_node(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """A fault beyond a working bastion is reported of the node, with its place."""
    host = behind(sshd, serve().ssh_config("bastion"))[0]
    sshd.stop()
    error = refused(openssh, host)
    assert (error.step, error.blame) == ("route", "")
    assert error.sentence == f"127.0.0.1 port {sshd.port} behind bastion refuses connections"


def test_an_unknown_key_behind_a_bastion_is_scanned_from_there(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd]
) -> None:
    """The advice works: ssh-keyscan runs on the bastion, since only that reaches the node."""
    host = behind(sshd, serve().ssh_config("bastion"))[0]
    sshd.known_hosts.write_text("")
    error = refused(openssh, host)
    assert (error.step, error.blame) == ("hostkey", "")
    assert (
        f"`ssh -F {host.ssh_config} bastion ssh-keyscan -t ed25519 -p {sshd.port}" in error.advice
    )


def test_a_bastion_that_dies_later_is_a_lost_line(
    openssh: Transport, sshd: Sshd, serve: Callable[..., Sshd], tmp_path: Path
) -> None:
    """When it goes, the connections through it end, and the next node's error blames it."""
    del tmp_path
    bastion = serve()
    hosts = behind(sshd, bastion.ssh_config("bastion"))
    remote = openssh.connect(hosts[0], PATIENCE_S).start(["cat"], timeout_s=PATIENCE_S)
    bastion.stop()
    assert remote.wait(PATIENCE_S).status is None
    error = refused(openssh, hosts[1])
    assert error.blame == "jump host bastion"
    assert "the connection to it was lost" in error.sentence


@pytest.mark.parametrize(
    ("text", "address", "user", "port"),
    [
        ("bastion", "bastion", None, None),
        ("ops@bastion:2222", "bastion", "ops", 2222),
        ("ops@corp@bastion", "bastion", "ops@corp", None),
        ("[fd00::1]:2222", "fd00::1", None, 2222),
        ("ssh://ops@bastion:2222", "bastion", "ops", 2222),
    ],
)
def test_jump_hosts_are_read_as_ssh_writes_them(
    text: str, address: str, user: str | None, port: int | None
) -> None:
    """User, name and port of one hop."""
    host = hop(text, None)
    assert host is not None
    assert (host.address, host.user, host.port) == (address, user, port)


@pytest.mark.parametrize("text", ["", "a b", "a:b", "-oProxyCommand=x y"])
def test_what_cannot_be_read_is_left_to_ssh(text: str) -> None:
    """No guess is made."""
    assert hop(text, None) is None
