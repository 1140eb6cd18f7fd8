"""The page shows the slow node at once, fits, and is text whatever nodes call themselves."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.fabric.decoding.find import find
from preflight.fabric.observed import EndResult, Observed, observe
from preflight.report.document import BlameRow
from preflight.report.fabric_page import LARGEST, fabric_page
from preflight.report.markup import LEGEND, STEPS, step
from tests.cases import draws
from tests.unit.fabric.synthetic import blame, hosts, sweep
from tests.unit.report.fabrics import fabric, picture_of

if TYPE_CHECKING:
    from preflight.fabric.samples import PairState

WORST, FINE = STEPS[-1].css, STEPS[0].css
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202e]]>"


def parsed(page: str) -> ET.Element:
    """The page as a tree: it is well-formed XML too, so nothing in it can be read as markup."""
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314  our own


def panel(page: str, title: str) -> list[tuple[str, str]]:
    """(class, what it says) of every cell of one heat map."""
    (figure,) = (one for one in parsed(page).iter("figure") if title in "".join(one.itertext()))
    return [
        (rect.get("class", ""), rect.findtext("title") or "")
        for rect in figure.iter("rect")
        if "frame" not in rect.get("class", "")
    ]


def of(name: str, cells: list[tuple[str, str]]) -> Counter[str]:
    """How many cells of which colour name a node."""
    return Counter(css for css, said in cells if name in said.split(":")[0].split())


def frames(page: str) -> list[str]:
    """What each frame says, over all three panels."""
    return [
        rect.findtext("title") or ""
        for rect in parsed(page).iter("rect")
        if rect.get("class", "").startswith("frame")
    ]


def slow(name: str, observed: Observed, rail: int | None = None) -> BlameRow:
    """A finding against one node or endpoint."""
    pairs = {f"{one.a}-{one.b}": None for one in observed.tried if name in (one.a, one.b)}
    return BlameRow(
        kind="node" if rail is None else "endpoint",
        component=name,
        sentence="it is slow",
        confidence=1.0,
        advice="exclude it",
        rail=rail,
        pairs=tuple(pairs),
    )


def test_a_slow_node_is_a_dark_row_and_the_only_one() -> None:
    """Every cell of the slow node has the worst colour, no other has; its row is framed."""
    fleet = hosts(4)
    swept = sweep(fleet, lambda a, b: 0.05 if "h3" in (a, b) else 1.0)
    page = picture_of(swept, blame(swept, fleet))
    bandwidth = panel(page, "Bandwidth")
    assert len(bandwidth) == 4 * 3, "a row per node, a cell per partner"
    assert of("h3", bandwidth) == {WORST: 6}
    assert Counter(css for css, _ in bandwidth) == {WORST: 6, FINE: 6}
    assert of("h3", panel(page, "Latency")) == {FINE: 6}
    assert [said.split(":")[0] for said in frames(page)] == ["h3"] * 3
    assert any("0.05 GB/s at 4 MiB, peers 1 GB/s, 20 x" in said for _, said in bandwidth)
    assert "Blamed: h3" in page
    assert "do: check link rate" in page


def test_a_bad_path_is_one_cell_in_two_rows() -> None:
    """A pair without result is black with its letter and framed in both rows; no row is."""
    fleet = hosts(5)
    swept = sweep(fleet, lambda a, b: "hung" if {a, b} == {"h1", "h4"} else 1.0)
    page = picture_of(swept, blame(swept, fleet))
    assert of("h1", panel(page, "Bandwidth")) == {FINE: 6, "cx": 2}
    assert [said.split(":")[0] for said in frames(page)] == ["pair h1-h4"] * 6
    letters = [one.text for one in parsed(page).iter("text") if one.get("class") == "letter"]
    assert letters == ["H"] * 6


def test_a_spiking_rail_shows_though_its_medians_are_fine() -> None:
    """Twenty bursts in a thousand on one rail of a node colour that rail's cells and no others."""
    observed = fabric(8, rails=2, spikes=lambda a, b, rail: 20 * ("n0003" in (a, b) and rail == 1))
    spikes = panel(fabric_page(observed, [slow("n0003", observed, 1)]), "Spikes")
    dark = {said.split(":")[0] for css, said in spikes if css not in (FINE, STEPS[1].css)}
    assert len(dark) == 7
    assert all("n0003" in said and "rail 1" in said for said in dark)


