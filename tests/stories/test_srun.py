"""A fleet reached through a real Slurm, without a key: the same verdicts as by SSH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.fleet.model import Host
from preflight.transport.slurm_allocation import Launcher
from preflight.transport.srun import SrunTransport
from tests.lab import processes, wire
from tests.lab.inside import until
from tests.stories.conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.slurm import Slurm
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

ALL = "--preflight-fail-fast=never"
NO_KEYS = {"transport": None, "identity_file": None, "known_hosts": None, "user": None}
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"]


@pytest.fixture
def judge(preflight: Callable[..., Told], slurm: Slurm) -> Iterator[Callable[..., Told]]:
    """Judge the allocation from outside of its nodes, as after salloc on a login node."""
    inventory = slurm.lab.inventory("slurm.toml", defaults=NO_KEYS)
    with slurm.allocation() as environ:
        mine = {"PATH": f"{environ['PATH']}:{os.environ['PATH']}"}
        yield lambda *words: preflight(
            "--preflight-inventory", str(inventory), *words, env={**environ, **mine}
        )
        until(lambda: not slurm.steps(), "the step to end")


def relays(slurm: Slurm) -> list[str]:
    """Whatever of ours runs on the hosts that are up."""
    up = [host for host in slurm.lab.hosts.values() if host.pid]
    listings = [host.run(["ps", "-eo", "args"]).stdout for host in up]
    lines = [line for text in listings for line in text.splitlines()]
    return [line for line in lines if "preflight" in line and " -c " in line]


def test_in_a_batch_script(slurm: Slurm, tmp_path: Path) -> None:
    """`pytest --preflight` in a job, nothing else said: srun by itself, a real sweep, exit 0."""
    report, out, script = tmp_path / "report", tmp_path / "out", tmp_path / "job"
    words = [*PYTEST, f"--preflight-report={report}", f"--preflight-python={sys.executable}"]
    script.write_text(f"#!/bin/sh\ncd {tmp_path}\n{' '.join(words)}\necho exit $?\n")
    slurm.run(["sbatch", "-N4", "-o", out, script], env={"COLUMNS": "80"})
    until(lambda: not slurm.jobs(), "the job to end", 120)
    told = out.read_text()
    assert told.endswith("exit 0\n"), told
    assert "reach    srun (Slurm job " in told
    assert ", one step), 64 at a time" in told
    pairs = json.loads((report / "report.json").read_text())["pairs"]
    assert {pair["state"] for pair in pairs} == {"measured"}  # once more where it was noisy
    assert len({(pair["a"], pair["b"]) for pair in pairs}) == 6
    assert relays(slurm) == []


def test_the_same_verdicts_as_by_ssh(
    judge: Callable[..., Told], preflight: Callable[..., Told], slurm: Slurm, tmp_path: Path
) -> None:
    """Three faults, judged by both ways into the same hosts; only the steps of login differ."""
    lab = slurm.lab
    job = tmp_path / "job.env"
    job.write_text("CUDA_VISIBLE_DEVICES=0,1,2,3\n")
    # A job of root locks any memory; that slurmd may not, for others' jobs, only a login sees.
    rest = (f"--preflight-env-file={job}", "-k", "not memlock")
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(3))
    with processes.stale_rank(lab.hosts["h1"], port=29500), wire.slow_link(lab.hosts["h4"]):
        by_srun = judge(ALL, *rest)
        seen = [_comparable(by_srun), by_srun.report["fleet"]["not_ready"]]
        inventory = str(lab.inventory())
        by_ssh = preflight("--preflight-inventory", inventory, ALL, *rest)
    assert seen == [_comparable(by_ssh), by_ssh.report["fleet"]["not_ready"]]
    assert seen[1] == ["h1", "h2", "h4"]
    assert (by_srun.exit, by_ssh.exit) == (1, 1)


def _comparable(told: Told) -> set[tuple[str, str, str]]:
    """Leave out which pairs of a slow host are themselves slow enough: its blame is compared."""
    apart = ("reach.", "fabric.")
    return {verdict for verdict in told.outcomes() if not verdict[0].startswith(apart)}


def test_a_dead_slurmd_and_a_host_that_freezes(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm's word names the one, its silence the other, and the other two are judged."""
    report = tmp_path / "report"
    inventory = slurm.lab.inventory("slurm.toml", defaults=NO_KEYS)
    words = [*PYTEST, ALL, f"--preflight-report={report}", f"--preflight-inventory={inventory}"]
    with slurm.allocation() as environ:
        slurm.stop_slurmd("h4")
        with _started(words, environ, tmp_path) as run:
            _read_until(run, "ports")
            with _frozen(slurm, "h3"):
                rest = run.stdout.read() if run.stdout else ""
            assert run.wait() == 1, rest
    told = json.loads((report / "report.json").read_text())
    verdicts = {(v["check"], v["subject"]): v for v in told["verdicts"]}
    dead = verdicts["reach.route", "h4"]
    assert dead["outcome"] == "fail"
    assert "Slurm could not start our step on it" in dead["sentence"]
    assert told["fleet"]["not_ready"] == ["h3", "h4"]
    assert verdicts["fabric.allreduce", "h1-h2"]["outcome"] == "ok"


