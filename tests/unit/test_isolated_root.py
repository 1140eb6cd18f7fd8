"""What reaches root from the environment that he was started in."""

from __future__ import annotations

import ast
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.commands import cli
from preflight.core.trust import safe_paths_for_root, who_may_change
from preflight.session.site import refuse_untrusted_code

pytestmark = pytest.mark.slow

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="the rule holds for root alone")

_SHOW = "import os, sys; sys.stdout.write(repr(dict(os.environ)))"
_START = f"from preflight.commands import start; start([], program={_SHOW!r})"
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
    "SLURM_CONF_SERVER": "127.0.0.1:6817",
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
    kept = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert kept.items() <= _taken(**kept).items()
    assert "TORCH_FR_DUMP_TEMP_FILE" not in _taken(TORCH_FR_DUMP_TEMP_FILE="1")
    assert taken["HOME"] == pwd.getpwuid(0).pw_dir


@root_only
def test_root_uses_no_path_of_a_stranger(tmp_path: Path) -> None:
    """Not his folder, nor a relative one, nor one that he may yet make; root's own stay."""
    his, own = tmp_path / "his", tmp_path / "own"
    his.mkdir()
    own.mkdir()
    os.chown(his, 65534, 65534)
    bad = (str(his), str(his / "below"), ".", "bin/x", "", "/tmp/nobody-has-made-it", "~/bin")
    lists, names = ("PATH", "LD_LIBRARY_PATH"), ("TMPDIR", "SLURM_CONF", "NCCL_IB_HCA")
    mixed = _taken(**dict.fromkeys((*lists, *names), os.pathsep.join((*bad, str(own)))))
    assert {name: mixed.get(name) for name in (*lists, *names)} == {
        **dict.fromkeys(lists, str(own)), **dict.fromkeys(names)
    }  # fmt: skip
    assert not {*lists, *names} & _taken(**dict.fromkeys((*lists, *names), str(his))).keys()
    assert (
        dict.fromkeys(names, str(own)).items() <= _taken(**dict.fromkeys(names, str(own))).items()
    )


PIECES = (
    "{his}",
    "{own}",
    "/usr/lib",
    "$ORIGIN",
    "${LIB}",
    "..",
    ".",
    ";",
    ":",
    ",",
    " ",
    "/",
    "x",
)


@root_only
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=9))
@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "SLURM_CONF", "UCX_TLS"])
def test_no_value_is_a_path_of_a_stranger_to_anybody(
    tmp_path_factory: pytest.TempPathFactory, name: str, pieces: list[str]
) -> None:
    """However it is put together: ld.so parts a value at `;`, too, and fills in $ORIGIN."""
    top = tmp_path_factory.getbasetemp() / "pieces"
    for folder in ("his", "own"):
        (top / folder).mkdir(parents=True, exist_ok=True)
    os.chown(top / "his", 65534, 65534)
    value = "".join(pieces).format(his=top / "his", own=top / "own", LIB="${LIB}")
    kept, _ = safe_paths_for_root(name, value)
    for part in re.split("[:;, ]", kept) if "/" in kept else ():
        assert part.startswith("/")
        assert Path(part).exists()
        assert "$" not in part
        assert ".." not in part.split("/")
        assert who_may_change(Path(part)) == ""
    whole = str(top / "own")
    assert safe_paths_for_root(name, whole) == (whole, [])


