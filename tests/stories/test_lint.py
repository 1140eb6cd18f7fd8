"""A script is judged before it runs: the line that will hang, what will happen, what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import warm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stories.here import Here

TRAIN = """\
import os
import torch.distributed as dist

open("it-ran", "w")

def evaluate(model):
    dist.all_reduce(model)

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
for step in range(100):
    if rank == 0 and step % 10 == 0:
        evaluate(1)
"""


def _lint(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = warm.run(
        "preflight",
        ["lint", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_that_will_hang(tmp_path: Path) -> None:
    """Exact lines, exit 1, and not a line of the script has run."""
    (tmp_path / "train.py").write_text(TRAIN)
    code, out, err = _lint(tmp_path, "train.py")
    assert (code, err) == (1, "")
    assert out.splitlines()[:8] == [
        "train.py:13  error  collective-on-some-ranks",
        "       only rank 0 calls evaluate(), which leads to all_reduce in line 7: it",
        "       stands under `rank == 0 and step % 10 == 0` in line 12",
        "       then: rank 0 waits in all_reduce (line 7) for 30 min (gloo's default), or",
        "             in the others' next collective, then the job dies",
        "       do: call it on every rank; leave only what one rank does (print, write)",
        "           in the condition",
        "train.py:9  hint  init-timeout",
    ]
    assert out.splitlines()[-1] == "1 error, 0 warnings, 3 hints    exit 1"
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_the_same_as_data(tmp_path: Path) -> None:
    """One JSON document with every file, also one that could not be read."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "old.py").write_text("print 'x'\n")
    code, out, _ = _lint(tmp_path, "--json", "train.py", "old.py")
    document = json.loads(out)
    first, second = document["files"]
    assert (code, document["exit"]) == (1, 1)
    assert first["findings"][0]["rule"] == "collective-on-some-ranks"
    assert first["findings"][0]["line"] == 13
    assert second["unread"]["reason"].startswith("it is Python 2")


@pytest.mark.parametrize(
    ("name", "content", "code", "answer"),
    [
        ("a.py", b"\x7fELF\0", 3, "it contains NUL bytes"),
        ("a.py", b"def f(:\n", 3, "Python 3.11 cannot parse it"),
        ("a.py", b"import os\n", 5, "not a distributed script"),
        ("a.py", b"from torch import distributed\n", 0, "nothing found"),
        ("\x1b[31mred.py", b"x = '\xff'\n", 3, "[31mred.py was not checked"),
        ("b.py", b"#" * (4 << 20) + b"#", 4, "larger than 4 MiB"),
    ],
)
def test_files_that_are_no_such_script(
    tmp_path: Path, name: str, content: bytes, code: int, answer: str
) -> None:
    """One line, the exit code of the table, no traceback, and nothing that steers a terminal."""
    (tmp_path / name).write_bytes(content)
    got, out, err = _lint(tmp_path, name)
    assert got == code
    assert answer in " ".join((out + err).split())
    assert "Traceback" not in out + err
    assert "\x1b" not in out + err


def test_a_run_that_knows_the_script_and_the_launch(here: Here) -> None:
    """A fleet that is well is not ready for a script that hangs, nor for a launch of more nodes."""
    script = here.folder / "train.py"
    script.write_text(TRAIN)
    run = here.judge_all(
        "--preflight-checks=launch.script,launch.fits",
        "--preflight-script=train.py",
        "--preflight-launch=torchrun --nnodes=4 --nproc-per-node=1 --rdzv-endpoint=n1:29500 t.py",
    )
    assert run.exit == 1, run.out
    assert run.found() == {("launch.script", "fleet:all"), ("launch.fits", "fleet:all")}
    sentences = {one["check"]: one["sentence"] for one in run.report["verdicts"]}
    assert sentences["launch.script"].startswith("train.py line 13: only rank 0 calls evaluate()")
    assert sentences["launch.fits"] == "--nnodes=4 waits for 4 nodes, and this run has 3"
    assert not (here.folder / "it-ran").exists()


@pytest.mark.parametrize(
    ("given", "code", "answer"),
    [
        (TRAIN.encode(), 1, "-:13  error  collective-on-some-ranks\n"),
        (b"", 5, "-: not a distributed script (0 lines read)\n"),
        (b"x = '\xff'\n", 3, "- was not checked: its text does not match its encoding"),
        (b"#" * (4 << 20) + b"#", 4, "preflight: standard input is larger than 4 MiB; give the "),
    ],
)
def test_a_script_from_a_pipe(tmp_path: Path, given: bytes, code: int, answer: str) -> None:
    """`-` is standard input, as for `explain` and `read`."""
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "lint", "-"],
        cwd=tmp_path, input=given, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert (done.stderr if code == 4 else done.stdout).decode().startswith(answer)
    assert not (done.stderr if code != 4 else done.stdout)


def test_standard_input_that_cannot_be_read(tmp_path: Path) -> None:
    """One that is open only for writing, say: one line that says what to type."""
    words = [sys.executable, "-m", "preflight", "lint", "-"]
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            words, cwd=tmp_path, stdin=out, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "preflight: cannot read standard input: Bad file descriptor; give a script, as in: "
        "preflight lint train.py\n"
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Wrong usage, in one line that says what to give."""
    code, out, err = _lint(tmp_path, "nosuch.py")
    assert (code, out) == (4, "")
    assert err == (
        "preflight: cannot read nosuch.py: No such file or directory; give the training script "
        "itself\n"
    )
