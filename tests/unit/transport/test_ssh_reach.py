"""Each way not to reach a node over SSH is a step, a sentence and something to do."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from preflight.core.remote_command import ReachError, Step
from preflight.fleet.model import Host
from preflight.transport.paramiko_ssh import ParamikoTransport
from preflight.transport.ways import transport_for
from tests.unit.transport.agents import Agent, Way
from tests.unit.transport.sshd import PATIENCE_S, free_port, new_key, signal_all, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preflight.transport.ways import Transport
    from tests.unit.transport.sshd import Sshd

pytestmark = pytest.mark.slow


@pytest.fixture(params=["paramiko", "openssh"])
def way(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Reach hosts with each SSH that we have."""
    transport = transport_for(request.param)
    yield transport
    transport.close()


def refused(way: Transport, host: Host, step: Step, timeout_s: float = PATIENCE_S) -> ReachError:
    """Return why the host cannot be reached, having seen that it is for that step."""
    with pytest.raises(ReachError) as caught:
        way.connect(host, timeout_s)
    assert caught.value.step == step, caught.value.sentence
    assert caught.value.advice
    return caught.value


def test_a_known_host_lets_us_in(way: Transport, sshd: Sshd) -> None:
    """With the right host key and an authorized key, commands run as the user asked for."""
    connection = way.connect(sshd.host(), PATIENCE_S)
    answer = connection.start(["id", "-un"], timeout_s=PATIENCE_S).wait(PATIENCE_S)
    connection.close()
    assert answer.stdout.decode().strip() == sshd.host().user
    wait_until(lambda: not sshd.sessions(), "the session is gone from the node")


def test_an_unknown_key_is_refused_with_its_fingerprint(way: Transport, sshd: Sshd) -> None:
    """A host with an unknown key is not logged in to; the message shows what to compare."""
    sshd.known_hosts.write_text("")
    error = refused(way, sshd.host(), "hostkey")
    assert fingerprint(sshd.host_key) in error.sentence
    assert f"ssh-keyscan -t ed25519 -p {sshd.port} -- 127.0.0.1 >> " in error.advice


def test_an_unknown_key_of_an_alias_is_scanned_from_the_host(way: Transport, sshd: Sshd) -> None:
    """The advice works: its command asks the host itself, and stores the key under the alias."""
    config = sshd.folder / "ssh_config"
    config.write_text(sshd.ssh_config("node", "HostKeyAlias fleet"))
    host = sshd.host(name="node", address="node", ssh_config=str(config))
    sshd.known_hosts.write_text("")
    command = refused(way, host, "hostkey").advice.partition("add it: `")[2].partition("`")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True)  # noqa: S602
    assert sshd.known_hosts.read_text().startswith("fleet ssh-ed25519 ")
    way.connect(host, PATIENCE_S).close()


@pytest.mark.proves("reach.hostkey", finds="a changed host key")
def test_a_changed_key_is_refused_with_both_fingerprints(way: Transport, sshd: Sshd) -> None:
    """A host that shows another key than the known one is named as changed."""
    sshd.vouch(new_key(sshd.folder / "old"))
    error = refused(way, sshd.host(), "hostkey")
    assert "changed" in error.sentence
    assert fingerprint(sshd.host_key) in error.sentence
    assert fingerprint(sshd.folder / "old") in error.sentence
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {sshd.known_hosts}" in error.advice


def test_the_advice_on_host_keys_works(way: Transport, sshd: Sshd) -> None:
    """Typing the two commands of the advice lets us in (the comparing is a person's)."""
    sshd.vouch(new_key(sshd.folder / "old"))
    commands = refused(way, sshd.host(), "hostkey").advice.split("`")[3::2]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True)  # noqa: S602 (ours)
    way.connect(sshd.host(), PATIENCE_S).close()


@pytest.mark.proves("reach.hostkey", finds="a revoked host key")
def test_a_revoked_key_is_never_accepted(way: Transport, sshd: Sshd) -> None:
    """`@revoked` outweighs a line that vouches for the same key."""
    kind, blob = (sshd.folder / "host_key.pub").read_text().split()[:2]
    with sshd.known_hosts.open("a") as known:
        known.write(f"@revoked * {kind} {blob}\n")
    assert "revokes" in refused(way, sshd.host(), "hostkey").sentence


def test_a_certificate_authority_needs_openssh(sshd: Sshd) -> None:
    """`@cert-authority` alone cannot be verified here, and the sentence says what can."""
    authority = (new_key(sshd.folder / "ca").with_suffix(".pub")).read_text()
    sshd.known_hosts.write_text(f"@cert-authority * {authority}")
    assert "OpenSSH" in refused(ParamikoTransport(), sshd.host(), "hostkey").sentence


