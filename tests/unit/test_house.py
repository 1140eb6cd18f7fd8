"""The house keeps its shape: rooms of bounded size, few modules in the root, no circles.

The arrows between rooms are held by import-linter (pyproject.toml). A bound that a change must
raise is raised here, and the commit says why.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests import architecture

ROOT = Path(__file__).parents[2]
PAYLOAD = ROOT / "preflight" / "payload"
ENTRIES = ("burn", "probe", "stacks", "sweep")

MOST_IN_ROOT = 7
MOST_FLOORS = 10
MOST_SHARED_NAMES = 2
MOST_FILES = {
    "checks": 52, "commands": 22, "core": 9, "fabric": 32, "facts": 12, "fleet": 14, "burn": 4,
    "captured": 14, "hang": 45, "history": 7, "hook": 12, "lint": 7, "payload": 50, "report": 18,
    "run": 10, "session": 10, "transport": 16,
}  # fmt: skip
"""Python files of each room, subfolders included. The room hang has had 33: five of its files were
longer than 500 lines, and told several stories each; then 41, while a command read the folder that
this room writes, and one file of 719 lines followed tracebacks, judged them, and read summaries."""


def _files(room: str) -> list[Path]:
    return sorted((ROOT / "preflight" / room).resolve().rglob("*.py"))


def test_the_root_of_the_package_holds_few_modules() -> None:
    """What a site imports, the plugin, the command: everything else has a room."""
    assert len(list((ROOT / "preflight").glob("*.py"))) <= MOST_IN_ROOT


def test_the_rooms_stand_on_few_floors() -> None:
    """A change in one room is understood with few rooms below it."""
    assert max(map(architecture.height, architecture.imports())) <= MOST_FLOORS


def test_every_folder_is_a_room_with_a_bound() -> None:
    """A new room is a decision, not an accident."""
    folders = {path.parent.name for path in (ROOT / "preflight").glob("*/__init__.py")}
    assert folders == set(MOST_FILES)


@pytest.mark.parametrize("room", MOST_FILES)
def test_a_room_stays_small(room: str) -> None:
    """A room that grows by a file says so here."""
    words = "put it into a file of the same story, or raise MOST_FILES and say why"
    assert len(_files(room)) <= MOST_FILES[room], f"{room} has a file more: {words}"


def test_few_files_share_a_name() -> None:
    """A stranger guesses a file's content from its name; two of one name are one too many."""
    names = Counter(path.name for room in MOST_FILES for path in _files(room))
    del names["__init__.py"]
    assert sum(count > 1 for count in names.values()) <= MOST_SHARED_NAMES


def test_no_modules_import_each_other_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is understood with those below it, and with no others."""
    monkeypatch.setattr(sys, "path", [str(PAYLOAD), *sys.path])
    for packages in (("preflight",), ENTRIES):
        graph = grimp.build_graph(*packages)
        below = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
        TopologicalSorter(below).prepare()


def test_each_test_with_a_lab_or_a_sweep_is_in_a_folder_that_make_collects() -> None:
    """`make test` collects few folders for them: a test elsewhere would never run."""
    found = re.search(r"^HEAVY_IN = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    folders = [ROOT / each for each in found[1].split()]
    heavy = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"mark\.(lab|busy)\b", path.read_text()) and path != Path(__file__)
    ]
    assert len(heavy) > len(folders)
    for path in heavy:
        assert any(path.is_relative_to(folder) for folder in folders), path


def test_each_line_of_what_make_test_leaves_out_names_a_test() -> None:
    """A test that was renamed would otherwise come back, or a line stay that means nothing."""
    lines = (ROOT / "tests" / "thorough.txt").read_text().splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            path, _, name = line.partition("::")
            text = (ROOT / path).read_text()
            assert f"def {name.partition('[')[0]}" in text, line
