"""A wrong option is one line that says what to type, exit 4, and nothing is contacted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.commands.cli import main
from tests import warm

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stories.conftest import Told
    from tests.stories.here import Here

_FIRST_STAGES = "preflight_reach or preflight_facts"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preflight-nodes", ""], "type for example 'gpu[001-064]'"),
        (["--preflight-nodes", "node[1-100000000]"], "more than 65536 nodes"),
        (["--preflight-nodes", "a b;reboot"], "not a host name"),
        (["--preflight-inventory", "/nonexistent.toml"], "cannot read the inventory"),
        (["--preflight-checks", "gpu.cuont"], "did you mean 'gpu.count'"),
        (["--preflight-checks", ""], "see: preflight list-checks"),
        (["--preflight-tier", "quik"], "invalid choice: 'quik'"),
        (["--preflight-budget", "0"], "give seconds"),
        (["--preflight-at-once", "0"], "give a number, 1 to 1024"),
        (["--preflight-kernel-log-since", "yesterday"], "give boot, an age such as 90m"),
        (
            ["--preflight-nodes", "a,b", "--preflight-interface", "lo"],
            "--preflight-interface = lo: no node reaches another by loopback; leave it out",
        ),
        (["--preflight-catch-rate", "0"], "give events per second of load"),
        (["--preflight-need", "0"], "number of nodes the job needs"),
        (["--preflight-nodes", "a", "--preflight-exclude", "b"], "is not in this fleet"),
        (["--preflight-env-file", "/nonexistent.env"], "env > job.env"),
        (["--preflight-env-file=/dev/null"], "env > job.env"),
        (["--preflight-launch", "torchrun --nproc-per-node=none t.py"], "number of ranks"),
        (["--preflight-launch", "torchrun --nnodes=two t.py"], "give a number, or MIN:MAX"),
        (["--preflight-script", "/nonexistent.py"], "give the training script itself"),
        (["--preflight-script", ""], "--preflight-script is empty"),
    ],
)
def test_wrong_usage(preflight: Callable[..., Told], arguments: list[str], said: str) -> None:
    """Each mistake ends with exit 4, a sentence with the remedy, and no traceback."""
    told = preflight(*arguments)
    assert told.exit == 4
    assert said in told.err
    assert "Traceback" not in told.out + told.err
    assert not told.folder.exists()


def _in_a_deleted_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "gone").mkdir()
    argv = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "preflight"]
    return subprocess.run(
        [*argv, *words], cwd=folder / "gone", capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    ["check --co", "check -i fleet.toml", "nightly -i /x.toml", "capture .", "list-checks"],
)
def test_a_working_folder_that_was_deleted_is_one_line(tmp_path: Path, words: str) -> None:
    """For a command that needs one."""
    told = _in_a_deleted_folder(tmp_path, *words.split())
    assert told.returncode == 4
    (line,) = told.stderr.splitlines()
    assert line.startswith("preflight: the working folder was deleted; change into another one")


@pytest.mark.parametrize("verb", ["explain", "read", "diagnose", "lint"])
def test_other_commands_need_no_working_folder(tmp_path: Path, verb: str) -> None:
    """They answer as elsewhere."""
    file = tmp_path / "train.py"
    file.write_text("a = 1\n")
    given = [str(file)] if verb in ("explain", "read", "lint") else []
    told = _in_a_deleted_folder(tmp_path, verb, *given)
    assert "working folder" not in told.stderr
    assert "Traceback" not in told.stderr
    assert told.stdout


def test_a_watched_launch_starts_in_a_deleted_folder(tmp_path: Path) -> None:
    """Without evidence, and it says so."""
    told = _in_a_deleted_folder(tmp_path, "watch", "--", "sh", "-c", "echo started; exit 7")
    assert (told.returncode, told.stdout) == (7, "started\n")
    assert "the launch goes on without it" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("word", ["--preflight-nodes=gpu[001-064]", "--preflight-strict"])
def test_an_option_without_preflight_is_no_pass(tmp_path: Path, word: str) -> None:
    """`pytest --preflight-nodes=...` ran the tests that lay around: exit 0 looked like a pass."""
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    pass\n")

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = ("-p", "no:cacheprovider", *words)
        return warm.run("pytest", words, cwd=tmp_path, env={**os.environ, **env}, timeout=60)

    typed, inert = run(word), run(PYTEST_ADDOPTS=word)
    option = word.partition("=")[0]
    assert (typed.returncode, typed.stdout) == (4, "")
    assert f"{option} without --preflight checks nothing; add --preflight" in typed.stderr
    assert (inert.returncode, "1 passed" in inert.stdout) == (0, True)


@pytest.mark.parametrize("theirs", ["", "[pytest]\n"])
def test_a_value_after_a_blank_switches_no_settings(tmp_path: Path, theirs: str) -> None:
    """Its folder was taken for one of tests: the site's own checks were left out silently."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    (mine / "pytest.ini").write_text("[pytest]\npreflight_checks = site\n")
    (mine / "site").mkdir()
    fleet = other / "fleet.toml"
    fleet.write_text('[group.a]\nnodes = "a"\n')
    if theirs:
        (other / "pytest.ini").write_text(theirs)
    words = ("-p", "no:cacheprovider", "--preflight", "--co", "-q", "--preflight-inventory")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run("pytest", words, cwd=mine, env=dict(os.environ), timeout=60)

    refused, near = run(*words, str(fleet)), run(*words, "site")
    assert (refused.returncode, refused.stdout) == (4, "")
    used = other / "pytest.ini" if theirs else "no ini file"
    assert f"it uses {used}" in refused.stderr
    assert f"expected {mine / 'pytest.ini'}; type: pytest " in refused.stderr
    line = refused.stderr.partition("type: pytest ")[2].split()
    assert run(*line).returncode == 0
    assert "it uses" not in near.stderr  # below the folder with the ini file: nothing is switched


