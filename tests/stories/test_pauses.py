"""A machine that stands still for a while, or whose date is set, is no broken machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hook.tokens import MARK
from tests.lab.clock import Clock
from tests.lab.crowd import crowd
from tests.lab.freezer import V1, V2, Freezer, group
from tests.lab.inside import until
from tests.lab.nvml.machine import Link
from tests.lab.nvml.scenario import Scenario, h100
from tests.stories.hooked import NODE
from tests.unit.hook.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stories.hooked import Hooked

YEAR_S = 365 * 86_400
PAUSE_S = 12
"""Longer than a driver may take to answer."""

STARVED_S = 8
"""Longer than the answer of a driver that is not wedged takes."""

SHORT_S = 2.5
"""Longer than an answer of a healthy driver takes."""

FOUND_S = 60
NOEXEC = ("mount", "-t", "tmpfs", "-o", "noexec,mode=755", "tmpfs")
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


@pytest.mark.parametrize("who", [everybody, reader])
def test_a_pause_is_no_hung_driver(
    hooked: Hooked, slurm: FakeSlurm, who: Callable[[dict[int, bool]], list[int]]
) -> None:
    """Stopped for longer than a driver may take, in the middle of its answer: no drain, exit 0."""
    hooked.become(replace(h100(NODE), init="slow_ms 900"))
    with hooked.begun("healthcheck", "--json") as ended:
        stop(who(asking(hooked)), PAUSE_S)
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert told.unfit() == {}


@pytest.mark.parametrize(
    ("freezer", "who"), [(V1, everybody), (V2, everybody), (V2, reader)], ids=["v1", "v2", "v2 one"]
)
def test_a_frozen_container_is_no_hung_driver(
    hooked: Hooked,
    slurm: FakeSlurm,
    freezer: Freezer,
    who: Callable[[dict[int, bool]], list[int]],
) -> None:
    """As `docker pause` does it: no signal tells of it. What reads the log is frozen, too."""
    if not freezer.is_here:
        pytest.skip("this machine has no such freezer")
    hooked.become(replace(h100(NODE), init="slow_ms 900"))
    with hooked.begun("healthcheck", "--json") as ended:
        with group(freezer, "pauses") as stop_in_it:
            stop_in_it(who(asking(hooked)))
            time.sleep(PAUSE_S)
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert (told.unfit(), told.unknown()) == ({}, {})


def test_a_time_namespace_is_no_time(hooked: Hooked, slurm: FakeSlurm) -> None:
    """A restored container's clocks are ahead or behind: two looks at once are one all the same."""
    late = h100(NODE).init_error(10)
    hooked.log("NVRM: Xid (PCI:0000:61:00): 31, pid=7, name=python, MMU Fault", ago_s=20)
    for ahead_s in (0, 60, -10, 10_000_000):
        hooked.become(late if ahead_s < 100 else h100(NODE))
        within = ("unshare", "--time", f"--boottime={ahead_s}", "--fork", "--kill-child")
        told = hooked.run("healthcheck", "--json", within=within)
        assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert "s ago" in str(told.document["judged"]), told


def test_an_answer_that_another_hook_got_meanwhile_ends_the_row(
    hooked: Hooked, slurm: FakeSlurm
) -> None:
    """Two hooks side by side: the later saw the driver answer while the earlier still waited."""
    hung = hooked.folder / "hung"
    hung.write_text(h100(NODE).hanging().text())
    env = {"PREFLIGHT_NVML_SCENARIO": str(hung)}
    assert hooked.run("healthcheck", env=env).code == 0
    hooked.later()
    with hooked.begun("healthcheck", "--json", env=env) as ended:
        asking(hooked)
        assert hooked.prolog().code == 0
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert told.unknown() == {"host.driver_hung": False}


def test_a_reader_without_a_cpu_is_no_slow_driver(hooked: Hooked, slurm: FakeSlurm) -> None:
    """Other processes have its CPU for longer than a wedged driver takes: no drain, exit 0."""
    hooked.become(replace(h100(NODE), init="busy_ms 900"))
    with hooked.begun("healthcheck", "--json") as ended:
        readers = reader(asking(hooked))
        time.sleep(0.4)
        crowd(readers, STARVED_S)
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert (told.unfit(), told.unknown()) == ({}, {})


