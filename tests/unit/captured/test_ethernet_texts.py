"""ethtool, `ethtool -S` and interfaces as JSON, as pasted, meet the live judge of links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preflight.captured import ethernet
from preflight.commands.read import captured, judge_captured
from preflight.verdict import Outcome
from tests.unit.captured.sound import sound

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "ib"
LABELS = [p for p in sorted(CORPUS.glob("*.json")) if not p.name.endswith(".sysfs.json")]
CASES = [p for p in LABELS if "ethtool" in p.name or "_eth_" in p.name]


def judged(*texts: str) -> list[tuple[Outcome, str]]:
    """What net.ethernet says of each text; they are each other's peers."""
    entries = judge_captured({f"text {at}": captured(text) for at, text in enumerate(texts)})
    assert {entry.check for entry in entries} == {"net.ethernet"}
    return [(entry.verdict.outcome, entry.verdict.sentence) for entry in entries]


def settings(name: str = "ens1", **changes: str) -> str:
    """What ethtool prints of a 100 Gb/s NIC."""
    words = {
        "Supported ports": "[ FIBRE ]",
        "Supported link modes": "25000baseCR/Full\n\t                        100000baseCR4/Full",
        "Supported FEC modes": "RS",
        "Speed": "100000Mb/s",
        "Duplex": "Full",
        "Auto-negotiation": "on",
        "Link detected": "yes",
        **{key.replace("_", " "): value for key, value in changes.items()},
    }
    return f"Settings for {name}:\n" + "".join(f"\t{k}: {v}\n" for k, v in words.items() if v)


@pytest.mark.proves("net.ethernet", passes="a pasted ethtool of a NIC at its full speed")
@pytest.mark.proves("net.ethernet", finds="a slow, half-duplex or lost link in a pasted ethtool")
@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({}, "ok", "ens1: 100 Gb/s, full duplex"),
        ({"Speed": "25000Mb/s"}, "warn", "ens1 runs at 25 Gb/s, its device can do 100 Gb/s"),
        (
            {"Speed": "25000Mb/s", "Link_partner_advertised_link_modes": "100000baseCR4/Full"},
            "fail",
            "ens1 runs at 25 Gb/s, both its ends can do 100 Gb/s",
        ),
        ({"Duplex": "Half"}, "fail", "ens1 runs half duplex"),
        (
            {"Speed": "Unknown!", "Duplex": "Unknown! (255)", "Link_detected": "no (No cable)"},
            "warn",
            "ens1 has no link",
        ),
        ({"Supported_link_modes": "Not reported", "Speed": "54000Mb/s"}, "ok", "54 Gb/s"),
        ({"Supported_link_modes": ""}, "unknown", "nothing says what speed ens1 should have"),
        ({"Link_detected": "ye"}, "unknown", 'has no "Link detected: yes" or "no"'),
        ({"Link_detected": ""}, "unknown", 'has no "Link detected: yes" or "no"'),
    ],
)
def test_a_pasted_ethtool(changes: dict[str, str], outcome: str, words: str) -> None:
    """By what its device and its other end can do."""
    ((seen, sentence),) = judged(settings(**changes))
    assert (seen, words in sentence) == (outcome, True), sentence


def test_several_texts_are_peers() -> None:
    """Three nodes at 100 Gb/s and one at 25: most of them decide."""
    whole = settings()
    said = judged(whole, whole, whole, settings(Speed="25000Mb/s"))
    assert [outcome for outcome, _ in said] == ["ok", "ok", "ok", "fail"]
    assert said[3][1].startswith("ens1 runs at 25 Gb/s, 100 Gb/s on 3 of 4 nodes")


def statistics(**counters: int) -> str:
    """What `ethtool -S` prints of a port that has received a million packets."""
    every = {
        "rx_packets": 10**6,
        "rx_packets_phy": 10**6,
        "rx_crc_errors_phy": 0,
        "rx_discards_phy": 0,
        "rx_prio0_discards": 0,
        **counters,
    }
    lines = "".join(f"     {name}: {value}\n" for name, value in every.items())
    return f"root@gpu7:~# ethtool -S ens1\nNIC statistics:\n{lines}root@gpu7:~# \n"


