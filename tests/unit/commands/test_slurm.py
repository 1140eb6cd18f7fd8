"""Slurm's words on who uses which node, read as sinfo and scontrol of 22.05 print them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.commands.nightly.choice import Chooser, SlurmError, chooser
from preflight.commands.nightly.command import read_words
from preflight.errors import UsageError
from preflight.transport.slurm_allocation import parse_nodes, parse_reservation

if TYPE_CHECKING:
    from pathlib import Path

SINFO = """\
h1|idle|none
h1|idle|none
h2|mixed|none
h3|drained|IB flapping [root@2026-11-20]
h4|idle*|Not responding
h5|reserved|none
h6|planned|none
h7|idle~|none
h8|completing|none
h9|maint|patch day
"""

RESERVATION = (
    "ReservationName=night StartTime=2026-11-22T01:00:00 EndTime=2026-11-22T06:00:00 "
    "Duration=05:00:00 Nodes=h[1-2,5] NodeCnt=3 CoreCnt=6 Features=(null) PartitionName=lab "
    "Flags=DAILY,SPEC_NODES TRES=cpu=6 Users=root Groups=(null) Accounts=(null) Licenses=(null) "
    "State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH whose sinfo prints `sinfo.txt`, and scontrol `scontrol.txt`."""
    for tool in ("sinfo", "scontrol"):
        script = tmp_path / tool
        script.write_text(f"#!/bin/sh\nexec cat {tmp_path}/{tool}.txt\n")
        script.chmod(0o755)
    (tmp_path / "sinfo.txt").write_text(SINFO)
    (tmp_path / "scontrol.txt").write_text(RESERVATION)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def _chosen(who: Chooser, *names: str) -> tuple[tuple[str, ...], dict[str, str]]:
    left_out = who.left_out(names)
    return tuple(name for name in names if name not in left_out), left_out


def test_only_idle_nodes_are_looked_at(says: Path) -> None:
    """Whoever works, is drained, silent, planned, reserved, asleep or unknown: with its reason."""
    assert says
    who = chooser(os.environ, "idle")
    assert _chosen(who, *(f"h{n}" for n in range(1, 11))) == (
        ("h1",),
        {
            "h2": "in use (mixed)",
            "h3": "drained: IB flapping [root@2026-11-20]",
            "h4": "idle, does not respond: Not responding",
            "h5": "reserved for others (reserved)",
            "h6": "planned for a waiting job (planned)",
            "h7": "idle, powered down",
            "h8": "in use (completing)",
            "h9": "reserved for others (maint)",
            "h10": "Slurm does not know it",
        },
    )


def test_a_reservation_is_looked_at_where_nothing_runs(says: Path) -> None:
    """Its nodes that are idle or held for it; no others."""
    assert says
    who = chooser(os.environ, "reservation", "night")
    nodes, left_out = _chosen(who, "h1", "h2", "h5", "h9")
    assert nodes == ("h1", "h5")
    assert left_out == {"h2": "in use (mixed)", "h9": "not in the reservation"}
    held = who.current_reservation()
    assert held is not None
    assert held.ends is not None
    assert (held.ends.hour, held.active) == (6, True)


def test_a_job_that_arrives_is_seen(says: Path) -> None:
    """A drain that a person sets meanwhile ends no wave; a job does. Our own allocation is ours."""
    who = chooser(os.environ, "idle")
    assert who.nodes_with_jobs(["h1", "h3"]) == {}
    (says / "sinfo.txt").write_text("h1|allocated|none\n")
    assert who.nodes_with_jobs(["h1", "h3"]) == {"h1": "in use (allocated)"}
    job = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]"}
    ours = chooser(job, "idle")
    assert ours.nodes_with_jobs(["h1"]) == {}
    assert _chosen(ours, "h1", "h3") == (("h1",), {"h3": "Slurm does not know it"})


def test_nodes_are_found_by_their_short_names(says: Path) -> None:
    """A fleet of full names is the same nodes to Slurm."""
    assert says
    assert _chosen(chooser(os.environ, "idle"), "h1.cluster.example")[0] == ("h1.cluster.example",)


def test_without_an_answer_no_node_counts_as_idle(says: Path) -> None:
    """A sinfo that fails or prints nothing gives one error line; no node is swept on a guess."""
    who = chooser(os.environ, "idle")
    (says / "scontrol").write_text("#!/bin/sh\necho 'no contact' >&2\nexit 1\n")
    with pytest.raises(SlurmError, match="scontrol failed and printed: no contact"):
        chooser(os.environ, "reservation", "night").left_out(["h1"])
    (says / "sinfo.txt").write_text("")
    with pytest.raises(SlurmError, match="lists no node"):
        who.left_out(["h1"])
    (says / "sinfo").write_text("#!/bin/sh\necho 'sinfo: error: no contact' >&2\nexit 1\n")
    with pytest.raises(SlurmError, match="printed: sinfo: error: no contact; run it by hand"):
        who.left_out(["h1"])
    assert who.nodes_with_jobs(["h1"]) == {}


def test_commands_of_a_slurm_that_is_not_configured_are_reported_as_that(says: Path) -> None:
    """Debian's package without a slurm.conf: what is missing, and not the way there."""
    errors = (
        "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
        "sinfo: fatal: Could not establish a configuration source",
    )
    lines = "".join(f"echo '{line}' >&2\n" for line in errors)
    (says / "sinfo").write_text(f"#!/bin/sh\n{lines}exit 1\n")
    with pytest.raises(SlurmError, match=r"found no cluster .* set SLURM_CONF .* --whole-fleet"):
        chooser(os.environ, "idle").left_out(["h1"])


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ("Reservation night not found\n", "has none of that name"),
        (
            RESERVATION.replace("ACTIVE", "INACTIVE"),
            "not active: start the nightly run at 2026-11-22T01:00:00",
        ),
        (RESERVATION.replace("h[1-2,5]", "(null)"), "has none of that name with nodes"),
    ],
)
def test_a_reservation_of_no_use_is_refused(says: Path, output: str, match: str) -> None:
    """One that is not there, not yet active, or has no nodes."""
    (says / "scontrol.txt").write_text(output)
    if "not found" in output:
        (says / "scontrol").write_text(f"#!/bin/sh\ncat {says}/scontrol.txt\nexit 1\n")
    with pytest.raises(UsageError, match=match):
        chooser(os.environ, "reservation", "night").left_out(["h1"])


def test_without_slurm_the_whole_fleet_is_swept_unless_slurm_was_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No sinfo: all nodes; --idle and --reservation then are wrong usage, as are two of them."""
    bare = {"PATH": "/nonexistent"}
    assert chooser(bare, None).left_out(["a", "b"]) == {}
    for source in ("idle", "reservation"):
        with pytest.raises(UsageError, match="sinfo is not on PATH"):
            chooser(bare, source, "x")
    with pytest.raises(SystemExit, match="4"):
        read_words(["--idle", "--reservation=x"])
    assert "--reservation: not allowed with argument --idle" in capsys.readouterr().err


@given(st.text())
def test_nothing_slurm_prints_makes_a_parser_fail(text: str) -> None:
    """Cut, binary or foreign answers: no exception, and no node that is idle by accident."""
    assert all(use.state for use in parse_nodes(text).values())
    assert parse_reservation(text) is None or "ReservationName" in text
