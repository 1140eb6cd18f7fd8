"""A run's page answers first, says what changed, and is text whatever nodes call themselves."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.report.page import LARGEST, page
from preflight.report.since import RunSummary, report_findings, summary_of
from preflight.verdict import fail, unknown, warn
from tests.cases import draws
from tests.unit.report.nights import BENT, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.report.document import Report

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e]]><!--"
NODES = [f"gpu{n:03}" for n in range(1, 9)]


def drawn(told: Report, *earlier: RunSummary, fabric: Callable[[int], str] | None = None) -> str:
    """The page of a report, as a run draws it."""
    return page(told, report_findings(told), fabric, earlier=earlier, drains=["gpu.count"])


def tree(html: str) -> ET.Element:
    """The page as a tree: it is well-formed XML too, so nothing in it can be read as markup."""
    return ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314  our own


def part(html: str, name: str) -> str:
    """All words of one section."""
    (found,) = (one for one in tree(html).iter("section") if one.get("id") == name)
    return " ".join(" ".join(found.itertext()).split())


def night(told: Report) -> RunSummary:
    """What an earlier run left behind."""
    return summary_of(told, report_findings(told))


class Tags(HTMLParser):
    """Every element and attribute that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect it."""
        self.seen.append((tag, dict(attrs)))


def test_the_first_words_are_the_answer_and_whom_to_leave_out() -> None:
    """The headline counts, and the exclude list stands beside a button that copies it whole."""
    html = drawn(report(NODES, {("gpu.count", "gpu003"): BENT, ("gpu.count", "gpu007"): BENT}))
    (headline,) = tree(html).iter("h1")
    assert "2 of 8 nodes not ready" in "".join(headline.itertext())
    copies = {one.get("data-copy") for one in tree(html).iter("button")}
    assert "--exclude=gpu[003,007]" in copies
    assert (
        "scontrol update NodeName='gpu[003,007]' State=DRAIN "
        "Reason='pf:gpu.count 7 of 8 GPUs answer'" in copies
    )


def test_a_healthy_fleet_has_a_yes_and_nothing_to_leave_out() -> None:
    """No finding, no exclude list, no drain."""
    html = drawn(report(NODES))
    (headline,) = tree(html).iter("h1")
    assert "Ready" in "".join(headline.itertext())
    assert not any(one.get("id") == "findings" for one in tree(html).iter("section"))
    assert "scontrol" not in html
    assert "--exclude" not in html


def test_no_drain_is_offered_for_what_is_no_fault_of_the_node() -> None:
    """A check that does not drain, and so many nodes that one shared cause is likelier."""
    own = drawn(report(NODES, {("gpu.ecc", "gpu001"): BENT}))
    assert "scontrol" not in own
    many = report(NODES, {("gpu.count", name): BENT for name in NODES[:6]})
    assert "scontrol" not in drawn(replace(many, suspicions=("this looks like the inventory",)))


def test_what_changed_tells_healed_from_not_looked_at_again() -> None:
    """New, still and recovered; a check that did not run this time heals nobody."""
    before = report(
        NODES,
        {
            ("gpu.count", "gpu001"): BENT,
            ("gpu.count", "gpu002"): BENT,
            ("gpu.ecc", "gpu004"): fail("3 uncorrectable errors", advice="replace it"),
        },
    )
    now = report(
        NODES, {("gpu.count", n): BENT for n in ("gpu002", "gpu005")}, checks=("gpu.count",)
    )
    words = part(drawn(now, night(before)), "changes")
    assert "New 1 gpu005 gpu.count" in words
    assert "Still 1 gpu002 gpu.count" in words
    assert "Recovered 1 gpu001 gpu.count" in words
    assert "Not judged again 1 gpu004 gpu.ecc" in words


def test_a_section_without_content_is_not_there() -> None:
    """A first, healthy run: nothing to compare, finding, pair or trend; nor links to them."""
    html = drawn(report(NODES))
    assert {one.get("id") for one in tree(html).iter("section")} == {"nodes", "coverage"}
    assert {one.get("href") for one in tree(html).iter("a")} == {"#nodes", "#coverage"}


def test_a_run_that_changed_nothing_says_so() -> None:
    """In one line, without four empty columns."""
    html = drawn(report(NODES), night(report(NODES)))
    assert part(html, "changes").endswith("(tier quick; 8 of 8 nodes were ready then): no change.")


def test_a_check_leads_to_its_documentation() -> None:
    """On the same page: it is read in a mail, and where no network is."""
    html = drawn(report(NODES, {("gpu.count", "gpu002"): BENT}))
    assert "#about-gpu.count" in {one.get("href") for one in tree(html).iter("a")}
    (about,) = (one for one in tree(html).iter("details") if one.get("id") == "about-gpu.count")
    lines = "".join(about.itertext()).splitlines()
    assert "## Fix" in lines


def test_rows_of_healthy_nodes_are_collapsed() -> None:
    """Only the row with the failed node is open; the words count nodes, not "ready" twice."""
    leaves = {name: f"leaf{at // 4}" for at, name in enumerate(NODES)}
    html = drawn(report(NODES, {("gpu.count", "gpu002"): BENT}, leaves=leaves))
    (hidden,) = (one for one in tree(html).iter("details") if one.get("class") == "nodes")
    assert [one.get("title") for one in hidden.iter("li")] == NODES[4:]
    assert "7 without a finding F 1 failed leaf0 1 of 4" in part(html, "nodes")
    assert "1 more row without a finding leaf1" in part(html, "nodes")


def test_every_number_says_what_it_counts() -> None:
    """Nodes and verdicts stand side by side; one of a kind has no plural."""
    html = drawn(report(["gpu001"], checks=["gpu.count"]))
    figures = [
        " ".join(one.itertext()) for one in tree(html).iter("div") if one.find("dd") is not None
    ]
    assert figures == [
        "1 node",
        "1 node ready",
        "0 nodes not ready",
        "1 verdict expected",
        "0 verdicts missing",
    ]


def test_nodes_that_were_folded_are_read_one_by_one() -> None:
    """One finding stands for all; each node's own words are below it."""
    bad = {("a", n): warn(f"its own name {n} leads nowhere", advice="-") for n in NODES}
    html = drawn(report(NODES, bad, checks=["a"]))
    words = part(html, "findings")
    assert words.count("e.g. gpu001: its own name gpu001 leads nowhere") == 1
    assert "gpu008 its own name gpu008 leads nowhere" in words


