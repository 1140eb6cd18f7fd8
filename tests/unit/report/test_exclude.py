"""Whom the next launch leaves out, as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight.report.document import FleetRow
from preflight.report.ready import excluded
from preflight.session.items import print_excluded

if TYPE_CHECKING:
    import pytest

NODES = ("h1", "h2", "h3", "h4", "x")


def fleet(**rest: Any) -> FleetRow:
    """Five nodes, all ready unless told otherwise."""
    said = {"nodes": NODES, "ready": NODES, "not_ready": (), "unjudged": (), "apart": ()}
    return FleetRow(**{**said, "folded": "", "origin": "", "exclude": "", **rest})


def test_who_is_left_out() -> None:
    """Bad nodes, folded; and the later one of a pair that must not be in one job."""
    assert excluded(fleet()) == ""
    bad = fleet(ready=("h4", "x"), not_ready=("h1", "h2", "h3"))
    assert excluded(bad) == "h[1-3]"
    apart = fleet(ready=("h1", "h2", "h3", "x"), not_ready=("h4",), apart=(("h2", "h3"),))
    assert excluded(apart) == "h[3-4]"
    assert excluded(fleet(ready=("h1",), unjudged=("h2", "h3", "h4", "x"))) == ""


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Else an empty line would look like a fleet without a fault."""
    print_excluded(fleet(ready=(), unjudged=NODES), 3)
    assert capsys.readouterr() == ("", "preflight: exit 3, not all was judged; run without -qq\n")
    print_excluded(fleet(not_ready=("h2",), ready=("h1",)), 1)
    assert capsys.readouterr() == ("h2\n", "")
