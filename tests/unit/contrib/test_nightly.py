"""What an operator copies for the nights is understood by the sweep that it starts."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from preflight.commands.nightly.command import read_words
from preflight.hook.hook_values import HookConfig

NIGHTLY = Path(__file__).parents[3] / "contrib" / "nightly"
PYTHON = ["/opt/preflight/bin/python", "-I", "-m", "preflight", "nightly"]


def _unit() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(NIGHTLY / "preflight-nightly.service")
    return unit["Service"]


def _service() -> str:
    return _unit()["ExecStart"].replace("\\\n", " ")


def _crontab() -> list[str]:
    lines = (NIGHTLY / "crontab").read_text().splitlines()
    return [line for line in lines if line[:1] in ("0", "@")]


def test_the_service_and_cron_start_the_same_sweep() -> None:
    """Isolated from the first line on, with a history, an end, and a folder that outlives it."""
    words = shlex.split(_service())
    nightly, at_boot = (shlex.split(line.partition("&& ")[2]) for line in _crontab())
    assert words == nightly
    assert words[:5] == at_boot[:5] == PYTHON
    asked = read_words(words[5:])
    assert (asked.budget, asked.resume, asked.into) == (
        "5h",
        True,
        "/var/lib/preflight-nightly/runs",
    )
    assert asked.option("history") == "/var/lib/preflight-nightly/history"
    again = read_words(at_boot[5 : at_boot.index("2>/dev/null")])
    assert (again.resume, again.names_a_fleet, again.into) == (True, False, asked.into)


def test_user_and_folder_are_those_of_the_steps() -> None:
    """The steps make the user of the unit, his home is its folder, and not that of the prolog."""
    unit = _unit()
    home = f"/var/lib/{unit['StateDirectory']}"
    page = (NIGHTLY.parents[1] / "docs" / "how-to" / "nightly.md").read_text()
    (made,) = (line for line in page.splitlines() if line.startswith("useradd "))
    assert made.endswith(f" {unit['User']}")
    assert f"--home-dir {home} " in made
    assert unit["WorkingDirectory"] == home != str(HookConfig().state_dir)
    assert f"cd {home} && " in _crontab()[0]
    asked = read_words(shlex.split(_service())[5:])
    assert f"install -D -m 0644 fleet.toml {asked.option('inventory')}\n" in page


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Every setting is known where it stands; the program itself need not be here."""
    for kind in ("service", "timer"):
        text = (NIGHTLY / f"preflight-nightly.{kind}").read_text()
        text = text.replace(PYTHON[0], "/bin/true").replace("User=preflight", "User=root")
        (tmp_path / f"preflight-nightly.{kind}").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "preflight-nightly.timer"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert not re.findall(r".*preflight-nightly.*", done.stderr)
    assert done.returncode == 0, done.stderr


def test_the_reservation_leaves_running_jobs_alone() -> None:
    """It names its nodes, comes back every day, and is the one of the documentation."""
    script = (NIGHTLY / "reservation.sh").read_text()
    subprocess.run(["sh", "-n", NIGHTLY / "reservation.sh"], check=True)
    assert "Flags=DAILY,IGNORE_JOBS" in script
    page = (NIGHTLY.parents[1] / "docs" / "reference" / "nightly.md").read_text()
    assert "--reservation=preflight" in page
    assert "ReservationName=preflight" in script
