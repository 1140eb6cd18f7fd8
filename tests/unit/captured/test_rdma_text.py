"""ibstat, ibstatus, `rdma link`, perfquery and trees of /sys, as pasted, meet the live judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured import Captured, rdma_ports
from preflight.checks.rdma.ports import ports_of
from preflight.commands.read import captured, judge_captured
from preflight.verdict import Outcome
from tests.unit.captured.sound import sound


def read(text: str) -> Captured | None:
    """The first thing in a text that its tools printed."""
    return next(rdma_ports.read(text), None)


CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "ib"
CASES = sorted(p for p in CORPUS.glob("*.json") if not p.name.endswith(".sysfs.json"))
NO_RDMA = {
    "azhpc_ethtool_hyperv_54000",
    "gcm_sysfs_eth_learn_degraded_intf",
    "gcm_sysfs_eth_learn_mtu_bad",
    "ibexp_ibnetdiscover_test",
    "ibexp_ibswinfo_test1",
    "mlx5_ethtool_S_overload_discards",
    "superbench_ibnetdiscover_topology",
}
"""Cases of no RDMA port of a node: test_ethernet_texts.py, test_fabric_texts.py."""

NOT_ACTIVE = {
    "gcm_sysfs_learn_ib_intf_bad_rate": "ib.rate",
    "gcm_sysfs_learn_ib_intf_operstate_down": "ib.port",
    "gcm_sysfs_learn_stuck_ib_intf": "ib.port",
}


def verdicts(text: str) -> dict[str, tuple[Outcome, str]]:
    """What the checks say of a text, by check."""
    entries = judge_captured({"node": captured(text)})
    return {one.check: (one.verdict.outcome, one.verdict.sentence) for one in entries}


def ibstat(*ports: tuple[str, str], rate: str = "400", layer: str = "InfiniBand") -> str:
    """What ibstat prints of one device per (state, physical state)."""
    return "\n".join(
        f"CA 'mlx5_{at}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n"
        f"\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n"
        f"\t\tSM lid: 1\n\t\tLink layer: {layer}"
        for at, (state, physical) in enumerate(ports)
    )


UP = ("Active", "LinkUp")


@pytest.mark.proves("ib.port", passes="a pasted ibstat of eight active ports")
@pytest.mark.proves("ib.port", finds="a port that searches for a partner in a pasted ibstat")
def test_a_pasted_ibstat() -> None:
    """Judged by its own peers; tabs may be blanks."""
    whole = ibstat(*[UP] * 8)
    said = verdicts(whole)
    assert {check: outcome for check, (outcome, _) in said.items()} == dict.fromkeys(
        ("ib.count", "ib.port", "ib.rate", "ib.firmware"), Outcome.OK
    )
    bad = verdicts(ibstat(*[UP] * 7, ("Down", "Polling")).expandtabs(4))["ib.port"]
    assert bad == (
        Outcome.FAIL,
        "mlx5_7/1 is DOWN (Polling); 7 of 8 ports of its kind are ACTIVE",
    )
    off = verdicts(ibstat(*[UP] * 7, ("Down", "Disabled")))["ib.port"]
    assert off[0] is Outcome.WARN


@pytest.mark.proves("ib.port", finds="a pasted ibstat without any InfiniBand port that is up")
def test_ports_of_which_none_is_up() -> None:
    """InfiniBand that finds no partner is a fault; what may be unused is not told healthy."""
    seeks = ("Down", "Polling")
    for whole in (ibstat(seeks, rate="10"), ibstat(*[seeks] * 8)):
        assert verdicts(whole)["ib.port"][0] is Outcome.FAIL
    # The missing part may hold a port that is up.
    assert verdicts(ibstat(seeks) + "\nCA 'mlx5_8'")["ib.port"][0] is Outcome.UNKNOWN
    assert verdicts(ibstat(*[UP] * 4, *[seeks] * 4))["ib.port"][0] is Outcome.WARN
    assert verdicts(ibstat(seeks, layer="Ethernet"))["ib.port"][0] is Outcome.UNKNOWN
    line = "link mlx5_2/1 state DOWN physical_state DISABLED netdev rdma2\n"
    assert verdicts(line)["ib.port"][0] is Outcome.UNKNOWN
    beside = line + "link mlx5_3/1 state ACTIVE physical_state LINK_UP netdev rdma3\n"
    assert verdicts(beside)["ib.port"][0] is Outcome.OK


@pytest.mark.proves("ib.port", finds="an active port whose link recovers from errors")
def test_an_active_port_whose_link_trains_anew() -> None:
    """Active is what the subnet manager set; the link itself was not up at that moment."""
    said = verdicts(ibstat(*[UP] * 7, ("Active", "LinkErrorRecovery")))["ib.port"]
    assert said == (
        Outcome.WARN,
        "mlx5_7/1 is ACTIVE (LinkErrorRecovery), expected LinkUp",
    )


@pytest.mark.proves("ib.port", unknown="a pasted ibstat that was cut off, or holds an error only")
@pytest.mark.parametrize(
    "text",
    [
        ibstat(*[UP] * 8)[:-20],
        ibstat(*[UP] * 8)[:-120],
        ibstat(*[UP] * 7, ("Activ", "LinkUp")),
        ibstat(UP) + ibstat(UP),
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n",
        "ibpanic: [3571] main: stat of IB device 'mlx5_0' failed: Invalid argument",
        "Fatal error:  device '*': sys files not found (/sys/class/infiniband/*/ports)",
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev rdma0\nlink mlx5_1/1 stat",
    ],
)
def test_damaged_texts(text: str) -> None:
    """None of them passes."""
    said = verdicts(text)
    assert said
    assert {outcome for outcome, _ in said.values()} <= {Outcome.UNKNOWN}


@pytest.mark.parametrize(
    "error",
    [
        "ibpanic: [70412] main: stat of IB device 'mlx5_8' failed: No such file or directory",
        "ibwarn: [70412] umad_get_ca: can't read mlx5_8",
        "Fatal error:  device 'mlx5_8': sys files not found (/sys/class/infiniband/mlx5_8/ports)",
    ],
)
def test_an_error_after_good_ports(error: str) -> None:
    """The device that the tool could not look at may be the sick one."""
    said = verdicts(f"{ibstat(*[UP] * 8)}\n{error}\n")
    assert {outcome for outcome, _ in said.values()} == {Outcome.UNKNOWN}
    heading = verdicts(f"ibstat:\n{ibstat(*[UP] * 8)}\n")
    assert {outcome for outcome, _ in heading.values()} == {Outcome.OK}


def test_a_firmware_that_was_masked() -> None:
    """A version has a digit; else it is not told, and unknown."""
    masked = verdicts(ibstat(UP).replace("28.39.1002", "..."))["ib.firmware"]
    assert masked[0] is Outcome.UNKNOWN


def test_one_port_of_ibstat() -> None:
    """`ibstat CA PORT` tells of one port, and nothing of the others: no ground to fail a node."""
    text = "CA: 'mlx4_3'\nPort 2:\n" + "\n".join(
        line.strip() for line in ibstat(("Down", "Polling"), rate="10").splitlines()[5:]
    )
    assert verdicts(text)["ib.port"][0] is Outcome.WARN
    up = verdicts(text.replace("Down", "Active").replace("Polling", "LinkUp"))
    assert set(up) == {"ib.port", "ib.rate"}
    assert up["ib.port"] == (Outcome.OK, "1 port ACTIVE")
    older = text.replace("Link layer: InfiniBand", "Port GUID: 0x1")
    assert verdicts(older)["ib.port"][0] is Outcome.UNKNOWN


def test_two_hosts_in_one_text() -> None:
    """Ports of one name on two hosts are two ports."""
    line = "link mlx5_0/1 state {} physical_state LINK_UP netdev rdma0 \n"
    text = f"node-a\n{line.format('ACTIVE')}node-b\n{line.format('INIT')}"
    found = next(rdma_ports.parse_ports(text), None)
    assert found is not None
    assert [nic.name for nic in found.facts.nics or ()] == ["mlx5_0", "node-b mlx5_0"]


def test_perfquery_in_words_of_sysfs() -> None:
    """Counters of both forms come out under sysfs's names; selectors and traffic do not."""
    head = "# Port extended counters: Lid 7 port 1 (CapMask: 0x5A00)\nPortSelect:......1\n"
    lines = "SymbolErrorCounter:....3\nVL15Dropped:..0\nPortXmitWait:...9\nQP1Dropped:..1\n"
    found = rdma_ports.parse_perfquery(head + "CounterSelect:...0x0000\n" + lines)
    assert found is not None
    (port,) = (found.facts.nics or ())[0].ports
    assert port.counters is not None
    assert {one.name: one.value for one in port.counters.nonzero} == {
        "symbol_error": 3,
        "qp1_dropped": 1,
    }
    assert (port.counters.read, found.damaged) == (3, "")
    bare = rdma_ports.parse_perfquery(head)
    assert bare is not None
    assert bare.damaged == "lid 7 has no error counter"
    cut = rdma_ports.parse_perfquery(head + lines[:-2])
    assert cut is not None
    assert "QP1Dropped" in cut.damaged
    names = "LinkErrorRecoveryCounter PortRcvRemotePhysicalErrors ExcessiveBufferOverrunErrors"
    assert [rdma_ports.sysfs_counter(name) for name in names.split()] == [
        "link_error_recovery",
        "port_rcv_remote_physical_errors",
        "excessive_buffer_overrun_errors",
    ]


