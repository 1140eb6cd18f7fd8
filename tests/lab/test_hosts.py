"""A lab host is a machine of its own, reached as any other."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.lab.host import Host

pytestmark = pytest.mark.lab


def ssh(lab: Lab, host: Host, *command: str, key: Path | None = None) -> tuple[int, str, str]:
    """Log in as an operator would: host keys checked, no questions asked."""
    options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=3"]
    options += [f"UserKnownHostsFile={lab.known_hosts}", "IdentitiesOnly=yes"]
    words = ["ssh", "-F", "none", "-i", str(key or lab.identity_file)]
    words += [word for option in options for word in ("-o", option)]
    done = subprocess.run(
        [*words, f"root@{host.address}", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_each_host_answers_ssh_by_its_own_name(lab: Lab) -> None:
    """Real sshd, checked host keys, and every host says who it is."""
    for name, host in lab.hosts.items():
        assert ssh(lab, host, "uname", "-n") == (0, f"{name}\n", "")


def test_a_host_sees_only_itself(lab: Lab) -> None:
    """Processes, network cards and shared memory of one host are invisible to another."""
    one, two = lab.hosts["h1"], lab.hosts["h2"]
    sleeper = one.spawn(["sleep", "54321"])
    one.run(["touch", "/dev/shm/mine", "/run/mine"])
    assert "54321" in one.run(["ps", "ax"]).stdout
    assert "54321" not in two.run(["ps", "ax"]).stdout
    assert two.run(["ls", "/dev/shm", "/run"]).stdout.count("mine") == 0
    assert two.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    sleeper.kill()
    assert sleeper.state == ""


def test_an_orphan_belongs_to_process_one_and_is_buried(lab: Lab) -> None:
    """What `spawn` starts has parent 1 at once, and leaves no zombie when it ends."""
    orphan = lab.hosts["h1"].spawn(["sleep", "54321"])
    assert lab.hosts["h1"].run(["ps", "-o", "ppid=", "-p", str(orphan.pid)]).stdout.strip() == "1"
    orphan.kill()
    assert "Z" not in lab.hosts["h1"].run(["ps", "axo", "state="]).stdout


def test_hosts_reach_each_other_by_name(lab: Lab) -> None:
    """Every host knows the others' names, and the packets really go between namespaces."""
    code = "import socket; print(socket.create_connection(('h2', 22), 5).recv(4))"
    assert "SSH-" in lab.hosts["h1"].run([sys.executable, "-c", code]).stdout


def test_no_variable_of_ours_leaks_into_a_host(lab: Lab) -> None:
    """The driver is found by the loader's own cache: no LD_LIBRARY_PATH gives the lab away."""
    _, environ, _ = ssh(lab, lab.hosts["h1"], "env")
    assert not [line for line in environ.splitlines() if line.startswith(("LD_", "PYTHON", "PF"))]


def test_a_host_that_is_down_answers_nothing_and_comes_back(lab: Lab) -> None:
    """`down` is a power failure: no refusal, no route; afterwards the same host key answers."""
    host = lab.hosts["h3"]
    with host.down():
        status, _, words = ssh(lab, host, "true")
        assert status == 255
        assert "No route to host" in words or "timed out" in words
    assert ssh(lab, host, "true")[0] == 0


def test_a_changed_host_key_is_refused_then_forgotten(lab: Lab) -> None:
    """The key differs from known_hosts for as long as the fault lasts."""
    host = lab.hosts["h2"]
    with host.changed_key():
        status, _, words = ssh(lab, host, "true")
        assert status == 255
        assert "HOST IDENTIFICATION HAS CHANGED" in words
    assert ssh(lab, host, "true")[0] == 0


def test_a_stranger_is_not_let_in(lab: Lab) -> None:
    """Only the controller's key opens the door."""
    status, _, words = ssh(lab, lab.hosts["h1"], "true", key=lab.stranger())
    assert status == 255
    assert "Permission denied" in words


def test_heal_brings_a_stopped_host_back(lab: Lab) -> None:
    """Whatever a test left behind, the next one gets healthy hosts."""
    lab.hosts["h4"].stop()
    lab.hosts["h1"].spawn(["sleep", "54321"])
    lab.heal()
    assert ssh(lab, lab.hosts["h4"], "true")[0] == 0
    assert "54321" not in lab.hosts["h1"].run(["ps", "ax"]).stdout
