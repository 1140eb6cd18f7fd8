"""What the probe makes of an NVIDIA driver, healthy, ill or stuck; pynvml asks an emulator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from probe import guard, main, nvml_calls

from preflight.transport.bundle import PAYLOAD

from .node import PATIENCE_S, Remote
from .test_probe import probe

if TYPE_CHECKING:
    from contextlib import ExitStack

    from preflight.facts.model import Facts
    from tests.lab.nvml.scenario import Scenario

    from .conftest import Machine

pytestmark = pytest.mark.slow


@pytest.fixture
def healthy() -> Scenario:
    """Return a machine of eight H100."""
    from tests.lab.nvml.scenario import h100

    return h100("h1")


def facts_of(machine: Machine, scenario: Scenario, tmp_path: Path, **more: object) -> Facts:
    """Return what the probe says of an emulated machine."""
    remote = Remote("probe", env=machine(scenario))
    return probe(remote, sysfs=str(tmp_path / "sys"), **more)


def program(folder: Path, text: str) -> str:
    """Write an nvidia-smi; return the PATH on which it is found first."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


def test_a_healthy_machine_is_read_in_full(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """Eight GPUs with memory, 18 links up to switches, place in the PCI tree, and eight NICs."""
    facts = facts_of(machine, healthy, tmp_path)
    assert (facts.driver.state, facts.driver.version) == ("answered", healthy.driver)
    assert facts.problems == ()
    assert facts.gpus is not None
    assert [gpu.uuid for gpu in facts.gpus] == [gpu.uuid for gpu in healthy.gpus]
    first, slot = facts.gpus[0], healthy.gpus[0]
    assert first.bus_id == slot.path[-1]
    assert first.pci_path == slot.path
    assert first.numa == slot.numa
    assert (first.memory_total_mib, first.memory_used_mib) == (healthy.memory_mib, 0)
    assert first.links is not None
    assert [link.up for link in first.links] == [True] * 18
    assert {link.remote_kind for link in first.links} == {"switch"}
    assert first.links[0].remote == "0000:05:00.0"
    assert (first.mig_enabled, first.mig, first.processes) == (False, (), ())
    assert facts.nics is not None
    assert [nic.pci_path for nic in facts.nics] == [nic.path for nic in healthy.nics]
    assert facts.nics[0].ports[0].rate == "400 Gb/sec (4X NDR)"


def test_the_sweep_learns_the_addresses_of_the_gpus_that_answer(
    machine: Machine, healthy: Scenario
) -> None:
    """In CUDA's order of a job that sees some, by index or by UUID; a lost GPU is passed over."""
    ask = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from sweep.counters import Gpus\n"
        "print(json.dumps([Gpus().bus_ids(each) for each in json.loads(sys.argv[2])]))"
    )
    uuid = healthy.gpus[4].uuid
    asked = [[*range(8)], [5, 3, 2], [uuid[:12]], ["GPU-nobody"], [uuid, "GPU-"]]
    words = [sys.executable, "-c", ask, str(PAYLOAD), json.dumps(asked)]
    environ = {**os.environ, **machine(healthy.gpu_lost(3))}
    ran = subprocess.run(words, env=environ, capture_output=True, check=True, timeout=PATIENCE_S)
    every, some, by_uuid, *unclear = json.loads(ran.stdout)
    places = ["0000" + gpu.path[-1] for gpu in healthy.gpus]
    assert every == [*places[:3], *places[4:]]
    assert some == [places[5], places[2]]
    assert by_uuid == [places[4]]
    assert unclear == [[], []]


