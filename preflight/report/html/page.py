"""`report.html`: one run on one page, put together; a browser may run nothing on it but our script.

The policy names our style and our script by their hash and forbids the rest: no address is ever
contacted, and a string that slipped through as markup could neither load nor run anything.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.report.findings import Finding
from preflight.report.html.markup import Html, join, section, tag
from preflight.report.html.nodes import causes, looked, nodes
from preflight.report.html.summary import changed, glance, page_title, trends
from preflight.report.picture.style import COLOURS, figures
from preflight.report.since import Night, alike, before, night_of, since

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.report.document import Report


PAGE = "report.html"
"""The file in the run's folder."""

LARGEST = 2_000_000
"""Bytes of the page: it must open on a jump host, and pass through mail."""

_LEAST_FABRIC = 100_000
_PARTS = (
    ("changes", "What changed"),
    ("nodes", "Nodes"),
    ("findings", "Findings"),
    ("fabric", "Fabric"),
    ("trends", "Trends"),
    ("coverage", "Coverage"),
)


class Told(Struct, frozen=True, kw_only=True):
    """What stands beside the report of a run."""

    found: tuple[Finding, ...]
    earlier: tuple[Night, ...] = ()
    """Runs of the same folder before this one, oldest first."""
    drains: frozenset[str] = frozenset()
    """Checks that a node may be taken out of service for."""


def page(report: Report, told: Told, fabric: Callable[[int], str] | None = None) -> str:
    """Draw the whole page.

    `fabric` draws what was measured between nodes in at most so many bytes; None: nothing was.
    """
    now = night_of(report, told.found)
    last = before(told.earlier, now)
    above = (
        glance(report),
        changed(since(last, now, report) if last else None),
        nodes(report, told.found),
        causes(report, told.found, told.drains, suspected=bool(report.suspicions)),
    )
    below = (trends((*alike(told.earlier, now), now)), looked(report))
    used = sum(len(one.encode()) for one in (*above, *below))
    drawn = _fabric(fabric, max(_LEAST_FABRIC, LARGEST - used - len(_STYLE) - 20_000))
    header, *parts = above
    body = join(_bar(), header, tag("main", *parts, drawn, *below), _foot(report), _script())
    return f'<!DOCTYPE html>\n<html lang="en">{_head(report)}{tag("body", body)}</html>\n'


def _fabric(fabric: Callable[[int], str] | None, most: int) -> Html:
    if fabric is None:
        return section("fabric", "Fabric", note="No pairs were measured in this run.")
    # Every word in the drawing is escaped where it is drawn; here it stands one level deeper.
    drawing = fabric(most).replace("h2>", "h3>")
    return section("fabric", "Fabric", Html(drawing))


def _head(report: Report) -> Html:
    policy = (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", page_title(report)),
        tag("style", _STYLE),
    )


def _bar() -> Html:
    links = (tag("li", tag("a", words, href=f"#{name}")) for name, words in _PARTS)
    return tag(
        "nav",
        tag(
            "div",
            tag("ul", *links),
            tag("span", id="status", role="status"),
            tag(
                "input",
                id="filter",
                type="search",
                placeholder="filter nodes, checks  ( / )",
                aria_label="Show only nodes, findings and checks that contain this",
                autocomplete="off",
            ),
        ),
        aria_label="Parts of this page",
    )


def _foot(report: Report) -> Html:
    said = f"preflight {report.preflight}, run {report.run}, document schema {report.schema}."
    return tag("footer", said, " All of it as data: report.json beside this file.")


def _script() -> Html:
    return tag("script", _SCRIPT)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _own(name: str) -> Html:
    return Html(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_STYLE = Html(COLOURS + figures() + _own("look.css"))
_SCRIPT = _own("act.js")


def waves_of(folders: Sequence[str]) -> Html:
    """Name the waves' folders, each with a link to the page in it."""
    links = (tag("li", tag("a", name, href=f"{name}/report.html#fabric")) for name in folders)
    said = tag(
        "p",
        "Pairs were measured within each wave; its page tells more.",
        class_="small",
    )
    return Html(said + tag("ul", *links))
