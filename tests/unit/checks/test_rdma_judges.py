"""`ib.*`: a port is judged by inventory, group and peers; an unused one is not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.checks.rdma.test_devices import judge_firmware, judge_gid
from preflight.checks.rdma.test_port import judge_count, judge_errors, judge_port, judge_rate
from preflight.core.thresholds import SHIPPED
from preflight.facts import Majority
from preflight.facts.node_network import Counter, Counters, Gid
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, group, interface, network, nic, rdma_port

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

NOTHING = Expected()
DOWN: dict[str, Any] = {"state": "1: DOWN", "phys_state": "2: Polling"}
OFF: dict[str, Any] = {"state": "1: DOWN", "phys_state": "3: Disabled"}
STUCK: dict[str, Any] = {"state": "2: INIT", "phys_state": "5: LinkUp"}
DAY_S = 86400.0
ROUTED = Gid(3, "RoCE v2", "0000:0000:0000:0000:0000:ffff:0a4d:0001")
TABLE = (
    Gid(0, "IB/RoCE v1", "fe80:0000:0000:0000:1070:fdff:fe12:3456"),
    Gid(1, "RoCE v2", "fe80:0000:0000:0000:1070:fdff:fe12:3456"),
    Gid(2, "IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:0a4d:0001"),
    ROUTED,
)


def node(*odd: int, host: str = "h1", base: Facts | None = None, **port: object) -> Facts:
    """A node whose NICs of these numbers have a port that is changed so."""
    healthy = base or facts(host)
    changed = tuple(
        replace(one, ports=(replace(one.ports[0], **port),)) if at in odd else one
        for at, one in enumerate(healthy.nics or ())
    )
    return replace(healthy, nics=changed)


def roce() -> Facts:
    """A node of eight RoCE ports over rdma0, rdma1, ..."""
    names = [f"rdma{at}" for at in range(8)]
    cards = tuple(
        nic(at, ports=(rdma_port(link_layer="Ethernet", netdev=name, gids=TABLE),))
        for at, name in enumerate(names)
    )
    cables = [interface(name, mtu=9000, fec="rs") for name in names]
    return facts(nics=cards, network=network(*cables))


def port(one: Facts, expected: Expected = NOTHING, *others: Facts) -> Verdict:
    """What ib.port says of a node among others."""
    return judge_port(expected, one, group(one, *others))


def rate(one: Facts, expected: Expected = NOTHING, *others: Facts) -> Verdict:
    """What ib.rate says of a node among others."""
    return judge_rate(expected, one, group(one, *others))


@pytest.mark.proves(
    "ib.count", finds="a missing RDMA device, expected by the inventory or by the group"
)
@pytest.mark.proves("ib.count", passes="eight HCAs, and one front end more than expected")
@pytest.mark.proves("ib.count", unknown="/sys/class/infiniband does not answer")
@pytest.mark.parametrize(
    ("expected", "number", "outcome", "words"),
    [
        (Expected(nics=8), 8, "ok", "8 RDMA devices"),
        (Expected(nics=7), 8, "ok", "8 RDMA devices"),
        (Expected(nics=8), 7, "fail", "7 RDMA devices, 8 expected"),
        (Expected(hcas=("mlx5_0", "mlx5_9")), 8, "fail", "1 RDMA devices, 2 expected; missing"),
        (Expected(nics=8), None, "unknown", "could not be read"),
        (NOTHING, None, "not_run", "devices here"),
        (NOTHING, 0, "not_run", "devices here"),
        (Expected(nics=1, nic_link="roce"), 8, "fail", "0 RDMA devices, 1 expected"),
    ],
)  # fmt: skip
def test_count(expected: Expected, number: int | None, outcome: str, words: str) -> None:
    """Fewer than expected fails; unread is unknown; devices of another link do not count."""
    cards = None if number is None else tuple(nic(at) for at in range(number))
    verdict = judge_count(expected, cards)
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence


def test_count_by_peers() -> None:
    """Without an expectation the group decides, and names the missing one."""
    usual = Majority(tuple(f"mlx5_{at}" for at in range(8)), 12, 13)
    verdict = judge_count(NOTHING, tuple(nic(at) for at in range(8) if at != 3), usual)
    assert verdict.sentence == "7 RDMA devices, 8 on 12 of 13 nodes of its group; missing: mlx5_3"
    assert judge_count(NOTHING, (nic(0),), Majority(usual.value, 1, 2)).outcome is Outcome.OK


@pytest.mark.proves("ib.port", passes="eight ports up, and one that is down on every node")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, NOTHING), (OFF, Expected(nics=7)), (DOWN, Expected(hcas=("mlx5_0",)))],
)
def test_a_port_that_nothing_needs(changes: dict[str, Any], expected: Expected) -> None:
    """A port beyond the expectation is only mentioned."""
    verdict = port(node(3, **changes), expected)
    assert verdict.outcome is Outcome.OK, verdict.sentence
    assert ("mlx5_3/1" in verdict.sentence) == bool(changes)


@pytest.mark.proves("ib.port", finds="a port that is switched off, unlike its peers")
def test_a_port_that_is_off_among_peers_that_are_not() -> None:
    """Which ports a job uses is not known: a warning, unless most nodes have it so."""
    off = node(3, **OFF)
    verdict = port(off, NOTHING)
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.WARN, "mlx5_3/1 is DOWN (Disabled); 7 of 8 ports of its kind are ACTIVE",
    )  # fmt: skip
    assert judge_port(NOTHING, off, group(*[off] * 4)).outcome is Outcome.OK


def test_a_port_that_is_down_on_every_node() -> None:
    """What most nodes have down is meant to be."""
    everywhere = [node(3, host=f"h{at}", **DOWN) for at in range(4)]
    assert port(everywhere[0], NOTHING, *everywhere[1:]).outcome is Outcome.OK


@pytest.mark.proves("ib.port", finds="a port that is down: by inventory, group or its own peers")
@pytest.mark.parametrize(
    ("expected", "others", "words"),
    [
        (Expected(hcas=("mlx5_2", "mlx5_3")), 0, "mlx5_3/1 is DOWN (Polling), expected as rail 1"),
        (NOTHING, 3, "mlx5_3/1 is DOWN (Polling), ACTIVE on 3 of 4 nodes of group train"),
        (Expected(nics=8), 0, "mlx5_3/1 is DOWN (Polling): 7 of 8 expected ports are ACTIVE"),
        (NOTHING, 0, "mlx5_3/1 is DOWN (Polling); 7 of 8 ports of its kind are ACTIVE"),
    ],
)
def test_a_port_that_is_down(expected: Expected, others: int, words: str) -> None:
    """The sentence says who decided, with the numbers."""
    verdict = port(node(3, **DOWN), expected, *(facts(f"h{at}") for at in range(2, 2 + others)))
    assert (verdict.outcome, verdict.sentence) == (Outcome.FAIL, words)
    assert "cable" in verdict.advice


@pytest.mark.proves("ib.port", finds="InfiniBand ports that no subnet manager configured")
def test_stuck_ports() -> None:
    """Linked but in INIT is the subnet manager's, even where all are so."""
    verdict = port(node(*range(8), **STUCK))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("mlx5_0/1 is INIT (LinkUp): no subnet manager")
    assert verdict.sentence.endswith("(and 7 more)")


