"""Wrong usage of any verb: what is wrong and what to type, as wide as the terminal; exit 4."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import page_of
from tests.frozen.command import LONGEST_S, Told, environment, module, within
from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from pathlib import Path

VERBS = (
    "blame", "capture", "check", "completion", "diagnose", "explain", "healthcheck", "history",
    "install-hook", "learn", "lint", "list-checks", "nightly", "prolog", "read", "report", "watch",
)  # fmt: skip
ISOLATED = ("check", "nightly", "prolog", "healthcheck")
"""Verbs that become another Python."""


def ran(folder: Path, verb: str, *words: str) -> Told:
    """Run a verb with a Python that is warm."""
    if verb not in ISOLATED:
        return within(folder, verb, *words)
    return module(folder, "preflight", verb, *words)


def widest(text: str) -> int:
    """Columns of the longest line."""
    return max(map(len, text.splitlines()), default=0)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_names_the_verb_and_the_nearest(tmp_path: Path, verb: str) -> None:
    """`preflight history --jsn` names --json, and the help of `history` itself, in one line."""
    near = {"completion": "--hepl", "watch": "--tea"}.get(verb, "--jsn")
    right = {"completion": "--help", "watch": "--tee"}.get(verb, "--json")
    told = ran(tmp_path, verb, near)
    assert told.exit == (0 if verb in ("prolog", "healthcheck") else 4), told
    line = told.err.splitlines()[0]
    assert f"unknown option '{near}'; did you mean '{right}'?" in line
    assert f"See: preflight {verb} --help" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--color=x",), "invalid choice: 'x'"),
        (("--dist=x",), "invalid choice: 'x'"),
        (("-n", "x"), "give a whole number, not 'x'"),
        (("--maxfail=x",), "give a whole number, not 'x'"),
        (("--seed=" + "9" * 23,), "give a whole number of at most 18 digits, not '9"),
        (("-k", "("), "argument -k: cannot read '('"),
        (("-m", "("), "argument -m: cannot read '('"),
        (("-k", "\x1b[31m("), r"cannot read '\x1b[31m('"),
        (("--junitxml=/tmp",), "'/tmp' is no name of a file"),
        (("--junitxml=\x1b[31m",), r"'\x1b[31m' is no name of a file"),
        (("-p", "no:x"), "unknown option '-p'"),
        (("--exclude=--",), "--exclude=--: give a value"),
        (("--inventory=~nouser/x",), "no user 'nouser' is known"),
        (("--report=~nouser/x",), "no user 'nouser' is known"),
        (("--report=-",), "give a folder"),
        (("--checks", "gpu.count", "gpu.ecc"), "type --checks=gpu.count,gpu.ecc"),
        (("--checks", "gpu.count", "gpu.eccc"), "'gpu.eccc' is a check, not a node"),
        (("--json", "--co"), "--json prints the report, and --co makes none: leave one of them"),
        (("fleet.toml",), "'fleet.toml' is no node; give an inventory as --inventory=fleet.toml"),
        (("--budgte=3",), "did you mean '--budget'?"),
        (("--checks=gpu.cuont", "@no-group"), "no check 'gpu.cuont': did you mean 'gpu.count' or"),
        (("--checks=gpu.count,", "--checks=,", "@no-group"), "--checks is empty: give ids, see"),
    ],
)
def test_check_refuses_before_it_shows_a_header(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """No usage of pytest, no escape sequence, nothing on standard output, nothing created."""
    told = ran(tmp_path, "check", *words)
    assert (told.exit, told.out) == (4, ""), told
    (line,) = told.err.strip().splitlines()
    assert said in line
    assert "pytest.main" not in told.err
    assert "\x1b" not in told.err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("history", "--jsn"), "unknown option '--jsn'; did you mean '--json'?"),
        (("report", "absent"), "absent is not a folder"),
        (("capture",), "arguments are required: DIR; see: preflight capture --help"),
        (("check", "--checks", "gpu.count", "gpu.ecc"), "type --checks=gpu.count,gpu.ecc"),
        (("check", "--inventory=~nouser/x"), "no user 'nouser' is known"),
        (("nightly", "-i", "none.toml"), "cannot read the inventory none.toml: No such file"),
    ],
)
def test_an_error_fits_the_terminal(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """On a real terminal of 80 columns it is wrapped, also where pytest prints it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in environment().items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "preflight", *words],
        cwd=tmp_path, env={**env, "NO_COLOR": "1"}, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # EIO: it has ended
        while part := terminal.read(4096):
            shown += part
    assert process.wait(LONGEST_S) == 4, shown
    assert said in " ".join(shown.decode().split())
    assert widest(shown.decode()) <= 80


@pytest.mark.parametrize("verb", ["check", "nightly"])
def test_an_unknown_check_is_refused_before_an_inventory_is_read(tmp_path: Path, verb: str) -> None:
    """Before Slurm is asked, too; a check of the site's own is known."""
    told = ran(tmp_path, verb, "--checks=gpu.count,gpu.cuont", "--inventory=none.toml")
    assert (told.exit, told.out) == (4, "")
    assert "there is no check 'gpu.cuont': did you mean 'gpu.count'" in told.err
    write_check(tmp_path, "site.own", "conclude(ok('it is'))")
    told = ran(tmp_path, verb, "--checks=site.own", "--site-checks=.", "--inventory=none.toml")
    assert "cannot read the inventory none.toml" in told.err


