"""`preflight explain` at the terminal: a log in, the cause out, an exit code for scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

LOG = "RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "explain.md"


def _explain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run("preflight", ["explain", *words], cwd=folder, env=os.environ, timeout=60)


def _explain_piped(folder: Path, given: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preflight", "explain", *words, "-"],
        cwd=folder, input=given, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_from_a_pipe(tmp_path: Path) -> None:
    """The cause, its proof and what to do; nothing on standard error."""
    done = _explain_piped(tmp_path, "step 1\n" + LOG)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("port_in_use  (95 % sure)\nwhat      port 29511 was in use")
    assert "proof     -:2: RuntimeError" in done.stdout


def test_a_log_without_any_failure_is_exit_0(tmp_path: Path) -> None:
    """It is said so, with what to do where the job hangs; an empty log is nothing to check."""
    told = _explain_piped(tmp_path, "epoch 1: loss 0.31\nepoch 2: loss 0.27\n")
    assert (told.returncode, told.stderr) == (0, "")
    assert "what      no line shows a failure" in told.stdout
    assert "preflight diagnose" in told.stdout
    assert _explain_piped(tmp_path, "").returncode == 5


def test_as_json_and_unknown(tmp_path: Path) -> None:
    """All keys are there; a failure of no known cause is exit 3 with its line, not a guess."""
    failed = "epoch 1\nthe flux capacitor failed\n"
    (tmp_path / "a.log").write_text(failed + 9 * "an item is done\n")
    done = _explain(tmp_path, "a.log", "--json")
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["category"] == "unknown"
    assert [one["text"] for one in answer["evidence"]] == ["the flux capacitor failed"]
    assert {"culprits", "sentence", "advice", "evidence", "confidence", "alternatives"} <= {*answer}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """One line, exit 4."""
    done = _explain(tmp_path, "b.log")
    assert done.returncode == 4
    assert (
        done.stderr == "preflight: cannot read b.log: No such file or directory; give log files\n"
    )


@pytest.mark.parametrize("verb", ["explain", "read", "lint"])
@pytest.mark.parametrize("text", [
    "/proc/kmsg", "/proc/self/mountinfo", "/proc/self/pagemap", "/sys/class/net/lo/mtu",
])  # fmt: skip
def test_text_that_the_kernel_sends_is_no_file(tmp_path: Path, verb: str, text: str) -> None:
    """A link to /proc/kmsg held `explain` and `read` for ever, and took lines from syslogd.

    That to a pagemap had no end.
    """
    (tmp_path / "stderr.log").symlink_to(text)
    done = warm.run("preflight", [verb, "stderr.log"], cwd=tmp_path, env=os.environ, timeout=60)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "stderr.log" in line) == (4, True), done
    assert os.access(text, os.R_OK) == ("the kernel generates its text" in line)


def test_no_word_of_a_log_drives_the_terminal_as_json(tmp_path: Path) -> None:
    """What the log says is quoted without control and bidirectional characters, with --json too."""
    line = LOG.replace("RuntimeError", "RuntimeError \x9b31m\u202e\x1b]0;x\x07", 1)
    (tmp_path / "a.log").write_text(line)
    for words in (("a.log",), ("a.log", "--json")):
        done = _explain(tmp_path, *words)
        assert done.returncode == 1, done.stderr
        assert not any(one in done.stdout for one in "\x9b\u202e\x1b\x07")
        answer = str(json.loads(done.stdout)) if "--json" in words else done.stdout
        assert not any(one in answer for one in ("\x9b", "\\x9b", "\u202e", "\\u202e", "\x1b"))


def test_the_environment_of_a_process_is_read(tmp_path: Path) -> None:
    """/proc/PID/environ has an end, and no other process waits for its content."""
    words = [sys.executable, "-m", "preflight", "read", "/proc/self/environ"]
    environ = {"NCCL_DEBUG": "INFO", "PATH": os.environ["PATH"], "MASTER_ADDR": "gpu001"}
    done = subprocess.run(
        words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "environment" in done.stdout.splitlines()[1], done


def test_the_folder_of_a_launch_under_watch(tmp_path: Path) -> None:
    """What `preflight watch` says to see is read: its output first, then what its ranks left."""
    folder = tmp_path / "watch-1-n3"
    for name in ("nccl", "torchrun/run_x/attempt_0/1"):
        (folder / name).mkdir(parents=True)
    (folder / "watch.json").write_text("{}")
    (folder / "errors.log").write_text("")
    (folder / "nccl" / "n3.77.log").write_text("NCCL INFO Connected all rings\n")
    rank = folder / "torchrun" / "run_x" / "attempt_0" / "1"
    (rank / "stderr.log").write_text("step 1\n" + LOG)
    done = _explain(tmp_path, "watch-1-n3")
    assert (done.returncode, done.stderr) == (1, "")
    assert "torchrun/run_x/attempt_0/1/stderr.log:2:" in done.stdout.replace("\n          ", "")
    for run in ("watch-1-n3/torchrun", "watch-1-n3/torchrun/run_x"):
        assert _explain(tmp_path, run).stdout.startswith("port_in_use")
    (folder / "output.log").write_text("OSError: [Errno 98] Address already in use\n")
    first = json.loads(_explain(tmp_path, "watch-1-n3", "--json").stdout)
    assert first["evidence"][0]["source"] == "watch-1-n3/output.log"


ODD_RANK = {
    "category": "odd_rank",
    "culprits": ["rank 1"],
    "sentence": "rank 1 (n3) is in save at train.py:23 and sleeps, while 1 rank waits for it",
    "advice": "look at that line",
    "confidence": 0.82,
    "standings": [{"ranks": [1], "where": "save (train.py:23)"}],
}
CTRL_C = "SignalException: Process 32119 got signal: 2\n"


def _watch_folder(folder: Path, ended: dict[str, object], output: str | None = None) -> Path:
    """What `preflight watch` leaves of a launch that hung, went on or not, and ended so."""
    made = folder / "watch-1-n3"
    made.mkdir(exist_ok=True)
    (made / "watch.json").write_text(json.dumps({"stalls": [{}], **ended}))
    (made / "diagnosis-9.json").write_text("{}")
    (made / "diagnosis-10.json").write_text(json.dumps(ODD_RANK))
    if output is not None:
        (made / "stdout.log").write_text(output)
    return made


HUNG: dict[str, object] = {"exit": 1, "stalled": True}


@pytest.mark.parametrize(
    ("ended", "output"),
    [(HUNG, CTRL_C), (HUNG, "step 1\n"), (HUNG, None), ({}, "step 1\n"), ({}, None)],
)
def test_a_launch_that_hung_to_its_end(
    tmp_path: Path, ended: dict[str, object], output: str | None
) -> None:
    """Its last diagnosis is the answer: who ended it by Ctrl-C is not advised to take tmux."""
    _watch_folder(tmp_path, ended, output)
    done = _explain(tmp_path, "watch-1-n3")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(
        "timeout_rank_missing  (82 % sure)\nwhat      the job hung: rank 1 (n3) is in save at "
    )
    assert "who       rank 1\n" in done.stdout
    assert "proof     watch-1-n3/diagnosis-10.txt:1: odd_rank (82 % sure)\n" in done.stdout
    assert ("or        other: torchrun was ended" in done.stdout) == (output == CTRL_C)
    assert "tmux" not in done.stdout


def test_a_launch_that_hung_and_went_on(tmp_path: Path) -> None:
    """What ended it later is the answer; the diagnosis is the first proof, and an alternative."""
    _watch_folder(tmp_path, {"exit": 1, "stalled": False}, LOG)
    done = _explain(tmp_path, "watch-1-n3")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("port_in_use")
    assert "proof     watch-1-n3/diagnosis-10.txt:1: odd_rank (82 % sure)\n" in done.stdout
    assert "or        timeout_rank_missing: the job hung: rank 1 (n3)" in done.stdout
    _watch_folder(tmp_path, {"exit": 0, "stalled": False}, "step 1\n")
    done = _explain(tmp_path, "watch-1-n3", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["category"], answer["lines"]) == (0, "no_failure", 1)


def test_a_hardware_fault_says_more_than_the_hang_after_it(tmp_path: Path) -> None:
    """The fault is the answer, although the launch hung to its end."""
    _watch_folder(tmp_path, HUNG, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    assert _explain(tmp_path, "watch-1-n3").stdout.startswith("gpu_hardware")


@pytest.mark.parametrize(
    ("ended", "words"), [({"exit": 7}, "with exit code 7"), ({"signal": 9}, "by signal 9")]
)
def test_a_launch_that_failed_without_a_word(
    tmp_path: Path, ended: dict[str, object], words: str
) -> None:
    """It is never `no_failure`: its end is in the folder of `preflight watch`."""
    folder = _watch_folder(tmp_path, ended, "out\n")
    for diagnosis in folder.glob("diagnosis-*"):
        diagnosis.unlink()
    done = _explain(tmp_path, "watch-1-n3")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith(f"unknown\nwhat      the launch ended {words}; no line shows a ")
    (folder / "stdout.log").write_text("")
    assert _explain(tmp_path, "watch-1-n3").returncode in (3, 5)


@pytest.mark.parametrize("record", [b"", b"[]", b'{"exit": "7"}', b"\xff", b"[" * 5000])
def test_a_damaged_record_of_a_watch(tmp_path: Path, record: bytes) -> None:
    """It is left aside: the log counts."""
    folder = _watch_folder(tmp_path, {}, LOG)
    for name in ("watch.json", "diagnosis-10.json"):
        (folder / name).write_bytes(record)
        assert _explain(tmp_path, "watch-1-n3").stdout.startswith("port_in_use")


def test_an_empty_folder_beside_a_log_is_a_remark(tmp_path: Path) -> None:
    """The dumps that a job was to write, say; the log is explained all the same."""
    (tmp_path / "dumps").mkdir()
    (tmp_path / "job.log").write_text(LOG)
    done = _explain(tmp_path, "job.log", "dumps")
    assert done.returncode == 1
    assert done.stdout.startswith("port_in_use")
    assert done.stderr == "preflight: no log of a job in dumps\n"


def test_a_folder_of_anything_else_is_refused(tmp_path: Path) -> None:
    """It may hold many jobs' logs: one line that says what to give."""
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "slurm-1.out").write_text(LOG)
    done = _explain(tmp_path, "many")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(
        "preflight: no log of a job in many: give log files, as in many/*"
    )
    assert "which holds output.log, errors.log, stdout.log, stderr.log or attempt_0/" in done.stderr
    assert done.stderr.count("\n") == 1
    for run in "ab":
        (tmp_path / "many" / run / "attempt_0" / "0").mkdir(parents=True)
    done = _explain(tmp_path, "many")
    assert done.returncode == 4
    assert done.stderr == "preflight: 2 runs of torchrun in many: give one of them\n"


def test_the_symptom_on_the_page_works(tmp_path: Path) -> None:
    """What the documentation tells a site to write is found."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "quota.toml").write_text(block)
    log = "[rank3]: write failed: quota of project vision exceeded\n"
    done = _explain_piped(tmp_path, log, "--symptoms", "own")
    assert done.returncode == 1
    assert "the quota of vision is used up" in done.stdout
    assert "who       project vision" in done.stdout