def stop(pids: list[int], seconds: float) -> None:
    """Stop these for so long."""
    for number, pause_s in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(pause_s)


@pytest.mark.parametrize(("who", "hinder"), [(everybody, stop), (reader, stop), (reader, crowd)])
def test_a_pause_in_one_of_many_quick_answers_makes_it_no_slow_one(
    hooked: Hooked,
    slurm: FakeSlurm,
    who: Callable[[dict[int, bool]], list[int]],
    hinder: Callable[[list[int], float], None],
) -> None:
    """Stopped, or without a CPU: that all of them together take longer is no matter."""
    hooked.become(replace(h100(NODE), init="slow_ms 500", slow_call_ms=300))
    with hooked.begun("healthcheck", "--json") as ended:
        pids = who(asking(hooked))
        time.sleep(0.7)
        hinder(pids, SHORT_S)
        told = ended()
    assert (told.code, slurm.seen, told.log) == (0, (IDLE, ""), ()), told
    assert (told.document["judged"]["findings"], told.unknown()) == ([], {})


def test_a_job_that_ends_between_two_readings_makes_no_slow_gpu(
    hooked: Hooked, slurm: FakeSlurm
) -> None:
    """As in a pause: at work when its use was read, idle when its PCIe link was."""
    busy = h100(NODE).counted(3, "reasons", 4).counted(3, "utilization_pct", 97)
    hooked.become(busy.counted(3, "job_ends", 1))
    told = hooked.run("healthcheck", "--json")
    assert (told.code, slurm.seen, told.unfit()) == (0, (IDLE, ""), {})
    hooked.become(busy.counted(3, "pcie_gen", 1))
    assert hooked.run("healthcheck", "--json").unfit() == {"gpu.pcie": True}


def test_a_reader_that_is_stopped_again_and_again_is_no_slow_driver(
    hooked: Hooked, slurm: FakeSlurm
) -> None:
    """Each time for less than anybody would call a pause."""
    hooked.become(replace(h100(NODE), init="slow_ms 200"))
    with hooked.begun("healthcheck", "--json") as ended:
        readers = reader(asking(hooked))
        for _ in range(9):
            stop(readers, 0.9)
            time.sleep(0.01)
        told = ended()
    assert (told.code, slurm.seen) == (0, (IDLE, "")), told
    assert (told.unfit(), told.unknown()) == ({}, {})


def test_a_crowd_hides_no_hung_driver(hooked: Hooked, slurm: FakeSlurm) -> None:
    """Who waits for its answer gets a CPU once in a second or two: time goes on all the same."""
    hooked.become(h100(NODE).hanging())
    seen = []
    for _ in range(2):
        hooked.later()
        with hooked.begun("healthcheck", "--json") as ended:
            its = asking(hooked)
            crowd([parent_of(pid) for pid in reader(its)], PAUSE_S + 1)
            seen.append((ended().code, slurm.seen[0]))
    assert seen == [(0, IDLE), (1, OUT)]


def test_a_slow_driver_drains_at_the_second_look(hooked: Hooked, slurm: FakeSlurm) -> None:
    """In a row, too; and the node comes back once it is quick."""
    well, wedged = h100(NODE), h100(NODE).slow(6000)
    seen = []
    for scenario in (wedged, well, wedged, wedged, well):
        hooked.become(scenario)
        hooked.later()
        told = hooked.run("healthcheck", "--json")
        seen.append((told.code, slurm.seen[0]))
        if seen == [(0, IDLE)]:
            assert told.unknown()["gpu.driver_slow"] is False
            assert "it counts as a fault if the next look agrees" in told.log[0]
    assert seen == [*[(0, IDLE)] * 3, (1, OUT), (0, IDLE)]