@pytest.mark.proves("ib.port", finds="InfiniBand ports of which none is up")
@pytest.mark.parametrize("number", [1, 2, 8])
def test_no_infiniband_port_is_up(number: int) -> None:
    """No port is left to vote, and that is no sign of health."""
    verdict = port(facts(nics=tuple(nic(at, ports=(rdma_port(**DOWN),)) for at in range(number))))
    assert verdict.outcome is Outcome.FAIL
    assert "mlx5_0/1 is DOWN (Polling), and no InfiniBand port is ACTIVE" in verdict.sentence


def test_one_infiniband_card_beside_ethernet() -> None:
    """A spare card is no fault of the node, and eight spare ones there are not."""
    front = nic(8, ports=(rdma_port(link_layer="Ethernet"),))
    spare = [nic(at, ports=(rdma_port(**DOWN),)) for at in range(8)]
    assert port(facts(nics=(spare[0], front))).outcome is Outcome.WARN
    assert port(facts(nics=(*spare, front))).outcome is Outcome.FAIL
    assert port(facts(nics=(spare[0], front)), Expected(nic_link="roce")).outcome is Outcome.OK
    assert port(facts(nics=spare[:1]), Expected(nics=0)).outcome is Outcome.OK


@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 1), (4, 4), (3, 5)])
def test_too_few_to_vote(up: int, down: int) -> None:
    """Ports of which many search for a partner are not reported healthy; which is right is open."""
    states = [*[DOWN] * down, *[{}] * up]
    verdict = port(
        facts(nics=tuple(nic(at, ports=(rdma_port(**one),)) for at, one in enumerate(states)))
    )
    assert verdict.outcome is Outcome.WARN
    assert f"; {up} of {up + down} InfiniBand ports are ACTIVE" in verdict.sentence


