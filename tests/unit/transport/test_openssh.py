"""The user's own ssh, at work for us: it asks nothing, leaves nothing, and hides no status."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.core.remote_command import ReachError
from preflight.transport.openssh import Sockets
from preflight.transport.ways import fan_out, transport_for
from tests.unit.transport.sshd import (
    PATIENCE_S,
    descendants,
    processes_with,
    signal_all,
    wait_until,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from preflight.transport.ways import Transport
    from tests.unit.transport.sshd import Sshd

pytestmark = pytest.mark.slow

OWNER = (
    "import sys, time, msgspec\n"
    "from pathlib import Path\n"
    "from preflight.fleet.model import Host\n"
    "from preflight.transport.ways import transport_for\n"
    "host = msgspec.json.decode(sys.argv[1], type=Host)\n"
    "way = transport_for('openssh')\n"
    "remote = way.connect(host, 20).start(['cat'], timeout_s=60)\n"
    "remote.send(b'up\\n')\n"
    "print(remote.read_line(20).decode(), flush=True)\n"
)
"""A process that has logged in and talks to a command, until something ends it."""


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import sys; sys.exit(255)", (255,)),
        ("import os; os.kill(os.getpid(), 9)", (137,)),
        ("import os; os.kill(os.getpid(), 15)", (143,)),
    ],
)
def test_a_commands_own_end_is_not_taken_for_sshs(
    openssh: Transport, sshd: Sshd, program: str, status: tuple[int, ...]
) -> None:
    """255 is the command's if the node reports it; a signal is reported as a shell reports it."""
    connection = openssh.connect(sshd.host(), PATIENCE_S)
    argv = [sys.executable, "-I", "-c", program]
    answer = connection.start(argv, timeout_s=PATIENCE_S).wait(PATIENCE_S)
    assert answer.status in status
    assert b"preflight" not in answer.stderr


def test_a_forced_command_keeps_its_status(openssh: Transport, sshd: Sshd) -> None:
    """Where our words never run, ssh's own exit status is what there is."""
    keys = sshd.folder / "authorized_keys"
    keys.write_text('restrict,command="echo no; exit 7" ' + keys.read_text())
    remote = openssh.connect(sshd.host(), PATIENCE_S).start(["true"], timeout_s=PATIENCE_S)
    answer = remote.wait(PATIENCE_S)
    assert (answer.status, answer.stdout) == (7, b"no\n")


def test_a_key_that_only_a_person_can_use_is_not_called_refused(
    openssh: Transport, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the node would take a key that has a passphrase, authorized_keys is not at fault."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(sshd.identity)]
    subprocess.run(lock, check=True, capture_output=True)
    with pytest.raises(ReachError, match="the node accepts it, but it needs") as caught:
        openssh.connect(sshd.host(), PATIENCE_S)
    assert caught.value.step == "login"
    assert "ssh-agent" in caught.value.advice


def test_hashed_known_hosts_are_known(sshd: Sshd) -> None:
    """`ssh-keygen -H` hides names; both ways still recognise the host."""
    hashing = ["ssh-keygen", "-q", "-H", "-f", str(sshd.known_hosts)]
    subprocess.run(hashing, check=True, capture_output=True)
    assert sshd.known_hosts.read_text().startswith("|1|")
    for name in ("paramiko", "openssh"):
        way = transport_for(name)
        way.connect(sshd.host(), PATIENCE_S).close()
        way.close()


def test_no_other_user_can_use_the_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is ours alone, its name no guess, its path short enough, and it goes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{tmp_path}/{'long' * 20}")
    (tmp_path / ("long" * 20)).mkdir()
    first, second = Sockets(), Sockets()
    try:
        for sockets in (first, second):
            assert stat.S_IMODE(sockets.folder.stat().st_mode) == 0o700
            assert len(os.fsencode(sockets.new())) + 18 <= 104
        assert first.folder != second.folder
        assert not list((tmp_path / ("long" * 20)).iterdir())
    finally:
        first.close()
        second.close()
    assert not first.folder.exists()
    assert not second.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_roots_sockets_are_in_no_strangers_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After `su` it still names the folder of who called it, who could put his own in its place."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chown(tmp_path, 65534, 65534)
    sockets = Sockets()
    assert sockets.folder.parent != tmp_path
    sockets.close()
    assert not list(tmp_path.iterdir())


def test_nothing_of_the_users_configuration_runs_here(
    openssh: Transport, sshd: Sshd, tmp_path: Path
) -> None:
    """Local commands, forwardings and persistence of ~/.ssh/config are not for us."""
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n PermitLocalCommand yes\n LocalCommand touch {tmp_path}/ran\n"
        f" LocalForward {sshd.port} 127.0.0.1:1\n ExitOnForwardFailure yes\n"
        f" ControlPath {tmp_path}/theirs\n ControlPersist 60\n ForkAfterAuthentication yes\n"
        f" RemoteCommand touch {tmp_path}/there\n RequestTTY force\n ForwardAgent yes\n"
        " StrictHostKeyChecking no\n LogLevel QUIET\n"
    )
    host = sshd.host(ssh_config=str(config))
    remote = openssh.connect(host, PATIENCE_S).start(["sh", "-c", "tty; env"], timeout_s=PATIENCE_S)
    answer = remote.wait(PATIENCE_S)
    assert b"not a tty" in answer.stdout
    assert b"SSH_AUTH_SOCK" not in answer.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["config"]
    sshd.known_hosts.write_text("")
    with pytest.raises(ReachError, match="host key is unknown"):
        openssh.connect(host, PATIENCE_S)