def test_a_hung_driver_drains_at_the_second_look(hooked: Hooked, slurm: FakeSlurm) -> None:
    """In a row: an answer between two hangs begins anew. The drain ends once it answers again.

    A prolog, which has less time than a driver may take, goes by the health check before it.
    """
    well, hung = h100(NODE), replace(h100(NODE), init="hangs")
    seen = []
    for scenario, occasion in (
        (hung, "healthcheck"), (well, "healthcheck"), (hung, "prolog"), (hung, "healthcheck"),
        (hung, "prolog"), (well, "healthcheck"),
    ):  # fmt: skip
        hooked.become(scenario)
        hooked.later()
        told = hooked.run(occasion, "--json")
        seen.append((told.code, slurm.seen[0]))
        if seen == [(0, IDLE)]:
            assert told.unknown()["host.driver_hung"] is False
            assert "it counts as a fault if the next look agrees" in told.log[0]
    assert seen == [*[(0, IDLE)] * 4, (1, OUT), (0, IDLE)]


@pytest.mark.parametrize(
    ("code", "after"),
    [(20, (0, IDLE)), (23, (0, IDLE)), (10, (1, OUT)), (19, (1, OUT)), (12, (1, OUT)), (9, None)],
)
def test_a_driver_that_cannot_just_now_drains_at_the_second_look_if_at_all(
    hooked: Hooked, slurm: FakeSlurm, code: int, after: tuple[int, str] | None
) -> None:
    """Want of memory is never its fault; that it is late or in use may pass; other words stand."""
    hooked.become(h100(NODE).init_error(code))
    seen = []
    for _ in range(2):
        hooked.later()
        told = hooked.run("healthcheck", "--json")
        seen.append((told.code, slurm.seen[0]))
    assert seen == ([(0, IDLE), after] if after else [(1, OUT), (1, OUT)]), told


@pytest.mark.parametrize(
    ("reading", "check"), [("handle", "gpu.count"), ("power_draw_mw", "gpu.readings")]
)
@pytest.mark.parametrize("code", [10, 19])
def test_a_gpu_that_cannot_just_now_drains_at_the_second_look(
    hooked: Hooked, slurm: FakeSlurm, reading: str, check: str, code: int
) -> None:
    """In a row; what a job on others' GPUs sees ends no row. One that is lost drains at once."""
    well, late = h100(NODE), h100(NODE).refused(3, reading, code)
    seen = []
    for scenario, gpus in ((late, None), (well, None), (late, None), (well, "0"), (late, "3")):
        hooked.become(scenario)
        hooked.later()
        occasion = "healthcheck" if gpus is None else "prolog"
        env = {} if gpus is None else {"SLURM_JOB_GPUS": gpus}
        told = hooked.run(occasion, "--json", env=env)
        seen.append((told.code, slurm.seen[0]))
        if seen == [(0, IDLE)]:
            assert told.unknown()[check] is False
            assert "it counts as a fault if the next look agrees" in " ".join(told.log)
    assert (seen, told.unfit()) == ([*[(0, IDLE)] * 4, (1, OUT)], {check: True})


@pytest.mark.parametrize("reading", ["handle", "power_draw_mw"])
def test_a_gpu_that_is_lost_drains_at_the_first_look(
    hooked: Hooked, slurm: FakeSlurm, reading: str
) -> None:
    """Also where another cannot just now, and where nothing can be written."""
    hooked.become(h100(NODE).refused(3, reading, 15).refused(5, reading, 10))
    hooked.state.write_text("in its place")
    told = hooked.run("healthcheck", "--json")
    assert (told.code, slurm.seen[0]) == (1, OUT), told


def a100(hooked: Hooked) -> Scenario:
    """Four GPUs that are joined directly, as the node's inventory has it from now on."""
    whole = h100(NODE)
    gpus = tuple(
        replace(
            one, links=tuple(Link(b.bus_id, kind="gpu") for b in whole.gpus[:4] if b is not one) * 4
        )
        for one in whole.gpus[:4]
    )
    four = replace(whole, gpus=gpus, nics=whole.nics[:4], name="NVIDIA A100-SXM4-40GB")
    fleet = hooked.folder / "fleet.toml"
    fleet.write_text(fleet.read_text().replace("gpus = 8", "gpus = 4\nnvlinks_per_gpu = 12"))
    return four


@pytest.mark.parametrize("what", ["nvlink_remote", "nvlink_kind", "pci"])
def test_want_of_memory_makes_no_lopsided_links(
    hooked: Hooked, slurm: FakeSlurm, what: str
) -> None:
    """Where GPUs are joined directly, and NVML has no memory to tell one GPU's (far) ends."""
    four = a100(hooked)
    for scenario in (four, four.refused(0, what, 20)):
        hooked.become(scenario)
        hooked.later()
        told = hooked.run("healthcheck", "--json")
        assert (told.code, slurm.seen[0], told.unfit()) == (0, IDLE, {}), told


