"""Which nodes could not connect to which others a moment ago, so that nobody is asked to again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.ports import Ports


def cut_links(ports: Mapping[str, Ports]) -> frozenset[tuple[str, str]]:
    """(from, to) of every connection of the port stage that did not come about.

    An attempt that the node itself could not make says nothing of the way.
    """
    return frozenset(
        (source, one.target)
        for source, report in ports.items()
        for one in report.attempts
        if one.result not in ("ok", "error")
    )