def test_closing_ends_even_logins_that_are_being_made(sshd: Sshd, listener: socket.socket) -> None:
    """A thread that an interrupt leaves behind in `connect` does not keep its ssh alive."""
    way = transport_for("openssh")
    way.connect(sshd.host(), PATIENCE_S)
    port = listener.getsockname()[1]
    stuck = threading.Thread(
        target=fan_out,
        args=([sshd.host(port=port)], lambda host: way.connect(host, 60)),
        kwargs={"deadline_s": 60},
        daemon=True,
    )
    stuck.start()
    wait_until(lambda: len(_masters(os.getpid())) == 2, "two ssh run")
    way.close()
    assert not _masters(os.getpid())
    with pytest.raises(ReachError, match="the run ended"):
        way.connect(sshd.host(), PATIENCE_S)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for a socket's: those end after 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pf", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_us(sshd: Sshd, short_path: Path, number: signal.Signals) -> None:
    """However the process ends, its logins, its sockets and their guard are gone with it."""
    argv = [sys.executable, "-c", OWNER + "time.sleep(600)"]
    owner = subprocess.Popen(
        [*argv, msgspec.json.encode(sshd.host()).decode()],
        env=os.environ | {"TMPDIR": str(short_path), "XDG_RUNTIME_DIR": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        (folder,) = short_path.iterdir()
        started = descendants(owner.pid)
        assert len(started) >= 3  # the login, its command, the guard
    finally:
        owner.send_signal(number)
        owner.wait(PATIENCE_S)
    wait_until(lambda: not processes_with(str(folder)), "every ssh of it is gone")
    wait_until(lambda: not folder.exists(), "its folder is gone")
    wait_until(lambda: not sshd.sessions(), "its session is gone from the node")


def test_a_dead_master_is_a_lost_line(openssh: Transport, sshd: Sshd) -> None:
    """No command is started without a login, and none logs in by itself."""
    connection = openssh.connect(sshd.host(), PATIENCE_S)
    logins = sshd.log().count("Accepted publickey")
    signal_all(_masters(os.getpid()), signal.SIGKILL)
    wait_until(lambda: not sshd.sessions(), "the session is gone from the node")
    with pytest.raises(ReachError, match="connection lost"):
        connection.start(["true"], timeout_s=PATIENCE_S)
    assert sshd.log().count("Accepted publickey") == logins


def test_without_ssh_the_sentence_says_what_to_install(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Asked for explicitly, it is not replaced in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReachError, match="no ssh on this machine") as caught:
        transport_for("openssh").connect(sshd.host(), PATIENCE_S)
    assert "openssh-client" in caught.value.advice


def _masters(pid: int) -> list[int]:
    """Pids of the logins that a process holds."""
    return [each for each in processes_with("ControlMaster=yes") if each in descendants(pid)]
