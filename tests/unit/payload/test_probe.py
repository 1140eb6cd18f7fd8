"""The probe as the controller meets it: a zip goes in, one document comes out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.facts.model import Facts, decode_document
from tests.lab.strangers_mount import starting_a_program

from .node import NONCE, Remote

if TYPE_CHECKING:
    from contextlib import ExitStack


pytestmark = pytest.mark.slow


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
KMSG = Path(__file__).with_name("kmsg.txt")


def probe(remote: Remote, **more: object) -> Facts:
    """Ask for the facts and take the one document that comes; the payload must leave with 0."""
    request = {"name": "n1", "deadline_s": 30, "driver_deadline_s": 10, "sysfs": "/sys"}
    request["kmsg"] = str(KMSG)  # this machine's own log may hold anything
    remote.ask(nonce=NONCE, **{**request, **more})
    facts = decode_document(Facts, remote.answer(), NONCE)
    assert remote.leave() == 0
    return facts


def test_a_node_without_gpus_says_so(tmp_path: Path) -> None:
    """No driver library is `absent`, no RDMA folder is no NICs, and neither is a problem."""
    (tmp_path / "class").mkdir()
    facts = probe(Remote("probe"), sysfs=str(tmp_path))
    assert facts.driver.state == "absent"
    assert (facts.gpus, facts.gpu_pairs, facts.nics, facts.topo_text) == (None, None, (), None)
    assert facts.problems == ()


def test_identity_is_the_nodes_own(tmp_path: Path) -> None:
    """Name, kernel, clock, boot, user and Python are those of the machine that answered."""
    facts = probe(Remote("probe"), sysfs=str(tmp_path))
    system = os.uname()
    assert (facts.host, facts.kernel) == (system.nodename, system.release)
    assert facts.boot_s < facts.time_s <= time.time()
    assert facts.root == (os.geteuid() == 0)
    assert facts.python.version == sys.version.split(" ", 1)[0]
    assert facts.python.executable == sys.executable


def test_the_oldest_python_promised_still_answers(tmp_path: Path) -> None:
    """Python 3.8 runs the same zip."""
    pythons = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
    oldest = str(pythons[0]) if pythons else shutil.which("python3.8")
    if oldest is None:
        pytest.skip("no Python 3.8 here")
    (tmp_path / "class").mkdir()
    facts = probe(Remote("probe", python=oldest), sysfs=str(tmp_path))
    assert facts.python.version.startswith("3.8.")
    assert facts.processes is not None
    assert facts.problems == ()


def test_an_unreadable_nic_folder_is_unknown_not_empty(tmp_path: Path) -> None:
    """Where the RDMA devices cannot be listed the section is None, with the reason."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").write_text("not a folder")
    facts = probe(Remote("probe"), sysfs=str(tmp_path))
    assert facts.nics is None
    assert facts.problems == ("nics: Not a directory",)
    assert facts.processes is not None


def test_a_controller_that_leaves_before_asking_is_no_error() -> None:
    """End of input before the request ends the payload quietly."""
    remote = Remote("probe")
    remote.hang_up()
    assert remote.leave() == 0


def test_a_controller_that_leaves_before_the_answer_is_no_error(tmp_path: Path) -> None:
    """A closed standard output ends the payload quietly, without a traceback or SIGPIPE."""
    remote = Remote("probe")
    assert remote.process.stdout
    assert remote.process.stderr
    remote.process.stdout.close()
    remote.ask(nonce=NONCE, name="n1", deadline_s=30, driver_deadline_s=10, sysfs=str(tmp_path))
    assert remote.process.stderr.read() == b""
    assert remote.process.wait(60) == 0


@pytest.mark.parametrize(("entry", "nonce"), [("probe", 7), ("os;x", NONCE), ("../x", NONCE)])
def test_a_wrong_request_is_refused(entry: str, nonce: object) -> None:
    """Neither a request without nonce nor an entry that is no name is served."""
    remote = Remote(entry)
    remote.ask(nonce=nonce, deadline_s=5)
    assert remote.leave() == 2


def test_our_own_bug_is_one_line_without_values() -> None:
    """A request that breaks the payload gives one line on standard error: what, where, no text."""
    remote = Remote("probe")
    remote.ask(nonce=NONCE, deadline_s=5, driver_deadline_s="hf_secret")
    assert remote.process.stderr
    assert remote.process.stderr.read().startswith(b"preflight: the payload broke: ValueError in ")
    assert remote.leave() == 3


def test_on_a_signal_it_ends_and_takes_its_children(cleanup: ExitStack) -> None:
    """SIGTERM, as `timeout` sends it, ends the payload and what it had started."""
    remote = Remote("ports")
    cleanup.callback(remote.process.kill)
    remote.ask(nonce=NONCE, name="n1", deadline_s=30, master_port=None, data_ports=1)
    remote.answer()
    remote.process.send_signal(signal.SIGTERM)
    assert remote.leave() == 4


def test_its_own_alarm_ends_it(cleanup: ExitStack) -> None:
    """With no word from the controller until its deadline, it leaves by itself."""
    remote = Remote("ports")
    cleanup.callback(remote.process.kill)
    remote.ask(nonce=NONCE, name="n1", deadline_s=0.5, master_port=None, data_ports=1)
    remote.answer()
    assert remote.leave() == 4


def test_the_document_is_plain_ascii_on_one_line(tmp_path: Path) -> None:
    """What travels is ASCII JSON, whatever the node's locale is."""
    remote = Remote("probe", env={"LC_ALL": "C", "PYTHONIOENCODING": "utf-16"})
    remote.ask(nonce=NONCE, name="n", deadline_s=30, driver_deadline_s=9, sysfs=str(tmp_path))
    line = remote.answer()
    assert line.isascii()
    assert json.loads(line)["wire"] == 1
    assert remote.leave() == 0


@needs_root
def test_processes_of_many_users_that_never_get_through_execve_are_named(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    """Each user's holds up the reader once more: after five, no process of the node was known."""
    (tmp_path / "class").mkdir()
    users = range(60001, 60009)
    stuck = [pid for one in users for pid in cleanup.enter_context(starting_a_program(one))]
    facts = probe(Remote("probe"), sysfs=str(tmp_path), driver_deadline_s=1)
    # Older kernels read a state without waiting.
    assert {int(one.split()[1].rstrip(":")) for one in facts.problems} in (set(), set(stuck))
    assert facts.processes is not None
    assert facts.machine is not None
    assert facts.machine.load is not None


@needs_root
def test_processes_of_a_user_that_never_get_through_execve_hide_nothing(tmp_path: Path) -> None:
    """Newer kernels make a reader of their stat lines wait: a FUSE file may hold them for ever."""
    rank = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    try:
        with starting_a_program(65534, many=2):
            facts = probe(Remote("probe"), sysfs=str(tmp_path), driver_deadline_s=1)
    finally:
        rank.kill()
        rank.wait()
    assert facts.processes is not None
    assert rank.pid in [one.pid for one in facts.processes.notable]
    assert facts.machine is not None
    assert facts.machine.load is not None
    assert facts.machine.cgroup is not None
    assert facts.machine.edac is not None