def test_every_node_has_a_square_and_only_bad_ones_are_links() -> None:
    """By leaf switch; state is a letter, so neither colour nor a mouse is needed."""
    leaves = {name: f"leaf{at // 4}" for at, name in enumerate(NODES)}
    bad = {
        ("gpu.count", "gpu002"): BENT,
        ("gpu.count", "gpu006"): unknown("NVML is silent", advice="look at the driver"),
        ("gpu.ecc", "gpu008"): warn("rows were remapped", advice="plan its exchange"),
    }
    html = drawn(report(NODES, bad, leaves=leaves))
    (grid,) = (one for one in tree(html).iter("div") if (one.get("class") or "").startswith("grid"))
    squares = list(grid.iter("li"))
    assert len(squares) == len(NODES)
    links = {one.get("aria-label"): one for one in grid.iter("a")}
    assert set(links) == {
        "gpu002: failed: gpu.count",
        "gpu006: unknown: gpu.count",
        "gpu008: warned: gpu.ecc",
    }
    letters = {"".join(one.find("b").itertext()) for one in links.values()}  # type: ignore[union-attr]
    assert letters == {"F", "?", "w"}
    ids = {one.get("id") for one in tree(html).iter("article")}
    assert {one.get("href", "").removeprefix("#") for one in links.values()} <= ids
    assert [h.findtext("span") for h in grid.iter("h3")] == ["leaf0", "leaf1"]


