"""Old nights: the waves' folders go, the summary stays, and so do files of other users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.commands.nightly.conclude import tidy_waves
from preflight.commands.nightly.state import NightlyRun, WaveState, former_nights

if TYPE_CHECKING:
    from pathlib import Path


def _night(into: Path, name: str, *, finished: bool = True) -> Path:
    folder = into / name
    wave = folder / "wave-001"
    wave.mkdir(parents=True)
    for file in ("report.json", "measured.json", "terminal.txt", "events.jsonl"):
        (wave / file).write_text("x")
    (folder / "report.json").write_text("x")
    waves = (WaveState(nodes=("n1", "n2"), stand="done"),)
    NightlyRun(
        preflight="0", sweep=name, started_s=1.0, words=(), cwd="/", tier="deep", usual_s=60,
        most=2, nodes=("n1", "n2"), origin="fleet.toml", waves=waves, finished=finished,
    ).write(folder)  # fmt: skip
    return folder


def test_the_waves_of_old_nights_are_put_away(tmp_path: Path) -> None:
    """The latest stay whole; of older ones report and plan stay, so that nights still add up."""
    nights = [_night(tmp_path, f"2026112{day}-010000") for day in range(1, 5)]
    tidy_waves(nights[-1], keep=0)
    assert all((night / "wave-001").is_dir() for night in nights)
    tidy_waves(nights[-1], keep=2)
    left = [(night / "wave-001").is_dir() for night in nights]
    assert left == [False, False, True, True]
    assert all((night / "report.json").is_file() for night in nights)
    assert len(former_nights(tmp_path)) == 4


def test_what_is_not_surely_ours_stays(tmp_path: Path) -> None:
    """A sweep that can go on, a wave with another user's file, a link in a wave's place."""
    waiting = _night(tmp_path, "20261121-010000", finished=False)
    noted = _night(tmp_path, "20261122-010000")
    (noted / "wave-001" / "notes.txt").write_text("keep this one")
    linked = _night(tmp_path, "20261123-010000")
    (linked / "wave-001").rename(tmp_path / "elsewhere")
    (linked / "wave-001").symlink_to(tmp_path / "elsewhere")
    tidy_waves(_night(tmp_path, "20261124-010000"), keep=1)
    assert (waiting / "wave-001" / "measured.json").is_file()
    assert (noted / "wave-001" / "measured.json").is_file()
    assert (tmp_path / "elsewhere" / "measured.json").is_file()
