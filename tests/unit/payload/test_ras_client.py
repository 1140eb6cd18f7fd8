"""A RAS service that answers badly costs one clear sentence, little memory and no more time."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import socket
import subprocess
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from stacks import ras_client

from preflight.facts.job import RasLook
from preflight.hang.diagnose.ras_view import view_of
from tests.lab.hangs.ras_jobs import draw
from tests.lab.hangs.ras_mesh import Job, RasMesh, report

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = b'{"nccl_version": "2.30.7", "communicators": ['
SHORT_S, LONG_S = 2.0, 20.0


def asked(
    address: str, seconds: float = LONG_S, *, always: bool = False, pid: int | None = None
) -> dict[str, Any]:
    """Ask as a node does; the service is of this process's user, or of the one of `pid`."""
    request = {"pid": os.getpid() if pid is None else pid, "address": address, "always": always}
    return ras_client.answer(request, time.monotonic() + seconds)


def sentence(answer: dict[str, Any]) -> str:
    """What an answer comes to for the user; empty for a report that can be judged."""
    look = RasLook(wire=1, nonce="n", host="h", time_s=1, boot_s=1, **answer)
    view = view_of(look, None)
    return view if isinstance(view, str) else ""


def drip(link: socket.socket) -> None:
    """Send a byte now and then, for ever."""
    with contextlib.suppress(OSError):
        while True:
            link.sendall(b" ")
            time.sleep(0.05)


def flood(link: socket.socket) -> None:
    """Send a gigabyte."""
    with contextlib.suppress(OSError):
        for _ in range(1024):
            link.sendall(b"0123456789abcdef" * 65536)


