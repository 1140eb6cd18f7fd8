"""Two looks in a row: of one boot, within an hour, and no answer of the driver between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.facts.model import Driver
from preflight.hook import boot_clock
from preflight.hook.boot_clock import Moment
from preflight.hook.hung_driver import NAME, keep_look, seen_before

if TYPE_CHECKING:
    from pathlib import Path

HUNG = Driver("hung", seconds=10)
LATE = Driver("hung", seconds=3)
PAUSED = Driver("hung", seconds=10, paused_s=12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state_dir."""
    tmp_path.chmod(0o750)
    return tmp_path


@pytest.mark.parametrize(
    ("looks", "seen"),
    [
        ((), False),
        ((HUNG,), True),
        ((HUNG, Driver("answered")), False),
        ((HUNG, Driver("error", error="Driver Not Loaded")), False),
        ((HUNG, LATE), True),
        ((HUNG, PAUSED), True),
        ((LATE,), False),
        ((PAUSED,), False),
    ],
)
def test_what_the_looks_before_saw(folder: Path, looks: tuple[Driver, ...], *, seen: bool) -> None:
    """An answer ends the row; a look that was paused or too short neither begins nor ends it."""
    for driver in looks:
        keep_look(folder, driver)
    assert seen_before(folder) is seen


@pytest.mark.parametrize(
    ("boot_id", "later_s", "seen"),
    [("a", 3599, True), ("a", 3601, False), ("a", -10, False), ("b", 60, False)],
)
def test_how_long_ago(
    folder: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str, later_s: float, *, seen: bool
) -> None:
    """Within an hour of the same boot, whatever became of the date."""
    moment = Moment("a", 5000.0)
    monkeypatch.setattr("preflight.hook.hung_driver.now", lambda: moment)
    monkeypatch.setattr("time.time", lambda: 0.0)
    keep_look(folder, HUNG)
    here = Moment(boot_id, 5000.0 + later_s)
    monkeypatch.setattr(boot_clock, "now", lambda: here)
    assert seen_before(folder) is seen


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10_000, b'{"up_s": "x"}'])
def test_a_damaged_file_is_no_look(folder: Path, content: bytes) -> None:
    """The next one writes it anew."""
    (folder / NAME).write_bytes(content)
    assert not seen_before(folder)
    keep_look(folder, HUNG)
    assert seen_before(folder)


def test_another_hook_was_quicker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that see an answer at once one removes the file: no trouble of the other's."""
    monkeypatch.setattr("os.path.lexists", lambda path: path == folder / NAME)
    keep_look(folder, Driver("answered"))


@pytest.mark.skipif(os.geteuid() != 0, reason="whom root trusts needs root")
def test_a_strangers_look_is_none(folder: Path) -> None:
    """Whoever could write it could have a node drained; and nothing is kept in a folder of his."""
    keep_look(folder, HUNG)
    os.chown(folder / NAME, 65534, 65534)
    assert not seen_before(folder)
    os.chown(folder, 65534, 65534)
    with pytest.raises(UsageError):
        keep_look(folder, HUNG)
