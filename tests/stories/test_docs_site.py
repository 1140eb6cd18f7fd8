"""The documentation site in a real browser: the search leads a reader to the right page."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lab.browser import Browser, why_no_browser

BUILT = os.environ.get("PREFLIGHT_SITE", "")
pytestmark = [
    pytest.mark.skipif(not BUILT, reason="make docs builds the site and runs this"),
    pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser()),
]

SITE = Path(__file__).parents[2] / BUILT
LONGEST_S = 60
RESULTS = "[...document.querySelectorAll('#search-results li a')].map(one => one.href)"
DONE = "/found|did not match/.test(document.querySelector('#search-results')?.innerText)"


FIRST = {
    "slurm": "docs/how-to/slurm",
    "prolog": "docs/how-to/prolog",
    "metrics": "docs/reference/metrics",
    "nightly": "docs/how-to/nightly",
    "hang": "docs/how-to/hangs",
    "dead job": "docs/how-to/dead-job",
    "own check": "docs/how-to/own-check",
    "waive": "docs/how-to/waive",
    "bandwidth": "docs/how-to/bandwidth",
    "kubernetes": "docs/how-to/kubernetes",
    "gitlab": "docs/how-to/ci",
    "gpu.count": "docs/checks/gpu.count",
    "how long": "README",
    "AMD": "README",
    "exit code": "docs/reference/exit-codes",
    "explain": "docs/reference/explain",
}
"""The page that a reader of these words wants."""


def test_the_search_names_the_right_page_first() -> None:
    """A reader types words of a task into the side bar, and presses Enter."""
    with Browser() as browser:
        found = {words: _first(browser, words) for words in FIRST}
    assert found == {words: (SITE / f"{page}.html").as_uri() for words, page in FIRST.items()}


def _first(browser: Browser, words: str) -> str:
    browser.open(SITE / "docs" / "README.html")
    browser.click("input[name=q]")
    browser.write(words)
    browser.events.clear()
    browser.press("Enter")
    browser.wait_for("Page.loadEventFired")  # a script cannot run while the page changes
    ends = time.monotonic() + LONGEST_S
    while not browser.value(DONE):
        assert time.monotonic() < ends, browser.complaints()
        time.sleep(0.05)
    first, *_ = browser.value(RESULTS)
    return str(first.partition("?")[0].partition("#")[0])