HOSTILE: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "one gigabyte": (flood, "more than 64 MiB"),
    "slow drip": (drip, "did not end in time"),
    "nothing": (lambda _: None, "closed the connection without a report"),
    "closed midway": (lambda link: link.sendall(HEAD + b'{"hash": "0x1", "si'), "no valid JSON"),
    "wrong type": (lambda link: link.sendall(HEAD + b"7]}"), "no valid JSON"),
    "400 digits": (
        lambda link: link.sendall(HEAD + b'{"hash":"0x1","size":' + b"9" * 400 + b"}]}"),
        "no valid JSON",
    ),
    "very deep": (lambda link: link.sendall(HEAD + b"[" * 200000), "no valid JSON"),
    "no UTF-8": (lambda link: link.sendall(b'{"nccl_version": "\xff\xfe"}'), "no valid JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_hostile_reports_become_one_sentence(name: str) -> None:
    """It begins with what happened, is printable, and names no rank."""
    status, words = HOSTILE[name]
    with RasMesh(Job([], []), status=status) as mesh:
        found = sentence(asked(mesh.address, SHORT_S if name == "slow drip" else LONG_S))
    assert found.startswith("RAS did not answer: ")
    assert words in found
    assert found.isprintable()
    assert len(found) < 300


def test_escapes_in_a_report_reach_no_terminal() -> None:
    """Names of hosts and versions are cleaned before anything is printed."""
    rank = (
        '{"rank":0,"host":"\\u001b[2Jevil","pid":1,"cuda_dev":0,"nvml_dev":0,"status":{},'
        '"collective_counts":{"AllReduce":%d}}'
    )
    text = (
        '{"nccl_version":"\\u001b]0;x","communicators":[{"hash":"\\u001b[31m","size":3,"ranks":['
        f"{rank % 1},{(rank % 2).replace('0,', '1,', 1)},{(rank % 2).replace('0,', '2,', 1)}"
        "]}]}"
    )
    with RasMesh(Job([], []), status=lambda link: link.sendall(text.encode())) as mesh:
        answer = asked(mesh.address)
    look = RasLook(wire=1, nonce="n", host="h", time_s=1, boot_s=1, **answer)
    view = view_of(look, None)
    assert not isinstance(view, str), view
    assert all(one.name.isprintable() for one in view.report.communicators)
    assert all(each.process[0].isprintable() for one in view.report.communicators
               for each in one.everyone)  # fmt: skip


@pytest.mark.slow
def test_a_small_report_cannot_unpack_to_a_large_one() -> None:
    """A node may lie about what it packed: memory stays bounded."""
    bomb = base64.b64encode(zlib.compress(b"\0" * (256 << 20), 9)).decode()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "too large" in sentence({"json": True, "content": bomb})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_text_with_a_wrong_table_is_refused() -> None:
    """A million ranks for each of many communicators are more than a job can have."""
    lines = ["NCCL version 2.27.7+cuda12.9 compiled with CUDA 12.9", "Communicators... (0.00s)"]
    lines += [f"{0:5}  {9:8}  {1:8}  {8:>8}  {1 << 20:8}  {8:8}   RUNNING  MISMATCH", "Warnings"]
    lines += [f"#0-{n} (00000000000000{n:02x}) MISMATCH" for n in range(9)]
    content = base64.b64encode(zlib.compress("\n".join(lines).encode())).decode()
    assert "more ranks than a job can have" in sentence({"content": content})


@pytest.mark.parametrize("cut", ["Errors", "Warnings"])
def test_a_text_that_was_cut_off_is_refused(cut: str) -> None:
    """What comes before the cut is no statement about the job."""
    drawn = next(one for one in map(draw, range(99)) if one.ras.number < (2, 28, 7))
    text = report(drawn.ras, is_json=False).partition(f"\n{cut}")[0]
    with RasMesh(drawn.ras, status=lambda link: link.sendall(text.encode())) as mesh:
        mesh.job.version = "2.27.7"
        assert "cut off" in sentence(asked(mesh.address, always=True))


@pytest.mark.slow
def test_another_service_on_the_port_is_left_alone() -> None:
    """A server that greets otherwise is sent no command."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with RasMesh(Job([], [])) as mesh:
            mesh.answer = lambda _: "SSH-2.0-x"  # type: ignore[method-assign,assignment]
            assert 'says "SSH-2.0-x"' in sentence(asked(mesh.address))
            assert mesh.questions == 0
        assert "no answer in time" in sentence(asked(address, 6.0))


@pytest.mark.parametrize("address", ["203.0.113.9:28028", "localhost", "localhost:0", "x:y", ""])
def test_only_an_address_of_this_node_is_contacted(address: str) -> None:
    """A rank's variable cannot send a question elsewhere."""
    assert "is no address of this node" in sentence(asked(address))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_a_service_of_another_user_is_not_asked() -> None:
    """Any user can listen on the port of a job's service, or on the other address of localhost."""
    drawn = draw(1)
    drawn.ras.version = "2.30.7"
    with RasMesh(drawn.ras) as mesh, subprocess.Popen(["sleep", "60"], user=4321) as rank:
        try:
            refused = asked(mesh.address, pid=rank.pid)
        finally:
            rank.kill()
        assert refused["why"] == "RAS did not answer: no process of the ranks' user listens there"
        assert mesh.questions == 0
        assert asked(mesh.address, pid=os.getpid()).get("content")


def test_a_service_whose_user_cannot_be_checked_is_not_asked() -> None:
    """Of the ranks of another user no process may be known, and a rank may have ended."""
    with RasMesh(draw(1).ras) as mesh:
        for pid in (0, 2**22 + 1):
            assert "could not check that its job's user" in sentence(asked(mesh.address, pid=pid))
        assert mesh.questions == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_of_processes_that_cannot_be_read_the_one_of_the_listeners_user_counts() -> None:
    """A stranger's process does not vouch for the service of another user."""
    with RasMesh(draw(1).ras) as mesh, subprocess.Popen(["sleep", "60"], user=4321) as stranger:
        port = mesh.address.rpartition(":")[2]
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ras_client, "DEFAULT", f"localhost:{port}")
                found = ras_client.services({}, [stranger.pid, os.getpid()])
                assert found == {"pid": os.getpid(), "0": f"localhost:{port}"}
                assert ras_client.services({}, [stranger.pid])["pid"] == stranger.pid
        finally:
            stranger.kill()


@pytest.mark.slow
def test_a_rank_that_does_not_greet_is_passed_over() -> None:
    """The ranks of a node share the port: the next connection may reach one that answers."""
    drawn = draw(1)
    drawn.ras.version = "2.30.7"
    with RasMesh(drawn.ras) as mesh:
        greet, late = mesh.answer, iter([True])

        def answer(command: str) -> str:
            if command.startswith("CLIENT") and next(late, False):
                time.sleep(1.5)
            return greet(command)

        mesh.answer = answer  # type: ignore[method-assign]
        assert asked(mesh.address).get("content")
        assert mesh.questions == 1
