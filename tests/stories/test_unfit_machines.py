"""Four machines whose GPUs are well and which are unfit all the same, judged in one run."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.lab import unfit
from tests.lab.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

BUSY = {"foreign_cpus_least": 0.01, "foreign_cpus_percent": 0.1}
"""So that a process which must share two CPUs with this test is seen all the same."""


@pytest.mark.proves("host.memlock", finds="a login with 64 KiB that root cannot exceed")
@pytest.mark.proves("host.nofile", finds="a login with 300 files")
@pytest.mark.proves("host.dimms", finds="a tenth of the memory of its peers")
@pytest.mark.proves("host.memory", finds="2 MiB available")
@pytest.mark.proves("host.shm", finds="a full /dev/shm")
@pytest.mark.proves("host.governor", finds="64 CPUs under powersave")
@pytest.mark.proves("host.drift", finds="other CPUs online than its peers")
@pytest.mark.proves("host.cgroup", finds="a control group that grants few of many CPUs")
@pytest.mark.proves("host.disk", finds="a home without a byte free")
@pytest.mark.proves("host.clock", finds="a clock that is an hour ahead")
@pytest.mark.proves(
    "host.mounts", finds="a mounted FUSE file system with a server that never answers"
)
@pytest.mark.proves("host.load", finds="a process that is always running")
@pytest.mark.proves("ib.pcie", finds="a NIC on 8 lanes of 16")
@pytest.mark.proves("net.ethernet", finds="an MTU that is smaller than its peers'")
def test_each_machine_is_unfit_in_its_own_way(
    preflight: Callable[..., Told], lab: Lab, tmp_path: Path
) -> None:
    """Every fault is found on its host and nowhere else, and the hung mount hangs nobody."""
    clock = Clock(tmp_path)
    clock.set(3600)
    changes = {
        "h1": {"python": unfit.SMALL_LIMITS},
        "h3": {"python": clock.python},
        "h4": {"limits": BUSY},
    }
    h1, h2, h3, h4 = lab.hosts.values()
    with ExitStack() as planted:
        planted.enter_context(unfit.little_memory(h1))
        planted.enter_context(unfit.full(h2, "/dev/shm"))
        planted.enter_context(unfit.bad_dimm(h2))
        planted.enter_context(unfit.full(h3, h3.folder / "home"))
        planted.enter_context(unfit.hung_server(h4, h4.folder / "nas"))
        planted.enter_context(unfit.small_frames(h1))
        planted.enter_context(unfit.loose_nic(h4))
        hog = planted.enter_context(unfit.hog(h4))
        inventory = lab.inventory(node=changes)
        told = preflight(f"--preflight-inventory={inventory}", "-m", "preflight_facts")
    assert told.exit == 1
    assert told.found() == {
        ("host.memlock", "h1"), ("host.nofile", "h1"),
        ("host.dimms", "h1"), ("host.memory", "h1"), ("net.ethernet", "h1"),
        ("host.shm", "h2"), ("host.dimms", "h2"), ("host.governor", "h2"),
        ("host.drift", "h2"), ("host.cgroup", "h2"),
        ("host.disk", "h3"), ("host.clock", "fleet:all"),
        ("host.mounts", "h4"), ("host.load", "h4"), ("ib.pcie", "h4"),
    }  # fmt: skip
    said = " ".join(told.out.split())
    for words in (
        "64 KiB may be locked: the limit of our login; the job's may differ; 3 of 4 nodes",
        "eth0: MTU 1400, 1500 on 3 of 4 nodes of group",
        "mlx5_3: PCIe 5 x8, PCIe 5 x16 on 3 of 4 nodes of group",
        "0 MiB of 100 MiB of /dev/shm are free",
        "1 uncorrected error on CPU0_DIMM_A1, 0 expected",
        "64 CPUs under powersave (intel_pstate) of 64; performance is expected",
        " s ahead of the 4 of 5 that agree",
        f"{h3.folder / 'home'}: No space left on device",
        f"{h4.folder / 'nas'} (fuse.nas, nas1:/export) gave no answer within 5 s",
        f"pid {hog.pid} (python",
    ):
        assert words in said, words
    assert told.report["fleet"]["not_ready"] == ["h1", "h2", "h3", "h4"]
