"""`preflight diagnose` at the terminal: what it says and exits with where no torch job hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests import warm

if TYPE_CHECKING:
    from pathlib import Path


def diagnose(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return run_verb(folder, "diagnose", *words)


def run_verb(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same for a verb of one's choice."""
    return warm.run("preflight", words, cwd=folder, env=os.environ, timeout=120)


def test_what_was_seen_is_kept_and_judged_again(tmp_path: Path) -> None:
    """A process that waits for nobody is no job: exit 3, live and from the kept folder alike."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        live = diagnose(tmp_path, "--pid", str(process.pid), "--save", "kept", "--look-s", "0.2")
    finally:
        process.kill()
        process.wait()
    assert (live.returncode, live.stderr) == (3, "preflight: saved in kept\n")
    again = diagnose(tmp_path, "kept")
    assert (again.returncode, again.stdout) == (3, live.stdout)
    assert (tmp_path / "kept" / "state.json").stat().st_mode & 0o777 == 0o640
    assert str(process.pid) in (tmp_path / "kept" / "state.json").read_text()
    newest = (tmp_path / "kept" / "state.json").rename(tmp_path / "kept" / "state-10.json")
    (tmp_path / "kept" / "state-9.json").write_text("{}")
    assert diagnose(tmp_path, "kept").stdout == diagnose(tmp_path, str(newest)).stdout
    document = json.loads(diagnose(tmp_path, "kept", "--json").stdout)
    assert document["category"] in ("no_job", "unknown")
    assert {"culprits", "sentence", "advice", "evidence", "confidence", "alternatives"} <= {
        *document
    }


def test_nodes_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    """The progress line names whom we wait for; a node without an answer is the answer."""
    told = diagnose(tmp_path, "--nodes", "no-such-node.invalid", "--json")
    assert told.returncode == 1
    document = json.loads(told.stdout)
    assert document["category"] == "node_unreachable"
    assert document["culprits"] == ["node no-such-node.invalid"]


def test_wrong_usage_is_one_line(tmp_path: Path) -> None:
    """A pid that is not there, a folder without a look, a damaged one: exit 4, and what to do."""
    (tmp_path / "state.json").write_text('{"nodes": 7}')
    for words, said in (
        (("--pid", "4194303"), "no process 4194303 here"),
        (("--pid", "1", "--nodes", "a"), "leave out --nodes"),
        (("./nowhere",), "nowhere: No such file or directory; give a folder that --save made"),
        (("4711",), "; for a process use --pid=4711"),
        (("state.json",), "give a folder that --save made"),
        ((".", "--pid", "1"), "no node is asked: leave out --pid"),
        (("state.json", "--nodes=a"), "no node is asked: leave out --nodes"),
        ((".", "--look-s=1"), "leave out --look-s"),
        (("--look-s", "600"), "--look-s=600: give seconds, 0.2 to 10"),
    ):
        told = diagnose(tmp_path, *words)
        assert (told.returncode, told.stdout) == (4, ""), words
        assert said in told.stderr
        assert told.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["diagnose", "learn"])
def test_a_mistyped_file_is_not_taken_for_a_node(tmp_path: Path, verb: str) -> None:
    """The refusal names the file and how to ask a node; another name is asked."""
    told = run_verb(tmp_path, verb, "state.jsn.gz")
    assert (told.returncode, told.stdout) == (4, "")
    assert told.stderr == (
        "preflight: there is no file or folder 'state.jsn.gz'; give one that exists. "
        "To ask a node of this name, type --nodes=state.jsn.gz\n"
    )
    for word in ("saved-n2.invalid", "trai"):
        assert "there is no" not in run_verb(tmp_path, verb, word).stderr


def test_an_answer_that_cannot_be_kept_is_told_all_the_same(tmp_path: Path) -> None:
    """Where --save finds no place, what was seen is gone: so the answer comes first."""
    (tmp_path / "file").write_text("")
    process = subprocess.Popen(["sleep", "60"])
    try:
        told = diagnose(tmp_path, "--pid", str(process.pid), "--save", "file/in", "--look-s", "0.2")
    finally:
        process.kill()
        process.wait()
    assert told.returncode == 4
    assert told.stdout.startswith("unknown")
    assert "preflight: cannot write file/in/state.json" in told.stderr


def test_a_program_that_a_dead_rank_has_left_behind_is_no_job(tmp_path: Path) -> None:
    """It has the rank's variables and outlives it; with it a second job seemed to run here."""
    job = f"left-{os.getpid()}"
    seat = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": job, "MASTER_PORT": "1"}
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=2).pid)"
    rank = subprocess.run(
        [sys.executable, "-c", leaves],
        env={**os.environ, **seat, "TORCHELASTIC_RUN_ID": "none"},
        stdout=subprocess.PIPE,
        check=True,
    )
    try:
        answer = diagnose(tmp_path, f"--job={job}:1", "--look-s=0.2")
    finally:
        os.kill(int(rank.stdout), signal.SIGKILL)
    assert answer.returncode == 5, answer.stdout
    assert answer.stdout.startswith("no_job"), answer.stdout


_IN_TORCH = """
import time
def {function}():
    print("there", flush=True)
    time.sleep(60)
"""


def start_rank(cleanup: ExitStack, folder: Path, job: str, rank: int) -> None:
    """Start a rank of three that sleeps in a function named and placed like one of torch."""
    file = "serialization.py" if rank == 1 else "distributed/distributed_c10d.py"
    function = "save" if rank == 1 else "all_reduce"
    path = folder / "site-packages" / "torch" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_IN_TORCH.format(function=function))
    script = folder / "train.py"
    script.write_text("import runpy, sys\nrunpy.run_path(sys.argv[1])[sys.argv[2]]()\n")
    seat = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), function],
        env={**os.environ, **seat, "MASTER_ADDR": job, "MASTER_PORT": "1"},
        stdout=subprocess.PIPE,
    )
    cleanup.enter_context(process)
    cleanup.callback(process.kill)
    assert process.stdout
    process.stdout.readline()


def test_the_next_command_checks_this_machine_as_it_was_examined(tmp_path: Path) -> None:
    """Found without a name, it needs none: with one it would be checked over SSH."""
    job = f"here-{os.getpid()}"
    with ExitStack() as cleanup:
        for rank in range(3):
            start_rank(cleanup, tmp_path, job, rank)
        answer = json.loads(diagnose(tmp_path, f"--job={job}:1", "--look-s=0.5", "--json").stdout)
    assert answer["culprits"] == ["rank 1"], answer
    assert answer["next"] == "preflight check"