_CHECK = (str(Path(sys.executable).with_name("preflight")), "check", "--tier=prolog")


def test_nodes_are_given_once(tmp_path: Path) -> None:
    """As NODES or as --nodes: one of both was dropped without a word."""
    done = subprocess.run(
        [*_CHECK, "a", "--nodes=b"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "nodes are given twice" in done.stderr


@pytest.mark.parametrize("words", [("--checks=gpu.count",), ("--json",)])
def test_an_answer_that_cannot_be_written_is_no_success(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A full disk behind standard output is exit 4 in one line; it was 120, which no table has."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*_CHECK, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.endswith("preflight: cannot write the answer: No space left on device\n")


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("--nofile=8:8", "preflight may only open 8 files, at least 32 are needed"),
        ("--nofile=16:16", "preflight may only open 16 files, at least 32 are needed"),
        (
            "--fsize=1000",
            "preflight may only write files of 1000 bytes, at least 1048576 are needed",
        ),
        ("--data=50000000", "preflight may only use 50000000 bytes of memory, at least 100663296"),
    ],
)
def test_a_limit_of_the_caller_is_no_fault_of_a_node(tmp_path: Path, limit: str, said: str) -> None:
    """The shell's own limits named this machine as not ready, or preflight as broken."""
    words = ["prlimit", limit, *_CHECK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"preflight: {said}")
    assert len(done.stderr.splitlines()) == 1
    assert "raise the limit (ulimit -" in done.stderr


def test_an_unknown_key_of_the_inventory(preflight: Callable[..., Told], tmp_path: Path) -> None:
    """A misspelled expectation is refused with the nearest known word."""
    path = tmp_path / "fleet.toml"
    path.write_text('[group.train]\nnodes = "h1"\ngpu = 8\n')
    told = preflight("--preflight-inventory", str(path))
    assert told.exit == 4
    assert f"{path}: unknown key 'gpu' in [group.train]; did you mean 'gpus'?" in told.err


def test_an_interface_that_no_node_has(here: Here) -> None:
    """Once the nodes have told what they have, and before anything is loaded; in a worker, too."""
    words = ("--preflight-checks=fabric.allreduce", "--preflight-interface=nope0")
    told = here.judge_all(*words)
    assert told.exit == 4, told.out
    assert "--preflight-interface = nope0: no node has such an interface, n[1-3] have " in told.err
    assert "Traceback" not in told.out + told.err
    assert here.judge_all(*words, "-n", "1").exit == 4


def test_collecting_measures_nothing(preflight: Callable[..., Told]) -> None:
    """--co lists ids by check and subject, contacts nobody and leaves no files."""
    told = preflight("--co", "-q", "--preflight-nodes", "nosuch[1-3].invalid")
    assert told.exit == 0
    assert "fabric.allreduce[nosuch1.invalid-nosuch2.invalid]" in told.out
    assert "gpu.count[nosuch3.invalid]" in told.out
    assert not told.folder.exists()


def test_selecting_nothing_is_not_a_pass(preflight: Callable[..., Told]) -> None:
    """A -k that matches nothing is exit 5: nothing to check."""
    assert preflight("-k", "nosuchnode").exit == 5


def test_a_budget_that_is_too_short_condemns_nobody(preflight: Callable[..., Told]) -> None:
    """Exit 3, nobody to exclude, and one sentence with the option, before all other reasons."""
    told = preflight("--preflight-budget=1", "-m", _FIRST_STAGES)
    assert told.exit == 3
    said = " ".join(told.out.split())
    assert (
        "less than 1 s was left for the reach stage; give more: --preflight-budget=SECONDS" in said
    )
    assert said.count("of the budget of 1 s") == 1
    assert "--exclude" not in said
    assert "this looks like the inventory" not in said


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_budget_without_time_for_one_round_is_refused(
    preflight: Callable[..., Told], tmp_path: Path, workers: tuple[str, ...]
) -> None:
    """Before any node is asked: what would be enough, and what to type. Exit 4."""
    (tmp_path / "fleet.toml").write_text('[group.train]\nnodes = "g[1-4].invalid"\ngpus = 2\n')
    told = preflight(
        f"--preflight-inventory={tmp_path}/fleet.toml", "--preflight-budget=20", *workers
    )
    assert told.exit == 4
    assert re.search(
        r"--preflight-budget=20: 20 s is too short: the smallest useful run takes about 2\d s; "
        r"give --preflight-budget=30\n",
        told.err,
    ), told.err
    assert "probing" not in told.out


def test_a_node_that_needs_longer_than_a_short_budget_is_not_condemned(
    preflight: Callable[..., Told],
) -> None:
    """A healthy Python that takes 5 s to start is cut off after 3 s: not judged, exit 3."""
    slow = f"sh -c 'sleep 5; exec {sys.executable} \"$@\"' -"
    told = preflight("--preflight-budget=3", f"--preflight-python={slow}", "-m", _FIRST_STAGES)
    assert told.exit == 3, told.out
    assert "the run's time was up before it had answered" in " ".join(told.out.split())
    assert told.report["fleet"]["not_ready"] == []


def test_the_environment_names_nodes(preflight: Callable[..., Told]) -> None:
    """PREFLIGHT_NODES is used when no option says otherwise, and the header says so."""
    told = preflight("--co", env={"PREFLIGHT_NODES": "env[1-2].invalid"})
    assert "(from PREFLIGHT_NODES)" in told.out
    told = preflight("--co", env={"SLURM_JOB_NODELIST": "s[1-2].invalid", "SLURM_JOB_ID": "7"})
    assert "(from SLURM_JOB_NODELIST)" in told.out
    assert "environment: Slurm job 7" in " ".join(told.out.split())


def test_an_empty_allocation_is_refused(preflight: Callable[..., Told]) -> None:
    """An empty variable must not fall through to judging this machine instead."""
    told = preflight(env={"SLURM_JOB_NODELIST": ""})
    assert told.exit == 4
    assert "SLURM_JOB_NODELIST" in told.err


def test_the_command_speaks_to_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """`preflight list-checks` fits 80 columns; an unknown verb is answered with the nearest."""
    assert main(["list-checks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("gpu.count ") and " prolog " in line for line in lines)
    with pytest.raises(SystemExit) as left:
        main(["chekc"])
    assert left.value.code == 4
    assert "unknown verb 'chekc'; did you mean 'check'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["run", "--preflight-tier=deep"])
    assert left.value.code == 4
    assert "unknown verb 'run'; it is called check now" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["capture", ".", "--tier=foo"])
    assert left.value.code == 4
    assert "argument --tier: invalid choice: 'foo' (choose from" in capsys.readouterr().err


_LINE = """\
check --need={}|check --at-once={}|check --seed={}|check --keep={}|check --sweep={}
check --budget={}|check --catch-rate={}|check --kernel-log-since={}h|check -n{}|check --maxfail={}
check --max-worker-restart={}|nightly a --wave={} --plan|nightly a --keep={} --plan
nightly a --wave-budget={} --plan|nightly a --budget={}h --plan|nightly a --until=0{}:00 --plan
history --history=. --nights={}|diagnose --pid={}|diagnose --look-s={}|capture . --budget={}
watch --debug-mib={} -- true|watch --stalled-after={} -- true
check --launch=torchrun\x00--nnodes={}\x00--nproc-per-node=1\x00t.py"""


@pytest.mark.parametrize(
    ("words", "digit"),
    [*zip(re.split(r"[|\n]", _LINE), cycle(("\u0665", "\uff15", "5_0")), strict=False)],
)
def test_a_number_has_the_digits_0_to_9(tmp_path: Path, words: str, digit: str) -> None:
    """Python also reads the digits of other alphabets, and 5_0."""
    argv = [word.replace("\0", " ").format(digit) for word in words.split(" ")]
    told = warm.run("preflight", argv, cwd=tmp_path, env=dict(os.environ), timeout=60)
    assert told.returncode == 4, told.stdout + told.stderr
    (line,) = _without_variables(told.stderr)
    assert "give" in line


def _without_variables(text: str) -> list[str]:
    """Leave out the line about variables that root does not take from the environment."""
    return [line for line in text.splitlines() if "not taken from the environment" not in line]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--budget=nan", "give a number, not 'nan'"),
        ("--budget=0", "give seconds, 1 to 604800"),
        (
            "--nodes=\u0441\u0440\u04321",
            "is not a host name: letters a-z, digits, '-' and '.' only",
        ),
        ("--kernel-log-since=9999-12-31T23:59:59", "give boot, an age such as 90m"),
        ("--kernel-log-since=9999-12-31T23:59:59-12:00", "give boot, an age such as 90m"),
        ("--kernel-log-since=0001-01-01T00:00+14:00", "give boot, an age such as 90m"),
    ],
)
def test_wrong_usage_of_check_is_one_line(tmp_path: Path, word: str, said: str) -> None:
    """An empty line followed; a time near the end of the calendar was a traceback."""
    told = warm.run("preflight", ["check", word], cwd=tmp_path, env=dict(os.environ), timeout=60)
    assert (told.returncode, told.stdout) == (4, "")
    (line,) = _without_variables(told.stderr)
    assert said in line


