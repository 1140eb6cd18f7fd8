"""What each verb prints: helps, pages of checks, answers to recorded data, words on wrong usage."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.frozen.command import PROGRAM, Told, program, within
from tests.frozen.golden import FIXED, FOLDER, difference, normalised

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = FIXED

VERBS_FOLDER = FOLDER / "verbs"
RUNS = FOLDER / "runs"
SCRIPTS: dict[str, str] = json.loads((VERBS_FOLDER / "scripts.json").read_text())
WRONG: dict[str, list[list[str]]] = json.loads((VERBS_FOLDER / "wrong.json").read_text())

VERBS = (
    "blame", "capture", "check", "completion", "diagnose", "explain", "healthcheck", "history",
    "install-hook", "learn", "lint", "list-checks", "nightly", "prolog", "read", "report", "watch",
)  # fmt: skip
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight")
SWEPT = ("lab-healthy", "lab-lossy-and-hung", "lab-three-culprits", "rehearsal-nvlink-domain",
         "rehearsal-slow-rail", "lab-repair-pairs", "slurm-srun", "lab-host-down")  # fmt: skip


def _hold(name: str, text: str, folder: Path) -> None:
    wrong = difference(VERBS_FOLDER / f"{name}.txt", normalised(text, folder))
    assert not wrong, wrong


def _measured(name: str, folder: Path) -> Path:
    content = gzip.decompress((RUNS / name / "measured.json.gz").read_bytes())
    path = folder / f"{name}.json"
    path.write_bytes(content)
    return path


def test_helps(tmp_path: Path) -> None:
    """`preflight --help`, and that of each verb, at 80 columns."""
    shown = within(tmp_path, "--help").text("preflight --help")
    shown += within(tmp_path, "--version").text("preflight --version")
    shown += within(tmp_path).text("preflight")
    for verb in VERBS:
        told = program(tmp_path, PROGRAM, verb, "--help")
        shown += told.text(f"preflight {verb} --help")
    _hold("help", shown, tmp_path)


def test_options_of_pytest(tmp_path: Path) -> None:
    """Our section of `pytest --help`, our ini keys and our markers."""
    told = program(tmp_path, *PYTEST, "--help")
    shown = Told(told.exit, _ours(told.out), told.err).text("pytest --preflight --help")
    told = program(tmp_path, *PYTEST, "--markers")
    markers = "".join(re.findall(r"^@pytest\.mark\.preflight.*\n(?:.+\n)*", told.out, re.MULTILINE))
    shown += Told(told.exit, markers, told.err).text("pytest --preflight --markers")
    _hold("pytest-help", shown, tmp_path)


def _ours(text: str) -> str:
    """The groups of our options, and the ini keys that begin with our name."""
    groups = re.findall(r"^preflight: .*:\n(?: .*\n)*", text, re.MULTILINE)
    keys = re.findall(r"^  preflight_\w+ .*\n(?: {4,}.*\n)*", text, re.MULTILINE)
    return "".join((*groups, *keys))


def test_pages_of_checks(tmp_path: Path) -> None:
    """The list of checks, and the page of each of them."""
    told = within(tmp_path, "list-checks")
    ids = re.findall(r"^([a-z]+\.\w+) ", told.out, re.MULTILINE)
    shown = told.text("preflight list-checks") + f"{len(ids)} checks\n\n"
    shown += "".join(
        within(tmp_path, "list-checks", one).text(f"preflight list-checks {one}") for one in ids
    )
    _hold("checks", shown, tmp_path)


@pytest.mark.parametrize("name", SWEPT)
def test_blame_on_recorded_samples(name: str, tmp_path: Path) -> None:
    """For people, as JSON, and the picture of the fabric."""
    samples = _measured(name, tmp_path).name
    shown = within(tmp_path, "blame", samples).text(f"preflight blame {samples}")
    shown += within(tmp_path, "blame", samples, "--json").text(f"preflight blame {samples} --json")
    told = within(tmp_path, "blame", samples, "--picture", "fabric.html")
    shown += told.text(f"preflight blame {samples} --picture fabric.html")
    picture = tmp_path / "fabric.html"
    shown += picture.read_text() if picture.exists() else "no picture\n"
    _hold(f"blame-{name}", shown, tmp_path)


def test_lint_of_scripts(tmp_path: Path) -> None:
    """What is found in each script, for people; of all of them together, as JSON."""
    shown, names = "", []
    for number, (name, text) in enumerate(SCRIPTS.items()):
        path = tmp_path / f"train{number:03}.py"
        path.write_text(text)
        names.append(path.name)
        shown += within(tmp_path, "lint", path.name).text(f"preflight lint {path.name}  # {name}")
    shown += within(tmp_path, "lint", "--json", *names).text("preflight lint --json *.py")
    _hold("lint", shown, tmp_path)


def test_wrong_usage_of_verbs(tmp_path: Path) -> None:
    """Each mistake: one line on standard error that says what to type, exit 4, no traceback."""
    _wrong_files(tmp_path)
    shown = ""
    for words in WRONG["preflight"]:
        own = words[0] in ("prolog", "healthcheck", "check", "nightly", "watch")
        told = program(tmp_path, PROGRAM, *words) if own else within(tmp_path, *words)
        shown += told.text(f"preflight {' '.join(words)}")
    assert "Traceback" not in shown
    _hold("wrong-verbs", shown, tmp_path)


def test_wrong_options_of_a_run(tmp_path: Path) -> None:
    """The same of `pytest --preflight`, of its inventory and of the measurements of a replay."""
    _wrong_files(tmp_path)
    shown = ""
    for words in WRONG["pytest"]:
        told = program(tmp_path, *PYTEST, "--preflight-report=report", *words)
        shown += Told(told.exit, "", told.err).text(f"pytest --preflight {' '.join(words)}")
    assert "Traceback" not in shown
    _hold("wrong-options", shown, tmp_path)


def _wrong_files(folder: Path) -> None:
    for name, text in WRONG["files"]:
        (folder / name).write_text(text)


@pytest.mark.parametrize(("name", "node"), [("three-nights", "n3"), ("fourteen-nights", "gpu3")])
def test_history(name: str, node: str, tmp_path: Path) -> None:
    """Of a history that runs have written: what is new, what comes again, one node's past."""
    (tmp_path / "nights").mkdir()
    dump = gzip.decompress((VERBS_FOLDER / f"{name}.sql.gz").read_bytes()).decode()
    with closing(sqlite3.connect(tmp_path / "nights" / "history.sqlite")) as database:
        database.executescript(dump)
    shown = ""
    for words in ([], [node], ["--worst"], ["--worst", "--nights=2"], ["--gpu=GPU-1"], ["nosuch"]):
        for form in ([], ["--json"]):
            told = within(tmp_path, "history", *words, *form, "--history", "nights")
            shown += told.text(f"preflight history {' '.join([*words, *form])}")
    _hold(f"history-{name}", shown, tmp_path)
