"""The documentation site: `make docs` builds it from the pages of the repository.

The source folder is the root of the repository, so README.md and the pages in docs/ link to each
other by the same relative paths here and on a forge.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import __version__
from preflight.commands.cli import HELP
from preflight.core.registry import load_folder, shipped_folder

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "preflight"
version = release = __version__
author = "the preflight developers"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = [
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "contrib/*/README.md",
    "docs/**",
]
exclude_patterns = [".venv", ".git", "tests", "docs/example-site"]
nitpicky = True
highlight_language = "none"
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"preflight {version}"
smartquotes = False  # a dash in an option is two hyphens
html_show_sourcelink = False
html_show_copyright = False
templates_path = ["."]
html_additional_pages = {"index": "redirect.html"}
html_search_scorer = str(Path(__file__).with_name("search.js"))

_KINDS = {
    "Start here": ("/README",),
    "Tutorials": ("tutorials/*",),
    "How-to guides": ("how-to/*", "/contrib/*/README"),
    "Reference": ("reference/*",),
    "Explanation": ("explanation/*", "/SECURITY", "/CHANGELOG"),
    "For developers": ("internals/*", "/CONTRIBUTING"),
}


def _contents() -> str:
    """Return the side bar: each folder of pages is one kind."""
    return "\n".join(
        "\n".join(["```{toctree}", ":hidden:", ":glob:", f":caption: {kind}", "", *pages, "```"])
        for kind, pages in _KINDS.items()
    )


def _checks() -> str:
    """Return the table of the shipped checks, and their pages for the side bar."""
    table = ["| check | tier | stage | what must be true |", "|---|---|---|---|"]
    for registered in load_folder(shipped_folder()):
        check, about = registered.check, registered.about.splitlines()[0].replace("|", "\\|")
        link = f"[{check.id}](../checks/{check.id}.md)"
        table.append(f"| {link} | {check.tier} | {check.stage} | {about} |")
    return "\n".join([*table, "", "```{toctree}", ":hidden:", ":glob:", "", "../checks/*", "```"])


def _help(verb: str) -> str:
    """Return the section of one verb: what its own parser prints."""
    done = subprocess.run(
        [sys.executable, "-m", "preflight", *filter(None, [verb]), "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "80"},
    )  # fmt: skip
    return f"## preflight {verb or '--help'}\n\n```text\n{done.stdout}```\n"


def _command_line() -> str:
    with ThreadPoolExecutor() as pool:
        return "\n".join(pool.map(_help, ("", *HELP)))


_GENERATED = {
    root_doc: _contents,
    "docs/reference/checks": _checks,
    "docs/reference/command-line": _command_line,
}
"""Pages with a part that the code knows best."""


def _generate(_: Sphinx, page: str, source: list[str]) -> None:
    """Add the generated part of a page."""
    if page in _GENERATED:
        source[0] += "\n" + _GENERATED[page]()


def _read_again(_app: Sphinx, _environment: object, pages: list[str]) -> None:
    """Generate anew in each build, also if the file of the page has not changed."""
    pages += [page for page in _GENERATED if page not in pages]


def setup(app: Sphinx) -> None:
    """Register the generator."""
    app.connect("source-read", _generate)
    app.connect("env-before-read-docs", _read_again)
