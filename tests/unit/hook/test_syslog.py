"""The one line in the system's log, whatever a node has put into it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.hook.child import LONGEST, one_line, say

if TYPE_CHECKING:
    from pathlib import Path


@given(st.text(max_size=3000))
def test_any_text_is_one_printable_line(text: str) -> None:
    """No control character, no second line, never longer than syslog carries."""
    line = one_line(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= LONGEST


def test_it_reaches_syslog(tmp_path: Path) -> None:
    """One datagram with facility and severity, our name, and the text as it is."""
    device = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(device)
        say("gpu001: 50 % of\nit %s", "error", device=device)
        line = daemon.recv(4096)
    assert line.startswith(b"<27>preflight[")
    assert line.rstrip(b"\0").endswith(b"]: gpu001: 50 % of it %s")


@pytest.mark.parametrize("kind", ["absent", "file", "closed", "full"])
def test_without_a_log_daemon_it_is_on_standard_error(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No device, no listener, or one that hangs: the line goes to stderr without a wait."""
    device = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        if kind == "file":
            (tmp_path / "log").touch()
        elif kind != "absent":
            daemon.bind(device)
        if kind == "closed":
            daemon.close()
        if kind == "full":
            _fill(device)
        say("gpu001: sick", device=device)
    assert capfd.readouterr().err == "preflight: gpu001: sick\n"


def _fill(device: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                sender.sendto(b"x", device)