@pytest.mark.proves("net.ethernet", finds="broken and dropped frames in a pasted ethtool -S")
@pytest.mark.proves("net.ethernet", unknown="a pasted ethtool that is cut, or an error")
@pytest.mark.parametrize(
    ("text", "outcome", "words"),
    [
        (statistics(), "ok", "ens1: no more frames lost than usual"),
        (statistics(rx_crc_errors_phy=700), "warn", "rx_crc_errors_phy 700 of 1000000 packets"),
        (statistics(rx_discards_phy=600_000), "warn", "60 %, under 1000 in a million expected"),
        (statistics(link_down_events_phy=40), "unknown", "40 times, and nothing says since when"),
        (statistics().replace("     rx_discards_phy: 0", "     rx_disc"), "unknown", "rx_disc"),
        (statistics(ch_events=448), "unknown", "ens1 counts over its channels, but lists none"),
        (statistics(ch_events=448, rx0_packets=17), "ok", "no more frames lost than usual"),
        ("NIC statistics:\n     rx_packets: 17\n", "unknown", "no counter of broken or dropped"),
        ("Cannot get device settings: No such device\nNo data available\n", "unknown", "could not"),
        ("netlink error: No such device", "unknown", "could not be read"),
    ],
)
def test_pasted_statistics(text: str, outcome: str, words: str) -> None:
    """Shares of all packets need no date; what is cut proves nothing."""
    ((seen, sentence),) = judged(text)
    assert (seen, words in sentence) == (outcome, True), sentence


def ip_json(*odd: int, mtu: int = 9000, **more: object) -> str:
    """Two links of a bond, as `ip -j` tells them, beside their configuration."""
    rows = [
        {"ifname": name, "mtu": 1500 if at in odd else mtu, "operstate": "UP", "flags": flags,
         "link_type": "ether", **({} if at == 2 else {"master": "bond0"})}
        for at, (name, flags) in enumerate(
            [("ens1", ["UP", "SLAVE"]), ("ens2", ["UP", "SLAVE"]), ("bond0", ["UP", "MASTER"])]
        )
    ]  # fmt: skip
    lo = {"ifname": "lo", "mtu": 65536, "flags": ["LOOPBACK", "UP"], "operstate": "UNKNOWN"}
    return json.dumps({"links": [lo, *rows], **more})


@pytest.mark.proves(
    "net.ethernet", finds="an MTU unlike that of the node's own configuration, in JSON"
)
@pytest.mark.parametrize(
    ("text", "outcome", "words"),
    [
        (ip_json(speed={"ens1": "100000", "ens2": "100000"}), "unknown", "should have"),
        (ip_json(speed={"ens1": 100000, "ens2": 25000}), "fail", "ens2 runs at 25 Gb/s, another"),
        (ip_json(0, cfg={"ens1": {"MTU": "9000"}}), "fail", "MTU 1500, 9000 in its own"),
        (ip_json(cfg={"ens1": {"MTU": "9000"}}), "ok", "MTU 9000"),
        (ip_json(cfg={"ens1": {"MTU": "9000"}, "ens7": {"MTU": "9000"}}), "unknown", "ens7"),
        (ip_json()[:-9], "unknown", "could not be read"),
        ('[{"ifname": "ens1"}]', "unknown", "ens1 has no MTU, speed or state"),
        (
            json.dumps([{"ifname": "ens1", "speed": 10000, "duplex": "Full", "link-detected": True,
                         "supported-link-modes": ["10000baseT/Full"]}]),
            "ok",
            "10 Gb/s, full duplex",
        ),
        (
            json.dumps({"class": "network", "logicalname": "ens1", "capacity": 25 * 10**9,
                        "configuration": {"speed": "10Gbit/s", "duplex": "full", "link": "yes"}}),
            "warn",
            "10 Gb/s, its device can do 25 Gb/s",
        ),
    ],
)  # fmt: skip
def test_interfaces_as_json(text: str, outcome: str, words: str) -> None:
    """Ip -j, a collector's list with speeds beside it, ethtool --json, lshw -json."""
    ((seen, sentence),) = judged(text)
    assert (seen, words in sentence) == (outcome, True), sentence


def test_two_that_differ() -> None:
    """Of two nodes neither is the rule: the slower one is a warning, the faster one unknown."""
    slow, fast = (
        ip_json(speed={"ens1": rate, "ens2": rate}) for rate in ("100000", "200000")
    )  # fmt: skip
    (one, other) = judged(slow, fast)
    assert one[0] is Outcome.WARN
    assert one[1].startswith("ens1 runs at 100 Gb/s, 200 Gb/s on another node")
    assert other[0] is Outcome.UNKNOWN