@pytest.mark.parametrize("time", ["9999-12-31T23:59-12:00", "0001-01-01T00:00+14:00", "9999-12-31"])
def test_a_night_ends_within_a_month(tmp_path: Path, time: str) -> None:
    """A time near the end of the calendar cannot be converted to this machine's zone."""
    words = ["nightly", "a", f"--until={time}", "--plan"]
    told = warm.run("preflight", words, cwd=tmp_path, env=dict(os.environ), timeout=60)
    assert told.returncode == 4
    (line,) = _without_variables(told.stderr)
    assert "give a" in line


_PATHS = """\
explain |read |lint |report |blame |learn --output=|diagnose --save=|explain a.log --symptoms=
blame a.log --topology=|blame a.log --picture=|report . --html=|report . --junit=
report . --prometheus=|watch --folder= -- true|check --report=|check --prometheus=
check --exclude-file=|check --replay=|check --site-checks=|nightly a --whole-fleet --plan --into=
nightly a --whole-fleet --plan --prometheus=|nightly a --whole-fleet --plan --exclude-file="""


@pytest.mark.parametrize("words", re.split(r"[|\n]", _PATHS))
def test_an_empty_path_is_not_the_current_folder(tmp_path: Path, words: str) -> None:
    """An unset variable of a script: `preflight explain "$LOG"`."""
    (tmp_path / "a.log").write_text("x\n")
    told = warm.run("preflight", words.split(" "), cwd=tmp_path, env=dict(os.environ), timeout=60)
    assert (told.returncode, told.stdout) == (4, "")
    (line,) = _without_variables(told.stderr)
    assert "empty" in line or "there is no such folder" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
