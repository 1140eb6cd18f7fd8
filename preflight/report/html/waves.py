"""In a sweep's page, the way to the fabric: each wave has drawn its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.html.markup import Html, tag

if TYPE_CHECKING:
    from collections.abc import Sequence


def waves_of(folders: Sequence[str]) -> Html:
    """Name the waves' folders, each with a link to the page in it."""
    links = (tag("li", tag("a", name, href=f"{name}/report.html#fabric")) for name in folders)
    said = tag(
        "p",
        "Pairs were measured within each wave; its page tells more.",
        class_="small",
    )
    return Html(said + tag("ul", *links))
