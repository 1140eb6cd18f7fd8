"""The hook for other schedulers: a job is kept away by a verdict, and by nothing else."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .stalled_log import IS_ROOT, stalled_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SCRIPT = Path(__file__).parents[3] / "contrib" / "hook" / "preflight-hook.sh"
ALONE = 64124
"""A user without other processes."""

_FOUND = '{\n  "judged": {\n    "findings": [{"check": "gpu.ecc", "drains": %s}]\n  }\n}'
DRAINS, HOLDS = _FOUND % "true", _FOUND % "false"


def _hook(
    folder: Path,
    preflight: str,
    action: str = "",
    env: Mapping[str, str] | None = None,
    *,
    inside: Sequence[str] = (),
    bound: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the script with a preflight of these shell lines, and an action; both leave traces."""
    text = SCRIPT.read_text()
    for name, program in (("PREFLIGHT", preflight), ("ON_UNHEALTHY", action)):
        if program:
            path = folder / name.lower()
            path.write_text(f"#!/bin/sh\n{program}\n")
            path.chmod(0o755)
        old = next(line for line in text.splitlines() if line.startswith(f"{name}="))
        text = text.replace(old, f"{name}={folder / name.lower()}")
    text = text.replace("LIMIT_S=20\n", "LIMIT_S=1\n").replace("KEEP_AWAY=1 ", "KEEP_AWAY=77 ")
    script = folder / "hook.sh"
    script.write_text(text)
    return subprocess.run(
        [*inside, "/bin/bash", "-p", str(script)], cwd=folder,
        env={"IFS": "x", "PATH": "/usr/bin:/bin" if inside else "/nowhere", **(env or {})},
        capture_output=True, text=True, timeout=60, check=False, preexec_fn=bound,
    )  # fmt: skip


def test_nothing_that_a_user_set_is_taken(tmp_path: Path) -> None:
    """What a job's user set for Python, OpenSSL or the shell reaches nothing of root's."""
    planted = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "OPENSSL_CONF", "BASH_ENV"), "/x")
    planted |= {f"BASH_FUNC_{name}%%": f"() {{ touch {tmp_path}/ran; }}" for name in ("cd", "exit")}
    done = _hook(tmp_path, "env >seen; exit 0", env=planted)
    assert done.returncode == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert seen["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
    assert seen.keys() <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("document", "what"), [(DRAINS, "drain"), (HOLDS, "hold")])
def test_a_node_that_is_not_ready_is_reported(tmp_path: Path, document: str, what: str) -> None:
    """The job is kept away; the site's program hears drain or hold, the node and the document."""
    action = 'echo "$@" >stdin; cat >>stdin'
    done = _hook(tmp_path, f"echo '{document}'; echo \"$@\" >asked; exit 1", action)
    assert done.returncode == 77
    first, rest = (tmp_path / "stdin").read_text().split("\n", 1)
    assert first.split()[0] == what
    assert rest.strip() == document
    assert (tmp_path / "asked").read_text() == "prolog --plain --json --limit=1\n"


@pytest.mark.parametrize(
    "preflight",
    [
        "exit 0",
        "exit 2",
        "exit 1",
        "echo Traceback; exit 1",
        f"echo '{DRAINS[:-2]}'; exit 1",
        "kill -9 $$",
        "exec sleep 99",
        "exit 4",
        "",
    ],
    ids=[
        "healthy", "not judged", "no document", "a traceback", "half a document", "killed", "hung",
        "wrong usage", "not installed",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_nothing_else_keeps_a_job_away(tmp_path: Path, preflight: str) -> None:
    """Not judged, damaged, killed, hung or missing: the job starts, and the action is not run."""
    done = _hook(tmp_path, preflight, "touch acted")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "acted").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_shell_forks_no_more_than_it_must() -> None:
    """Where only one more process may run, bash does not try for 15 s to start another."""

    def bound() -> None:
        os.setgroups([])
        os.setgid(ALONE)
        os.setuid(ALONE)
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        done = _hook(Path(name), "exit 0", bound=bound)
    assert (done.returncode, "fork: retry" in done.stderr) == (0, False)
    assert "cannot be run (exit 125)" in done.stderr


@IS_ROOT
def test_a_log_that_stands_still_keeps_no_job_waiting(tmp_path: Path) -> None:
    """It ends without its line there, and says the same on standard error."""
    with stalled_log(tmp_path) as inside:
        done = _hook(tmp_path, "exit 4", inside=inside)
    assert (done.returncode, "cannot be run (exit 4)" in done.stderr) == (0, True)


def test_a_program_that_fails_or_is_missing_changes_nothing(tmp_path: Path) -> None:
    """The verdict stands whatever the site's own program does."""
    assert _hook(tmp_path, f"echo '{DRAINS}'; exit 1").returncode == 77
    assert _hook(tmp_path, f"echo '{DRAINS}'; exit 1", "exit 3").returncode == 77


def test_it_may_be_run_as_it_lies_there() -> None:
    """It is executable, and its shell can read it."""
    assert SCRIPT.stat().st_mode & 0o111
    assert subprocess.run(["/bin/bash", "-n", str(SCRIPT)], check=False).returncode == 0
