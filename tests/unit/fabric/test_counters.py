"""Counters that moved under a pair's load are told of that end; what cannot be read is absent."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from sweep import counters, rail_nic, watch, xids

from preflight.fabric.launch import sweep
from tests.lab import sysfs
from tests.lab.nvml.build import build
from tests.lab.nvml.scenario import h100
from tests.unit.fabric.nodes import (
    DEADLINE_S,
    HAS_TORCH,
    Starter,
    fleet,
    measuring,
    plan,
    states,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Meanwhile = Callable[[Callable[[], None]], None]

ALL = {"bus_id": None, "devices": None, "interface": None}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sysfs tree of a healthy machine."""
    sysfs.write(tmp_path / "sys", h100("h1"))
    return tmp_path / "sys"


def test_only_what_means_trouble_is_read_of_a_nic(tree: Path) -> None:
    """Errors yes; traffic and congestion, which always move, no."""
    sysfs.count(tree, "mlx5_3", "symbol_error", 7)
    sysfs.count(tree, "mlx5_3", "np_cnp_sent", 9)
    found = counters.rdma(str(tree), ["mlx5_3"])
    assert found == {
        "mlx5_3/1 symbol_error": 7, "mlx5_3/1 link_error_recovery": 0, "mlx5_3/1 link_downed": 0,
        "mlx5_3/1 port_rcv_errors": 0, "mlx5_3/1 packet_seq_err": 0,
        "mlx5_3/1 out_of_sequence": 0,
    }  # fmt: skip
    assert len(counters.rdma(str(tree), None)) == 8 * len(found)
    assert counters.rdma("/nonexistent", None) == {}


def test_the_kernels_tables_are_read_by_name() -> None:
    """Names in one line, values in the next, both after the group's name."""
    text = "Tcp: RtoMin MaxConn RetransSegs\nTcp: 200 -1 33\nUdp: InErrors\nUdp: 4\n"
    assert dict(counters.table(text)) == {
        "Tcp: RtoMin": 200, "Tcp: RetransSegs": 33, "Udp: InErrors": 4,
    }  # fmt: skip
    assert set(counters.tcp()) == {"tcp retrans_segs", "tcp timeouts"}
    assert set(counters.ethernet("/sys", "lo")) >= {"lo rx_errors", "lo tx_errors"}


def test_what_moved_is_told_once_and_bounded() -> None:
    """Growth only; a throttle reason as it holds; a counter that appeared says nothing."""
    before = {"counters": {"a": 3.0, "b": 5.0, "c": 9.0}, "throttled": []}
    after = {
        "counters": {"a": 4.0, "b": 5.0, "c": 1.0, "new": 8.0, "Xid 79 0000:1b:00": 1.0},
        "throttled": ["GPU 3 throttle hw_thermal"],
    }
    assert watch.moved(before, after) == [
        {"name": "a", "by": 1.0},
        {"name": "Xid 79 0000:1b:00", "by": 1.0},
        {"name": "GPU 3 throttle hw_thermal", "by": 1},
    ]
    assert watch.moved(None, after) == watch.moved(before, None) == []
    many = {"counters": dict.fromkeys(map(str, range(500)), 0.0), "throttled": []}
    more = {"counters": dict.fromkeys(map(str, range(500)), 1.0), "throttled": []}
    assert len(watch.moved(many, more)) == watch.MOST


def test_xids_are_counted_from_when_the_log_was_opened(tmp_path: Path) -> None:
    """Old ones are no news; of a rail's own GPU only its own; an unreadable log holds none."""
    line = "6,{},5,-;NVRM: Xid (PCI:0000:{}:00): {}, pid=7, GPU has fallen off the bus.\n"
    log = tmp_path / "kmsg"
    log.write_text(line.format(1, "1b", 31))
    kernel = xids.KernelLog(str(log))
    with log.open("a") as writing:
        writing.write(line.format(2, "1b", 79) + "6,3,5,-;eth0: link up\n")
        writing.write(line.format(4, "43", 94) + line.format(5, "43", 94))
    assert kernel.xids(None) == {"Xid 79 0000:1b:00": 1, "Xid 94 0000:43:00": 2}
    assert kernel.xids("0000:43:00.0") == {"Xid 94 0000:43:00": 2}
    assert xids.KernelLog(str(tmp_path / "none")).xids(None) == {}