def reset(hooked: Hooked) -> Scenario:
    """A GPU was reset after an Xid that asked for it, and its driver says so."""
    hooked.log("NVRM: Xid (PCI:0000:61:00): 95, pid=7, name=python, Uncontained", ago_s=60)
    return h100(NODE)


def worn(_: Hooked) -> Scenario:
    """A GPU met SRAM errors in its life, and its driver says: not too many."""
    return h100(NODE).counted(2, "sram_aggregate_uncorrected", 6)


def apart(_: Hooked) -> Scenario:
    """Two of eight GPUs hang elsewhere, and reach only each other."""
    eight = h100(NODE).without_links()
    for a, b in combinations(range(8), 2):
        split = a < 6 <= b
        eight = eight.ancestor(a, b, 50 if split else 40).p2p(a, b, 5 if split else 0)
    return eight


def cut(hooked: Hooked) -> Scenario:
    """GPUs that are joined directly, whose links MIG has switched off."""
    four = a100(hooked)
    for index, link in product(range(4), range(12)):
        four = four.link_down(index, link).mig(index, 2)
    return four


@pytest.mark.parametrize(
    ("healthy", "refused"),
    [
        (reset, (3, "gpu.xid", "recovery_action")),
        (worn, (2, "gpu.ecc", "sram_threshold")),
        (apart, (6, "gpu.topology", "ancestor")),
        (cut, (1, "gpu.topology", "mig_pending")),
    ],
)
@pytest.mark.parametrize("code", [10, 19, 20])
def test_a_reading_that_fails_just_now_makes_no_other_a_fault(
    hooked: Hooked,
    slurm: FakeSlurm,
    healthy: Callable[[Hooked], Scenario],
    refused: tuple[int, str, str],
    code: int,
) -> None:
    """What it excuses or replaces is not judged by what is left."""
    index, check, reading = refused
    node = healthy(hooked)
    hooked.become(node)
    assert check not in hooked.run("healthcheck", "--json").unfit()
    hooked.become(node.refused(index, reading, code))
    told = hooked.run("healthcheck", "--json")
    assert (check in told.unfit(), slurm.seen[0]) == (False, IDLE), told


@pytest.mark.parametrize("code", [10, 20])
def test_a_settled_xid_is_no_fault_while_the_driver_cannot_be_asked(
    hooked: Hooked, slurm: FakeSlurm, code: int
) -> None:
    """Nobody can tell then whether its GPU was reset; that it asks for one still counts."""
    hooked.become(reset(hooked).init_error(code))
    told = hooked.run("healthcheck", "--json")
    assert (told.code, slurm.seen[0], "gpu.xid" in told.unknown()) == (0, IDLE, True), told
    hooked.become(h100(NODE).counted(3, "recovery_action", 1))
    assert "gpu.xid" in hooked.run("healthcheck", "--json").unfit()


def test_a_log_that_is_too_long_to_read_makes_no_old_xid_live(
    hooked: Hooked, slurm: FakeSlurm
) -> None:
    """Whatever a user made the kernel write: that the driver came anew may stand behind it."""
    hooked.log("NVRM: Xid (PCI:0000:61:00): 119, pid=7, name=python, said", ago_s=60)
    path = hooked.folder / "kmsg"
    with path.open("a") as log:
        log.write("6,9,9,-;a[7]: segfault\n" * 1_500_000)
    hooked.log("nvidia-nvlink: Nvlink Core is being initialized, major device number 235")
    told = hooked.run("healthcheck", "--json")
    assert ("gpu.xid" in told.unfit(), slurm.seen[0]) == (False, IDLE), told


@pytest.mark.parametrize("limit", ["--fsize=0:0", "--nofile=32:32"])
def test_a_limit_of_the_caller_is_no_fault_of_the_disk(
    hooked: Hooked, slurm: FakeSlurm, limit: str
) -> None:
    """The process may write no file, or open few: that says nothing of the node's disks."""
    hooked.become(h100(NODE))
    judged = re.sub(r'"host\.(disk|shm)",? ?', "", hooked.config.read_text())
    hooked.config.write_text(judged)
    told = hooked.run("prolog", "--plain", "--json", within=["prlimit", limit])
    assert (told.unfit(), slurm.seen[0]) == ({}, IDLE), told