def test_second_ports_without_a_cable() -> None:
    """Four cards of two ports with one cable each are how many machines are built."""
    path = nic(0).pci_path or ()
    functions = tuple(
        nic(
            2 * at + second,
            pci_path=(*path[:-1], f"0000:{at}c:00.{second}"),
            ports=(rdma_port(**(DOWN if second else {})),),
        )
        for at in range(4)
        for second in (0, 1)
    )
    assert port(facts(nics=functions)).outcome is Outcome.OK
    assert port(facts(nics=functions[:2])).outcome is Outcome.WARN
    cards = tuple(
        nic(at, pci_path=None, ports=(rdma_port(), rdma_port(port=2, **DOWN))) for at in range(4)
    )
    assert port(facts(nics=cards)).outcome is Outcome.OK


@pytest.mark.proves("ib.port", unknown="no port is up, and none is InfiniBand")
@pytest.mark.parametrize(
    "changes",
    [{**DOWN, "link_layer": "Ethernet"}, {**DOWN, "link_layer": ""}, OFF],
)
def test_nothing_is_up(changes: dict[str, Any]) -> None:
    """All unused, or all lost: only the inventory, or a group that is so, can show which."""
    cards = (nic(0, ports=(rdma_port(**changes),)),)
    one, two, three = (facts(f"h{at}", nics=cards, time_s=DAY_S) for at in range(3))
    verdict = port(one)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "no port is ACTIVE (mlx5_0/1 DOWN (" in verdict.sentence
    assert port(one, NOTHING, two).outcome is Outcome.UNKNOWN
    assert port(one, NOTHING, two, three).outcome is Outcome.OK
    captured = [replace(each, time_s=0.0) for each in (one, two, three)]
    assert port(captured[0], NOTHING, *captured[1:]).outcome is Outcome.UNKNOWN
    assert port(one, Expected(nics=0)).outcome is Outcome.OK


def test_a_card_that_is_spare_on_every_node() -> None:
    """Three nodes whose one InfiniBand card has no cable: a switch that is off looks the same."""
    cards = (nic(0, ports=(rdma_port(**DOWN),)),)
    alike = [facts(f"h{at}", nics=cards, time_s=DAY_S) for at in range(3)]
    assert port(alike[0], NOTHING, *alike[1:]).outcome is Outcome.WARN
    captured = [replace(each, time_s=0.0) for each in alike]
    assert port(captured[0], NOTHING, *captured[1:]).outcome is Outcome.FAIL


@pytest.mark.proves("ib.port", finds="an active port whose interface is down, unlike its peers'")
def test_an_interface_that_is_down() -> None:
    """Where no interface is up, they are unused, and nothing is reported."""
    cables = [interface(f"ib{at}", operstate="down" if at == 3 else "up") for at in range(8)]
    one = facts(network=network(*cables))
    for at in range(8):
        one = node(at, base=one, netdev=f"ib{at}")
    verdict = port(one)
    assert verdict.outcome is Outcome.FAIL
    assert "mlx5_3/1 is ACTIVE, but its interface ib3 is down; 7 of 8" in verdict.sentence
    unused = [replace(cable, operstate="down") for cable in cables]
    assert port(replace(one, network=network(*unused))).outcome is Outcome.OK


@pytest.mark.proves("ib.port", unknown="sysfs has no state")
def test_unread_ports() -> None:
    """No state, no port, no device list: none of them passes."""
    assert port(node(3, state="")).outcome is Outcome.UNKNOWN
    without = facts(nics=(nic(0, ports=()),))
    assert port(without).outcome is Outcome.UNKNOWN
    assert port(facts(nics=None, problems=("nics: no answer in time",))).outcome is Outcome.UNKNOWN
    assert port(facts(nics=None), Expected(nics=8)).outcome is Outcome.UNKNOWN
    assert port(facts(nics=())).outcome is Outcome.NOT_RUN


