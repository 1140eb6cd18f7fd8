"""What reaches root from the environment that he was started in."""

from __future__ import annotations

import ast
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="the rule holds for root alone")

_SHOW = "import os, sys; sys.stdout.write(repr(dict(os.environ)))"
_START = f"from preflight.commands.run import start; start([], program={_SHOW!r})"
CODE = {
    "OPENSSL_CONF": "/etc/hosts",
    "OPENSSL_MODULES": "/etc",
    "LD_PRELOAD": "",
    "LD_AUDIT": "",
    "BASH_ENV": "/etc/hosts",
    "ENV": "/etc/hosts",
    "BASH_FUNC_ssh%%": "() { id; }",
    "PERL5LIB": "/etc",
    "ANSIBLE_CONFIG": "/etc/hosts",
    "SSH_ASKPASS": "/bin/true",
    "GCONV_PATH": "/etc",
    "SLURM_CONF": "",
    "NCCL_NET_PLUGIN": "evil",
    "UCX_GDB_COMMAND": "gdb",
}


def _taken(**environ: str) -> dict[str, str]:
    python = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told = subprocess.run(
        [sys.executable, "-c", _START], env={**environ, **python}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    taken: dict[str, str] = ast.literal_eval(told.stdout)
    return taken


@root_only
def test_root_takes_over_nothing_that_names_code() -> None:
    """An allow-list: what the loader, OpenSSL, shells, Perl and Ansible go by is not on it."""
    taken = _taken(**CODE, TERM="xterm", NCCL_DEBUG="INFO", PREFLIGHT_NODES="h[1-2]")
    assert not [name for name, value in CODE.items() if value and name in taken]
    assert not [name for name in taken if name.startswith(("BASH", "PYTHONPATH"))]
    given = {"TERM": "xterm", "NCCL_DEBUG": "INFO", "PREFLIGHT_NODES": "h[1-2]"}
    assert given.items() <= taken.items()
    assert taken["HOME"] == pwd.getpwuid(0).pw_dir


@root_only
def test_root_uses_no_path_of_a_stranger(tmp_path: Path) -> None:
    """Not his folder, nor a relative one, nor one that he may yet make; root's own stay."""
    his, own = tmp_path / "his", tmp_path / "own"
    his.mkdir()
    own.mkdir()
    os.chown(his, 65534, 65534)
    bad = (str(his), str(his / "below"), ".", "bin/x", "", "/tmp/nobody-has-made-it", "~/bin")
    names = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SLURM_CONF", "NCCL_IB_HCA")
    mixed = _taken(**dict.fromkeys(names, os.pathsep.join((*bad, str(own)))))
    assert {name: mixed[name] for name in names} == dict.fromkeys(names, str(own))
    assert not {*names} & _taken(**dict.fromkeys(names, str(his))).keys()


@root_only
def test_slurms_configuration_has_no_strangers_plugins_beside_it(tmp_path: Path) -> None:
    """A plugstack.conf beside it names code: in a sticky folder anybody may put one there."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    assert _taken(SLURM_CONF=str(conf))["SLURM_CONF"] == str(conf)
    tmp_path.chmod(0o1777)
    assert "SLURM_CONF" not in _taken(SLURM_CONF=str(conf))


@root_only
def test_other_verbs_find_no_program_of_a_stranger(tmp_path: Path) -> None:
    """A local `diagnose` ran the `timeout` that a user had put first into root's PATH."""
    his = tmp_path / "his"
    his.mkdir()
    (his / "timeout").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (his / "timeout").chmod(0o755)
    os.chown(his, 65534, 65534)
    command = str(Path(sys.executable).with_name("preflight"))
    path = os.pathsep.join((str(his), "/usr/bin", "/bin"))
    words = [command, "diagnose", "--nodes=localhost"]
    told = subprocess.run(
        words, env={"PATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode not in (2, 4), told.stderr
    assert not (tmp_path / "ran").exists()


@root_only
def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """A variable of ours that names a stranger's folder is not dropped in silence."""
    os.chown(tmp_path, 65534, 65534)
    command = str(Path(sys.executable).with_name("preflight"))
    told = subprocess.run(
        [command, "run", "--help"], env={"PREFLIGHT_NODES": f"@{tmp_path}", "PATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = told.stderr.splitlines()
    assert f"PATH ({tmp_path} belongs to nobody)" in line
