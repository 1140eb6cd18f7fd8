"""What a run shows: each finding once in one line, then whole; a large fleet on one screen."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from _pytest.terminal import TerminalReporter
from msgspec.structs import replace

from preflight.facts.machine import Governor
from preflight.facts.node_network import Resolved
from preflight.fleet.nodeset import fold
from preflight.run.measured import Measured
from preflight.session.items import TerminalProgress
from tests.bench.synthetic import NONCE, REACHED, names
from tests.bench.synthetic_facts import facts
from tests.frozen.command import PROGRAM, environment
from tests.unit.facts import machines

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Facts

pytestmark = pytest.mark.slow
NODES = 512
NAMES = names(NODES)
CHECKS = "gpu.count,host.governor,host.shm,host.nofile,net.interface"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
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


def _recorded(made: Path, numbers: range) -> Path:
    """What these of the 512 nodes answered, and their inventory."""
    worn = {NAMES[at]: _worn(at, NAMES[at]) for at in numbers}
    measured = Measured(nonce=NONCE, reach=dict.fromkeys(worn, REACHED), facts=worn)
    (made / "measured.json").write_bytes(measured.encode())
    (made / "fleet.toml").write_text(f'[group.train]\nnodes = "{fold(worn)}"\ngpus = 8\n')
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
def piped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run on all nodes writes into a pipe."""
    return _shown(_recorded(tmp_path_factory.mktemp("screen"), range(NODES)))


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


@pytest.mark.parametrize(
    ("words", "variables", "coloured"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        (("--color=no",), {}, False),
        (("--color=yes",), {"NO_COLOR": "1"}, True),
    ],
)
def test_results_have_colours_on_a_terminal(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], *, coloured: bool
) -> None:
    """As pytest's own: NO_COLOR and --color decide; the text is the same."""
    folder = _recorded(tmp_path, range(3, 7))
    seen = _shown(folder, *words, on_terminal=True, **variables)
    assert ("\x1b[1m\x1b[31mFAIL\x1b[0m   gpu0007  host.nofile" in seen) is coloured
    assert ("\x1b[1m\x1b[33mWARN\x1b[0m" in seen) is coloured
    assert ("\x1b[1m\x1b[32mready\x1b[0m      gpu[0004-0006]  3 of 4" in seen) is coloured
    assert "ready      gpu[0004-0006]  3 of 4" in ESCAPE.sub("", seen)


def test_a_pipe_has_no_colours(piped: str) -> None:
    """Unless they are asked for."""
    assert "\x1b" not in piped


class Tty(io.TextIOWrapper):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        """Pretend."""
        return True


@pytest.mark.parametrize(
    ("encoding", "bar"), [("utf-8", "█" * 10 + "░" * 10), ("ascii", "#" * 10 + "-" * 10)]
)
def test_progress_has_a_bar_a_rate_and_names_the_last_nodes(
    encoding: str, bar: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one line of at most 80 columns, in ASCII where the terminal knows no more."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(pytestconfig.option, "verbose", 0)
    written = io.BytesIO()
    screen = Tty(written, encoding=encoding)
    progress = TerminalProgress(TerminalReporter(pytestconfig, screen))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress.step("probing", 0, 64, NAMES[:64])
    monkeypatch.setattr(time, "monotonic", lambda: now + 2)
    progress.step("probing", 32, 64, NAMES[:64])
    progress.step("probing", 62, 64, NAMES[6:8])
    screen.flush()
    _, half, late = written.getvalue().decode(encoding).split("\r")[1:]
    assert re.fullmatch(
        rf"probing  32/64  \[{bar}\]  1[0-9.]+/s  2.\d s  waiting for 64 nodes *", half
    )
    assert "waiting for gpu[0007-0008]" in late
    assert max(map(len, (half, late))) <= 80


def test_a_run_without_any_verdict_is_not_ready(tmp_path: Path) -> None:
    """Exit 5, as no GPUs are expected and none are there: why, and what to type."""
    words = [PROGRAM, "check", "--checks=gpu.count", f"--report={tmp_path}/report"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 5, done.stdout
    assert "= nothing to check =" in done.stdout
    assert "not run    1 x no GPUs here" in done.stdout
    assert "\nnext       no selected check applies here" in done.stdout
    assert "\nready " not in done.stdout
    assert "1 verdict expected" in done.stdout
    assert json.loads((tmp_path / "report" / "report.json").read_text())["fleet"]["ready"] == []