def test_the_known_type_of_key_is_asked_for(way: Transport, sshd: Sshd) -> None:
    """A host with several keys shows the one we know, not the one paramiko likes best."""
    rsa = sshd.folder / "rsa_key"
    argv = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)]
    subprocess.run(argv, check=True)
    with (sshd.folder / "sshd_config").open("a") as config:
        config.write(f"HostKey {rsa}\n")
    os.kill(sshd.process.pid, signal.SIGHUP)
    sshd.vouch(rsa)
    listening = "Server listening"
    wait_until(lambda: (sshd.folder / "log").read_text().count(listening) == 2, "sshd restarted")
    way.connect(sshd.host(), PATIENCE_S).close()


@pytest.mark.proves("reach.login", finds="a login that is refused")
@pytest.mark.parametrize("change", [{"user": "nobody-of-that-name"}, {"identity_file": None}])
def test_a_refused_login_names_user_and_keys(
    sshd: Sshd, change: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login that fails says who tried with what, and the command that must work."""
    monkeypatch.setenv("HOME", str(sshd.folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (sshd.folder / ".ssh").mkdir()
    other = new_key(sshd.folder / ".ssh" / "id_ed25519")
    host = sshd.host(**({"identity_file": str(other)} | change))
    error = refused(ParamikoTransport(), host, "login")
    assert f"{host.user}@127.0.0.1" in error.sentence
    assert str(other) in error.sentence
    assert f"-p {sshd.port} -i {other} {host.user}@127.0.0.1 true" in error.advice


def test_a_missing_identity_is_named(way: Transport, sshd: Sshd) -> None:
    """An identity file that is not there is the reason given."""
    error = refused(way, sshd.host(identity_file="/nowhere/key"), "login")
    assert "/nowhere/key" in error.sentence


@pytest.mark.parametrize("end", ["", ".pub"])
def test_a_key_that_has_no_end_is_named(
    sshd: Sshd, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a pipe in the place of a key holds the run, nor one in that of its public half."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    his = sshd.folder / "his"
    his.write_text("no key\n") if end else None
    os.mkfifo(f"{his}{end}")
    error = refused(ParamikoTransport(), sshd.host(identity_file=str(his)), "login")
    assert f"{his} (" in error.sentence


def test_a_key_with_a_passphrase_is_taken_from_the_agent(
    way: Transport, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no prompt for a passphrase: the agent's copy of the same key is used, or none."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    bare = sshd.identity.read_bytes()
    lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(sshd.identity)]
    subprocess.run(lock, check=True, capture_output=True)
    assert str(sshd.identity) in refused(way, sshd.host(), "login").sentence
    agent = sshd.folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL) as held:
        try:
            wait_until(agent.exists, "the agent listens")
            monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
            subprocess.run(["ssh-add", "-q", "-"], input=bare, check=True, capture_output=True)
            way.connect(sshd.host(), PATIENCE_S).close()
        finally:
            held.terminate()


def test_a_silent_agent_is_left_out(
    way: Transport, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts and never answers: a key's file logs in, and without one the agent is named."""
    place = sshd.folder / "silent"
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(place))
        agent.listen(64)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        way.connect(sshd.host(), PATIENCE_S).close()
        lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(sshd.identity)]
        subprocess.run(lock, check=True, capture_output=True)
        error = refused(way, sshd.host(), "login")
        assert f"the agent at {place} (silent for 2 s)" in error.sentence


@pytest.mark.parametrize("agents_way", get_args(Way))
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_agent_keeps_a_login_waiting(
    way: Transport, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, agents_way: Way
) -> None:
    """Whatever an agent answers, the login ends by its deadline, and no exception is ours."""
    place = sshd.folder / "agent"
    blob = (sshd.folder / "identity.pub").read_text().split()[1]
    agent, ended = Agent(place, agents_way, base64.b64decode(blob)), list[ReachError]()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(place))

    def try_login() -> None:
        ended.append(refused(way, sshd.host(identity_file=None), "login", timeout_s=4))

    with closing(agent):
        login = threading.Thread(target=try_login, daemon=True)
        login.start()
        login.join(PATIENCE_S)
        assert ended, "it still waits for the agent, or failed"
    assert ended[0].sentence.isprintable()


@pytest.mark.proves("reach.name", finds="a name that nothing resolves")
def test_a_name_that_does_not_resolve_is_a_name(way: Transport) -> None:
    """`.invalid` never resolves."""
    error = refused(way, Host(name="h", address="gpu017.invalid"), "name")
    assert "gpu017.invalid" in error.sentence


