"""The shell completes `preflight`: a real bash reads our script and asks for what may follow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ASK = """
eval "$(preflight completion bash)"
read -r -a found <<<"$(complete -p preflight)"
for ((at = 0; at < ${#found[@]}; at++)); do
    [ "${found[at]}" = -F ] && function=${found[at + 1]}
done
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
"$function" preflight "${1##* }" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _completed(line: str, folder: Path) -> list[str]:
    """What bash would offer after this line."""
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", line], cwd=folder, capture_output=True, text=True,
        env={"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}, check=False, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return [word.strip() for word in done.stdout.split("\n") if word.strip()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("preflight che", ["check"]),
        ("preflight check --ti", ["--tier"]),
        ("preflight check --tier ", ["quick", "standard", "deep", "prolog"]),
        ("preflight check --tier=st", ["standard"]),
        ("preflight list-checks gpu.cou", ["gpu.count"]),
        ("preflight check --checks gpu.count,net.po", ["gpu.count,net.ports"]),
        ("preflight nightly --wave-b", ["--wave-budget"]),
        ("preflight diagnose --look", ["--look-s"]),
        ("preflight watch --stal", ["--stalled-after"]),
        ("preflight prolog --fail", ["--fail-closed"]),
        ("preflight install-hook --unin", ["--uninstall"]),
        ("preflight completion z", ["zsh"]),
        ("preflight check g", []),
    ],
)
def test_bash_completes(tmp_path: Path, line: str, offered: list[str]) -> None:
    """Verbs, options, choices and ids of checks; names of nodes are not guessed from files."""
    (tmp_path / "gpu001").touch()
    assert _completed(line, tmp_path) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(tmp_path: Path, shell: str) -> None:
    """Of argcomplete's own, which those shells read."""
    done = subprocess.run(
        [BIN / "preflight", "completion", shell], cwd=tmp_path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert {"zsh": "compdef", "fish": "complete --command preflight"}[shell] in done.stdout


def test_no_run_is_taken_for_a_completion(tmp_path: Path) -> None:
    """Its variables in the environment of a run would end it with 0 before anything is checked."""
    words = [str(BIN / "preflight"), "check", "--checks=host.load", "--json"]
    environ = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": "preflight ", "COMP_POINT": "10"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)["exit"] == done.returncode


def test_nothing_is_loaded_for_it_otherwise(tmp_path: Path) -> None:
    """Starting a command costs no more than before."""
    program = "import sys; from preflight.commands.cli import main; main(['lint', 'a.py'])"
    (tmp_path / "a.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; assert 'argcomplete' not in sys.modules"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