@pytest.mark.parametrize("unread", [{"state": ""}, None])
def test_an_unread_port_may_be_the_one_that_is_up(unread: dict[str, Any] | None) -> None:
    """A spare port is down, and one of the eight expected ones is unread: none is missing."""
    spare = facts(nics=(*(facts().nics or ()), nic(8, ports=(rdma_port(**DOWN),))))
    one = node(3, base=spare, **(unread or {}))
    if unread is None:
        mute = tuple(
            replace(each, ports=()) if at == 3 else each for at, each in enumerate(one.nics or ())
        )
        one = replace(one, nics=mute)
    assert port(one, Expected(nics=8)).outcome is Outcome.UNKNOWN
    worse = node(4, base=one, **DOWN)
    assert "6 of 8 expected ports are ACTIVE" in port(worse, Expected(nics=8)).sentence


def test_virtual_functions_that_no_machine_uses() -> None:
    """They are DOWN behind a link that is up; in a virtual machine they are the rails."""
    unused = (rdma_port(state="1: DOWN", phys_state="5: LinkUp"),)
    spare = tuple(replace(nic(0), name=f"mlx5_{at}", hca_type="MT4126", ports=unused)
                  for at in range(8, 10))  # fmt: skip
    whole = facts().nics or ()
    assert port(facts(nics=whole + spare)).outcome is Outcome.OK
    assert port(node(3, base=facts(nics=whole + spare), **STUCK)).sentence.startswith("mlx5_3/1 is")
    assert port(facts(nics=spare)).outcome is Outcome.FAIL
    stuck = node(3, state="1: DOWN", phys_state="5: LinkUp")
    assert port(stuck).outcome is Outcome.FAIL


HALF: dict[str, Any] = {"rate": "200 Gb/sec (2X NDR)"}


@pytest.mark.proves(
    "ib.rate", finds="a port at half the rate of the inventory, its group or its own peers"
)
@pytest.mark.parametrize(
    ("expected", "others", "words"),
    [
        (Expected(nic_gbits=400), 0, "mlx5_3/1 runs at 200 Gb/sec (2X NDR), 400 expected"),
        (NOTHING, 3, "200 Gb/sec (2X NDR), 400 on 3 of 4 nodes of group train"),
        (NOTHING, 0, "200 Gb/sec (2X NDR), 400 on its peers"),
    ],
)
def test_a_slow_port(expected: Expected, others: int, words: str) -> None:
    """Expected, group, own peers: the first that knows."""
    verdict = rate(node(3, **HALF), expected, *(facts(f"h{at}") for at in range(2, 2 + others)))
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence


def test_a_slower_adapter_for_storage() -> None:
    """All eight rails are at full rate, so a ninth port is none; if one is slow, it is named."""
    storage = replace(nic(8 % 4), name="mlx5_8", board="MT_0000000224", ports=(rdma_port(**HALF),))
    expected = Expected(nics=8, nic_gbits=400, nic_link="ib")
    whole = facts(nics=(*(facts().nics or ()), storage))
    assert rate(whole, expected).outcome is Outcome.OK
    verdict = rate(node(3, base=whole, **HALF), expected)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("mlx5_3/1 runs at 200 Gb/sec (2X NDR), 400 expected")


@pytest.mark.proves("ib.rate", passes="eight ports at 400 Gb/s beside a slower front end")
def test_full_rate() -> None:
    """A front end of another link is held against nothing of the rails'."""
    front = nic(8, ports=(rdma_port(link_layer="Ethernet", rate="100 Gb/sec (4X EDR)"),))
    one = facts(nics=(*(facts().nics or ()), front))
    for expected in (NOTHING, Expected(nic_gbits=400), Expected(nic_gbits=400, nic_link="ib")):
        verdict = rate(one, expected)
        assert verdict.sentence == "9 ports at 400, 100 Gb/s"
    assert rate(node(*range(8), **DOWN)).outcome is Outcome.NOT_RUN


@pytest.mark.proves("ib.rate", finds="an IPoIB interface that reports a higher rate than its port")
def test_a_port_slower_than_its_own_interface() -> None:
    """All ports alike, but the kernel contradicts itself."""
    cables = [interface(f"ib{at}", speed_mbits=400_000) for at in range(8)]
    one = facts(network=network(*cables))
    for at in range(8):
        one = node(at, base=one, netdev=f"ib{at}", **HALF)
    assert "200 Gb/sec (2X NDR), its interface ib0 at 400" in rate(one).sentence


