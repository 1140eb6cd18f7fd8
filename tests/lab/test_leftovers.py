"""A lab leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import net
from tests.lab.cluster import Lab, why_not
from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def _possible() -> None:
    """Skip where no lab can be had."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def someone() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A person's `python -m tests.lab up`, and the inventory file it names."""
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", "tests.lab", "up", "--hosts", "1"]
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        try:
            yield process, Path(lines[1].rpartition("=")[2].strip())
        finally:
            process.kill()


def processes_of(folder: Path) -> list[str]:
    """Every process of this machine whose command names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_nothing_is_left_and_two_labs_coexist() -> None:
    """Two labs have their own subnets; after each the mounts, links and folders are as before."""
    mounts = Path("/proc/self/mounts").read_text()
    with Lab(hosts=1) as one:
        with Lab(hosts=2) as two:
            assert one.controller != two.controller
            assert two.hosts["h2"].run(["uname", "-n"]).stdout == "h2\n"
            two.hosts["h2"].spawn(["sleep", "54321"])
        assert not two.folder.exists()
        assert not processes_of(two.folder)
        assert one.hosts["h1"].run(["uname", "-n"]).stdout == "h1\n"
        assert one.folder in [bridge.folder for bridge in net.bridges()]
    assert not one.folder.exists()
    assert not processes_of(one.folder)
    assert {one.folder, two.folder}.isdisjoint(bridge.folder for bridge in net.bridges())
    assert Path("/proc/self/mounts").read_text() == mounts


def test_a_failing_test_takes_its_lab_down() -> None:
    """An exception inside the context ends the hosts as well."""
    lab = Lab(hosts=1)
    with pytest.raises(subprocess.CalledProcessError), lab:
        lab.hosts["h1"].run(["false"])
    assert not lab.folder.exists()
    assert not processes_of(lab.folder)


def test_up_says_what_to_type_and_ctrl_c_ends_it(
    someone: tuple[subprocess.Popen[str], Path],
) -> None:
    """The inventory it prints is there to be used, and is gone with the lab."""
    process, inventory = someone
    fleet = tomllib.loads(inventory.read_text())
    assert fleet["group"]["lab"]["nodes"] == "h[1-1]"
    assert fleet["node"]["h1"]["address"].endswith(".1")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert not inventory.exists()


def test_hosts_die_with_a_killed_owner_and_the_rest_is_cleaned_up(
    someone: tuple[subprocess.Popen[str], Path],
) -> None:
    """Even SIGKILL leaves no process; the bridge and the folder go with the next lab."""
    process, inventory = someone
    process.kill()
    process.wait()
    until(lambda: not processes_of(inventory.parent), "the hosts to die")
    Lab.cleanup_stale()
    assert not inventory.parent.exists()
    assert inventory.parent not in [bridge.folder for bridge in net.bridges()]


def test_cleaning_up_spares_a_lab_in_use(lab: Lab) -> None:
    """Only labs whose owner is gone are removed."""
    Lab.cleanup_stale()
    assert lab.hosts["h1"].run(["uname", "-n"]).stdout == "h1\n"