@pytest.mark.parametrize("text", ["{}", "[1]", '{"ifname": 3}', "[", "Settings for", "NIC stat"])
def test_other_texts_are_not_taken(text: str) -> None:
    """Another JSON is another reader's."""
    assert ethernet.read_ethtool(text) is None
    assert ethernet.read_interfaces_json(text) is None


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda some: st.lists(some, max_size=4)
    | st.dictionaries(
        st.sampled_from(["ifname", "mtu", "flags", "speed", "linkinfo", "stats64", "rx", "class",
                         "logicalname", "addr_info", "local", "MTU", "ens1", "capacity"]),
        some | st.just("ens1") | st.just("e\x1b[2J\x07") | st.just("network"), max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSONS)
@example({"ifname": "\x80\u202e"})
def test_no_json_breaks_the_reader(tree: object) -> None:
    """Whatever stands where."""
    sound(ethernet.read_interfaces_json(json.dumps(tree)))


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin-1"))))
def test_no_text_breaks_a_reader(text: str) -> None:
    """Whatever it is, it is not of the kind, or its facts hold together and its words are clean."""
    for prefix in ("", "Settings for x:\n\t", "NIC statistics:\n     ", '{"ifname": "x", '):
        sound(ethernet.read_ethtool(prefix + text))
        sound(ethernet.read_interfaces_json(prefix + text))


@given(st.integers(1, 200))
def test_a_cut_ethtool_never_passes(at: int) -> None:
    """Its last line is the one that counts."""
    text = settings().rstrip()[:-at]
    found = captured(text)
    assert found is None or found.damaged


def test_a_count_of_packets_that_a_cut_joined_proves_nothing() -> None:
    """Discards beside far too many packets would be no loss: the bytes show that it is no count."""
    more = {f"tx_queue_{at}": at for at in range(30)}
    lost = {"rx_discards_phy": 5000, **more}
    for packets, octets, damaged in ((10**6, 10**9, False), (10**12, 10**9, True)):
        counted = {"rx_packets": packets, "rx_bytes": octets}
        of_port = {f"{name}_phy": number for name, number in counted.items()}
        for text in (statistics(**lost, **counted, **of_port), statistics(**of_port)):
            found = captured(text)
            assert found is not None
            assert bool(found.damaged) is damaged
    whole = captured(statistics(**lost, rx_bytes=10**9))
    picked = captured(statistics(rx_discards_phy=5000))
    assert whole is not None
    assert whole.damaged == "ens1 lists rx_packets_phy, but no rx_bytes_phy"
    assert picked is not None
    assert not picked.damaged


def test_counters_of_a_port_without_its_lost_packets_prove_nothing() -> None:
    """A driver that counts at the port counts what is discarded there; a few may be picked."""
    octets = {"rx_bytes": 10**9, "rx_bytes_phy": 10**9}
    text = statistics(**octets, **{f"tx_queue_{at}": at for at in range(30)})
    for part, damaged in ((text, False), (text.replace("rx_discards_phy: 0", ""), True)):
        found = captured(part)
        assert found is not None
        assert bool(found.damaged) is damaged
    picked = captured(statistics().replace("rx_discards_phy: 0", ""))
    assert picked is not None
    assert not picked.damaged


@pytest.mark.corpus
@pytest.mark.parametrize("label", CASES, ids=lambda path: path.stem)
def test_every_label_is_met(label: Path) -> None:
    """A fault is told, what nothing proves is unknown, congestion is no fault of a link."""
    told: dict[str, Any] = json.loads(label.read_text(encoding="utf-8"))
    text = (CORPUS.parent / told["file"]).read_text(encoding="utf-8", errors="replace")
    found = captured(text)
    assert found is not None
    assert not found.damaged
    network = found.facts.network
    assert network is not None
    down = [one.name for one in network.interfaces or () if one.operstate == "down"]
    assert down == told.get("ports_down", [])
    for name, value in told.get("counters", {}).items():
        (one,) = network.interfaces or ()
        assert one.ethernet is not None
        assert {each.name: each.value for each in one.ethernet.counters or ()}.get(name, 0) == value
    ((outcome, sentence),) = judged(text)
    if "MTU" in told["label"]:
        assert (outcome, "MTU" in sentence) == (Outcome.FAIL, True)
    elif "degraded" in told["label"]:  # nothing in it says what would be full speed
        assert outcome is Outcome.UNKNOWN
    else:
        assert outcome in (Outcome.OK, Outcome.WARN)