@pytest.mark.parametrize("verb", ["check", "nightly"])
def test_no_json_of_the_pythonpath_runs_before_the_isolation(tmp_path: Path, verb: str) -> None:
    """PYTHONPATH has no effect; what begins the isolated Python loads as little as it can."""
    (tmp_path / "json.py").write_text("raise SystemExit('json.py of PYTHONPATH ran')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, "-m", "preflight", verb, "--no-such-option"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, "unknown option" in ended.stderr) == (4, True), ended.stderr


@root_only
@pytest.mark.parametrize("verb", sorted(cli.VERBS))
@pytest.mark.parametrize("words", [(), ("--help",), ("x",)])
def test_every_verb_begins_with_root_own_environment(
    monkeypatch: pytest.MonkeyPatch, verb: str, words: tuple[str, ...]
) -> None:
    """In one place, before anything of the verb is loaded, also where Python was given -I."""
    from preflight.__main__ import main

    began: list[tuple[str, ...]] = []

    def execve(program: str, argv: list[str], environ: dict[str, str]) -> NoReturn:
        began.append(tuple(argv))
        assert program == sys.executable
        assert argv[1] == "-I"
        assert environ["HOME"] == pwd.getpwuid(0).pw_dir
        assert not {*CODE, "XDG_CONFIG_HOME"} & environ.keys()
        raise SystemExit(7)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["preflight", verb, *words])
    for name in (*CODE, "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "/theirs/file")
    before = os.umask(0o022)
    try:
        with pytest.raises(SystemExit, match="7"):
            main()  # it blocks SIGINT as soon as it is imported
        assert (os.umask(0o022) == 0o022) or verb != "watch"
    finally:
        os.umask(before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    assert began


@root_only
def test_a_watch_has_its_tools_from_root_and_the_launch_has_its_own(tmp_path: Path) -> None:
    """No `cat`, `tee` or `timeout` of a stranger's; the launch has its caller's environment."""
    his = tmp_path / "his"
    his.mkdir()
    for name in ("cat", "tee", "timeout", "env", "own-launch"):
        (his / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n/usr/bin/env\numask\n")
        (his / name).chmod(0o755)
    os.chown(his, 65534, 65534)
    (tmp_path / "fleet.toml").write_text('[group.a]\nnodes = "h1"\n')
    given = {
        "PATH": f"{his}:/usr/bin:/bin", "MINE": "a\nb", "HOME": "/theirs", "PYTHONPATH": "/theirs",
        "LD_LIBRARY_PATH": f"/usr/lib;{his}",
    }  # fmt: skip
    words = ["watch", "--tee", "--inventory=fleet.toml", "--", "own-launch"]
    command = str(Path(sys.executable).with_name("preflight"))
    told = subprocess.run(
        ["/bin/sh", "-c", 'umask 002; exec "$0" "$@"', command, *words],
        env=given, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (tmp_path / "ran").read_text() == "own-launch\n"
    for name, value in given.items():
        assert f"{name}={value}\n" in told.stdout
    assert told.stdout.endswith("0002\n")
    assert "PYTHONSAFEPATH" not in told.stdout
    assert "not taken" not in told.stderr


@root_only
def test_pytest_starts_no_program_of_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root what it starts is found, and loads libraries, where no other user could put any."""
    os.chown(tmp_path, 65534, 65534)
    for name in ("PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, f"{tmp_path}:/usr/bin:bin")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    blocked: list[str] = []
    config = SimpleNamespace(pluginmanager=SimpleNamespace(set_blocked=blocked.append))
    with pytest.raises(AttributeError, match="getini"):  # by then it begins to look for code
        refuse_untrusted_code(cast("pytest.Config", config))
    assert (os.environ["PATH"], os.environ["LD_LIBRARY_PATH"]) == ("/usr/bin", "/usr/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    with pytest.raises(AttributeError, match="getini"):
        refuse_untrusted_code(cast("pytest.Config", config))
    assert "LD_LIBRARY_PATH" not in os.environ


@root_only
def test_no_launch_gets_a_folder_that_a_stranger_could_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`watch --print-env` names one where `watch` itself would keep evidence, and no other."""
    os.chown(tmp_path, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["watch", "--print-env"]) == 4
    assert f"cannot write evidence into .: {tmp_path} belongs to nobody;" in capsys.readouterr().err


@root_only
def test_slurms_configuration_has_no_strangers_plugins_beside_it(tmp_path: Path) -> None:
    """A plugstack.conf beside it names code: in a sticky folder anybody may put one there."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    assert _taken(SLURM_CONF=str(conf))["SLURM_CONF"] == str(conf)
    tmp_path.chmod(0o1777)
    assert "SLURM_CONF" not in _taken(SLURM_CONF=str(conf))


@root_only
def test_slurms_configuration_is_of_no_group_but_slurms(tmp_path: Path) -> None:
    """The user slurm starts programs as root anyway; the members of another group do not."""
    try:
        slurm = pwd.getpwnam("slurm")
    except KeyError:
        pytest.skip("this machine has no user slurm")
    conf = tmp_path / "slurm.conf"
    conf.touch()
    tmp_path.chmod(0o775)
    os.chown(tmp_path, slurm.pw_uid, slurm.pw_gid)
    assert _taken(SLURM_CONF=str(conf))["SLURM_CONF"] == str(conf)
    os.chown(tmp_path, slurm.pw_uid, slurm.pw_gid + 1)
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
        [command, "check", "--help"], capture_output=True, text=True, check=True,
        env={"PREFLIGHT_NODES": f"@{tmp_path}", "PATH": str(tmp_path)},
    )  # fmt: skip
    (line,) = told.stderr.splitlines()
    assert f"PATH ({tmp_path} belongs to nobody)" in line
