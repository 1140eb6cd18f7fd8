"""What an operator drops into Slurm: only a node that was found faulty fails its prolog."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hook.hook_values import HookConfig, parse_config, refuse_longer

from .stalled_log import IS_ROOT, stalled_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.hook.hook_values import Occasion

FOLDER = Path(__file__).parents[3] / "contrib" / "slurm"
SCRIPTS = ("prolog.d/50-preflight", "healthcheck", "requeue.sh", "train.sbatch")


DOCUMENT = '{\n  "judged": {},\n  "decision": {\n    "exit_code": 1\n  }\n}\n'
ALONE = 64123
"""A user without other processes."""

FORKS = 4
"""So often bash says that it tries again to fork, after 1, 2, 4 and 8 s, before the last time."""

HEALTHY = DOCUMENT.replace(": 1", ": 0")


def script_of(tmp_path: Path, does: str, closed: str = "") -> Path:
    """The prolog, where `preflight` does that."""
    fake, script = tmp_path / "preflight", tmp_path / "50-preflight"
    if does:
        executable(fake, does)
    text = (FOLDER / "prolog.d" / "50-preflight").read_text()
    text = text.replace("FAIL_CLOSED=\n", f"FAIL_CLOSED={closed}\n")
    script.write_text(text.replace("/opt/preflight/bin/preflight", str(fake)))
    script.chmod(0o755)
    return script


def executable(path: Path, does: str) -> Path:
    """A program of these shell lines."""
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def prolog(
    tmp_path: Path,
    does: str,
    preexec: Callable[[], None] | None = None,
    environ: Mapping[str, str] | None = None,
    closed: str = "",
    *,
    inside: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run the prolog as slurmd does, without a PATH, where `preflight` does that."""
    return subprocess.run(
        [*inside, script_of(tmp_path, does, closed)],
        env={"SLURMD_NODENAME": "h1", **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=preexec,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("exit 0", 0),
        (f"cat <<E\n{DOCUMENT}E\nexit 1", 1),
        (f"cat <<E\n{HEALTHY}E\nexit 1", 0),
        (f"cat <<E\n{DOCUMENT}E\nexit 0", 0),
        ("exit 1", 0),
        ("echo Traceback; exit 1", 0),
        ("exit 2", 0),
        ("exit 4", 0),
        ("exit 127", 0),
        ("kill -SEGV $$", 0),
        ("kill -KILL $$", 0),
        ("", 0),
    ],
)
def test_only_a_verdict_fails_the_prolog(tmp_path: Path, does: str, code: int) -> None:
    """A crash, a missing or half installed program, wrong usage: the job starts all the same."""
    done = prolog(tmp_path, does)
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ('[ "$5" = --fail-closed ] && echo "{"', 0),
        ('[ "$5" = --fail-closed ]', 1),
        (f"cat <<E\n{DOCUMENT}E\nexit 1", 1),
        ("exit 1", 1),
        ("exit 4", 1),
        ("kill -SEGV $$", 1),
        ("", 1),
    ],
)
def test_a_closed_prolog_lets_no_unjudged_node_through(
    tmp_path: Path, does: str, code: int
) -> None:
    """Where its operator wrote --fail-closed into it, only a healthy node starts the job."""
    assert prolog(tmp_path, does, closed="--fail-closed").returncode == code