@pytest.fixture
def unmapped(hooked: Hooked) -> Iterator[Hooked]:
    """A driver's library that cannot be mapped: the loader's words are those of want of memory."""
    library = hooked.folder / "library"
    library.mkdir()
    if subprocess.run([*NOEXEC, str(library)], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        shutil.copy(hooked.library / "libnvidia-ml.so.1", library)
        yield replace(hooked, library=library)
    finally:
        subprocess.run(["umount", str(library)], check=True)


def test_a_library_that_cannot_be_mapped_drains_nothing(unmapped: Hooked, slurm: FakeSlurm) -> None:
    """The loader then names no cause."""
    for _ in range(2):
        unmapped.later()
        told = unmapped.run("healthcheck", "--json")
        assert (told.code, slurm.seen[0]) == (0, IDLE), told
    assert "failed to map segment" in " ".join(told.log)


def test_a_library_that_is_damaged_drains_at_the_second_look(
    hooked: Hooked, slurm: FakeSlurm
) -> None:
    """What the loader refuses may pass, as in an upgrade; two looks at once are one moment."""
    library = hooked.folder / "library"
    library.mkdir()
    (library / "libnvidia-ml.so.1").write_bytes(b"\x7fELF, half of it")
    ill = replace(hooked, library=library)
    seen = []
    for seconds in (0, 1, 60, 0):
        ill.later(seconds)
        seen.append((ill.run("healthcheck").code, slurm.seen[0]))
    assert seen == [(0, IDLE), (0, IDLE), (1, OUT), (1, OUT)]


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """The date, as the hook and all that it starts see it."""
    return Clock(tmp_path)


@pytest.mark.parametrize("years", [-1, 40, None])
def test_a_date_that_is_set_is_no_fault(
    hooked: Hooked, slurm: FakeSlurm, clock: Clock, years: int | None
) -> None:
    """Between two looks, by years, or to what it is without a battery: no drain, and not a word."""
    slot = h100(NODE).gpus[2].bus_id[4:-2].lower()
    hooked.log(f"NVRM: Xid (PCI:{slot}): 31, pid=77, name=python, Ch 00000008, MMU Fault")
    assert hooked.run("healthcheck", "--periodic", env=clock.environ).code == 0
    clock.set(round(5 - time.time()) if years is None else years * YEAR_S)
    for occasion in ("prolog", "healthcheck"):
        told = hooked.run(occasion, "--json", env=clock.environ)
        assert (told.code, told.log, told.unfit()) == (0, (), {})
        assert told.document["time"][:4] != f"{datetime.now(UTC):%Y}"
    assert slurm.seen == (IDLE, "")


def test_a_drain_heals_whatever_the_date(hooked: Hooked, slurm: FakeSlurm, clock: Clock) -> None:
    """Set back by a year, its drain is of the future, and has stood as long as it has."""
    hooked.become(h100(NODE).counted(2, "margin_c", -2))
    assert hooked.run("healthcheck", env=clock.environ).code == 1
    assert slurm.seen[0] == OUT
    clock.set(-YEAR_S)
    hooked.become(h100(NODE))
    assert hooked.run("healthcheck", env=clock.environ).code == 0
    assert slurm.seen == (IDLE, "")


def test_a_drain_stands_whatever_the_date(hooked: Hooked, slurm: FakeSlurm, clock: Clock) -> None:
    """Set ahead by a year, ten minutes have not passed."""
    text = hooked.config.read_text()
    hooked.config.write_text(text.replace("undrain_after_s = 0", "undrain_after_s = 600"))
    hooked.become(h100(NODE).counted(2, "margin_c", -2))
    assert hooked.run("healthcheck", env=clock.environ).code == 1
    clock.set(YEAR_S)
    hooked.become(h100(NODE))
    assert hooked.run("healthcheck", env=clock.environ).code == 0
    assert slurm.seen[0] == OUT


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


def parent_of(pid: int) -> int:
    """Who started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