def test_a_late_host_has_a_panel_of_its_own() -> None:
    """What is long at one end only is no spike of the network; without any, no panel is drawn."""
    observed = fabric(8, spikes=lambda a, b, _rail: 20 * ("n0003" in (a, b)), late="n0003")
    page = fabric_page(observed, [])
    assert {css for css, _ in panel(page, "Spikes")} == {FINE}
    dark = {
        said.split(":")[0] for css, said in panel(page, "Late starts") if css not in (FINE, "c1")
    }
    assert len(dark) == 7
    assert all("n0003" in said for said in dark)
    assert "Late starts" not in fabric_page(fabric(8), [])


def noisy(a: str, b: str, _rail: int) -> int:
    """Two of eight nodes' pairs had a burst; n0003 spikes far more often."""
    return 12 if "n0003" in (a, b) else int({"n0005", "n0006"} & {a, b} != set())


def test_the_map_of_spikes_points_at_whom_the_rule_blames() -> None:
    """Only its row has colour, though others had spikes as well; the title says what counts."""
    observed = fabric(8, spikes=noisy)
    assert [one.component.name for one in find(observed).culprits if one.component] == ["n0003"]
    page = fabric_page(observed, [slow("n0003", observed)])
    spikes = panel(page, "Spikes (over 20 medians and 8 ms)")
    assert of("n0003", spikes).keys() <= {"c3", "c4"}
    assert Counter(css for css, said in spikes if "n0003" not in said) == {FINE: 42}


def test_what_the_rule_counts_as_no_spike_is_not_drawn_as_one() -> None:
    """Operations over 5 medians but below the floor of that network are not even counted."""
    observed = fabric(8, spikes=lambda a, b, _rail: 30 * ("n0002" in (a, b)))
    short = tuple(
        replace(
            one,
            most_us=min(one.most_us, 7900.0),
            standouts=tuple(replace(s, first_us=7900.0, second_us=7900.0) for s in one.standouts),
        )
        for one in observed.digests
    )
    spikes = panel(fabric_page(replace(observed, digests=short), []), "Spikes")
    assert {css for css, _ in spikes} == {FINE}
    assert all(" 0 in " in said for _, said in spikes)


def test_busy_moments_of_healthy_pairs_do_not_colour_the_map_of_bandwidth() -> None:
    """A median that a busy host doubles is no slow wire: its fastest operations are quick."""
    observed = fabric(8)
    busy = tuple(
        replace(one, p50_us=6 * one.p50_us) if (one.a, one.b) == ("n0001", "n0004") else one
        for one in observed.digests
    )
    page = fabric_page(replace(observed, digests=busy), [])
    assert {css for css, _ in panel(page, "Bandwidth")} == {FINE}
    assert of("n0001", panel(page, "Latency"))["c4"] == 2, "latency goes by the median"


def test_histograms_show_the_blamed_beside_their_peers() -> None:
    """Of a blamed node there is one per size that tells most, with both populations counted."""
    fleet = hosts(6)
    swept = sweep(fleet, lambda a, b: 0.05 if "h3" in (a, b) else 1.0)
    page = picture_of(swept, blame(swept, fleet))
    said = [
        "".join(figure.findtext("figcaption") or "")
        for figure in parsed(page).iter("figure")
        if figure.find("svg[@class='histogram']") is not None
    ]
    assert said == [
        (
            "h3, 8 B all-reduce: 50 operations of 5 pairs, longest 0.2 ms; "
            "peers (grey): 100 operations of 10 pairs, longest 0.2 ms"
        ),
        (
            "h3, 4 MiB all-reduce: 50 operations of 5 pairs, longest 84 ms; "
            "peers (grey): 100 operations of 10 pairs, longest 4.2 ms"
        ),
    ]