@pytest.mark.parametrize("closed", [(0,), (0, 1), (0, 2), (1, 2), (2,), (0, 1, 2)])
def test_closed_streams_hide_no_verdict(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """Without standard streams, what preflight logs on standard error is no part of its answer."""
    script = script_of(tmp_path, f"cat <<E\n{DOCUMENT}E\necho gpu.ecc fail >&2\nexit 1")
    closing = " ".join(f"{number}>&-" for number in closed)
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" {closing}', script], env={"SLURMD_NODENAME": "h1"},
        check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1


@pytest.mark.parametrize("files", [4, 5])
@pytest.mark.parametrize(("closed", "code"), [("", 0), ("--fail-closed", 1)])
def test_a_shell_that_can_open_no_pipe_has_no_answer(
    tmp_path: Path, files: int, closed: str, code: int
) -> None:
    """Bash goes on with an empty answer and exit 0, though preflight did not run."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    done = prolog(tmp_path, "exit 0", bound, closed=closed)
    assert done.returncode == code
    assert "cannot make pipe" in done.stderr


def test_nothing_that_a_user_set_reaches_it(tmp_path: Path) -> None:
    """Of what a job's environment may hold only Slurm's own words of the job and the node come."""
    planted = dict.fromkeys(("PYTHONPATH", "LD_AUDIT", "OPENSSL_CONF", "BASH_ENV", "PATH"), "/x")
    planted |= {f"BASH_FUNC_{name}%%": f"() {{ touch {tmp_path}/ran; }}" for name in ("cd", "trap")}
    planted |= {"SLURM_JOB_GPUS": "", "SLURM_JOB_ID": "7"}
    done = prolog(tmp_path, f"env >{tmp_path}/seen", environ=planted)
    assert done.returncode == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    slurms = {"SLURMD_NODENAME": "h1", "SLURM_JOB_GPUS": "", "SLURM_JOB_ID": "7"}
    assert slurms.items() <= seen.items()
    assert seen["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
    assert seen.keys() - slurms.keys() <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_node_without_processes_left_starts_the_job() -> None:
    """Where the shell cannot fork, no verdict was reached; bash tries for 15 s."""

    def bound() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        done = prolog(Path(folder), f"cat <<E\n{DOCUMENT}E\nexit 1", bound)
    assert "fork" in done.stderr
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("processes", [2, 3])
def test_a_full_process_table_is_waited_for_once(processes: int) -> None:
    """Slurm drains after 30 s: where a fork took 15 s, no second one is tried, nor one for a log.

    At the shell's last try so many processes may run, itself included.
    """

    def bound() -> None:
        os.setgroups([])
        os.setgid(ALONE)
        os.setuid(ALONE)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, processes))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        script = script_of(folder, "exit 2")
        logger = executable(folder / "logger", f"exec touch {folder}/logged")
        script.write_text(script.read_text().replace("/usr/bin/logger", str(logger)))
        words = ["/bin/bash", "-p", str(script), "--clean"]
        with subprocess.Popen(
            words, env={}, stderr=subprocess.PIPE, text=True,
            preexec_fn=bound,  # noqa: PLW1509 - no thread runs here
        ) as shell:  # fmt: skip
            assert shell.stderr is not None
            lines = [shell.stderr.readline() for _ in range(FORKS)]
            more = ["/usr/bin/prlimit", f"--pid={shell.pid}", f"--nproc={processes}:"]
            subprocess.run(more, user=ALONE, group=ALONE, extra_groups=[], check=True)
            lines += shell.stderr.readlines()
        tries = [line for line in lines if "fork" in line and "timeout:" not in line]
        assert (shell.returncode, len(tries)) == (0, FORKS), lines
        assert not (folder / "logged").exists()


@IS_ROOT
def test_a_log_that_stands_still_keeps_no_job_waiting(tmp_path: Path) -> None:
    """It ends without its line there; standard output is not Slurm's to print."""
    with stalled_log(tmp_path) as inside:
        done = prolog(tmp_path, "", inside=["/usr/bin/env", "PATH=/usr/bin:/bin", *inside])
    assert (done.returncode, done.stdout) == (0, "")


def test_it_asks_for_a_prolog(tmp_path: Path) -> None:
    """With the configuration of its own, in a folder that no other user writes to."""
    prolog(tmp_path, f'echo "$@" >{tmp_path}/words; pwd >>{tmp_path}/words')
    words = (tmp_path / "words").read_text()
    assert words == "prolog --json --limit=9 --config=/etc/preflight/hook.toml\n/\n"


@pytest.mark.parametrize("name", ["slurm/prolog.d/50-preflight", "slurm/healthcheck"])
def test_the_scripts_wait_for_the_usual_budget(name: str) -> None:
    """And no longer than Slurm does: 10 s (MessageTimeout), and 60 s for a health check."""
    text = (FOLDER.parent / name).read_text()
    occasion: Occasion = "healthcheck" if "health" in name else "prolog"
    (line,) = (line for line in text.splitlines() if line.startswith("LIMIT_S="))
    limit_s = float(line.partition("=")[2])
    refuse_longer(HookConfig(), occasion, limit_s)
    assert limit_s < {"prolog": 10, "healthcheck": 60}[occasion]


def test_the_example_configuration_observes() -> None:
    """Whoever copies it drains nothing before he says so."""
    config = parse_config((FOLDER / "hook.toml").read_bytes(), FOLDER / "hook.toml")
    assert not config.enforce
    assert config.breaker is not None
    assert config.breaker.directory is not None


def test_a_launch_without_its_second_script_says_so(tmp_path: Path) -> None:
    """Before a minute is spent on the gate; it is looked for where sbatch was typed."""
    env = {"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": "/nowhere"}
    words = ["/bin/bash", str(FOLDER / "train.sbatch")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"train: no {tmp_path}/requeue.sh: copy it there")


@pytest.mark.parametrize(
    ("code", "nodes"), [(0, ""), (1, "h[1-2]"), (1, ""), (3, "h1"), (4, ""), (5, "")]
)
def test_the_line_for_a_login_node(tmp_path: Path, code: int, nodes: str) -> None:
    """As the README has it: where the nodes to leave out are unknown, nothing is submitted."""
    readme = (FOLDER / "README.md").read_text()
    lines = readme.partition("bad=$(")[2].partition("```")[0]
    for name, does in (("preflight", f"echo {nodes}; exit {code}"), ("sbatch", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    words = ["/bin/sh", "-c", f"bad=$({lines}"]
    done = subprocess.run(
        words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    submitted = {(0, ""): "train.sbatch\n", (1, "h[1-2]"): "--exclude=h[1-2] train.sbatch\n"}
    assert done.stdout == submitted.get((code, nodes), "")
    assert done.stderr == ("" if done.stdout else "not submitted: look at the report\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run(name: str) -> None:
    """They are executable, and the shell can read them."""
    path = FOLDER / name
    assert path.stat().st_mode & 0o111 == 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([*shell.split(), "-n", path], check=True)
