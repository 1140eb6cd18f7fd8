"""A machine that stands still for a while is no broken machine: no pause costs a node."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hook.tokens import MARK
from tests.lab.inside import until
from tests.lab.nvml.scenario import h100
from tests.stories.hooked import NODE
from tests.unit.hook.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stories.hooked import Hooked

PAUSE_S = 12
"""Longer than a driver may take to answer."""

FOUND_S = 60
FREEZER = Path("/sys/fs/cgroup/freezer")
IDLE, OUT = "IDLE", "IDLE+DRAIN"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="scontrol is run as root alone")


@pytest.fixture
def slurm(hooked: Hooked) -> FakeSlurm:
    """A Slurm in which the node is idle, and a hook that may drain it."""
    fake = FakeSlurm(hooked.folder / "bin")
    (hooked.folder / "breaker").mkdir()
    (hooked.folder / "breaker" / MARK).touch()
    hooked.configure(
        f'enforce = true\nslurm_bin = "{fake.folder}"\nundrain_after_s = 0',
        after=f'[breaker]\ndirectory = "{hooked.folder}/breaker"\nmost_share = 0\n',
    )
    return fake


def everybody(pids: dict[int, bool]) -> list[int]:
    """The hook, what it started, and what that started."""
    return list(pids)


def reader(pids: dict[int, bool]) -> list[int]:
    """Who asks the driver."""
    return [pid for pid, asks in pids.items() if asks]


def all_but_the_reader(pids: dict[int, bool]) -> list[int]:
    """Who waits for it, however far away."""
    return [pid for pid, asks in pids.items() if not asks]


@pytest.mark.parametrize("who", [everybody, reader, all_but_the_reader])
def test_a_pause_is_no_hung_driver(
    hooked: Hooked, slurm: FakeSlurm, who: Callable[[dict[int, bool]], list[int]]
) -> None:
    """Stopped for longer than a driver may take, in the middle of its answer: no drain, exit 0."""
    hooked.become(replace(h100(NODE), init="slow_ms 900"))
    with hooked.begun("healthcheck", "--json") as ended:
        pids = asking(hooked)
        for number, pause_s in ((signal.SIGSTOP, PAUSE_S), (signal.SIGCONT, 0)):
            for pid in who(pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert told.unfit() == {}


@pytest.mark.skipif(not FREEZER.is_dir(), reason="this machine has no freezer of cgroup v1")
def test_a_frozen_container_is_no_hung_driver(hooked: Hooked, slurm: FakeSlurm) -> None:
    """As `docker pause` does it: no signal tells of it."""
    hooked.become(replace(h100(NODE), init="slow_ms 900"))
    with hooked.begun("healthcheck", "--json") as ended, freezer() as group:
        for pid in asking(hooked):
            (group / "cgroup.procs").write_text(f"{pid}\n")
        (group / "freezer.state").write_text("FROZEN\n")
        time.sleep(PAUSE_S)
        (group / "freezer.state").write_text("THAWED\n")
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert told.unfit() == {}


def test_a_hung_driver_drains_at_the_second_look(hooked: Hooked, slurm: FakeSlurm) -> None:
    """In a row: an answer between two hangs begins anew. The drain ends once it answers again."""
    well, hung = h100(NODE), replace(h100(NODE), init="hangs")
    seen = []
    for scenario in (hung, well, hung, hung, well):
        hooked.become(scenario)
        told = hooked.run("healthcheck", "--json")
        seen.append((told.code, slurm.seen[0]))
        if seen == [(0, IDLE)]:
            assert told.unknown()["host.driver_hung"] is False
            assert "it is hung if the next look sees the same" in told.log[0]
    assert seen == [(0, IDLE), (0, IDLE), (0, IDLE), (1, OUT), (0, IDLE)]


def test_a_prolog_is_a_second_look(hooked: Hooked, slurm: FakeSlurm) -> None:
    """It has less time than a driver may take, and goes by the health check before it."""
    hooked.become(replace(h100(NODE), init="hangs"))
    assert hooked.prolog().code == 0
    assert hooked.run("healthcheck").code == 0
    assert (hooked.prolog().code, slurm.seen[0]) == (1, OUT)


def asking(hooked: Hooked) -> dict[int, bool]:
    """Wait until the driver is asked; then all processes of the hook, and whether they ask it."""
    found: dict[int, bool] = {}

    def anyone() -> bool:
        found.clear()
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
            try:
                if str(hooked.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found[pid] = "libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
        return any(found.values())

    until(anyone, "the driver to be asked", FOUND_S)
    return found


@contextmanager
def freezer() -> Iterator[Path]:
    """A group of processes that can be frozen."""
    group = FREEZER / f"preflight-test-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        (group / "freezer.state").write_text("THAWED\n")
        until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty", FOUND_S)
        group.rmdir()
