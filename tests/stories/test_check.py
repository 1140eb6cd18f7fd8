"""`preflight check` at the terminal: its own names of options, wrong values, replays, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.commands import EXIT_CODES
from tests import warm

PREFLIGHT = str(Path(sys.executable).with_name("preflight"))
ONE = "--checks=host.load"
LONGEST_S = 120
"""Only so that a hang ends the test; nothing is asserted about time."""


def _preflight(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run("preflight", words, cwd=folder, env=os.environ, timeout=LONGEST_S)


@pytest.mark.parametrize("verb", ["check", "explain"])
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.7, 0.8])
def test_ctrl_c_while_it_starts_is_one_line(tmp_path: Path, verb: str, after_s: float) -> None:
    """It was a traceback, an end by the signal, or nothing, until the header was printed."""
    words = {"check": ("check", "--tier=prolog"), "explain": ("explain", "-")}[verb]
    with subprocess.Popen(
        [PREFLIGHT, *words], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not _blocks_sigint(process.pid):
            assert process.poll() is None
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 2, out + err
    assert "Traceback" not in out + err
    assert err == "\npreflight: interrupted\n" or "= interrupted =" in out


def _blocks_sigint(pid: int) -> bool:
    """Whether the command has begun, and lets Ctrl-C wait until it can answer."""
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(blocked, 16) & 1 << (signal.SIGINT - 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "--budget=abc"), "argument --budget: give a number, not 'abc'"),
        (("check", "--need=1.5"), "argument --need: give a whole number, not '1.5'"),
        (("check", "--site-checks=nosuch"), "--site-checks=nosuch: there is no such folder"),
        (("check", "--sweep=0"), "--sweep='0': give a number of rounds"),
        (("check", "-i", "nosuch.toml"), "give --inventory a readable TOML or YAML file"),
        (("check", "--checks=gpu.cuont"), "did you mean 'gpu.count'"),
        (("nightly", "--wave-budget=abc"), "argument --wave-budget: give a number, not 'abc'"),
        (
            ("nightly", "a", "--whole-fleet", "--wave-budget=0"),
            "--wave-budget=0: give seconds, 1 to 604800",
        ),
        (("nightly", "--report=x"), "--report is not for a nightly run"),
        (("learn", "a", "--nodes=b"), "nodes are given twice"),
        (("learn", "--transport=x"), "--transport"),
        (("diagnose", "a", "./b"), "give one folder, or only nodes"),
        (("explain", "a.log", "--symptoms=nosuch"), "--symptoms=nosuch: there is no such folder"),
        (("explain", "a.log", "--symptoms=."), "--symptoms=.: it has no .toml file"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_name_that_was_typed(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Exit 4, without pytest's usage, and never --preflight-NAME where --NAME is the option."""
    (tmp_path / "a.log").touch()
    done = _preflight(tmp_path, *words)
    assert (done.returncode, done.stdout) == (4, "")
    assert said in done.stderr
    assert "--preflight-" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_check_prints_has_its_own_names(tmp_path: Path) -> None:
    """Header, hints and the end: each option as `preflight check` calls it."""
    done = _preflight(tmp_path, "check", "--budget=1")
    assert (done.returncode, "--budget=" in done.stdout) == (4, True), done.stdout
    assert "--preflight-" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--tier=prolog", "-k=load", "--exclude=nosuch", "-x", "-q"),
        ("--tier", "prolog", "-k", "load", "--exclude", "nosuch", "-x", "-q"),
    ],
)
def test_options_take_a_blank_or_an_equals_sign(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Both spellings are the same run."""
    (tmp_path / "fleet.toml").write_text(
        '[defaults]\ntransport = "local"\n[group.a]\nnodes = "me,nosuch"\n'
    )
    done = _preflight(tmp_path, "check", "-i", "fleet.toml", *words, "--json")
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert (report["tier"], report["fleet"]["nodes"]) == ("prolog", ["me"])
    assert {row["check"] for row in report["verdicts"]} == {"host.load"}
    assert "platform linux" not in done.stderr


def test_a_replay_takes_a_folder_and_its_tier(tmp_path: Path) -> None:
    """It judged the recorded run at the default tier, and refused the run's folder."""
    done = _preflight(tmp_path, "check", ONE, "--tier=prolog", "--report=first")
    assert done.returncode in (0, 1), done.stderr
    for given in ("first", "first/measured.json"):
        again = _preflight(tmp_path, "check", ONE, f"--replay={given}", "--json")
        assert (again.returncode, json.loads(again.stdout)["tier"]) == (done.returncode, "prolog")
    other = _preflight(tmp_path, "check", ONE, "--replay=first", "--tier=standard", "--json")
    assert json.loads(other.stdout)["tier"] == "standard"
    shutil.copy(tmp_path / "first/measured.json", tmp_path / "alone.json")
    alone = _preflight(tmp_path, "check", ONE, "--replay=alone.json", "--json")
    assert json.loads(alone.stdout)["tier"] == "quick"
    for told in (again, other):
        header = " ".join(told.stderr.split())
        date = json.loads((tmp_path / "first/report.json").read_text())["started"][:10]
        assert f"replay the run of {date} " in header
        assert "in first/measured.json, judged again; contacts no node" in header
        assert "reach local" not in header
    assert "replay the run in alone.json, judged again" in " ".join(alone.stderr.split())


def test_nodes_are_words_of_every_verb_that_asks_them(tmp_path: Path) -> None:
    """`diagnose` and `learn` name them as `check` does; a path is that of an earlier run."""
    for verb in ("diagnose", "learn"):
        done = _preflight(tmp_path, verb, "nosuch[1-2].invalid")
        assert "nosuch1.invalid" in done.stdout + done.stderr
        assert done.returncode in (1, 3)
        gone = _preflight(tmp_path, verb, "./gone")
        assert (gone.returncode, gone.stdout) == (4, "")
        assert "give " in gone.stderr


def test_what_to_run_next_is_a_command(tmp_path: Path) -> None:
    """Ids of checks, and pytest's names of options, are nothing that a shell runs."""
    (tmp_path / "a.log").write_text(
        "RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"
    )
    shown = [
        _preflight(tmp_path, "explain", "a.log", "--json").stdout,
        _preflight(tmp_path, "diagnose", "nosuch[1-2].invalid", "--json").stdout,
    ]
    commands = [json.loads(one)["next"] for one in shown]
    assert commands[1] == "preflight check --nodes=nosuch[1-2].invalid -k reach"
    assert commands[0].startswith("preflight check --checks=")
    done = _preflight(tmp_path, *commands[0].split()[1:], "--co", "-q")
    assert done.returncode == 0, done.stderr


def test_a_report_names_options_as_the_run_did(tmp_path: Path) -> None:
    """What is advised can be typed after `preflight check`, in the run and in its report."""
    words = (
        "nosuch[1-2].invalid",
        "--checks=reach.name,net.ports,fabric.allreduce",
        "--report=run",
    )
    run, report = _preflight(tmp_path, "check", *words), _preflight(tmp_path, "report", "run")
    for told in (run, report):
        assert "--fail-fast=never" in told.stdout
        assert "--preflight-" not in told.stdout


def test_exit_codes_mean_the_same_wherever_they_are_listed(tmp_path: Path) -> None:
    """One table: in the help of the command, of `check` and of `nightly`, and in the docs."""
    rows = re.findall(r"^  (\d) (.+)$", EXIT_CODES, re.MULTILINE)
    assert [code for code, _ in rows] == list("012345")
    for words in ((), ("check",), ("nightly",)):
        assert EXIT_CODES in _preflight(tmp_path, *words, "--help").stdout
    for page in ("README.md", "docs/reference/exit-codes.md"):
        text = (Path(__file__).parents[2] / page).read_text()
        assert all(f"| {code} | {meaning} |" in text for code, meaning in rows), page


def test_what_could_not_be_judged_is_named_or_there_is_no_answer(tmp_path: Path) -> None:
    """A node that does not answer is 1; a log, a text and a hang without a cause are 3."""
    (tmp_path / "a.log").write_text("AssertionError\nTraceback\nerror: failed\n")
    node = _preflight(tmp_path, "check", "nosuch.invalid", "--checks=reach.answer")
    assert (node.returncode, "nosuch.invalid" in node.stdout) == (1, True)
    assert _preflight(tmp_path, "explain", "a.log").returncode == 3
    assert _preflight(tmp_path, "learn", "nosuch.invalid").returncode == 3


def _verbs_with_a_result(folder: Path) -> dict[str, tuple[str, ...]]:
    (folder / "a.log").write_text("nothing\n")
    (folder / "a.py").write_text("import torch.distributed as dist\ndist.barrier()\n")
    return {
        "check": (ONE, "--report=run"),
        "report": ("run",),
        "list-checks": (),
        "lint": ("a.py",),
        "explain": ("a.log",),
        "diagnose": (f"--pid={os.getpid()}", "--look-s=0.2"),
        "learn": (),
        "read": ("a.log",),
        "nightly": ("a.invalid", "b.invalid", "--whole-fleet", "--plan"),
    }


def test_every_verb_that_prints_a_result_prints_it_as_json(tmp_path: Path) -> None:
    """One document on standard output, and nothing else there."""
    for verb, words in _verbs_with_a_result(tmp_path).items():
        done = _preflight(tmp_path, verb, *words, "--json")
        assert isinstance(json.loads(done.stdout), dict), verb
    listed = json.loads(_preflight(tmp_path, "list-checks", "gpu.count", "--json").stdout)
    assert listed["checks"][0]["id"] == "gpu.count"
    assert "## Fix" in listed["checks"][0]["page"]
