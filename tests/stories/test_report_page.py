"""A run's page in a real browser: it opens without a complaint, and its buttons work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.observed import observe
from preflight.report.fabric_page import fabric_section
from preflight.report.page import PAGE, page
from preflight.report.ready import blame_row, sensitivity_rows
from preflight.report.since import report_findings, summary_of
from preflight.verdict import fail, unknown, warn
from tests.lab.browser import Browser, why_no_browser
from tests.unit.fabric.synthetic import blame, hosts, sweep
from tests.unit.report.nights import BENT, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser())

HOSTILE = "<img src=http://10.0.0.1/x onerror=document.title='owned'><script>document.title=1"
NODES = [f"gpu{n:03}" for n in range(1, 65)]
EXCLUDE = "gpu[003,007,040]"
REASON = "pf:gpu.count 7 of 8 GPUs answer"
VISIBLE = "[...document.querySelectorAll('{}')].filter(one => one.offsetParent).length"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a night with a bit of everything, told by nodes that would rather be markup."""
    leaves = {name: f"leaf-{at // 16:02} {HOSTILE}" for at, name in enumerate(NODES)}
    bad = {
        ("gpu.count", "gpu003"): BENT,
        ("gpu.count", "gpu007"): BENT,
        ("gpu.ecc", "gpu040"): unknown(HOSTILE, advice=HOSTILE),
        ("gpu.ecc", "gpu041"): warn("2 rows were remapped", advice="plan its exchange"),
    }
    before = report(NODES, {("gpu.count", "gpu003"): fail("6 of 8", advice="look")})
    nights = [
        replace(summary_of(before, report_findings(before)), run=str(n), busbw_p50_gbs=40.0 - n)
        for n in range(5)
    ]
    told = replace(report(NODES, bad, leaves=leaves), preflight=HOSTILE)
    fleet = hosts(4)
    swept = sweep(fleet, lambda a, b: 0.05 if "h3" in (a, b) else 1.0)
    observed = observe(swept)
    blamed = [*map(blame_row, blame(swept, fleet))]
    path = tmp_path_factory.mktemp("page") / PAGE
    drawn = page(
        told,
        report_findings(told),
        lambda most: fabric_section(observed, blamed, sweep=swept, with_findings=False, most=most),
        earlier=nights,
        drains=["gpu.count"],
    )
    path.write_text(drawn, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all of them: it takes a second to start."""
    with Browser() as one:
        yield one


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_alone_and_without_a_complaint(
    browser: Browser, written: Path, width: int, *, dark: bool
) -> None:
    """Nothing else is asked for, the console is empty, and nothing sticks out at the side."""
    browser.open(written, width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [written.as_uri()]
    assert browser.value("document.documentElement.scrollWidth") <= width
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert browser.value("document.title").startswith("preflight: 3 of 64 nodes not ready")


def test_hostile_words_are_words(browser: Browser, written: Path) -> None:
    """No element and no script came of them, and they stand there as they were written."""
    browser.open(written)
    assert browser.value("document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.value("document.scripts.length") == 1
    assert HOSTILE in browser.value("document.querySelector('#findings').textContent")


def test_the_copy_buttons_copy(browser: Browser, written: Path) -> None:
    """By a real click and from the real clipboard: the exclude list, and the drain command."""
    browser.open(written)
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    browser.value("window.focus()")
    for selector, content in (
        (f'header button[data-copy="--exclude={EXCLUDE}"]', f"--exclude={EXCLUDE}"),
        (
            'button[data-copy^="scontrol"]',
            f"scontrol update NodeName='gpu[003,007]' State=DRAIN Reason='{REASON}'",
        ),
    ):
        browser.click(selector)
        assert browser.value("navigator.clipboard.readText()") == content
        said = browser.value(f"document.querySelector({selector!r}).textContent")
        assert said == "copied"


def test_without_a_clipboard_it_is_copied_the_old_way(browser: Browser, written: Path) -> None:
    """Where a browser keeps the clipboard from files, the button still fills it."""
    browser.open(written)
    browser.value("Object.defineProperty(navigator, 'clipboard', {value: undefined}) && 0")
    browser.value("document.addEventListener('copy', () => { window.filled = true; })")
    browser.click("header button[data-copy]")
    assert browser.value("window.filled") is True
    assert browser.value("document.querySelectorAll('textarea').length") == 0


def test_the_filter_leaves_what_names_it(browser: Browser, written: Path) -> None:
    """By keys alone: / goes there, a node's name leaves its findings, Escape brings all back."""
    browser.open(written)
    findings, off = VISIBLE.format(".finding"), "document.querySelectorAll('.n.off').length"
    assert browser.value(findings) == 3
    browser.press("/")
    assert browser.value("document.activeElement.id") == "filter"
    browser.write("GPU007")
    assert browser.value(findings) == 1
    assert browser.value(off) == len(NODES) - 1
    assert browser.value("document.getElementById('status').textContent") == "1 nodes, 1 findings"
    browser.press("Escape")
    assert browser.value(findings) == 3
    assert browser.value(off) == 0


def test_the_keyboard_reaches_what_is_not_fine_only(browser: Browser, written: Path) -> None:
    """Of 64 squares four are links; Enter on one leads to its finding."""
    browser.open(written)
    assert browser.value("document.querySelectorAll('.grid a').length") == 4
    browser.value("document.querySelector('.grid a').focus()")
    browser.press("Enter")
    browser.value("document.activeElement.click()")
    assert browser.value("document.querySelector(':target').className").startswith("finding fail")


def test_every_letter_can_be_read(browser: Browser, written: Path) -> None:
    """Text on its background has a contrast of 4.5 at least, light and dark (WCAG AA)."""
    for dark in (False, True):
        browser.open(written, dark=dark)
        assert browser.value(f"({CONTRASTS})()") == []


CONTRASTS = """() => {
  const light = colour => {
    const parts = colour.match(/[0-9.]+/g).map(Number);
    const own = parts.slice(0, 3).map(part => part / 255)
      .map(part => part > 0.03928 ? ((part + 0.055) / 1.055) ** 2.4 : part / 12.92);
    return 0.2126 * own[0] + 0.7152 * own[1] + 0.0722 * own[2];
  };
  const behind = one => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') { return colour; }
    }
    return 'rgb(255, 255, 255)';
  };
  const poor = [];
  for (const one of document.querySelectorAll('body :not(svg *, svg, script)')) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !one.offsetParent) { continue; }
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) { poor.push(one.className + ' ' + one.textContent + ' ' + ratio); }
  }
  return [...new Set(poor)];
}"""


def test_a_healthy_fleet_is_one_screen(tmp_path: Path) -> None:
    """Every row and every pair is there, behind a click."""
    fleet = hosts(64)
    swept = sweep(fleet, lambda _a, _b: 1.0)
    observed = observe(swept)
    told = replace(report([host.name for host in fleet]), sensitivity=sensitivity_rows(observed))
    html = page(
        told,
        (),
        lambda most: fabric_section(observed, (), sweep=swept, most=most),
    )
    (tmp_path / PAGE).write_text(html)
    with Browser() as browser:
        browser.open(tmp_path / PAGE, height=900)
        assert browser.value("document.documentElement.scrollHeight") <= 900
        assert browser.value("document.querySelectorAll('li.n').length") == 64
        assert browser.value("document.querySelectorAll('details[open]').length") == 0