def test_a_nic_that_never_answers_costs_two_waits_and_no_pair(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its firmware holds the reader for ever: readings are given up, the asker goes on."""
    monkeypatch.setattr(watch, "PATIENCE_S", 0.3)
    counter = tree / "class/infiniband/mlx5_0/ports/1/counters/link_downed"
    counter.unlink()
    os.mkfifo(counter)
    with closing(watch.Watch(str(tree))) as watching:
        assert [watching.read(ALL) for _ in range(5)] == [None] * 5
        assert watching._number == 2


def test_the_reader_tells_what_moved_between_two_readings(tree: Path) -> None:
    """A real reading process over a tree that changes."""
    with closing(watch.Watch(str(tree))) as watching:
        before = watching.read(ALL)
        sysfs.count(tree, "mlx5_5", "link_downed", 1)
        after = watching.read(ALL)
    assert {"name": "mlx5_5/1 link_downed", "by": 1.0} in watch.moved(before, after)


@pytest.mark.parametrize("gpu", [0, 3, 7])
def test_a_rails_nic_is_the_one_next_to_its_gpu(tree: Path, gpu: int) -> None:
    """Under the same switch; none where that NIC's port is down or the job excludes it."""
    bus_id = h100("h1").gpus[gpu].path[-1]
    assert rail_nic.nearest(str(tree), bus_id) == (f"mlx5_{gpu}",)
    assert rail_nic.nearest(str(tree), bus_id, f"^mlx5_{gpu}") == ()
    (tree / f"class/infiniband/mlx5_{gpu}/ports/1/state").write_text("1: DOWN\n")
    assert rail_nic.nearest(str(tree), bus_id) == ()
    assert rail_nic.nearest("/nonexistent", bus_id) == ()


@pytest.mark.parametrize(
    ("spec", "permitted"),
    [
        ("", {"mlx5_1", "mlx5_10", "mlx4_0"}),
        ("mlx5_1", {"mlx5_1", "mlx5_10"}),
        ("=mlx5_1", {"mlx5_1"}),
        ("=mlx5_1:1,mlx4_0", {"mlx5_1", "mlx4_0"}),
        ("^mlx5_1", {"mlx4_0"}),
        ("^=mlx5_1", {"mlx5_10", "mlx4_0"}),
    ],
)
def test_the_jobs_own_choice_of_nics_is_kept_to(spec: str, permitted: set[str]) -> None:
    """NCCL_IB_HCA: prefixes unless "=", all others when "^"."""
    names = {"mlx5_1", "mlx5_10", "mlx4_0"}
    assert {name for name in names if rail_nic.permits(spec, name)} == permitted


@pytest.mark.busy
@pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the NVML emulator")
@pytest.mark.usefixtures("nothing_left")
def test_counters_that_move_in_mid_sweep_are_tied_to_their_end(
    tree: Path, tmp_path: Path, meanwhile: Meanwhile
) -> None:
    """One GPU of h2 replays and is too hot, a NIC loses symbols: both in that pair's account."""
    library = build(tmp_path / "nvml").parent
    scenario = library / "scenarios" / "h2"
    told = scenario.with_suffix(".new")
    scenario.write_text(h100("h2").counted(3, "pcie_replay", 5).text())
    hosts = fleet(2)
    ill = ("env", f"LD_LIBRARY_PATH={library}", f"PREFLIGHT_NVML_SCENARIO={scenario}")
    hosts[1] = msgspec.structs.replace(hosts[1], python=(*ill, sys.executable))
    start = Starter({})

    over = threading.Event()

    def move() -> None:
        wait_for(lambda: measuring(start.talks.get("h2")))
        for value in itertools.count(1):
            hot = h100("h2").counted(3, "pcie_replay", 5 + value).counted(3, "reasons", 0x40)
            told.write_text(hot.counted(6, "nvlink2_crc_flit", value).text())
            told.replace(scenario)
            sysfs.count(tree, "mlx5_1", "symbol_error", value)
            if over.wait(0.1):
                return

    meanwhile(move)
    asked = plan(hosts, long_s=2.0, sysfs=str(tree))
    found = sweep(asked, hosts, start, nonce="moved", deadline_s=DEADLINE_S)
    over.set()
    assert states(found) == {"h1-h2": ("measured", "measured")}
    ends = {end.node: end for pair in found.pairs for end in (pair.first, pair.second) if end}
    moved = {name: {each.name: each.by for each in end.moved} for name, end in ends.items()}
    assert moved["h2"].keys() >= {
        "GPU 3 pcie_replay", "GPU 3 throttle hw_thermal", "GPU 6 nvlink2_crc_flit",
        "mlx5_1/1 symbol_error",
    }  # fmt: skip
    assert not any(name.startswith("GPU") for name in moved["h1"])
    assert {end.net for end in ends.values()} == {"tcp lo"}
