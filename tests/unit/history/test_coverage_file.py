"""What a history folder holds is read back as it was, refused where damaged, and stays small."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.history.run_record import (
    MOST_FLEETS,
    NAME,
    Cost,
    Coverage,
    Past,
    RoundRecord,
    read_coverage,
)

PAST = Past(
    runs=3,
    done={0: RoundRecord(1, 8), 254: RoundRecord(3, 7)},
    suspects=(("h1", "h2"),),
    costs={"quick": Cost(1.5, 20.0)},
)


def _kept(folder: Path, content: bytes) -> Path:
    (folder / NAME).write_bytes(content)
    return folder


def test_a_fleet_is_known_again_by_its_nodes_and_leaves(tmp_path: Path) -> None:
    """In whatever order they are listed; other nodes or other leaves are another fleet."""
    empty = read_coverage(tmp_path)
    assert empty.past(["a", "b"], {}) == Past()
    kept = empty.having(["b", "a"], {"a": "s0"}, PAST).having(["c"], {}, Past(runs=1))
    again = read_coverage(_kept(tmp_path, kept.encode()))
    assert again == kept
    assert again.past(["a", "b"], {"a": "s0"}) == PAST
    assert again.past(["a", "b"], {"a": "s1"}) == again.past(["a"], {}) == Past()


def test_the_fleet_swept_longest_ago_is_forgotten_first() -> None:
    """A file of every allocation there ever was would grow for ever."""
    known = Coverage(schema=1)
    for number in range(MOST_FLEETS + 2):
        known = known.having([f"h{number}"], {}, PAST)
        known = known.having(["h0"], {}, PAST)
    assert len(known.fleets) == MOST_FLEETS
    assert known.past(["h0"], {}) == PAST
    assert known.past(["h1"], {}) == known.past(["h2"], {}) == Past()
    assert known.past(["h3"], {}) == PAST


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"schema": 2}',
        b'{"schema": 1, "fleets": {"x": {"nodes": "a", "past": {"runs": -1}}}}',
        b'{"schema": 1, "fleets": {"x": {"nodes": "a", "past": {"done": {"0": {"run": 0}}}}}}',
        b'{"schema": 1, "fleets": {"x": {"nodes": "a", "past": {"suspects": [["a"]]}}}}',
        b'{"schema": 1, "fleets": ' + b'{"a":' * 100_000,
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """With its name and both ways out."""
    with pytest.raises(UsageError) as refused:
        read_coverage(_kept(tmp_path, content))
    message = str(refused.value)
    assert message.startswith(f"cannot use the history {tmp_path / NAME}: ")
    assert message.endswith(
        "move it away to start a new one, or give another folder: --preflight-history=DIR"
    )


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    """A folder in its place, or a folder that is a file."""
    (tmp_path / NAME).mkdir()
    for folder in (tmp_path, _kept(tmp_path / NAME, b"") / NAME):
        with pytest.raises(UsageError, match="cannot use the history"):
            read_coverage(folder)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Never a traceback for a file that a full disk cut off."""
    whole = Coverage(schema=1).having(["a"], {}, PAST).encode()
    with tempfile.TemporaryDirectory() as folder, suppress(UsageError):
        read = read_coverage(_kept(Path(folder), whole[: len(content)] + content))
        assert isinstance(read, Coverage)
