"""The documentation: each page is of one kind, and whatever the product names in it exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from preflight.fleet.inventory_tables import GroupTable, JobTable, NodeTable, WaiveTable
from preflight.hang.explain.symptom import Circumstance, Example, Reads, Role, Symptom
from tests.stories.readme import PAGE, README, TERMINAL, drawn, pictured, shown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("tutorials", "how-to", "reference", "explanation", "internals")
_NAMED = re.compile(r"docs/[\w./-]+\.(?:md|json|py)(?:#[\w-]+|: [A-Z][\w ,-]+(?=\)))?")
LARGEST_BYTES = 200_000


def _anchor(heading: str) -> str:
    """As a forge and the site make it from a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _headings(page: Path) -> list[str]:
    return re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))


def _named() -> set[tuple[str, str]]:
    """Each page that code or scripts name, and the file that names it."""
    folders = ("preflight", "checks", "contrib", "inventory", "tests", "Makefile", "pyproject.toml")
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = set()
    for name in listed:
        path = ROOT / name
        if path.suffix in {".gz", ".so", ".png"} or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found |= {(one, name) for one in _NAMED.findall(text)}
    return found


def _exists(named: str) -> bool:
    page, heading = ROOT / re.split("[#:]", named)[0], named.partition(": ")[2]
    if not page.exists():
        return False
    anchor = named.partition("#")[2] or _anchor(heading)
    return not anchor or anchor in map(_anchor, _headings(page))


def test_each_page_that_the_product_names_exists() -> None:
    """With its heading, where a message names one."""
    others = {"docs/checks/host.swap.md", "docs/source/torch_nccl_environment_variables.md"}
    assert [one for one in _named() if one[0] not in others and not _exists(one[0])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_of_pages_has_each_page(kind: str) -> None:
    """docs/README.md, by its kind and its title."""
    listed = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = sorted((DOCS / kind).glob("*.md"))
    assert pages
    assert [
        page.name
        for page in pages
        if f"[{_headings(page)[0]}]({kind}/{page.name})" not in listed
    ] == []  # fmt: skip


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_begins_with_what_to_type(page: Path) -> None:
    """The first thing below its title is a command, or the lines of a file."""
    below = page.read_text(encoding="utf-8").partition("\n")[2].lstrip("\n")
    assert below.startswith(("```", "    ")), page


def test_the_reference_has_each_key_of_an_inventory() -> None:
    """A key that is missing there cannot be found by a reader."""
    page = (DOCS / "reference" / "inventory.md").read_text(encoding="utf-8")
    keys = {
        key
        for table in (GroupTable, NodeTable, JobTable, WaiveTable)
        for key in table.__struct_fields__
    }
    written = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`\n]+`|(?m:^\w+ =)", page))))
    assert keys - written == set()


def test_the_reference_has_each_key_of_a_symptom() -> None:
    """Each key that the reader of symptoms accepts, and each value of those with fixed words."""
    page = (DOCS / "reference" / "explain.md").read_text(encoding="utf-8")
    page = page.partition("## How to add a symptom")[2]
    keys = {key for table in (Symptom, Circumstance, Example) for key in table.__struct_fields__}
    written = set(
        re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`\n]+`|(?m:^(?:.*=|\[\[).*$)", page)))
    )
    assert ({*keys, *get_args(Role), *get_args(Reads)} - {"", "id"}) - written == set()


def test_the_pictures_are_those_of_the_tutorials_screen() -> None:
    """`make pictures` makes them together; another test holds the screen to the real output."""
    assert drawn() == pictured() == shown()
    readme = README.read_text(encoding="utf-8")
    for picture in (TERMINAL, PAGE):
        assert f"({picture.relative_to(ROOT)})" in readme
        assert picture.stat().st_size < LARGEST_BYTES