def test_a_killed_controller_leaves_nothing(slurm: Slurm, tmp_path: Path) -> None:
    """After SIGKILL in the middle of a sweep neither a process nor a step of ours stays."""
    inventory = slurm.lab.inventory("slurm.toml", defaults=NO_KEYS)
    words = [*PYTEST, f"--preflight-inventory={inventory}"]
    with slurm.allocation() as environ, _started(words, environ, tmp_path) as run:
        _read_until(run, "pairs")
        assert len(relays(slurm)) >= 4
        run.send_signal(signal.SIGKILL)
        until(lambda: not relays(slurm), "the hosts to be clean", 20)
        until(lambda: not slurm.steps(), "the step to end", 20)


class _OnePort(Launcher):
    """Calls come in at a port that the test knows."""

    ports = range(30999, 31000)


def test_a_way_back_that_is_blocked(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose firewall drops the call back is named with address and port; others serve."""
    with slurm.allocation() as environ, ExitStack() as undo:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert Launcher(os.environ).ports == range(30000, 31000)
        hosts = {
            name: Host(name=name, address=host.address, python=(sys.executable,))
            for name, host in slurm.lab.hosts.items()
        }
        way = SrunTransport(list(hosts.values()), _OnePort(os.environ))
        undo.callback(way.close)
        undo.enter_context(_no_calls(slurm, "h2", 30999))
        with pytest.raises(ReachError) as caught:
            way.connect(hosts["h2"], 10)
        assert caught.value.step == "route"
        sentence = f"cannot call back: {slurm.lab.controller} port 30999: no answer in 4 s"
        assert sentence in caught.value.sentence
        there = way.connect(hosts["h3"], 10)
        assert there.start(["uname", "-n"], timeout_s=10).wait(10).stdout == b"h3\n"


_LIAR = """#!/bin/sh
case $SLURMD_NODENAME in
h1) echo "srun: error: Task launch for StepId=1.0 failed on node h[2-3]: Refused"
    echo "srun: error: h[2-3]: tasks 1-2: Exited with exit code 1" ;;
h4) exit 2 ;;
esac >&2
exec "$0.real" "$@"
"""


def test_words_of_one_node_exclude_no_other(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """h1's task writes srun's words on h2 and h3, which serve all the same; h4's task ends."""
    python = tmp_path / "python"
    python.write_text(_LIAR)
    python.chmod(0o755)
    (tmp_path / "python.real").symlink_to(sys.executable)
    with slurm.allocation() as environ, ExitStack() as undo:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        hosts = [
            Host(name=name, address=host.address, python=(str(python),))
            for name, host in slurm.lab.hosts.items()
        ]
        way = SrunTransport(hosts, Launcher(os.environ))
        undo.callback(way.close)
        *served, ended = hosts
        for host in served:
            there = way.connect(host, 10)
            said = there.start(["uname", "-n"], timeout_s=10).wait(10).stdout
            assert said == f"{host.name}\n".encode()
        # srun may tell of a task that ended only after the time that a node has to call back.
        told = "our step ended there: Exited with exit code 2|no relay connected in 12 s"
        with pytest.raises(ReachError, match=told):
            way.connect(ended, 10)


@contextmanager
def _started(
    words: list[str], environ: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[str]]:
    mine = {"PATH": f"{environ['PATH']}:{os.environ['PATH']}"}
    with subprocess.Popen(
        words,
        cwd=folder,
        env={**clean_environment(), **environ, **mine},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _read_until(run: subprocess.Popen[str], word: str) -> None:
    """Wait for a line of progress that begins so."""
    assert run.stdout is not None
    said = []
    for line in run.stdout:
        said.append(line)
        if line.startswith(word):
            return
    raise AssertionError(f"it never said {word}: {said}")


@contextmanager
def _frozen(slurm: Slurm, name: str) -> Iterator[None]:
    """Stop all that runs on a host but its process 1, as a dead kernel would."""
    host = slurm.lab.hosts[name]
    host.run(["sh", "-c", "kill -STOP -1"])
    try:
        yield
    finally:
        host.run(["sh", "-c", "kill -CONT -1"])


@contextmanager
def _no_calls(slurm: Slurm, name: str, port: int) -> Iterator[None]:
    """Drop what a host sends to one port, as a firewall would."""
    host = slurm.lab.hosts[name]
    table = "inet nocalls"
    chain = "type filter hook output priority 0 ;"
    host.run(["nft", f"add table {table}"])
    host.run(["nft", f"add chain {table} out {{ {chain} }}"])
    host.run(["nft", f"add rule {table} out tcp dport {port} drop"])
    try:
        yield
    finally:
        host.run(["nft", f"delete table {table}"])
