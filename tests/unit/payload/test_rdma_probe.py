"""What the probe reads of RDMA ports, PCIe settings, interfaces and names, from real files."""

from __future__ import annotations

import errno
import os
import threading
import time
from json import dumps
from typing import TYPE_CHECKING

import pytest
from msgspec.json import decode
from probe import network, node_files, rdma
from probe import network as probed
from probe.node_files import attempt as read

from preflight.checks.rdma.port_faults import port_errors
from preflight.core.thresholds import SHIPPED
from preflight.facts.model import Nic
from preflight.facts.node_network import GpuDirect, Network, PcieLink

from .node import Remote
from .test_probe import probe

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Facts
    from tests.lab.nvml.scenario import Scenario

    from .conftest import Machine

pytestmark = pytest.mark.slow


@pytest.fixture
def healthy() -> Scenario:
    """Return a machine of eight H100 and eight InfiniBand NICs."""
    from tests.lab.nvml.scenario import h100

    return h100("h1")


def facts_of(env: dict[str, str], tmp_path: Path, **more: object) -> Facts:
    """Return what the probe says of the machine that was made."""
    return probe(Remote("probe", env=env), sysfs=str(tmp_path / "sys"), **more)


@pytest.mark.parametrize("call", ["open", "stat", "lstat", "readlink"])
def test_a_place_that_cannot_be_read_differs_from_none(
    machine: Machine,
    healthy: Scenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """A device without a slot has none; of another one a call may fail, as for want of memory."""
    machine(healthy)
    device = str(tmp_path / "sys" / "class" / "infiniband" / "mlx5_3" / "device")
    assert node_files.pci_path(device + "/none") is None
    place = node_files.pci_path(device)
    assert (place or [""])[-1].endswith(".0")
    real = getattr(os, call)

    def fail(path: str, *given: int, **more: bool) -> object:
        if path.endswith("/device") or path.startswith("/proc/self/fd/"):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(path, *given, **more)

    monkeypatch.setattr(os, call, fail)
    assert node_files.pci_path(device) in ([], place)


def test_a_port_that_goes_down_as_it_is_read_has_no_rate(
    machine: Machine, healthy: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pause: the lowest rate of all beside "ACTIVE" would be a slow port."""
    machine(healthy)
    folder = tmp_path / "sys" / "class" / "infiniband" / "mlx5_3"

    def attempt(path: str) -> str:
        if path.endswith("mlx5_3/ports/1/rate"):
            (folder / "ports" / "1" / "state").write_text("1: DOWN\n")
            return "10 Gb/sec (4X SDR)"
        return read(path)

    monkeypatch.setattr(rdma, "attempt", attempt)
    ports = {str(folder): rdma.read_all(str(folder)) for folder in sorted(folder.parent.iterdir())}
    assert [port["rate"] for (port,) in ports.values()].count("") == 1
    assert ports[str(folder)][0]["rate"] == ""


@pytest.mark.proves("ib.errors", passes="counters of an emulated machine, read from its files")
def test_a_healthy_machine(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """Every port has its counters, GID, firmware and PCIe settings; nothing stands in the way."""
    facts = facts_of(machine(healthy), tmp_path)
    assert facts.nics is not None
    nic = facts.nics[0]
    assert (nic.firmware, nic.board, nic.hca_type) == ("28.39.1002", "MT_0000000838", "MT4129")
    assert nic.pcie == PcieLink(32.0, 16, 32.0, 16)
    (port,) = nic.ports
    assert port.counters is not None
    assert (port.counters.read, port.counters.nonzero) == (6, ())
    assert port.counters.apart_s >= 0.25
    assert [gid.kind for gid in port.gids or ()] == ["IB/RoCE v1"]
    direct = facts.gpudirect
    assert direct is not None
    assert (direct.peermem, direct.iommu) == (True, "none")
    assert direct.acs is not None
    assert len(direct.acs) == 16
    assert not any(one.redirects for one in direct.acs)
    assert facts.problems == ()


@pytest.mark.proves("ib.errors", finds="a counter that rises while the probe looks")
def test_a_counter_that_moves(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """Symbol errors that are counted between the two looks are seen as moving."""
    from tests.lab import sysfs

    env = machine(healthy)
    over = threading.Event()

    def count() -> None:
        errors = 0
        while not over.is_set():
            errors += 1
            sysfs.count(tmp_path / "sys", "mlx5_3", "symbol_error", 10_000 + errors)
            time.sleep(0.01)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        facts = facts_of(env, tmp_path)
    finally:
        over.set()
        counting.join()
    (odd,) = port_errors(facts, limit=SHIPPED)
    assert odd.sentence.startswith("mlx5_3/1: symbol_error rose by ")
    assert odd.grave


@pytest.mark.proves("host.pci_acs", finds="the redirect bits of a PCIe port, in its own registers")
def test_pcie_settings(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """One port between a GPU and its NIC redirects; a file that cannot be read hides all."""
    from tests.lab import sysfs

    env = machine(healthy)
    port = healthy.gpus[2].path[-2]
    sysfs.redirect(tmp_path / "sys", port)
    direct = facts_of(env, tmp_path).gpudirect
    assert direct is not None
    assert [one.bus_id for one in direct.acs or () if one.redirects] == [port]
    config = tmp_path / "sys/bus/pci/devices" / port / "config"
    config.write_bytes(config.read_bytes()[:64])
    direct = facts_of(env, tmp_path).gpudirect
    assert direct is not None
    assert direct.acs is None


@pytest.mark.proves("net.master_name", finds="a name that does not resolve, in a real lookup")
def test_names(tmp_path: Path) -> None:
    """The host's own name and the wanted ones; without any wanted, none is looked up."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class/net").symlink_to("/sys/class/net")
    facts = probe(Remote("probe"), sysfs=str(tmp_path), names=["127.0.0.1", "no.such.invalid"])
    assert facts.network is not None
    assert facts.network.own_name is not None
    literal, missing = facts.network.names
    assert (literal.addresses, literal.error) == (("127.0.0.1",), "")
    assert (missing.addresses, bool(missing.error)) == ((), True)
    alone = probe(Remote("probe"), sysfs=str(tmp_path)).network
    assert alone is not None
    assert (alone.own_name, alone.names) == (None, ())


@pytest.mark.proves("net.interface", passes="this machine's own loopback, as the kernel reports it")
def test_interfaces_of_this_machine(tmp_path: Path) -> None:
    """Addresses come from the kernel itself, with the length of their network."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class/net").symlink_to("/sys/class/net")
    network = probe(Remote("probe"), sysfs=str(tmp_path)).network
    assert network is not None
    loopback = next(one for one in network.interfaces or () if one.loopback)
    assert "127.0.0.1/8" in loopback.addresses
    assert network.ephemeral is not None
    assert 0 < network.ephemeral[0] < network.ephemeral[1]


@pytest.mark.proves("net.ethernet", passes="an interface whose files say 25 Gb/s, full duplex")
@pytest.mark.parametrize("bond", [b"bond7", b"bond\xff"])
def test_the_link_of_an_interface(tmp_path: Path, bond: bytes) -> None:
    """Duplex, parts and counters come from files; of link modes the fastest counts.

    Linux takes nearly any bytes for a name.
    """
    folder = tmp_path / "class/net" / os.fsdecode(bond)
    files = {
        "ifindex": "7", "flags": "0x1003", "mtu": "9000", "speed": "25000", "duplex": "full",
        "operstate": "up", "device/x": "", "lower_eth1/x": "", "lower_eth2/x": "",
        "statistics/rx_packets": "12", "statistics/rx_crc_errors": "3",
        "statistics/collisions": "0",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    (one,) = probed.read(str(tmp_path))["interfaces"]
    assert (one["speed_mbits"], one["lower"]) == (25000, ["eth1", "eth2"])
    assert one["ethernet"] == {
        "duplex": "full", "most_mbits": None, "partner_mbits": None, "mtu_wanted": None,
        "counters": [{"name": "rx_packets", "value": 12}, {"name": "rx_crc_errors", "value": 3}],
    }  # fmt: skip
    gigabit, fec, hdr = 1 << 5, 1 << 50, 1 << 66
    assert [network.fastest(mask) for mask in (0, fec, gigabit | fec, gigabit | hdr)] == [
        0, 0, 1000, 200_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "known"),
    [
        (b"veth$x", "veth%24x"),
        (b"a;b`id`", "a%3bb%60id%60"),
        (b"\xff\x1b[31m", "%ff%1b%5b31m"),
        ("vethé".encode(), "vethé"),
    ],
)
def test_a_name_that_a_shell_reads_takes_nothing_else_from_the_answer(
    machine: Machine, healthy: Scenario, tmp_path: Path, odd: bytes, known: str
) -> None:
    """Root may name an interface or an RDMA device so: it has a name of other bytes here."""
    env, sys_ = machine(healthy), tmp_path / "sys"
    name = os.fsdecode(odd)
    for number, each in enumerate(("eth7", name), 1):
        folder = sys_ / "class/net" / each
        folder.mkdir()
        (folder / "ifindex").write_text(f"{number}\n")
        (folder / "lower_").with_name(f"lower_{name}").mkdir()
    device = sys_ / "class/infiniband/mlx5_3"
    device.rename(device.with_name(name))
    facts = probe(Remote("probe", env=env), sysfs=str(sys_))
    assert facts.network is not None
    assert [one.name for one in facts.network.interfaces or ()] == ["eth7", known]
    nics = {one.name: one.ports[0] for one in facts.nics or ()}
    assert known in nics
    assert [port.counters and port.counters.read for port in nics.values()] == [6] * 8
    assert facts.problems == ()


VALUES = (
    b"", b"-1\n", b"9" * 20, b"18446744073709551615\n", b"4294967295\n", b"\xff\xfe\0\x80" * 9999,
    b"\x1b[31m\x07evil\r\n", b"0xzz\n", b"0x1e240_\n", b"999.9 GT/s PCIe", b"x" * 60000,
    "²\u202e😀".encode() * 999, None,
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_no_value_in_sysfs_makes_the_answer_invalid(
    machine: Machine, healthy: Scenario, tmp_path: Path, value: bytes | None
) -> None:
    """Firmware and drivers write them: no file may hold what is no value, or be missing."""
    machine(healthy)
    root = tmp_path / "sys"
    for name in ("ifindex", "flags", "operstate", "mtu", "speed", "carrier_down_count", "duplex"):
        for each in ("eth0", "eth1"):
            (root / "class/net" / each / "statistics").mkdir(parents=True, exist_ok=True)
            (root / "class/net" / each / name).write_text("1\n")
            (root / "class/net" / each / "statistics/collisions").write_text("1\n")
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path != root / "class/net/eth1/ifindex":
            path.unlink() if value is None else path.write_bytes(value)
    for read_all, kind in (
        (rdma.read, tuple[Nic, ...]), (network.read, Network), (rdma.survey, GpuDirect),
    ):  # fmt: skip
        decode(dumps(read_all(str(root))), type=kind)
    assert "eth1" in [one["name"] for one in network.read(str(root))["interfaces"]]


def test_devices_of_a_node_without_sysfs_are_not_known(tmp_path: Path) -> None:
    """A container may hide /sys: that is no node that lost all of its NICs."""
    with pytest.raises(FileNotFoundError):
        rdma.read(str(tmp_path))
    (tmp_path / "class").mkdir()
    assert rdma.read(str(tmp_path)) == []
