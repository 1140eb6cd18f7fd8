"""Two looks in a row: of one boot, within an hour, and no answer of the driver between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.facts.model import Driver
from preflight.hook import hook_values
from preflight.hook.hook_values import Moment
from preflight.hook.judging import FILES, HUNG, SLOW, is_hung, load_faults, save_look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = FILES[HUNG]
SAW = {HUNG: True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state_dir."""
    tmp_path.chmod(0o750)
    return tmp_path


@pytest.mark.parametrize(
    ("driver", "hung"),
    [
        (Driver("hung", seconds=10), True),
        (Driver("hung", seconds=3), None),
        (Driver("hung", seconds=9.5, paused_s=12), None),
        (Driver("answered"), False),
        (Driver("error", error="Driver Not Loaded"), False),
        (Driver("error", error="Insufficient Memory"), False),
        (Driver("error", error="Timeout"), True),
        (Driver("error", error="In use by another client"), True),
    ],
)
def test_what_a_look_proves(driver: Driver, *, hung: bool | None) -> None:
    """An answer of any kind; or no answer in all the time that a driver may take."""
    assert is_hung(driver) is hung


@pytest.mark.parametrize(
    ("looks", "seen"),
    [
        ((), set()),
        ((SAW,), {HUNG}),
        ((SAW, {HUNG: False}), set()),
        ((SAW, {}), {HUNG}),
        ((SAW, {SLOW: True}), {HUNG, SLOW}),
        (({SLOW: True}, {HUNG: False}), {SLOW}),
        (({HUNG: False}, SAW), {HUNG}),
    ],
)
def test_what_the_looks_before_saw(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: tuple[dict[str, bool], ...],
    seen: set[str],
) -> None:
    """A look without the fault ends the row; one that cannot tell neither begins nor ends it."""
    for saw in looks:
        save_look(folder, saw)
    assert not load_faults(folder)
    monkeypatch.setattr(hook_values, "now", later(60))
    assert load_faults(folder) == seen


def later(seconds: float) -> Callable[[], Moment]:
    """The moment that it is, so much later."""
    here = hook_values.now()
    return lambda: Moment(here.boot_id, here.up_s + seconds)


def test_looks_that_are_close_are_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sooner one does not begin the row anew; after a second one each counts."""
    save_look(folder, SAW)
    for after_s, seen in ((20, False), (40, True), (41, True), (3600, True)):
        here = later(after_s)
        monkeypatch.setattr(hook_values, "now", here)
        monkeypatch.setattr("preflight.hook.judging.now", here)
        assert (HUNG in load_faults(folder)) is seen
        save_look(folder, SAW)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("boot_id", "later_s", "seen"),
    [("a", 3599, True), ("a", 3601, False), ("a", 29, False), ("a", -10, False), ("b", 60, False)],
)
def test_how_long_ago(
    folder: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str, later_s: float, *, seen: bool
) -> None:
    """Within an hour of the same boot, whatever became of the date."""
    moment = Moment("a", 5000.0)
    monkeypatch.setattr("preflight.hook.judging.now", lambda: moment)
    monkeypatch.setattr("time.time", lambda: 0.0)
    save_look(folder, SAW)
    here = Moment(boot_id, 5000.0 + later_s)
    monkeypatch.setattr(hook_values, "now", lambda: here)
    assert (HUNG in load_faults(folder)) is seen


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10_000, b'{"up_s": "x"}'])
def test_a_damaged_file_is_no_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """The next one writes it anew."""
    (folder / NAME).write_bytes(content)
    assert not load_faults(folder)
    save_look(folder, SAW)
    monkeypatch.setattr(hook_values, "now", later(60))
    assert load_faults(folder)


def test_another_hook_was_quicker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that see an answer at once one removes the file: no trouble of the other's."""
    monkeypatch.setattr("os.path.lexists", lambda path: path == folder / NAME)
    save_look(folder, {HUNG: False})


@pytest.mark.skipif(os.geteuid() != 0, reason="what root trusts needs root")
def test_a_strangers_look_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever could write it could have a node drained; and nothing is kept in a folder of his."""
    save_look(folder, SAW)
    os.chown(folder / NAME, 65534, 65534)
    monkeypatch.setattr(hook_values, "now", later(60))
    assert not load_faults(folder)
    os.chown(folder, 65534, 65534)
    with pytest.raises(UsageError):
        save_look(folder, SAW)