def test_nothing_is_told_by_colour_alone() -> None:
    """A slow endpoint's row has its number and rail at its end, and its cells are in the table."""
    observed = fabric(8, lambda a, b, rail: 1.0 + ("n0003" in (a, b) and rail == 1), rails=2)
    page = fabric_page(observed, [slow("n0003", observed, 1)])
    bad = [one.text for one in parsed(page).iter("text") if one.get("class") == "bad"]
    assert "2.0 x rail 1" in bad
    rows = ["".join(one.itertext()) for one in parsed(page).iter("tr")]
    assert len([row for row in rows if "n0003" in row and "Bandwidth" in row and "2 x" in row]) == 7
    assert not [row for row in rows[1:] if "n0003" not in row]
    summaries = [one.text for one in parsed(page).iter("summary")]
    assert summaries == ["How to read it", "Cells that stand out, as a table (7)"]
    four = fabric(4, lambda a, b, _rail: 1.0 + ("n0003" in (a, b)))
    texts = parsed(fabric_page(four, [slow("n0003", four)])).iter("text")
    numbers = [one.text for one in texts if one.get("class") == "figure"]
    assert numbers == ["2"] * 6


@pytest.mark.slow
def test_an_endpoint_of_a_large_fabric_is_named_below_the_thumbnail() -> None:
    """Where not every node has a row, a dot is said in words, too."""
    observed = fabric(
        256, lambda a, b, rail: 1.8 if "n0077" in (a, b) and rail == 5 else 1.0, rails=8, rounds=9
    )
    page = fabric_page(observed, [])
    assert "Bad with every partner: n0077 rail 5 (1.8 x)." in page
    assert len(page.encode()) < LARGEST


def test_rows_are_sorted_by_leaf() -> None:
    """Nodes of a leaf stand together under its name, in the order people count."""
    observed = fabric(12)
    leaves = {name: f"leaf{10 - number % 2}" for number, name in enumerate(observed.nodes)}
    page = fabric_page(replace(observed, leaves=leaves), [])
    labels = [one.text or "" for one in next(iter(parsed(page).iter("figure"))).iter("text")]
    rows = [label for label in labels if label.startswith(("leaf", "n0"))][12:]
    even, odd = list(observed.nodes[::2]), list(observed.nodes[1::2])
    assert labels.index("leaf9") < labels.index("leaf10")
    assert rows[-12:] == odd + even


@pytest.mark.slow
def test_four_thousand_nodes_fit_and_the_culprits_have_a_row() -> None:
    """At 4,096 nodes and 8 rails the page is capped, says so, and shows all in small."""

    def factor(a: str, b: str, rail: int) -> float:
        if "n0100" in (a, b):
            return 8.0
        return 3.0 if rail == 5 and {"n0064", "n0065"} & {a, b} else 1.0

    observed = fabric(4096, factor, rails=8, rounds=2, leaf=32)
    page = fabric_page(observed, [slow("n0100", observed)])
    assert len(page.encode()) <= LARGEST
    assert "of 4096 nodes have a row" in page
    rows = {one.text for one in parsed(page).iter("text") if one.get("text-anchor") == "end"}
    assert {"▶ n0100", "n0064", "n0065"} <= rows
    (small,) = (one for one in parsed(page).iter("svg") if one.get("class") == "thumb")
    dark = {path.get("class"): (path.get("d") or "").count("M") for path in small.iter("path")}
    assert dark[WORST] == 8, "one run per rail of n0100"
    assert dark["c3"] == 1, "n0064 and n0065 are neighbours on rail 5: one run"


@pytest.mark.parametrize("rails", [1, 700])
@pytest.mark.slow
def test_a_page_never_outgrows_its_limit(rails: int) -> None:
    """Even a fabric of absurd shape is drawn within the limit, in well-formed markup."""
    observed = fabric(4, rails=rails, rounds=3)
    page = fabric_page(observed, [])
    assert len(page.encode()) <= LARGEST
    assert len(panel(page, "Bandwidth")) >= 4


