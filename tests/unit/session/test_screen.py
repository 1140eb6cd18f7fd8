"""What a run shows: each finding once in one line, then whole; a large fleet on one screen."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.facts.machine import Governor
from preflight.facts.network import Resolved
from preflight.run.measured import Measured
from tests.bench.synthetic import NONCE, REACHED, names
from tests.bench.synthetic_facts import facts
from tests.frozen.command import PROGRAM, environment
from tests.unit.facts import machines

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Facts

NODES = 512
NAMES = names(NODES)
CHECKS = "gpu.count,host.governor,host.shm,host.nofile,net.interface"
SCREEN = 24
"""Lines of a terminal."""


def _worn(place: int, name: str) -> Facts:
    """A node with the three warnings of its fleet; two of the nodes have a fault of their own."""
    healthy = facts(
        place, name, nonce=NONCE, master=NAMES[0], drawing="", lacking=int(place == 199)
    )
    own = Resolved(name, ("127.0.1.1",), seconds=0.001)
    machine = machines.machine(
        governors=(Governor("powersave", "intel_pstate", 192),),
        file_systems=(machines.file_system(), replace(machines.shm(), free_mib=400 + place)),
        limits=machines.limits(nofile=300 if place == 6 else 1048576),
    )
    network = healthy.network and replace(healthy.network, own_name=own)
    return replace(healthy, network=network, machine=machine)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What 512 nodes answered, and their inventory."""
    made = tmp_path_factory.mktemp("screen")
    worn = {name: _worn(place, name) for place, name in enumerate(NAMES)}
    measured = Measured(nonce=NONCE, reach=dict.fromkeys(NAMES, REACHED), facts=worn)
    (made / "measured.json").write_bytes(measured.encode())
    (made / "fleet.toml").write_text(f'[group.train]\nnodes = "gpu[0001-{NODES:04}]"\ngpus = 8\n')
    (made / "job.env").write_text("GLOO=1\n")
    return made


def _shown(folder: Path, *words: str, on_terminal: bool = False, **variables: str) -> str:
    """Judge it again; return what is printed, on a terminal of 80 columns or into a pipe."""
    argv = [PROGRAM, "check", f"--inventory={folder}/fleet.toml", f"--checks={CHECKS}",
            f"--replay={folder}/measured.json", f"--report={folder}/report",
            f"--env-file={folder}/job.env", *words]  # fmt: skip
    if on_terminal:
        argv = ["script", "-qec", shlex.join(argv), "/dev/null"]
    known = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    done = subprocess.run(argv, cwd=folder, env=known | variables | {"TERM": "xterm"},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def piped(folder: Path) -> str:
    """What goes into a pipe."""
    return _shown(folder)


def _live(text: str) -> list[str]:
    """The lines between the header and the summary."""
    body = text.partition("\ncollected ")[2].partition("\n==")[0]
    return [line for line in body.splitlines()[1:] if line.strip()]


def _summary(text: str) -> list[str]:
    """The lines of the findings in the summary."""
    return text.partition("not ready ===")[2].partition("\n\n")[0].splitlines()[1:]


def test_a_large_fleet_fits_one_screen_with_the_faults_first(piped: str) -> None:
    """Three warnings of 512 nodes and two faults of one node each are five findings."""
    lines = _summary(piped)
    assert [line.split()[:3] for line in lines if line[:1] != " "] == [
        ["FAIL", "gpu0007", "host.nofile"],
        ["FAIL", "gpu0200", "gpu.count"],
        ["WARN", "gpu[0001-0512]", "host.governor"],
        ["WARN", "gpu[0001-0512]", "host.shm"],
        ["WARN", "gpu[0001-0512]", "net.interface"],
    ]
    assert len(lines) < SCREEN, "\n".join(lines)
    assert "e.g. gpu0001: its own name gpu0001 leads to 127.0.1.1" in " ".join(lines)


def test_a_finding_is_one_line_when_it_is_known(piped: str) -> None:
    """At most 80 columns, the faults of a stage first; the whole sentence comes once, later."""
    lines = _live(piped)
    assert [line.split()[0] for line in lines] == ["FAIL", "FAIL", "WARN", "WARN", "WARN"]
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("FAIL   gpu0200  gpu.count: 7 of 8 GPUs answer")
    assert lines[4].startswith("WARN   gpu[0001-0512]  net.interface: e.g. gpu0001: its own name")
    assert lines[4].endswith(" ...")
    assert piped.count("where no other node can connect") == 1
