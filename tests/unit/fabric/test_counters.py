"""Counters that moved under a pair's load are reported; what cannot be read is absent."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sweep import counters, transports

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
    from collections.abc import Callable, Iterator

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
    assert dict(counters.table(text.splitlines())) == {
        "Tcp: RtoMin": 200, "Tcp: RetransSegs": 33, "Udp: InErrors": 4,
    }  # fmt: skip
    assert set(counters.tcp()) == {"tcp retrans_segs", "tcp timeouts"}
    assert set(counters.ethernet("/sys", "lo")) >= {"lo rx_errors", "lo tx_errors"}


def test_what_moved_is_reported_once_and_bounded() -> None:
    """Growth only; a throttle reason as it holds; a counter that appeared says nothing."""
    before = {"counters": {"a": 3.0, "b": 5.0, "c": 9.0}, "throttled": []}
    after = {
        "counters": {"a": 4.0, "b": 5.0, "c": 1.0, "new": 8.0, "Xid 79 0000:1b:00": 1.0},
        "throttled": ["GPU 3 throttle hw_thermal"],
    }
    own: Any = SimpleNamespace(owns=lambda name: name != "a")
    assert counters.changes(before, after, own) == [
        {"name": "Xid 79 0000:1b:00", "by": 1.0},
        {"name": "GPU 3 throttle hw_thermal", "by": 1},
        {"name": "a", "by": 1.0, "assigned": False},
    ]
    many = {"counters": dict.fromkeys(map(str, range(500)), 0.0), "throttled": []}
    more = {"counters": dict.fromkeys(map(str, range(500)), 1.0), "throttled": []}
    assert len(counters.changes(many, more, own)) == counters.MOST_COUNTERS


def test_xids_are_counted_from_when_the_log_was_opened(tmp_path: Path) -> None:
    """Old ones are no news; of a rail's own GPU only its own; an unreadable log holds none."""
    line = "6,{},5,-;NVRM: Xid (PCI:0000:{}:00): {}, pid=7, GPU has fallen off the bus.\n"
    log = tmp_path / "kmsg"
    log.write_text(line.format(1, "1b", 31))
    kernel = counters.KernelLog(str(log))
    with log.open("a") as writing:
        writing.write(line.format(2, "1b", 79) + "6,3,5,-;eth0: link up\n")
        writing.write(line.format(4, "43", 94) + line.format(5, "43:00 GPU-I", 94))
        claimed = "x;NVRM: Xid (PCI:0000:43:00): 79, "
        writing.write(f"3,6,5,-;NVRM: API mismatch\\x0aNVRM: has the version {claimed}\n")
    assert kernel.xids(None) == {"Xid 79 0000:1b:00": 1, "Xid 94 0000:43:00": 2}
    assert kernel.xids("0000:43:00.0") == {"Xid 94 0000:43:00": 2}
    assert counters.KernelLog(str(tmp_path / "none")).xids(None) == {}


@contextmanager
def watching_over(tree: Path) -> Iterator[counters.Watch]:
    """Its processes, which end with the measuring process, end with the test."""
    one = counters.Watch(str(tree))
    yield one
    for reader in one._readers:
        reader.end()


