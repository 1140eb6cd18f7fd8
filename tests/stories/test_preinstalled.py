"""A node that runs nothing it is sent: a key bound to the installed payload, on a real sshd."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight import __version__
from preflight.answer import RefusedError, read_call
from preflight.core.remote_command import ReachError
from preflight.facts.model import Facts, decode_document
from preflight.transport import bundle
from preflight.transport.ways import transport_for
from tests.unit.transport.sshd import PATIENCE_S, Sshd, why_no_sshd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.core.remote_command import Connection
    from tests.stories.conftest import Told

NONCE = "5" * 32
REQUEST = {"nonce": NONCE, "name": "h1", "deadline_s": 20, "driver_deadline_s": 5}
GOOD = ["timeout", "-k", "2", "20", "python3", "-I", "-c", bundle.BOOT, "9", "probe"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd whose only key may do nothing but call the installed payload."""
    if reason := why_no_sshd():
        pytest.skip(reason)
    server = Sshd(tmp_path_factory.mktemp("sshd"), "ListenAddress 127.0.0.2")
    forced = f"{sys.executable} -I -m preflight.answer --sweep-python={sys.executable}"
    key = Path(f"{server.identity}.pub").read_text()
    (server.folder / "authorized_keys").write_text(f'restrict,command="{forced}" {key}')
    yield server
    server.stop()


@pytest.fixture
def connection(node: Sshd) -> Iterator[Connection]:
    """Log in with that key."""
    there = transport_for("paramiko").connect(node.host(), PATIENCE_S)
    yield there
    there.close()


def test_a_fleet_of_such_nodes_is_judged_as_any_other(
    node: Sshd, preflight: Callable[..., Told], tmp_path: Path
) -> None:
    """The same client, unchanged: facts, ports and the sweep come from the installed payload."""
    inventory = tmp_path / "fleet.toml"
    tables = "".join(f'[node.p{i}]\naddress = "127.0.0.{i}"\n' for i in (1, 2))
    host = node.host()
    with node.known_hosts.open("a") as known:
        known.write(node.known_hosts.read_text().replace("127.0.0.1", "127.0.0.2"))
    inventory.write_text(
        f'[defaults]\nuser = "{host.user}"\nport = {host.port}\ntransport = "paramiko"\n'
        f'identity_file = "{host.identity_file}"\nknown_hosts = "{host.known_hosts}"\n'
        # No word of the client's is run there, so not even its Python need exist.
        f'python = "/opt/nobody/has/this/python"\n{tables}'
    )
    told = preflight(f"--preflight-inventory={inventory}", "--preflight-even-if-busy",
                     "--preflight-checks=reach.answer,net.ports,fabric.allreduce")  # fmt: skip
    assert {("reach.answer", "p1", "ok"), ("net.ports", "p2", "ok")} <= told.outcomes(), told.out
    assert [pair["state"] for pair in told.report["pairs"]] == ["measured"], told.out


def test_a_tampered_payload_is_never_run(
    node: Sshd, connection: Connection, tmp_path: Path
) -> None:
    """Code that is sent in the payload's place is thrown away; the installed one answers."""
    planted = tmp_path / "planted"
    evil = tmp_path / "payload"
    evil.mkdir()
    (evil / "start.py").write_text(f"open({str(planted)!r}, 'w').close()\ndef main(entry): pass\n")
    talk = bundle.start_payload(connection, node.host(), "probe", REQUEST, 20, payload=evil)
    talk.finish()
    assert decode_document(Facts, talk.read(PATIENCE_S), NONCE).host == os.uname().nodename
    talk.close()
    assert not planted.exists()


