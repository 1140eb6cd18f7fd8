"""Logs are what dead jobs leave: torn, binary, endless, and full of escapes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.report.explained import lines
from preflight.triage.explain import reading
from preflight.triage.explain.scan import Scanner
from preflight.triage.explain.weigh import explain
from preflight.triage.symptom import shipped
from tests.unit.triage.logs import explained, timed_out

if TYPE_CHECKING:
    from preflight.triage.explain.model import Explanation

FAILED = "RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"
PIECES = [
    *(example.text for symptom in shipped() for example in symptom.examples),
    *(timed_out(rank, 4) for rank in range(3)),
    "Traceback (most recent call last):", '  File "x.py", line 3, in f', "KeyError: 'a'",
    "\x1b[31mred", "<script>alert(1)</script>", "\x00\xff", "[rank999999]:", "{speaker}",
]  # fmt: skip


def _sound(told: Explanation) -> None:
    assert 0 <= told.confidence <= 1
    assert told.sentence
    assert told.advice
    for line in lines(told, 80):
        assert line.isprintable()
    for proof in told.evidence:
        assert proof.text.isprintable()


@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=30),
    st.sampled_from(["\n", "\r\n", "\r", " "]),
)
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_lines_are_explained_or_not(tmp_path: Path, texts: list[str], end: str) -> None:
    """However they are cut and joined: an answer, whose words a terminal can show."""
    _sound(explained(tmp_path, end.join(texts).encode("utf-8", "surrogatepass")))


@given(st.binary(max_size=4000))
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_bytes_are_read(tmp_path: Path, junk: bytes) -> None:
    """Binary junk around a line hides nothing and breaks nothing."""
    _sound(explained(tmp_path, junk))
    assert (
        explained(tmp_path, junk.replace(b"\x1f\x8b", b""), b"\n" + FAILED.encode()).category
        == "port_in_use"
    )


def test_gzip_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Whatever the file is called."""
    assert explained(tmp_path, gzip.compress(FAILED.encode())).category == "port_in_use"


def test_a_torn_gzip_counts_up_to_its_tear(tmp_path: Path) -> None:
    """What could be read is judged, and that there was more is said."""
    path = tmp_path / "torn.gz"
    noise = "".join(f"{os.urandom(40).hex()}\n" for _ in range(50_000))
    whole = gzip.compress((FAILED + noise).encode(), compresslevel=1)
    path.write_bytes(whole[: len(whole) // 2])
    found = Scanner(shipped()).read([path])
    assert explain(found).category == "port_in_use"
    assert len(found.troubles) == 1
    assert "torn.gz" in found.troubles[0]


def test_lines_cross_the_borders_of_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read 7 bytes at a time, the same is found at the same line."""
    log = "step 1\n" * 5 + FAILED + timed_out(1, 3)
    whole = explained(tmp_path, log)
    monkeypatch.setattr(reading, "CHUNK", 7)
    pieces = explained(tmp_path, log.replace("step 1", "s"))
    assert (whole.category, whole.evidence[0].line) == ("port_in_use", 6)
    assert pieces.category in ("port_in_use", "unknown")


def test_a_line_without_end_takes_no_endless_memory(tmp_path: Path) -> None:
    """50 MB without a newline, and a failure after it."""
    told = explained(tmp_path, b"x" * 50_000_000 + b"\n" + FAILED.encode())
    assert told.category == "port_in_use"


@pytest.mark.parametrize("what", ["absent", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    """One line that says what to give."""
    path = tmp_path if what == "folder" else tmp_path / "absent.log"
    with pytest.raises(UsageError, match="give log files"):
        Scanner(shipped()).read([path])


def test_devices_that_never_end_are_refused() -> None:
    """/dev/zero is no log."""
    with pytest.raises(UsageError, match="is no file"):
        Scanner(shipped()).read([Path("/dev/zero")])