def test_hostile_names_are_text() -> None:
    """A name that is markup is shown as such: no element, no attribute, no control character."""
    observed = fabric(4, lambda a, b, _rail: "error" if "n0001" in (a, b) else 1.0)
    rename = {name: name + HOSTILE for name in observed.nodes}
    dirty = replace(
        observed,
        nodes=tuple(rename.values()),
        tried=tuple(
            replace(one, a=rename[one.a], b=rename[one.b], first=EndResult(HOSTILE))
            for one in observed.tried
        ),
        digests=tuple(replace(one, a=rename[one.a], b=rename[one.b]) for one in observed.digests),
        leaves=dict.fromkeys(rename.values(), HOSTILE),
    )
    finding = slow(rename["n0001"], dirty)
    page = fabric_page(dirty, [replace(finding, sentence=HOSTILE, advice=HOSTILE)], origin=HOSTILE)
    tags, attributes = Tags.of(page)
    assert "script" not in tags
    assert not {name for name in attributes if name.startswith("on") or name in ("href", "src")}
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    parsed(page)


class Tags(HTMLParser):
    """The elements and attributes that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    @classmethod
    def of(cls, page: str) -> tuple[set[str], set[str]]:
        """Names of both."""
        seen = cls()
        seen.feed(page)
        return seen.tags, seen.attributes

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_nothing_is_loaded_and_nothing_runs() -> None:
    """The page names no address and holds neither script nor handler."""
    tags, attributes = Tags.of(picture_of(sweep(hosts(4), lambda _a, _b: 1.0), ()))
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not attributes & {"href", "src", "onload", "onclick", "xlink:href"}


def test_a_sweep_without_any_result_is_drawn() -> None:
    """No pair connected, or none was tried: the page says so and does not break."""
    fleet = hosts(3)
    swept = sweep(fleet, lambda _a, _b: "no_connect")
    page = picture_of(swept, blame(swept, fleet))
    assert Counter(css for css, _ in panel(page, "Latency")) == {"cx": 6}
    assert "histogram" not in [one.get("class") for one in parsed(page).iter("svg")]
    nothing = Observed(nodes=(), backend="", tried=(), digests=())
    assert "nothing to draw" in fabric_page(nothing, [])


def test_two_nodes_have_no_peers_and_that_has_its_own_colour() -> None:
    """Without peers no cell looks good or bad."""
    swept = sweep(hosts(2), lambda _a, _b: 1.0)
    page = fabric_page(observe(swept), ())
    assert {css for css, _ in panel(page, "Bandwidth")} == {"cp"}
    assert "No node or path is blamed." in page


@given(st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_worse_is_never_lighter(one: float, other: float) -> None:
    """The steps ascend, and each is darker than the one before: grey printers tell them apart."""
    order = [entry.css for entry in LEGEND]
    low, high = sorted((one, other))
    assert order.index(step(low).css) <= order.index(step(high).css)
    scale = (*STEPS, LEGEND[-2])
    lightness = [_luminance(entry.colour) for entry in scale]
    assert lightness == sorted(lightness, reverse=True)
    on_dark = [_luminance(entry.dark) for entry in scale]
    assert on_dark == sorted(on_dark)


def _luminance(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@st.composite
def _fabrics(draw: st.DrawFn) -> Observed:
    count = draw(st.integers(1, 9))
    states: st.SearchStrategy[PairState] = st.sampled_from(
        ["hung", "corrupt", "no_connect", "absent", "error", "not_run"]
    )
    results: list[float | PairState] = draw(
        st.lists(st.one_of(st.floats(0.0, 1e9), states), min_size=1, max_size=9)
    )
    return fabric(
        count,
        lambda a, b, rail: results[(int(a[1:]) * 7 + int(b[1:]) + rail) % len(results)],
        rails=draw(st.integers(1, 3)),
        leaf=draw(st.integers(0, 4)),
        spikes=lambda _a, _b, _rail: draw(st.just(2)),
    )


@draws(40)
@given(_fabrics(), st.data())
def test_whatever_was_measured_can_be_drawn(observed: Observed, data: st.DataObject) -> None:
    """Any mixture of times and failures makes a well-formed page with every pair on it."""
    found = [slow(name, observed) for name in data.draw(st.sets(st.sampled_from(observed.nodes)))]
    page = fabric_page(observed, found)
    assert len(panel(page, "Spikes")) == 2 * len(observed.tried) if observed.tried else parsed(page)