@draws(25)
@given(st.text(min_size=1, max_size=60), st.text(max_size=200))
def test_whatever_a_report_says_is_text(name: str, sentence: str) -> None:
    """Names and sentences of any characters leave a page of our own elements only."""
    _harmless(name, sentence)


@pytest.mark.parametrize("name", [HOSTILE, "javascript:alert(1)", "gpu[1-3]", " ", "a%b,c"])
def test_hostile_names_are_text(name: str) -> None:
    """Markup, an address, a bracket, a blank: none of it becomes an element or an attribute."""
    _harmless(name, HOSTILE)


def _harmless(name: str, sentence: str) -> None:
    bad = {("gpu.count", name): fail(sentence, advice=sentence)}
    told = report([name, "gpu002"], bad, leaves={name: sentence})
    told = replace(told, suspicions=(sentence,), preflight=sentence, run=sentence)
    html = drawn(told, night(report([name, "gpu002"])), night(told))
    tags = Tags(html).seen
    assert {tag for tag, _ in tags} <= OURS
    assert sum(tag == "script" for tag, _ in tags) == 1
    for _, attributes in tags:
        assert not any(key.startswith("on") or key in ("src", "style") for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not any(char in html for char in "\x1b\u202e\x00")


OURS = frozenset(
    [
        "html",
        "head",
        "pre",
        "meta",
        "title",
        "style",
        "body",
        "nav",
        "div",
        "ul",
        "li",
        "a",
        "span",
        "input",
        "header",
        "p",
        "b",
        "h1",
        "h2",
        "h3",
        "dl",
        "dd",
        "dt",
        "code",
        "button",
        "main",
        "section",
        "article",
        "i",
        "details",
        "summary",
        "table",
        "tr",
        "th",
        "td",
        "figure",
        "figcaption",
        "svg",
        "path",
        "circle",
        "footer",
        "script",
    ]
)


def test_a_browser_is_told_to_load_and_run_nothing_else() -> None:
    """The policy names the hashes of our style and our script, and forbids all the rest."""
    html = drawn(report(NODES))
    (policy,) = (
        one["content"] or ""
        for tag, one in Tags(html).seen
        if tag == "meta" and one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in html.replace("http-equiv", "").lower()
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.slow
def test_a_thousand_bad_nodes_fit() -> None:
    """However much is wrong, the page stays below two million bytes and says what it left out."""
    names = [f"gpu{n:04}" for n in range(1000)]
    bad = {
        (check, name): fail(f"{check} of {name} is off by x{at}", advice="look at it" * 20)
        for at, name in enumerate(names)
        for check in ("gpu.count", "gpu.ecc")
    }
    told = report(names, bad, leaves={name: f"leaf{at // 32}" for at, name in enumerate(names)})
    asked: list[int] = []

    def fabric(most: int) -> str:
        asked.append(most)
        return "x" * most

    html = drawn(told, night(told), fabric=fabric)
    assert len(html.encode()) < LARGEST
    assert asked[0] > 500_000
    assert "more findings are in report.json" in html


def test_a_quick_look_at_two_nodes_is_not_last_night() -> None:
    """The page is held against the last run of its kind; where there is none, against the last."""
    night_before = night(report(NODES, {("gpu.count", "gpu001"): BENT}))
    look = replace(night(report(NODES[:2])), run="look", started="2026-11-22T01:00:00+00:00")
    now = report(NODES, {("gpu.count", "gpu001"): BENT})
    html = drawn(now, night_before, look)
    assert "Still 1 gpu001 gpu.count" in part(html, "changes")
    assert "2 runs," in part(html, "trends")
    alone = part(drawn(now, look), "changes")
    assert "2 of 2 nodes were ready then" in alone
    assert "New 1 gpu001 gpu.count" in alone