STANDARD = """# Port counters: Lid 61 port 9 (CapMask: 0x1300)
PortSelect:......................9
CounterSelect:...................0x0000
SymbolErrorCounter:..............0
LinkDownedCounter:...............2
PortRcvErrors:...................0
VL15Dropped:.....................0
PortXmitData:....................7123
"""


@pytest.mark.proves("ib.errors", passes="a pasted perfquery with few errors")
@pytest.mark.proves("ib.errors", unknown="a pasted perfquery that was cut off")
def test_perfquery_that_was_cut() -> None:
    """Counters that are missing may be the bad ones; chosen lines without a selector are enough."""
    said = verdicts(STANDARD)["ib.errors"]
    assert said == (
        Outcome.OK,
        "4 error counters of 1 port at rest, but for 1 too few to matter",
    )
    last = STANDARD.index("VL15")
    for end in (last, STANDARD.index("PortRcv"), last - 34):
        assert verdicts(STANDARD[:end])["ib.errors"][0] is Outcome.UNKNOWN
    both = STANDARD[:last] + STANDARD.replace("Lid 61", "Lid 62")
    assert verdicts(both)["ib.errors"][0] is Outcome.UNKNOWN
    chosen = STANDARD.replace("PortSelect:......................9\n", "")
    assert verdicts(chosen[: chosen.index("VL15")])["ib.errors"][0] is Outcome.OK
    details = "# PortRcvErrorDetails counters: Lid 61 port 9\nPortSelect:...9\nPortInErrors:..0\n"
    assert verdicts(STANDARD + details)["ib.errors"][0] is Outcome.OK


