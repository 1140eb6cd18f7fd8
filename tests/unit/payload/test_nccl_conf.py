"""The probe's reading of NCCL's files: as NCCL splits them, and no secret leaves the node."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from preflight.facts.model import Facts, decode_document

from .node import NONCE, Remote

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.node_network import ConfFile

pytestmark = pytest.mark.slow

LINES = (
    b"# NCCL_DEBUG=INFO\n\nNCCL_SOCKET_IFNAME==ens1f0\nNCCL_DEBUG = WARN\r\n"
    b"export NCCL_ALGO=Ring\n #NCCL_PROTO=LL\nrubbish\n\xff\x00=x\n"
)
SECRETS = (
    "NCCL_PSK=s3cret\nAWS_KEY=s3cret\nNCCL_TOKEN=s3cret\nUCX_JWT=s3cret\n"
    "NCCL_SOCKET_IFNAME=http://ann:s3cret@h\nNCCL_DEBUG=WARN\n"
)


def files(folder: Path, user: str, **environ: str) -> tuple[ConfFile, ...] | None:
    """Ask a real probe that takes `folder` for /etc."""
    remote = Remote("probe", env=environ)
    remote.ask(
        nonce=NONCE,
        name="n1",
        deadline_s=30,
        driver_deadline_s=10,
        sysfs=str(folder),
        etc=str(folder),
        nccl_conf_file=user,
    )
    facts = decode_document(Facts, remote.answer(), NONCE)
    assert remote.leave() == 0
    return facts.nccl_conf


def test_lines_come_as_nccl_splits_them_and_secrets_stay(tmp_path: Path) -> None:
    """At the first =, nothing trimmed; the values of secrets and unknown names are not shown."""
    (tmp_path / "nccl.conf").write_bytes(LINES)
    (tmp_path / "mine.conf").write_text(SECRETS)
    read = files(tmp_path, str(tmp_path / "mine.conf"))
    assert read is not None
    user, system = read
    assert [one.value for one in user.settings] == [*["***"] * 5, "WARN"]
    assert (user.path, user.kind) == (str(tmp_path / "mine.conf"), "user")
    assert [(one.name, one.value) for one in system.settings] == [
        ("NCCL_SOCKET_IFNAME", "=ens1f0"),
        ("NCCL_DEBUG ", " WARN "),
        ("export NCCL_ALGO", "Ring"),
        (" #NCCL_PROTO", "***"),
        ("\ufffd", "***"),
    ]
    assert (system.without_equals, system.kind) == (1, "system")


def test_what_is_no_plain_file_blocks_no_reader(tmp_path: Path) -> None:
    """A pipe (or a device: one may act on being opened) and a huge file are errors."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nccl.conf").write_bytes(b"NCCL_DEBUG=WARN\n" * 5000)
    read = files(tmp_path, str(tmp_path / "pipe"))
    assert read is not None
    assert read[0].settings == read[1].settings == ()
    assert [one.error for one in read] == [
        "it is no regular file", "it is larger than 65536 bytes",
    ]  # fmt: skip


def test_text_that_the_kernel_sends_is_no_file(tmp_path: Path) -> None:
    """What is read of /proc/kmsg is missing in syslog; a list of mounts can be waited for, too."""
    (tmp_path / "nccl.conf").symlink_to("/proc/self/mountinfo")
    read = files(tmp_path, "/proc/kmsg")
    assert read is not None
    assert {one.error for one in read} <= {"it is no regular file", "Permission denied"}


def test_dev_null_is_a_file_without_settings(tmp_path: Path) -> None:
    """NCCL_CONF_FILE=/dev/null is how a user switches his own file off."""
    read = files(tmp_path, os.devnull)
    assert read is not None
    assert [(one.settings, one.error) for one in read] == [((), "")]


def test_the_home_is_that_of_the_user_database(tmp_path: Path) -> None:
    """NCCL asks the user database, whatever HOME says; a folder in a file's place is an error."""
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    (tmp_path / "nccl.conf").mkdir()
    read = files(tmp_path, "", HOME=str(tmp_path))
    assert read is not None
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert all(one.path.startswith(home) for one in read if one.kind == "user")
    assert [one.error for one in read if one.kind == "system"] == ["Is a directory"]
