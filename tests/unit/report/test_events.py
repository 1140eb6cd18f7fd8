"""What a killed run leaves: every verdict that was known, each on a line of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import Entry
from preflight.errors import UsageError
from preflight.report.events import NAME, Began, Events, by_check, read_events, reread
from preflight.report.since import RunSummary
from preflight.verdict import Outcome, fail, ok

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("n1", "n2", "n3")
KEYS = [
    *(("gpu.count", (name,)) for name in NODES),
    ("fabric.allreduce", ("n1", "n2")),
    ("host.clock", ()),
]


def began(path: Path) -> Events:
    """A file of events that has begun."""
    events = Events(path / NAME)
    events.begin(
        Began(
            preflight="0.1.0",
            run="ab" * 16,
            started="2026-11-22T02:00:00+00:00",
            tier="quick",
            nodes=NODES,
            origin="fleet.toml",
            expected=by_check(KEYS, NODES),
        )
    )
    return events


def test_a_verdict_is_on_disk_before_the_next_one_is_reached(tmp_path: Path) -> None:
    """The file is read while it is open still: every line is whole, and no verdict comes twice."""
    events = began(tmp_path)
    for _ in range(2):
        events.verdict("gpu.count", ("n1",), ok("8 GPUs", seen=8))
        events.verdict("gpu.count", ("n2",), fail("7 of 8", advice="look", seen=7))
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["began", "verdict", "verdict"]
    assert lines[0]["expected"]["gpu.count"] == ["*"]
    assert lines[1]["evidence"] == {}, "of what is fine"
    assert lines[2]["evidence"] == {"seen": 7}
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o640


def test_a_killed_runs_report_is_put_together_from_what_it_knew(tmp_path: Path) -> None:
    """Known verdicts stand, the rest was not run; nobody is ready of whom something is owed."""
    events = began(tmp_path)
    events.verdict("gpu.count", ("n1",), ok("8 GPUs"))
    events.verdict("gpu.count", ("n2",), fail("7 of 8", advice="look"))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"event":"verdict","check":"gpu.cou')
    report = reread(tmp_path)
    assert (report.exit, report.interrupted, report.expected) == (2, True, len(KEYS))
    assert report.fleet.not_ready == ("n2",)
    assert report.fleet.unjudged == ("n1", "n3")
    outcomes = {(row.check, row.subject): row.outcome for row in report.verdicts}
    assert outcomes["gpu.count", "n1"] is Outcome.OK
    assert outcomes["fabric.allreduce", "n1-n2"] is Outcome.NOT_RUN
    assert outcomes["host.clock", "fleet:all"] is Outcome.NOT_RUN


def test_the_last_line_of_a_whole_run_is_what_the_next_compares_with(tmp_path: Path) -> None:
    """Also what arrived on another way is in there before it."""
    events = began(tmp_path)
    told = RunSummary(
        run="ab", started="", seconds=1.0, tier="quick", exit=1, nodes=3, ready=2,
        not_ready=("n2",), missing=0, bad=(),
    )  # fmt: skip
    late = Entry("gpu.count", "n3", ("n3",), ok("8 GPUs"))
    events.end([late], told)
    read = read_events((tmp_path / NAME).read_bytes())
    assert [type(one).__name__ for one in read] == ["Began", "VerdictEvent", "Ended"]
    assert reread(tmp_path).exit == 1


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """What it leads to stays as it was; a folder in its place costs the events, not the run."""
    secret = tmp_path / "secret"
    secret.write_text("keep")
    (tmp_path / NAME).symlink_to(secret)
    began(tmp_path).close()
    assert secret.read_text() == "keep"
    assert not (tmp_path / NAME).is_symlink()
    (tmp_path / "other" / NAME).mkdir(parents=True)
    began(tmp_path / "other").verdict("gpu.count", ("n1",), ok("8"))


@pytest.mark.parametrize("content", [b"", b"\x00\xff{}", b'{"event":"verdict"}\n', b"[]\n" * 3])
def test_a_file_that_begins_with_no_run_is_refused(tmp_path: Path, content: bytes) -> None:
    """In one line that says what to give."""
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(UsageError, match="give another run"):
        reread(tmp_path)