def test_every_pair_says_distance_and_peer_access(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """28 pairs; the ones that differ say how, in nvidia-smi's and NVML's words."""
    ill = healthy.ancestor(0, 1, 20).p2p(2, 3, 1, 0)
    pairs = facts_of(machine, ill, tmp_path).gpu_pairs
    assert pairs is not None
    by = {(pair.a, pair.b): pair for pair in pairs}
    assert len(by) == 28
    assert [by[0, 1].ancestor, by[0, 2].ancestor, by[0, 7].ancestor] == ["PXB", "NODE", "SYS"]
    assert (by[2, 3].p2p_read, by[2, 3].p2p_nvlink) == ("chipset not supported", "ok")


def test_a_lost_gpu_does_not_hide_the_others(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """The seven that answer are reported, and the eighth is named with NVML's words."""
    facts = facts_of(machine, healthy.gpu_lost(3), tmp_path)
    assert facts.gpus is not None
    assert [gpu.index for gpu in facts.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert facts.problems == ("GPU 3: GPU is lost",)


def test_links_mig_and_holders_are_read(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """A link that is down, MIG instances, and who holds how much memory."""
    ill = healthy.link_down(0, 5).mig(1, 2).process(2, os.getpid(), 1000)
    ill = ill.process(3, os.getpid(), 500)
    facts = facts_of(machine, ill, tmp_path)
    assert facts.gpus is not None
    assert facts.gpus[0].links is not None
    assert [link.link for link in facts.gpus[0].links if not link.up] == [5]
    assert (facts.gpus[1].mig_enabled, len(facts.gpus[1].mig)) == (True, 2)
    assert facts.gpus[2].processes is not None
    assert [(one.pid, one.used_mib) for one in facts.gpus[2].processes] == [(os.getpid(), 1000)]
    assert facts.processes is not None
    holder = next(one for one in facts.processes.notable if one.pid == os.getpid())
    assert (holder.holds_gpu, holder.gpu_mib, holder.ours) == (True, 1500, True)


def test_gpus_without_nvlink_have_none(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """On a PCIe machine the links are (), which is known, rather than None."""
    facts = facts_of(machine, healthy.without_links(), tmp_path)
    assert facts.gpus is not None
    assert {gpu.links for gpu in facts.gpus} == {()}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "Driver Not Loaded"),
        (18, "RM has detected an NVML/RM version mismatch."),
        (999, "Unknown Error"),
    ],
)
def test_a_driver_that_refuses_is_quoted(
    machine: Machine, healthy: Scenario, tmp_path: Path, code: int, words: str
) -> None:
    """NVML's own words travel, and its sections are unknown rather than empty."""
    facts = facts_of(machine, healthy.init_error(code), tmp_path)
    assert (facts.driver.state, facts.driver.error) == ("error", words)
    assert facts.gpus is None
    assert facts.nics is not None


def test_a_library_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    """A broken libnvidia-ml is not the same as none."""
    (tmp_path / "libnvidia-ml.so.1").write_text("rubbish")
    facts = probe(Remote("probe", env={"LD_LIBRARY_PATH": str(tmp_path)}), sysfs=str(tmp_path))
    assert facts.driver.state == "error"
    assert "libnvidia-ml.so.1" in facts.driver.error


def test_a_reader_that_breaks_differs_from_a_driver_that_refuses() -> None:
    """An exception of ours, or a reader that was killed, is not NVML's word."""

    def breaks() -> None:
        raise AttributeError("no 'read' in gpu_fabric")

    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for work in (breaks, dies):
        answer = main._driver(guard.spawn(work), guard.Calls(), 30, [])
        assert answer["driver"]["state"] == "error"
        assert answer["driver"]["error"].startswith(nvml_calls.OWN_ERROR)


def test_a_hung_driver_is_killed_and_the_rest_reported(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """The driver's deadline ends the question; processes and NICs are reported all the same."""
    facts = facts_of(machine, healthy.hanging(), tmp_path, driver_deadline_s=0.3)
    assert (facts.driver.state, facts.driver.survivor) == ("hung", None)
    assert facts.gpus is None
    assert facts.processes is not None
    assert facts.nics is not None


@pytest.mark.parametrize("who", ["probe", "reader"])
def test_a_pause_is_not_the_drivers_time(
    machine: Machine, healthy: Scenario, tmp_path: Path, who: str
) -> None:
    """It gets all of its time beside that; a look that is over before it has had it says so."""
    remote = Remote("probe", env=machine(healthy.hanging()))

    def pause() -> None:
        found: list[str] = []
        tasks = Path(f"/proc/{remote.process.pid}/task")
        while not found:
            children = (tasks / f"{remote.process.pid}/children").read_text().split()
            found = [pid for pid in children if asks(pid)]
            time.sleep(0.02)
        if who == "reader":
            os.kill(int(found[0]), signal.SIGSTOP)
            return
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(remote.process.pid, number)
            time.sleep(3)

    def asks(pid: str) -> bool:
        with contextlib.suppress(OSError):
            return "libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text()
        return False

    pausing = threading.Thread(target=pause)
    pausing.start()
    facts = probe(remote, sysfs=str(tmp_path / "sys"), driver_deadline_s=2.5, deadline_s=8)
    pausing.join()
    assert facts.driver.state == "hung"
    had_its_time = who == "probe"
    assert (facts.driver.seconds >= 2.5, facts.driver.paused_s == 0) == (had_its_time,) * 2
    assert facts.driver.seconds < 4


@pytest.mark.parametrize("paused", [0, 1])
def test_a_pause_is_in_no_call(paused: int) -> None:
    """Of two calls the slower one is reported, also where one of them was stopped in between."""
    calls, lengths_s = guard.Calls(), [0.3, 0.3]
    lengths_s[1 - paused] = 1.0

    def work() -> list[list[float]]:
        made = []
        for number, length_s in enumerate(lengths_s):
            began = calls.begin()
            if number == paused:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(length_s)
            made.append([began, time.monotonic() - began])
        return made

    child = guard.spawn(work, calls=calls)
    waking = threading.Thread(target=_wake, args=(child.pid, 1.5))
    waking.start()
    assert child.listen()
    waking.join()
    assert child.dismiss(kill=False)
    made = child.value()
    its = [calls.waited_s(*one) for one in made]
    assert made[paused][1] > made[1 - paused][1]
    assert its[paused] < its[1 - paused]


def _wake(pid: int, after_s: float) -> None:
    """Let a process go on so long after it has stopped."""
    while f"{pid} (" not in (stat := Path(f"/proc/{pid}/stat").read_text()) or ") T" not in stat:
        time.sleep(0.02)
    time.sleep(after_s)
    os.kill(pid, signal.SIGCONT)


def test_an_unkillable_driver_call_neither_holds_the_channel_nor_the_probe(
    machine: Machine, healthy: Scenario, tmp_path: Path, cleanup: ExitStack
) -> None:
    """The survivor is named; our channel ends at once although it lives on, holding none of it."""
    env = machine(healthy.hanging()) | {"PREFLIGHT_TEST_UNKILLABLE": "1"}
    remote = Remote("probe", env=env)
    channel = {
        str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())
        for stream in (remote.process.stdin, remote.process.stdout, remote.process.stderr)
        if stream
    }
    facts = probe(remote, sysfs=str(tmp_path / "sys"), driver_deadline_s=0.3)
    survivor = facts.driver.survivor
    assert survivor is not None
    cleanup.callback(os.kill, survivor.pid, signal.SIGKILL)
    assert survivor.command.startswith("preflight's driver query [")
    assert survivor.ours
    held = {str(fd.readlink()) for fd in Path(f"/proc/{survivor.pid}/fd").iterdir()}
    assert not held & channel
    assert {name.partition(":")[0] for name in held} == {"/dev/null", "pipe", "/memfd"}


def test_the_matrix_of_nvidia_smi_is_taken_as_printed(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """`nvidia-smi topo -m` under LC_ALL=C, without its terminal colours."""
    from tests.lab.nvidia_smi import topo_text

    (tmp_path / "matrix").write_text(topo_text(healthy))
    script = f'[ "$*" = "topo -m" ] && [ $LC_ALL = C ] && exec cat {tmp_path}/matrix'
    env = machine(healthy) | {"PATH": program(tmp_path, script)}
    facts = probe(Remote("probe", env=env), sysfs=str(tmp_path / "sys"))
    assert facts.topo_text is not None
    assert "\x1b" not in facts.topo_text
    assert facts.topo_text.startswith("\tGPU0\tGPU1\t")
    assert facts.problems == ()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo No devices were found; exit 6", "it failed: No devices were found"),
        ("exec sleep 60", "no answer in time"),
        ("exec yes", "it failed: y y y"),
    ],
)
def test_an_nvidia_smi_that_fails_is_no_matrix(
    machine: Machine, healthy: Scenario, tmp_path: Path, script: str, problem: str
) -> None:
    """Failing, hanging or babbling, it costs its own section alone, and says so."""
    env = machine(healthy) | {"PATH": program(tmp_path, script)}
    remote = Remote("probe", env=env)
    facts = probe(remote, sysfs=str(tmp_path / "sys"), driver_deadline_s=2)
    assert facts.topo_text is None
    assert [line for line in facts.problems if f"nvidia-smi topo -m: {problem}" in line]
    assert facts.gpus is not None