def stuck(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A NIC's firmware holds for ever whoever reads this counter."""
    monkeypatch.setattr(counters, "PATIENCE_S", 0.3)
    counter = tree / "class/infiniband/mlx5_0/ports/1/counters/link_downed"
    counter.unlink()
    os.mkfifo(counter)
    return counter


@pytest.mark.slow
def test_a_nic_that_never_answers_costs_four_waits_and_no_pair(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process has no more luck: readings are given up, and each account says so."""
    stuck(tree, monkeypatch)
    with watching_over(tree) as watching:
        unread = [watching.read(ALL)["unread"] for _ in range(6)]
        assert watching._number == 4
        late = "error counters were not read: no answer within 0.3 s"
        given_up = late + ", nor from a second process: no further readings"
        assert unread == [late] * 3 + [given_up] * 3
        reported = watching.since(watching.read(ALL), transports.Transport(None, gloo_rail()))
        assert reported == {"moved": [], "unread": given_up}


@pytest.mark.slow
def test_a_reader_that_hangs_is_replaced(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NIC that answers again later is read again."""
    counter = stuck(tree, monkeypatch)
    with watching_over(tree) as watching:
        assert all("unread" in watching.read(ALL) for _ in range(2))
        counter.unlink()
        counter.write_text("3\n")
        monkeypatch.setattr(counters, "PATIENCE_S", DEADLINE_S)
        assert watching.read(ALL)["counters"]["mlx5_0/1 link_downed"] == 3


def test_a_reader_that_died_is_replaced(tree: Path) -> None:
    """It was killed: the next reading comes from the one that stood by."""
    with watching_over(tree) as watching:
        os.kill(watching._readers[0]._pid, signal.SIGKILL)
        assert watching.read(ALL) == {
            "unread": "error counters were not read: the reading process ended"
        }
        assert "counters" in watching.read(ALL)


def test_the_reader_tells_what_moved_between_two_readings(tree: Path) -> None:
    """A real reading process over a tree that changes."""
    whose: Any = SimpleNamespace(owns=bool, question=lambda: ALL, unplaced="")
    with watching_over(tree) as watching:
        before = watching.read(ALL)
        sysfs.count(tree, "mlx5_5", "link_downed", 1)
        reported = watching.since(before, whose)
    assert {"name": "mlx5_5/1 link_downed", "by": 1.0} in reported["moved"]
    assert reported["unread"] == ""


@pytest.mark.parametrize("gpu", [0, 3, 7])
@pytest.mark.slow
def test_a_rails_nic_is_the_one_next_to_its_gpu(tree: Path, gpu: int) -> None:
    """Under the same switch; none where that NIC's port is down or the job excludes it."""
    bus_id = h100("h1").gpus[gpu].path[-1]
    assert transports.nearest(str(tree), bus_id) == (f"mlx5_{gpu}",)
    assert transports.nearest(str(tree), bus_id, f"^mlx5_{gpu}") == ()
    (tree / f"class/infiniband/mlx5_{gpu}/ports/1/state").write_text("1: DOWN\n")
    assert transports.nearest(str(tree), bus_id) == ()
    assert transports.nearest("/nonexistent", bus_id) == ()


def gloo_rail() -> Any:
    """A rail over TCP."""
    return SimpleNamespace(go=SimpleNamespace(backend="gloo", interface="eth0"), local="127.0.0.1")


def nccl_means(
    tree: Path, monkeypatch: pytest.MonkeyPatch, rail: int, log: str, *, known: bool = True
) -> transports.Transport:
    """A rail of a machine under NCCL, after a pair of which its log says this."""
    for name in ("NCCL_IB_HCA", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
    domain, bus, _ = h100("h1").gpus[rail].path[-1].split(":")
    tells = {"pci_domain_id": int(domain, 16), "pci_bus_id": int(bus, 16), "pci_device_id": 0}
    props = SimpleNamespace(**tells if known else {})
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: props))
    monkeypatch.setattr(transports, "_ask_driver", lambda _: None)
    go = SimpleNamespace(backend="nccl", sysfs=str(tree))
    own: Any = SimpleNamespace(go=go, rail=rail, gpu=rail)
    found = transports.Transport(torch, own, transports.NcclLog())
    found.prepare()
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(log)
    found.words()
    return found


def nccl_log(device: str) -> str:
    """What NCCL writes of a pair over one of two devices."""
    head = "h1:1:1 [0] NCCL INFO "
    lines = (
        "NET/IB : Using [0]mlx5_2:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.41<0>",
        f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{device}/GDRDMA",
    )
    return "".join(f"{head}{line}\n" for line in lines)


def test_counters_of_the_nic_next_to_the_gpu_are_its_rails(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the log says nothing; those of the host's TCP are everybody's."""
    own = nccl_means(tree, monkeypatch, 3, "")
    assert own.question() == {"bus_id": "0000:61:00.0", "devices": ("mlx5_3",), "interface": ""}
    assert own.owns("mlx5_3/1 symbol_error")
    assert own.owns("GPU 3 pcie_replay")
    assert own.owns("Xid 79 0000:61:00")
    assert not own.owns("mlx5_2/1 symbol_error")
    assert own.unplaced == ""


def test_without_a_pci_tree_the_log_tells_whose_nic_it_is(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A VM shows all devices below one root: another rail's NIC is not held against this one."""
    sysfs.flatten(tree)
    own = nccl_means(tree, monkeypatch, 3, nccl_log("1"))
    assert own.question()["devices"] is None
    assert own.owns("mlx5_3/1 symbol_error")
    assert not own.owns("mlx5_2/1 symbol_error")
    own.prepare()  # for the next pair, which broke off before NCCL logged anything
    assert not own.owns("mlx5_3/1 symbol_error")


def test_of_several_nics_as_near_the_log_tells_which(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four GPUs and four NICs below one switch: all are as near."""
    monkeypatch.setattr(transports, "nearest", lambda *_: ("mlx5_2", "mlx5_3"))
    own = nccl_means(tree, monkeypatch, 3, nccl_log("0"))
    assert (own.owns("mlx5_2/1 link_downed"), own.owns("mlx5_3/1 link_downed")) == (True, False)


def test_a_gpu_with_unknown_address_is_reported_as_not_checked(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of all GPUs are read, and none is this rail's."""
    own = nccl_means(tree, monkeypatch, 3, nccl_log("1"), known=False)
    assert own.question() == {"bus_id": None, "devices": None, "interface": ""}
    assert not own.owns("GPU 3 pcie_replay")
    assert not own.owns("Xid 79 0000:61:00")
    assert own.owns("mlx5_3/1 symbol_error")
    with watching_over(tree) as watching:
        reported = watching.since(watching.read(own.question()), own)
    assert reported == {"moved": [], "unread": transports.UNPLACED}


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
    assert {name for name in names if transports.permits(spec, name)} == permitted


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
    reported = scenario.with_suffix(".new")
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
            reported.write_text(hot.counted(6, "nvlink2_crc_flit", value).text())
            reported.replace(scenario)
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
        "GPU 3 pcie_replay", "GPU 3 throttle hw_thermal", "GPU 6 nvlink2_crc",
        "mlx5_1/1 symbol_error",
    }  # fmt: skip
    assert not any(name.startswith("GPU") for name in moved["h1"])
    loose = {each.name for each in ends["h2"].moved if not each.assigned}
    assert loose >= {"GPU 3 pcie_replay", "mlx5_1/1 symbol_error"}, "gloo goes over none of them"
    assert {end.net for end in ends.values()} == {"tcp lo"}


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="the sweep needs torch")
def test_the_node_that_hosts_the_store_reads_its_counters_too(tree: Path) -> None:
    """At each fork libuv closes the pipe of its own by number, also where that is another's now."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(counters.__file__).parents[1])!r})
import torch.distributed as dist
import children; from sweep import counters as watch
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
reading, writing = os.pipe()
pid = os.fork()
if not pid:
    children.close_all_but({{writing}})
    found = watch.Watch({str(tree)!r}).read({ALL!r})
    os.write(writing, found.get("unread", "read").encode())
    os._exit(0)
os.waitpid(pid, 0)
print(os.read(reading, 99).decode())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "read"