@pytest.mark.proves("reach.route", finds="an SSH port that refuses")
def test_a_closed_port_refuses(way: Transport, sshd: Sshd) -> None:
    """No process listens: the route fails, with the port."""
    port = free_port()
    error = refused(way, sshd.host(port=port), "route")
    assert f"127.0.0.1 port {port} refuses" in error.sentence


@pytest.mark.proves("reach.route", finds="a port that accepts and never speaks SSH")
def test_who_accepts_and_never_speaks_is_found_out(
    way: Transport, sshd: Sshd, listener: socket.socket
) -> None:
    """A port that accepts and stays silent ends at the deadline and is named for it."""
    port = listener.getsockname()[1]
    before = threading.active_count()
    error = refused(way, sshd.host(port=port), "route", timeout_s=1)
    assert "never speaks" in error.sentence
    wait_until(lambda: threading.active_count() <= before, "no thread of it stays")


@pytest.mark.parametrize(
    ("greeting", "word"),
    [
        (b"", "closes"),
        (b"HTTP/1.1 400 Bad Request\r\n" * 200, "does not speak SSH"),
        (b"SSH-2.0-\x1b[31mevil\r\n" + b"\x00" * 4096, "handshake fails"),
    ],
)
def test_who_does_not_speak_ssh_is_found_out(
    way: Transport, sshd: Sshd, listener: socket.socket, greeting: bytes, word: str
) -> None:
    """Whatever else answers on the port is quoted without control characters."""

    def serve() -> None:
        client = listener.accept()[0]
        with client, suppress(ConnectionError):
            client.sendall(greeting)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    error = refused(way, sshd.host(port=listener.getsockname()[1]), "route")
    assert word in error.sentence
    assert error.sentence.isprintable()


def test_a_handshake_that_stops_half_way_ends(
    way: Transport, sshd: Sshd, listener: socket.socket
) -> None:
    """A host that greets and then says nothing more costs its deadline, and leaves no thread."""

    def serve() -> None:
        client = listener.accept()[0]
        with client:
            client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            while client.recv(4096):
                pass

    before = threading.active_count()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    error = refused(way, sshd.host(port=listener.getsockname()[1]), "route", timeout_s=1)
    assert "greets, but" in error.sentence
    wait_until(lambda: threading.active_count() <= before, "no thread of it stays")


@pytest.mark.proves("reach.answer", finds="an sshd that dies in the middle")
def test_an_sshd_killed_in_the_middle_is_a_lost_line(way: Transport, sshd: Sshd) -> None:
    """When the connection breaks, the reader hears the end and no status."""
    connection = way.connect(sshd.host(), PATIENCE_S)
    remote = connection.start(["sh", "-c", "echo half; cat"], timeout_s=PATIENCE_S)
    assert remote.read_line(PATIENCE_S) == b"half"
    signal_all(sshd.sessions(), signal.SIGKILL)
    assert remote.read_line(PATIENCE_S) is None
    assert remote.wait(PATIENCE_S).status is None
    with pytest.raises(ReachError, match="runs no command"):
        connection.start(["true"], timeout_s=PATIENCE_S)


def test_a_frozen_sshd_holds_up_no_one(way: Transport, sshd: Sshd) -> None:
    """A node that stops dead between login and command is given up at the sending deadline."""
    connection = way.connect(sshd.host(), PATIENCE_S)
    remote = connection.start(["cat"], timeout_s=60)
    signal_all(sshd.sessions(), signal.SIGSTOP)
    with pytest.raises((TimeoutError, ReachError)):
        remote.send(b"n" * (32 << 20), 0.5)
    remote.kill()
    connection.close()


def test_paramiko_says_nothing_on_its_own(sshd: Sshd, listener: socket.socket) -> None:
    """Failing in every way prints no traceback and logs nothing to stderr."""
    program = (
        "import sys, msgspec\n"
        "from preflight.fleet.model import Host\n"
        "from preflight.transport.ways import transport_for\n"
        "from preflight.core.remote_command import ReachError\n"
        "for host in msgspec.json.decode(sys.argv[1], type=list[Host]):\n"
        "    try: transport_for('paramiko').connect(host, 1)\n"
        "    except ReachError as error: print(error.step)\n"
    )
    hosts = [
        sshd.host(user="nobody-of-that-name"),
        sshd.host(port=listener.getsockname()[1]),
        sshd.host(known_hosts="/dev/null"),
    ]
    argv = [sys.executable, "-c", program, msgspec.json.encode(hosts).decode()]
    result = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["login", "route", "hostkey"]
    assert result.stderr == ""


def fingerprint(key: Path) -> str:
    """Return a key's fingerprint as ssh-keygen prints it."""
    argv = ["ssh-keygen", "-l", "-f", f"{key}.pub"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]