def test_the_key_opens_nothing_else(connection: Connection, tmp_path: Path) -> None:
    """Another command, with or without our call before it, runs nothing: one line, exit 98."""
    planted = tmp_path / "planted"
    for words in (["id"], ["touch", str(planted)], ["sh", "-c", f"touch {planted}"]):
        answer = connection.start(words, timeout_s=20).wait(PATIENCE_S)
        assert answer.status == 98
        assert answer.stdout == b""
        assert answer.stderr == b"preflight.answer: this key serves preflight and nothing else\n"
    assert not planted.exists()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "id",
        "timeout",
        f"{shlex.join(GOOD)}; id",
        f"{shlex.join(GOOD)} extra",
        f"id; {shlex.join(GOOD)}",
        shlex.join([*GOOD[:-1], "../probe"]),
        shlex.join([*GOOD[:-1], "os"]),
        shlex.join([*GOOD[:-2], "-1", "probe"]),
        shlex.join([*GOOD[:-2], "9999999999", "probe"]),
        shlex.join([*GOOD[:-2], "999999999", "probe"]),
        shlex.join([*GOOD[:3], "0", *GOOD[4:]]),
        shlex.join([*GOOD[:3], "inf", *GOOD[4:]]),
        shlex.join([*GOOD[:7], "import os; os.system('id')", *GOOD[8:]]),
        "'" + shlex.join(GOOD),
        shlex.join(GOOD) + " " * 70_000 + "probe",
    ],
)
def test_a_call_of_another_shape_is_refused(line: str) -> None:
    """Nothing but our own call is read as one, whatever is put around it."""
    with pytest.raises(RefusedError, match=r"nothing else|too much"):
        read_call(line)


def test_our_own_call_is_read() -> None:
    """The call as the transports make it, with any Python in it, gives entry, size, deadline."""
    assert read_call(shlex.join(GOOD)) == (20, 9, "probe", {})

    container = [*GOOD[:4], "apptainer", "exec", "x y.sif", *GOOD[4:]]
    assert read_call(shlex.join(container)) == (20, 9, "probe", {})


def test_settings_of_the_job_that_name_no_file_are_taken() -> None:
    """NCCL's numbers and words pass; paths, plugins, files, Python's and the loader's do not."""
    taken = {"NCCL_IB_TC": "106", "NCCL_SOCKET_IFNAME": "=eth0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    taken["NCCL_P2P_DIRECT_DISABLE"] = "1"
    refused = [
        "LD_PRELOAD=x.so",
        "LD_LIBRARY_PATH=/tmp",
        "PYTHONPATH=x",
        "NCCL_NET_PLUGIN=mine",
        "NCCL_TOPO_DUMP_FILE=x",
        "NCCL_TOPO_FILE=/tmp/x",
        "UCX_LOG_FILE=x",
        "UCX_GDB_COMMAND=reboot",
        "UCX_ERROR_MAIL_TO=me",
        "UCX_VFS_SOCK_NAME=x",
        "UCX_MODULE_DIR=.",
        "NCCL_RAS_ADDR=0.0.0.0:4444",
        "IBV_DRIVERS=mine",
        "UCX_HANDLE_ERRORS=debug",
    ]
    words = ["env", *(f"{name}={value}" for name, value in taken.items()), *refused]
    call = [*GOOD[:4], *words, "python3", "-c", bundle.BOOT, "9"]
    assert read_call(shlex.join([*call, "sweep"])) == (20, 9, "sweep", taken)
    assert read_call(shlex.join([*call, "probe"])).environ == {}


def test_another_version_is_a_clear_finding(
    node: Sshd, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with another preflight says both versions, and the advice is to make them one."""
    monkeypatch.setattr(bundle, "BOOT", bundle.BOOT.replace(__version__, "99.1"))
    talk = bundle.start_payload(connection, node.host(), "probe", REQUEST, 20)
    with pytest.raises(ReachError) as caught:
        talk.read(PATIENCE_S)
    assert caught.value.step == "answer"
    assert f"preflight {__version__} is installed here, 99.1 asks" in caught.value.sentence
    assert "install the same preflight" in caught.value.advice


def test_what_is_cut_short_is_not_served(node: Sshd, connection: Connection) -> None:
    """A call whose code never arrives in full ends without an answer."""
    argv = [*GOOD[4:-2], "1000", "probe"]
    remote = connection.start(argv, timeout_s=20)
    remote.send(msgspec.json.encode(REQUEST))
    remote.finish_input()
    answer = remote.wait(PATIENCE_S)
    assert (answer.status, answer.stdout) == (98, b"")
    assert b"cut short" in answer.stderr
    del node
