"""A night over a fleet: in waves, killed in the middle, gone on with; every node judged once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.lab.inside import until
from tests.stories.conftest import LONGEST_S, SCHEMA, clean_environment
from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFLIGHT = str(Path(sys.executable).with_name("preflight"))

BODY = """\
import pathlib, time
    gate = pathlib.Path({gate!r})
    if node.name in ("n3", "n4"):
        gate.with_name(node.name).touch()
        while not gate.exists():
            time.sleep(0.05)
    conclude(fail('bent', advice='drain') if node.name == 'n4' else ok('straight'))"""


class Night:
    """Six nodes that are this machine, and a site's check that waits at n3 and n4 for a gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate = folder / "gate"
        nodes = "".join(f'[node.n{i}]\naddress = "127.0.0.1"\n' for i in range(1, 7))
        python = f'python = "{sys.executable}"'
        (folder / "fleet.toml").write_text(
            f'[defaults]\ntransport = "local"\n{python}\n[group.a]\nnodes = "n[1-6]"\n{nodes}'
        )
        write_check(folder / "site", "site.bent", BODY.format(gate=str(self.gate)))
        self._started: list[subprocess.Popen[str]] = []

    def words(self, *more: str) -> list[str]:
        """The sweep of this night."""
        return [PREFLIGHT, "nightly", "--site-checks=site", "--inventory=fleet.toml",
                "--whole-fleet", "--wave=2", "--preflight-checks=site.bent", *more]  # fmt: skip

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """Start it, and return while it goes on."""
        # A shell's background jobs are born deaf to Ctrl-C; who runs these tests may be one.
        self._started.append(
            subprocess.Popen(
                ["env", "--default-signal=INT", *self.words(*more)], cwd=self.folder,
                env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
        return self._started[-1]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        return subprocess.run(
            words, cwd=self.folder, env=clean_environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LONGEST_S, check=False,
        )  # fmt: skip

    @property
    def sweeps(self) -> list[Path]:
        """The folders of all sweeps."""
        return sorted((self.folder / "preflight-nightly").glob("2*/"))

    def report(self) -> dict[str, Any]:
        """The united report, held to the schema of every report."""
        told: dict[str, Any] = json.loads((self.sweeps[-1] / "report.json").read_text())
        jsonschema.validate(told, SCHEMA)
        return told

    def at_the_gate(self) -> bool:
        """Whether the wave of n3 or n4 is judging."""
        return any((self.folder / name).exists() for name in ("n3", "n4"))

    def leave(self) -> None:
        """End what a failed test left."""
        self.gate.touch()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    """A fleet whose second wave comes to an end only when the test lets it."""
    one = Night(tmp_path)
    yield one
    one.leave()


def _children(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in listing.split()]


def test_a_killed_sweep_goes_on(night: Night) -> None:
    """SIGKILL in a wave: its process leaves by itself, what is done stays done, all judged once."""
    planned = night.run(*night.words("--plan"))
    assert planned.stdout.count("\nwave ") == 3
    assert not night.sweeps
    killed = night.begin()
    until(night.at_the_gate, "a wave to judge n3 or n4", LONGEST_S)
    second = night.run(*night.words())
    assert second.returncode == 4
    assert f"another nightly run is active (process {killed.pid} on " in second.stderr
    (wave,) = _children(killed.pid)
    killed.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{wave}").exists(), "the wave to leave", 30)
    other = night.run(*night.words("--resume", "--preflight-strict"))
    assert (other.returncode, "has other options" in other.stderr) == (4, True)
    night.gate.touch()
    done = night.run(PREFLIGHT, "nightly", "--resume")
    assert done.returncode == 1, done.stdout + done.stderr
    told = night.report()
    assert Counter(row["subject"] for row in told["verdicts"] if row["check"] == "site.bent") == {
        f"n{number}": 1 for number in range(1, 7)
    }
    assert told["fleet"]["not_ready"] == ["n4"]
    assert told["fleet"]["ready"] == ["n1", "n2", "n3", "n5", "n6"]
    assert (told["exit"], told["interrupted"], told["missing"]) == (1, False, 0)
    (folder,) = night.sweeps
    waves = json.loads((folder / "sweep.json").read_text())["waves"]
    again = [wave["folder"] for wave in waves if wave["tries"] == 2]
    assert all((folder / one.removesuffix("-2")).is_dir() for one in again)
    assert 1 <= len(again) <= 2
    lines = done.stdout.splitlines()
    assert "= 1 of 6 nodes not ready =" in done.stdout
    assert "FAIL   n4  site.bent" in lines
    assert "not ready  n4  --exclude=n4" in lines
    assert (night.folder / "preflight-nightly" / "latest").resolve() == folder
    assert "n4" in (folder / "report.html").read_text()
    assert "since" not in {line.partition(" ")[0] for line in lines}
    nothing = night.run(PREFLIGHT, "nightly", "--resume")
    assert nothing.returncode == 4
    assert "was interrupted in the last 12 h" in nothing.stderr


def test_a_sweep_of_nobody_is_refused(night: Night) -> None:
    """Without a fleet it would be this machine, which is no fleet: one line, exit 4, no folder."""
    told = night.run(PREFLIGHT, "nightly", "--whole-fleet")
    assert told.returncode == 4
    assert told.stderr.startswith("preflight: no fleet is given: give ")
    assert not night.sweeps


def test_an_interrupted_sweep_tells_what_it_knows(night: Night) -> None:
    """Ctrl-C: the wave that runs leaves its nodes, the report is written, exit 2; it can go on."""
    sweep = night.begin()
    until(night.at_the_gate, "a wave to judge n3 or n4", LONGEST_S)
    sweep.send_signal(signal.SIGINT)
    out, _ = sweep.communicate(timeout=LONGEST_S)
    assert sweep.returncode == 2, out
    assert "= interrupted =" in out
    assert "to continue: repeat the command with --resume" in out
    told = night.report()
    assert (told["exit"], told["interrupted"]) == (2, True)
    assert {"n3", "n4"} & set(told["fleet"]["unjudged"])
    assert told["fleet"]["left_out"] == {}
    state = json.loads((night.sweeps[0] / "sweep.json").read_text())
    assert not state["finished"]