@pytest.mark.proves("ib.rate", finds="an MTU or error correction unlike its peers'")
def test_odd_frames() -> None:
    """A smaller MTU drops frames; another FEC is a warning."""
    one = roce()
    cables = list(one.network.interfaces or ()) if one.network else []
    assert rate(one).outcome is Outcome.OK
    small = [replace(c, mtu=1500) if c.name == "rdma2" else c for c in cables]
    verdict = rate(replace(one, network=network(*small[1:])))
    assert verdict.outcome is Outcome.FAIL
    assert "mlx5_2/1: MTU 1500 of rdma2, 9000 on its peers" in verdict.sentence
    other = [replace(c, fec="off") if c.name == "rdma2" else c for c in cables]
    verdict = rate(replace(one, network=network(*other[1:])))
    assert verdict.outcome is Outcome.WARN
    assert "error correction off, rs on its peers" in verdict.sentence


@pytest.mark.proves("ib.rate", unknown="sysfs has no rate")
def test_unread_rate() -> None:
    """An active port without a rate is not at full rate."""
    assert rate(node(3, rate="")).outcome is Outcome.UNKNOWN


def _firmware(*versions: str, host: str = "h1") -> Facts:
    return facts(host, nics=tuple(nic(at, firmware=fw) for at, fw in enumerate(versions)))


@pytest.mark.proves(
    "ib.firmware", finds="one NIC with older firmware than the group's or its peers'"
)
@pytest.mark.proves("ib.firmware", passes="NICs of two chips, each with its own firmware")
@pytest.mark.proves("ib.firmware", unknown="fw_ver is empty")
def test_firmware() -> None:
    """The firmware's first number distinguishes chips; the group decides before the node."""
    new, old, other = "28.41.1000", "28.39.1002", "22.38.1002"
    alone = _firmware(*[new] * 7, old)
    verdict = judge_firmware(alone, group(alone))
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence == "mlx5_7 has firmware 28.39.1002, 28.41.1000 on its peers"
    whole = [_firmware(*[new] * 8, host=f"h{at}") for at in range(3)]
    all_old = _firmware(*[old] * 8)
    assert (
        "on 3 of 4 nodes of group train" in judge_firmware(all_old, group(all_old, *whole)).sentence
    )
    mixed = _firmware(*[new] * 4, other)
    assert judge_firmware(mixed, group(mixed)).outcome is Outcome.OK
    mute = _firmware(*[new] * 4, "")
    assert judge_firmware(mute, group(mute)).outcome is Outcome.UNKNOWN
    assert judge_firmware(facts(nics=()), group(facts())).outcome is Outcome.NOT_RUN


def _counted(up_s: float, *counters: Counter) -> Facts:
    counted = Counters(read=20, apart_s=0.25, nonzero=counters)
    return node(3, base=facts(time_s=up_s, boot_s=0.0), counters=counted)


@pytest.mark.proves(
    "ib.errors", finds="a counter that moves, a rate of symbol errors, a flapping link"
)
@pytest.mark.parametrize(
    ("up_d", "counter", "outcome", "words"),
    [
        (300, Counter("symbol_error", 4000, moved=2), "fail", "symbol_error rose by 2 in 0.25 s"),
        (10, Counter("symbol_error", 96_000), "fail", "400 symbol_error/h (96000 in 10.0 d"),
        (10, Counter("link_downed", 60), "fail", "6 link_downed/d (60 in 10.0 d since boot), at"),
        (10, Counter("carrier_downs", 60), "fail", "6 carrier_downs/d"),
        (10, Counter("port_rcv_errors", 96_000), "warn", "400 port_rcv_errors/h"),
        (1, Counter("local_ack_timeout_err", 172_800), "warn", "2 local_ack_timeout_err/s"),
        (100, Counter("symbol_error", 65535), "warn", "symbol_error 65535, which is all that its"),
        (100, Counter("link_downed", 255), "warn", "can hold: how many came is not known"),
    ],
)  # fmt: skip
def test_errors(up_d: float, counter: Counter, outcome: str, words: str) -> None:
    """What moves fails at once; else the rate since boot against its limit."""
    verdict = judge_errors(_counted(up_d * DAY_S, counter), limit=SHIPPED)
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence
    assert "mlx5_3/1" in verdict.sentence


