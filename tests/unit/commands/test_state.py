"""Where a sweep stands is read back from what it wrote, and from no other user's files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from preflight.commands.nightly.command import interrupted_nightly_run, read_words
from preflight.commands.nightly.conclude import history_troubles
from preflight.commands.nightly.state import (
    NightlyRun,
    WaveState,
    former_nights,
    latest_nightly_run,
    read_nightly_run,
)
from preflight.errors import UsageError
from preflight.report.outputs import new_folder

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = 65534


def _sweep(**more: Any) -> NightlyRun:
    values: dict[str, Any] = {
        "preflight": "0", "sweep": "s", "started_s": time.time(), "words": ("-mfast",),
        "cwd": "/", "tier": "deep", "usual_s": 60, "most": 2, "nodes": ("a", "b"),
        "origin": "fleet.toml", "waves": (WaveState(nodes=("a", "b"), stand="done", whole=True),),
    }  # fmt: skip
    return NightlyRun(**{**values, **more})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The latest by its name; a link to it is no second one; former nights leave out this one."""
    for name, sweep in (("20261121-010000", "old"), ("20261122-010000", "new")):
        _sweep(sweep=sweep).write(tmp_path / name)
    (tmp_path / "latest").symlink_to("20261122-010000")
    found = latest_nightly_run(tmp_path)
    assert found is not None
    assert (found[0].name, found[1].sweep) == ("20261122-010000", "new")
    (night,) = former_nights(tmp_path, except_id="new")
    assert [(wave.nodes, wave.whole) for wave in night] == [(("a", "b"), True)]
    assert latest_nightly_run(tmp_path / "nowhere") is None


def test_a_damaged_or_newer_one_is_refused_in_one_line(tmp_path: Path) -> None:
    """To go on with it is wrong usage; to plan by it, it is passed over."""
    _sweep().write(tmp_path / "20261122-010000")
    path = tmp_path / "20261122-010000" / "sweep.json"
    for content in (b"", b"{", path.read_bytes()[:80], path.read_bytes().replace(b": 1,", b": 9,")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="leave out --resume to begin a new nightly run"):
            read_nightly_run(path.parent)
    path.write_bytes(b"\xff{")
    assert former_nights(tmp_path) == ()


def test_a_damaged_one_costs_no_other_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a fleet is named a new sweep begins, and says why; else there is none to begin."""
    _sweep().write(tmp_path / "20261122-010000")
    (tmp_path / "20261122-010000" / "sweep.json").write_bytes(b"{")
    into = f"--into={tmp_path}"
    named = read_words(["--resume", into, "--preflight-nodes=a,b"])
    assert interrupted_nightly_run(named, tmp_path) is None
    assert "so a new nightly run begins" in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot read the nightly run"):
        interrupted_nightly_run(read_words(["--resume", into]), tmp_path)


def test_waves_that_no_history_took_are_told_together(tmp_path: Path) -> None:
    """A history message of several waves, wrapped or not, is shown once for all."""
    values = "history  /h is of a newer preflight (99):\n         update this one"
    screens = {"w1": f"preflight\n{values}\n", "w2": "all well\n", "w3": f"{values}\nhost\n"}
    for name, text in screens.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "terminal.txt").write_text(text)
    waves = [WaveState(nodes=(name,), folder=name) for name in screens]
    waves += [WaveState(nodes=("w4",)), WaveState(nodes=("w5",), folder="gone")]
    trouble = "/h is of a newer preflight (99): update this one"
    assert history_troubles(tmp_path, _sweep(waves=tuple(waves))) == {"waves 1, 3": trouble}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_root_goes_on_with_no_other_users_sweep(tmp_path: Path) -> None:
    """Its words would choose the code that root runs: whoever may write them is refused."""
    _sweep().write(tmp_path / "20261122-010000")
    path = tmp_path / "20261122-010000" / "sweep.json"
    read_nightly_run(path.parent)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(UsageError, match=r"root does not continue by .* leave out --resume"):
        read_nightly_run(path.parent)


def test_two_sweeps_of_one_second_have_two_folders(tmp_path: Path) -> None:
    """A name that is taken gets a number."""
    first = new_folder(tmp_path, 0.0)
    first.mkdir()
    assert (first.name, new_folder(tmp_path, 0.0).name) == ("19700101-000000", "19700101-000000-2")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--preflight-report=x"], "--into=DIR"),
        (["--preflight-need", "3"], "starts no job"),
        (["--preflight-replay", "x"], "measures"),
        (["-x"], "never stops at a finding"),
        (["--maxfail=1"], "never stops at a finding"),
        (["--preflight-fail-fast", "first"], "never stops at a finding"),
        (["--co"], "--plan"),
        (["--wave", "1"], "2 to 4096"),
    ],
)
def test_what_makes_no_sense_for_many_waves_is_refused(words: list[str], why: str) -> None:
    """Each with what to type instead; nothing is silently ignored."""
    with pytest.raises(UsageError, match=why):
        read_words(words)


def test_waves_get_the_options_of_a_run_and_not_those_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, tier, budget and what is written once are the sweep's own to tell."""
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = read_words(
        ["--site-checks", "site", "--preflight-inventory", "f.toml", "--preflight-nodes=a,b",
         "-k", "gpu",
         "--preflight-tier", "standard", "--preflight-prometheus", "x.prom", "--preflight-strict",
         "--preflight-keep=3", "--preflight-exclude", "b", "--preflight-history", "h"]
    )  # fmt: skip
    assert asked.words == (
        "--preflight-inventory=f.toml", "-kgpu", "--preflight-strict", "--preflight-history=h"
    )  # fmt: skip
    assert (asked.folders, asked.option("tier"), asked.option("keep")) == (
        ("site",),
        "standard",
        "3",
    )
    assert asked.option("exclude") == "b"