def tree(**files: str) -> str:
    """One device with a port and an interface, as a collector writes it."""
    base = "/sys/bus/pci/devices/0000:0c:00.0"
    port = {"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec (4X NDR)\n"}
    whole = {f"{base}/infiniband/mlx5_0/ports/1/{name}": text for name, text in port.items()}
    return json.dumps({**whole, f"{base}/net/ib0/operstate": "up\n", **files})


def test_a_tree_of_sysfs() -> None:
    """Ports, interface and counters; a tree that is cut is damaged, another JSON is none."""
    found = rdma_ports.parse_sysfs(tree())
    assert found is not None
    assert found.facts.network is not None
    assert [one.name for one in found.facts.network.interfaces or ()] == ["ib0"]
    assert found.damaged == ""
    assert [port.name for port in ports_of(read(tree()).facts)] == ["mlx5_0/1"]  # type: ignore[union-attr]
    assert read(tree()[:-40]).damaged  # type: ignore[union-attr]
    assert rdma_ports.parse_sysfs('{"a": 1}') is None
    assert rdma_ports.parse_sysfs("{") is None


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin-1"))))
def test_no_text_breaks_a_reader(text: str) -> None:
    """Whatever it is, it is not of the kind, or read as facts that hold together; no port is up."""
    for prefix in (
        "",
        "CA '",
        "CA 'x'\n Port 1:\n",
        "# Port counters: Lid 1 port 1\n",
        "link x/1 ",
    ):
        said = sound(read(prefix + text))
        assert Outcome.OK not in {one.outcome for one in said.values()}