@pytest.mark.parametrize(
    "words", ["report", "blame", "learn", "check --replay=", "check --report="]
)
def test_a_run_of_another_user_is_one_line(tmp_path: Path, words: str) -> None:
    """His folder of runs cannot be read: that was a traceback."""
    run = tmp_path / "his" / "run"
    run.mkdir(parents=True)
    run.parent.chmod(0o700)
    os.chown(run.parent, 65534, 65534)
    verb, _, option = words.partition(" ")
    told = subprocess.run(
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search",
         sys.executable, "-m", "preflight", verb, f"{option}{run}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (4, "")
    (line,) = told.stderr.splitlines()
    assert ": Permission denied; give " in line


@pytest.mark.parametrize(
    ("verb", "server"),
    [
        ("history", "[::1"),
        ("check", "[::1/db"),
        ("history", "[::1]x/db"),
        ("check", "::1]/db"),
        ("history", "h:port/db"),
        ("check", "h:0/db"),
        ("history", "h:\u0665/db"),
        ("check", "[::1]:99999/db?sslpassword=pw2-secret"),
        ("history", "h:1:2/db"),
    ],
)
def test_a_wrong_address_of_a_server_is_named(tmp_path: Path, verb: str, server: str) -> None:
    """It read as if the history held values that no run wrote; no password is printed."""
    words = [verb, f"--history=postgresql://ann:pw-secret@{server}"]
    told = warm.run("preflight", words, cwd=tmp_path, env=dict(os.environ), timeout=60)
    assert (told.returncode, told.stdout) == (4, "")
    (line,) = _without_variables(told.stderr)
    assert "its host or port is invalid; type postgresql://USER@HOST:PORT/DATABASE" in line
    assert "secret" not in line