@pytest.mark.proves("ib.errors", passes="a year of few errors, and a node that was just booted")
@pytest.mark.parametrize(
    ("up_d", "counter"),
    [
        (365, Counter("symbol_error", 4000)),
        (365, Counter("link_downed", 40)),
        (0.01, Counter("link_downed", 3)),
        (1, Counter("out_of_buffer", 10**9, moved=100)),
        (1, Counter("rnr_nak_retry_err", 10**9, moved=100)),
    ],
)
def test_errors_that_are_none(up_d: float, counter: Counter) -> None:
    """Few over a long time, the link's training after boot, and congestion that no limit names."""
    verdict = judge_errors(_counted(up_d * DAY_S, counter), limit=SHIPPED)
    assert verdict.outcome is Outcome.OK
    assert verdict.evidence["totals"] == {f"mlx5_3/1 {counter.name}": counter.value}


def test_a_fabric_adapter_without_these_counters() -> None:
    """EFA is neither InfiniBand nor Ethernet: it counts nothing that the check knows."""
    efa = node(*range(8), link_layer="Unspecified", counters=None)
    assert judge_errors(efa, limit=SHIPPED).outcome is Outcome.NOT_RUN


@pytest.mark.proves("ib.errors", unknown="no counters, or totals of unknown age")
def test_errors_that_cannot_be_dated() -> None:
    """No counters are unknown; so is a total without a date, unless the peers speak."""
    assert judge_errors(node(3, counters=None), limit=SHIPPED).outcome is Outcome.UNKNOWN
    undated = _counted(0.0, Counter("port_xmit_discards", 20_046))
    verdict = judge_errors(undated, limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert "20046, 0 on its 7 peers" in verdict.sentence
    alone = replace(undated, nics=(undated.nics or ())[3:4])
    assert judge_errors(alone, limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert (
        judge_errors(_counted(0.0, Counter("link_downed", 1)), limit=SHIPPED).outcome is Outcome.OK
    )


@pytest.mark.proves("ib.gid", finds="a GID index that is empty, and RoCE v1")
@pytest.mark.proves(
    "ib.gid",
    passes="a routable RoCE v2 GID at the index that the job sets, or any such GID if it sets none",
)
@pytest.mark.parametrize(
    ("index", "table", "outcome", "words"),
    [
        (None, TABLE, "ok", "8 RoCE ports with a RoCE v2 GID to choose"),
        ("-1", TABLE, "ok", "to choose"),
        ("3", TABLE, "ok", "8 RoCE ports with GID 3 of RoCE v2"),
        ("2", TABLE, "warn", "GID 2 of mlx5_0/1, which NCCL_IB_GID_INDEX asks for, is RoCE v1"),
        ("5", TABLE, "fail", "mlx5_0/1 has no GID 5"),
        ("3", TABLE[:2], "fail", "it has 0 (RoCE v1, link-local), 1 (RoCE v2, link-local)"),
        (None, TABLE[:2], "warn", "mlx5_0/1 has no RoCE v2 GID beyond its own link"),
        ("3", (), "fail", "it has none"),
    ],
)
def test_gid(index: str | None, table: tuple[Gid, ...], outcome: str, words: str) -> None:
    """The index is looked up in each port's table."""
    one = roce()
    for at in range(8):
        one = node(at, base=one, gids=table)
    environ = {} if index is None else {"NCCL_IB_GID_INDEX": index}
    verdict = judge_gid(one, environ)
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence
    assert verdict.advice or outcome == "ok"


@pytest.mark.proves("ib.gid", unknown="the GID table cannot be read")
def test_gid_of_what_the_job_uses() -> None:
    """InfiniBand has no such table; a port that the job leaves out does not matter."""
    assert judge_gid(facts(), {"NCCL_IB_GID_INDEX": "3"}).outcome is Outcome.NOT_RUN
    one = node(3, base=roce(), gids=None)
    assert judge_gid(one, None).outcome is Outcome.UNKNOWN
    assert judge_gid(one, {"NCCL_IB_HCA": "^=mlx5_3"}).outcome is Outcome.OK