def test_a_name_that_would_steer_a_terminal_is_read_without_its_escapes() -> None:
    """Coloured output is read; what else is no letter of a name stays out of every sentence."""
    coloured = (
        "link \x1b[1mmlx5_0\x1b[0m/1 state \x1b[31mDOWN\x1b[0m physical_state POLLING netdev x\n"
    )
    found = read(coloured)
    assert found is not None
    assert [port.name for port in ports_of(found.facts)] == ["mlx5_0/1"]
    for text in ("CA '\x1b[2Jx\x07'\n", tree().replace("mlx5_0", "\\u001b[2Jmlx5_0\\u0007")):
        said = sound(read(text))
        assert said
        assert "[2J" not in "".join(one.sentence for one in said.values())


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_a_tree_of_anything_is_sound(more: dict[str, str]) -> None:
    """Any name of a device and any content of its files: JSON may hold every character."""
    port = "/sys/a/infiniband/{}/ports/1/state"
    sound(read(json.dumps({port.format(name): content for name, content in more.items()})))


@given(st.integers(0, 1200))
def test_a_cut_text_never_passes(at: int) -> None:
    """Wherever ibstat is cut within a device, nothing of it is told healthy."""
    whole = ibstat(*[UP] * 8)
    text = whole[: len(whole) - 1 - at]
    found = read(text)
    if found is None or not found.facts.nics:
        return
    devices = text.count("CA '")
    assert found.damaged or text.rstrip() == ibstat(*[UP] * devices)


@pytest.mark.corpus
@pytest.mark.parametrize("label", CASES, ids=lambda path: path.stem)
def test_every_label_is_met(label: Path) -> None:
    """Ports that are down are seen as such, and condemned only where that is a fault."""
    told: dict[str, Any] = json.loads(label.read_text(encoding="utf-8"))
    text = (CORPUS.parent / told["file"]).read_text(encoding="utf-8", errors="replace")
    found = read(text)
    if label.stem in NO_RDMA:
        assert found is None
        return
    assert found is not None
    assert not found.damaged
    down = {p.nic.name for p in ports_of(found.facts) if p.state and not p.active}
    if "ports_down" in told or "down" in told:
        assert down == set(told.get("ports_down") or told.get("down") or ())
    rows = {(row["ca"], row["port"]): row for row in told.get("ports", ())}
    for port in ports_of(found.facts) if rows else ():
        row = rows[port.nic.name, port.port.port]
        assert port.port.state.upper().endswith(row.get("state", "ACTIVE").upper())
        assert port.port.rate.startswith(row.get("rate", ""))
    said = verdicts(text)
    if faulty := NOT_ACTIVE.get(label.stem):
        assert said[faulty][0] is Outcome.FAIL
        return
    assert {outcome for outcome, _ in said.values()} <= {Outcome.OK, Outcome.UNKNOWN}
    assert "ib.port" not in said or said["ib.port"][0] is Outcome.OK


def test_a_port_without_a_link_has_peers_where_no_board_is_printed() -> None:
    """`rdma link` names no board: a port that is on and searches is in doubt; one off is not."""

    def links(state: str, number: int = 8) -> str:
        return "".join(
            f"link mlx5_{at}/1 state {'DOWN' if at == 3 else 'ACTIVE'} "
            f"physical_state {state if at == 3 else 'LINK_UP'} netdev rdma{at} \n"
            for at in range(number)
        )

    sentence = "mlx5_3/1 is DOWN (POLLING); 7 of 8 such ports are ACTIVE"
    assert verdicts(links("POLLING"))["ib.port"] == ("warn", sentence)
    assert verdicts(links("DISABLED"))["ib.port"][0] == "ok"
