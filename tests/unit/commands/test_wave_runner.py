"""The loop over waves, with real wave processes over nodes that are this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from preflight.commands.nightly import wave_runner as module
from preflight.commands.nightly.choice import chooser
from preflight.commands.nightly.conclude import conclude
from preflight.commands.nightly.state import (
    NightlyRun,
    Screen,
    WaveState,
    former_nights,
    read_nightly_run,
    waves_of,
)
from preflight.commands.nightly.wave_runner import WaveRunner, locked
from preflight.history import reading
from preflight.history.place import parse_place
from tests.unit.core.site_checks import write_check
from tests.unit.history.nights import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

SLOW = """\
import pathlib, time
    listing = pathlib.Path({sinfo!r})
    while {wait}:
        time.sleep(0.05)
    conclude(ok('straight'))"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., NightlyRun]:
    """A sweep over n1 to n4, where a script plays sinfo: it prints what sinfo.txt holds."""
    script, listing = tmp_path / "sinfo", tmp_path / "sinfo.txt"
    script.write_text(f"#!/bin/sh\nexec cat {listing}\n")
    script.chmod(0o755)
    listing.write_text("".join(f"n{number}|idle|none\n" for number in range(1, 5)))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # as `preflight nightly` is started
    nodes = "".join(f'[node.n{i}]\naddress = "127.0.0.1"\n' for i in range(1, 5))
    (tmp_path / "fleet.toml").write_text(
        f'[defaults]\ntransport = "local"\npython = "{sys.executable}"\n{nodes}'
    )

    def made(*waves: tuple[str, ...], wait: str = "False", **more: Any) -> NightlyRun:
        write_check(tmp_path / "site", "site.a", SLOW.format(sinfo=str(listing), wait=wait))
        words = ("--preflight-inventory=fleet.toml", "--preflight-checks=site.a")
        return NightlyRun(
            preflight="0", sweep="s", started_s=time.time(), cwd=str(tmp_path), folders=("site",),
            tier="quick", usual_s=60, most=2, nodes=("n1", "n2", "n3", "n4"), origin="fleet.toml",
            waves=tuple(WaveState(nodes=wave) for wave in waves), **{"words": words, **more},
        )  # fmt: skip

    return made


def _run(sweep: NightlyRun, folder: Path, source: Any = "idle") -> tuple[WaveRunner, int]:
    with locked(folder) as lock:
        one = WaveRunner(folder / "night", sweep, chooser(os.environ, source), Screen(), lock)
        one.run(())
        stopped = "the time was up" if one.time_up else one.trouble
        return one, conclude(
            folder / "night", one.nightly, (), Screen(), stopped=stopped, interrupted=False
        )


def test_a_job_that_arrives_ends_the_wave(
    sweep: Callable[..., NightlyRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The wave leaves at once, is done again without that node, and that node when it is idle."""
    monkeypatch.setattr(module, "WATCH_S", 0.1)
    busy = "n1|idle|none\nn2|mixed|none\n"
    # The first judge of all plays the scheduler: a job comes to n2, and it waits to be ended.
    arrives = f"listing.write_text({busy!r}) and not time.sleep(60)"
    wait = f"not pathlib.Path('again').exists() and {arrives}"
    monkeypatch.chdir(tmp_path)
    begun = sweep(("n1", "n2"), wait=wait)
    original = WaveRunner._break_off

    def broken(one: WaveRunner, number: int, came: Any) -> None:
        (tmp_path / "again").touch()
        original(one, number, came)

    monkeypatch.setattr(WaveRunner, "_break_off", broken)
    done, code = _run(begun, tmp_path)
    assert code == 0, capsys.readouterr().out
    (wave,) = done.nightly.waves
    assert (wave.nodes, wave.stand, wave.folder, wave.tries) == (("n1",), "done", "wave-001-2", 2)
    assert done.nightly.left_out == {"n2": "in use (mixed)"}
    assert "ended, a job started on n2; repeated without them" in capsys.readouterr().out


def test_whoever_becomes_idle_meanwhile_gets_a_wave(
    sweep: Callable[..., NightlyRun], tmp_path: Path
) -> None:
    """A node that was left out at first is looked at in the end; Prometheus hears of all waves.

    So does the history, for which they are one night.
    """
    prom = tmp_path / "fleet.prom"
    words = (
        *("--preflight-inventory=fleet.toml", "--preflight-checks=site.a"),
        f"--preflight-history={tmp_path / 'nights'}",
    )
    begun = sweep(("n1",), left_out={"n2": "in use (mixed)"}, metrics=str(prom), words=words)
    done, code = _run(begun, tmp_path)
    assert [wave.nodes for wave in done.nightly.waves] == [("n1",), ("n2",)]
    assert (code, done.nightly.finished) == (0, True)
    ready = [line for line in prom.read_text().splitlines() if "node_ready{" in line]
    assert [line.rpartition(" ")[2] for line in ready][:2] == ["1.0", "1.0"]
    assert waves_of(former_nights(tmp_path)) == ((("n1",), ("n2",)),)
    with reading(parse_place(str(tmp_path / "nights"), tmp_path)) as history:
        assert [(one.fleet, one.sweep) for one in runs_of(history)] == [("n2", "s"), ("n1", "s")]


def test_a_wave_that_dies_is_missing_and_the_others_go_on(
    sweep: Callable[..., NightlyRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed from outside, as when out of memory: its nodes are not judged, and exit 3."""
    kill = f"node.name == 'n1' and os.kill(os.getpid(), {signal.SIGKILL.value})"
    _, code = _run(sweep(("n1", "n2"), ("n3",), wait=kill), tmp_path, "all")
    out = " ".join(capsys.readouterr().out.split())
    assert code == 3, out
    assert (
        "MISSING n[1-2] reach.answer wave 1 (wave-001): killed (signal 9) without a report" in out
    )
    assert "ready n3 1 of 4" in out
    assert not read_nightly_run(tmp_path / "night").finished  # --resume does it again


def test_wrong_usage_stops_at_the_first_wave(
    sweep: Callable[..., NightlyRun], tmp_path: Path
) -> None:
    """An error that every wave would have is shown once, in the run's words."""
    begun = sweep(("n1",), ("n2",), words=("--preflight-inventory=gone.toml",))
    done, code = _run(begun, tmp_path, "all")
    assert "cannot read the inventory gone.toml" in done.trouble
    assert (code, [wave.tries for wave in done.nightly.waves]) == (3, [1, 0])


def test_no_wave_is_begun_when_the_time_is_up(
    sweep: Callable[..., NightlyRun], tmp_path: Path
) -> None:
    """Less than a twelfth of its usual time is left: the rest is missing, and can be continued."""
    done, code = _run(sweep(("n1",), ends_s=time.time() + 4), tmp_path, "all")
    assert (done.time_up, code) == (True, 3)
    kept = read_nightly_run(tmp_path / "night")
    assert (kept.finished, kept.waves[0].stand) == (False, "waiting")