@pytest.mark.parametrize("verb", VERBS)
def test_each_help_says_what_the_verb_does_and_shows_how(tmp_path: Path, verb: str) -> None:
    """A sentence below the usage, and a line to type."""
    usage, _, rest = ran(tmp_path, verb, "--help").out.partition("\n\n")
    assert usage.startswith(f"usage: preflight {verb} ")
    assert rest[0].isupper(), rest
    assert f"\n  preflight {verb} " in rest.replace('eval "$(', "")


def test_the_help_of_nightly_offers_nothing_that_it_refuses(tmp_path: Path) -> None:
    """Each option that it shows is not refused as one that is not for a nightly run."""
    told = ran(tmp_path, "nightly", "--help").out
    shown = set(re.findall(r"(?m)^  (?:-\w, )?(--?[a-z-]+)", told))
    assert {"--tier", "--wave-budget", "--prometheus"} <= shown
    assert not shown & {"--need", "--fail-fast", "--replay", "--report", "-x", "--exitfirst"}
    assert not shown & {"--maxfail", "--junitxml", "--co", "--collect-only"}


def test_every_page_and_help_fits_the_terminal(tmp_path: Path) -> None:
    """`--help` of each verb and `list-checks ID` of each check: at most 80 columns."""
    for verb in VERBS:
        told = ran(tmp_path, verb, "--help")
        assert (told.exit, widest(told.out) <= 80) == (0, True), told.out
    listed = within(tmp_path, "list-checks").out.splitlines()
    ids = [line.split()[0] for line in listed if not line.startswith(" ")]
    assert len(ids) > 70
    columns = [re.split(r"(\S+ +\S+ +\S+ +)", line)[1] for line in listed if line[0] != " "]
    assert len({len(one) for one in columns}) == 1
    for check in ids:
        page = within(tmp_path, "list-checks", check).out
        assert widest(page) <= 80, page
        assert not re.search(r"\]\(\S*\.md", page), page
        whole = re.sub(r"\[([^]]+)\]\(\S+?\.md\S*?\)", r"\1", page_of(check))
        words = {word for word in whole.split() if word.strip("|-")}
        assert len(words - {*page.split()}) <= 2 * whole.count("\n|"), check  # table heads


def test_collecting_shows_one_screen(tmp_path: Path) -> None:
    """`check 'gpu[001-064]' --co`: stages, verdicts, time, logins; -v and -q list each verdict."""
    nodes = "gpu[001-064].invalid"
    told = ran(tmp_path, "check", nodes, "--co")
    assert told.exit == 0
    assert len(told.out.splitlines()) <= 30
    assert widest(told.out) <= 80
    for words in ("verdicts expected", "time     about ", "facts    6", f"login    ssh to {nodes}"):
        assert words in told.out
    assert "report   none: nothing is measured\n" in told.out
    listed = ran(tmp_path, "check", "a.invalid", "--co", "-q")
    assert "reach.name[a.invalid]" in listed.out
    assert not [*tmp_path.iterdir()]


def test_nodes_that_do_not_answer_are_one_line(tmp_path: Path) -> None:
    """Why their other checks did not run: one reason with the node set, not one per node."""
    told = ran(tmp_path, "check", "zz[1-4].invalid", "--tier=prolog")
    said = " ".join(told.out.split())
    assert told.exit == 1, told
    assert "x reach.name of zz[1-4].invalid: the name 'zz[1-4].invalid' does not resolve" in said
    assert "reach.name of zz2.invalid" not in told.out


@pytest.mark.parametrize("hook", ["pytest_preflight_report(folder)", "pytest_terminal_summary()"])
def test_a_late_interrupt_keeps_the_report(tmp_path: Path, hook: str) -> None:
    """Ctrl-C while the page or the summary is written: one line, exit 2, all of the report."""
    (tmp_path / "conftest.py").write_text(
        "import os, signal, pytest\n@pytest.hookimpl(optionalhook=True)\n"
        f"def {hook}:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    words = ("--preflight", "--preflight-tier=prolog", "--preflight-checks=host.memory")
    told = module(tmp_path, "pytest", "-p", "no:cacheprovider", *words, "--preflight-report=r")
    assert told.exit == 2, told
    assert "Traceback" not in told.out + told.err
    assert told.err.strip().startswith("preflight: interrupted: finishing the report")
    assert "verdicts" in told.out
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert len(report["verdicts"]) == report["expected"] == 1
    assert (tmp_path / "r" / "report.html").is_file()


def test_pytest_names_the_nearest_option_of_ours(tmp_path: Path) -> None:
    """`pytest --preflight --preflight-chekcs=a` is answered with the right spelling."""
    told = module(tmp_path, "pytest", "--preflight", "--preflight-chekcs=gpu.count")
    assert (told.exit, told.out) == (4, "")
    said = "unknown option '--preflight-chekcs'; did you mean '--preflight-checks'?"
    assert said in " ".join(told.err.split())


def test_a_launch_that_is_empty(tmp_path: Path) -> None:
    """`preflight watch -- ''` starts nothing, and leaves no folder."""
    told = ran(tmp_path, "watch", "--", "")
    assert told.exit == 4
    assert "no launch is given" in told.err
    assert not [*tmp_path.iterdir()]
