"""What all GPUs of a node or group lack: no peer can tell it, the board's own numbers can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.gpu.test_answers import judge_count
from preflight.checks.gpu.test_links import judge_topology
from preflight.facts.gpu import GpuHealth
from preflight.facts.model import NvLink
from preflight.fleet.model import Expected
from tests.unit.captured.test_topology_text import matrix
from tests.unit.captured.test_topology_text import verdict as pasted
from tests.unit.checks.gpu_judges import CHECKS as ALL_CHECKS
from tests.unit.checks.gpu_judges import judge
from tests.unit.facts.builders import facts, gpu, gpus, group, links, pairs
from tests.unit.facts.gpu_readings import health, quiet_link

if TYPE_CHECKING:
    from preflight.facts import Facts
    from preflight.verdict import Verdict

H100, H200, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
V100, B200, GB200 = "Tesla V100-SXM2-32GB", "NVIDIA B200", "NVIDIA GB200"
WHOLE = {H100: (18, 26562), H200: (18, 26562), A100: (12, 25000), V100: (6, 25781),
         B200: (18, 53125), GB200: (18, 53125)}  # fmt: skip
"""NVLinks of a board, and what drivers print for the speed of one, Mb/s."""
MEMORY_MIB = {H100: 81559, H200: 143771, A100: 81920, V100: 32768, B200: 183359, GB200: 189471}
CHECKS = ("gpu.topology", "gpu.nvlink", "gpu.power", "gpu.pcie", "gpu.memory")
CARDS = {"NVIDIA H100 PCIe": 81559, "NVIDIA H100 NVL": 95830, "NVIDIA L40S": 46068,
         "Tesla T4": 15360, "NVIDIA A100-PCIE-40GB": 40960, "NVIDIA A30": 24576,
         "NVIDIA GH200 480GB": 97871, "NVIDIA GH200 144G HBM3e": 146831}  # fmt: skip


def node(number: int, name: str, **changes: object) -> Facts:
    """GPUs of one kind that all differ in this from whole ones."""
    up, mbps = WHOLE.get(name, (0, 0))
    readings = {
        "links": links(up),
        "memory_total_mib": MEMORY_MIB.get(name) or CARDS[name],
        "health": health(link_errors=tuple(quiet_link(n, mbps=mbps) for n in range(up))),
        **changes,
    }
    each = tuple(gpu(at, name=name, **readings) for at in range(number))
    return facts(gpus=each, gpu_pairs=pairs(number))


def verdict(check: str, one: Facts, *peers: Facts, expected: Expected | None = None) -> Verdict:
    """What a check says of a node and its group, whatever the inventory expects."""
    if check == "gpu.topology":
        return judge_topology(expected or Expected(), one, group(one, *peers))
    return judge(check, one, *peers, expected=expected or Expected())


@pytest.mark.parametrize("number", [1, 2, 4, 8])
@pytest.mark.parametrize("name", [*WHOLE, *CARDS])
def test_a_whole_machine_or_a_rented_part_of_one_has_no_finding(name: str, number: int) -> None:
    """Boards and cards, as many as are sold or rented together."""
    verdicts = {check: verdict(check, node(number, name)) for check in CHECKS}
    assert {check: one.sentence for check, one in verdicts.items() if one.makes_not_ready} == {}


@pytest.mark.parametrize(
    ("name", "number", "up"), [(V100, 4, 4), (V100, 2, 1), (V100, 2, 2), (A100, 2, 4), (H100, 2, 6)]
)
def test_a_part_of_a_directly_joined_board_lacks_the_links_to_the_rest(
    name: str, number: int, up: int
) -> None:
    """A virtual machine with some of its GPUs sees those links down."""
    each = tuple(NvLink(n, up=n < up, remote_kind="gpu") for n in range(WHOLE[name][0]))
    assert not verdict("gpu.topology", node(number, name, links=each)).makes_not_ready


SHARED = [
    *(("gpu.topology", {"links": links(up, 18 - up)}, f"{up} NVLinks up, 18 on its board")
      for up in (17, 14, 12, 1)),
    ("gpu.topology", {"links": links(14)}, "14 NVLinks up, 18 on its board"),
    ("gpu.topology", {"links": links(1)}, "1 NVLinks up, 18 on its board"),
    ("gpu.topology", {"links": ()}, "0 NVLinks up, 18 on its board"),
    ("gpu.memory", {"memory_total_mib": 40960}, "40.0 GiB of memory, 74.5 GiB on its board"),
]  # fmt: skip
SHARED_READINGS = [
    ("gpu.nvlink", {"link_errors": tuple(quiet_link(n, mbps=13281) for n in range(18))},
     "13.3 GB/s, 25 GB/s on its board"),
    ("gpu.power", {"power_limit_w": 300.0}, "power limit 300 W, 700 W by default"),
    ("gpu.pcie", {"pcie_width": 8}, "PCIe x8, x16 is what board and slot can do"),
    ("gpu.pcie", {"pcie_width": 8, "pcie_width_max": 8}, "PCIe x8, x16 on its board"),
    ("gpu.pcie", {"pcie_gen": 1, "pcie_gen_max": 3}, "PCIe generation 3 at most, 4 or more on its"),
]  # fmt: skip


@pytest.mark.parametrize("peers", [0, 4])
@pytest.mark.parametrize(("check", "changes", "words"), SHARED)
def test_what_all_gpus_lack_is_a_finding_with_both_numbers(
    check: str, changes: dict[str, object], words: str, peers: int
) -> None:
    """On a node alone, and where every node of its group lacks the same."""
    odd = node(8, H100, **changes)
    result = verdict(check, odd, *[odd] * peers)
    assert (result.outcome, words in result.sentence) == ("warn", True), result.sentence


@pytest.mark.parametrize("peers", [0, 4])
@pytest.mark.parametrize(("check", "readings", "words"), SHARED_READINGS)
def test_what_all_gpus_read_is_a_finding_with_both_numbers(
    check: str, readings: dict[str, object], words: str, peers: int
) -> None:
    """Half the speed, a cap and lost lanes look well beside peers that have the same."""
    whole = node(8, H100).gpus or ()
    each = tuple(
        replace(one, health=replace(one.health, **readings)) for one in whole if one.health
    )
    odd = facts(gpus=each)
    result = verdict(check, odd, *[odd] * peers)
    assert (result.outcome, words in result.sentence) == ("warn", True), result.sentence


@pytest.mark.parametrize(
    ("check", "expected", "changes", "words"),
    [
        ("gpu.topology", Expected(nvlinks_per_gpu=18), {"links": links(14, 4)}, "18 expected"),
        (
            "gpu.power",
            Expected(power_limit_w=700),
            {"health": health(power_limit_w=300.0)},
            "700 W expected",
        ),
    ],
)
def test_an_expectation_of_the_inventory_makes_it_a_failure(
    check: str, expected: Expected, changes: dict[str, object], words: str
) -> None:
    """And one that is met silences the board: a site may cap its GPUs on purpose."""
    result = verdict(check, node(8, H100, **changes), expected=expected)
    assert (result.outcome, words in result.sentence) == ("fail", True)
    met = Expected(nvlinks_per_gpu=14, power_limit_w=300)
    assert not verdict(check, node(8, H100, **changes), expected=met).makes_not_ready


@pytest.mark.parametrize("up", [14, 17, 1, 5])
def test_a_matrix_of_a_number_that_no_machine_has_is_a_finding(up: int) -> None:
    """All pairs alike, and still no board behind switches has so many links."""
    result = pasted(matrix({}, 8, f"NV{up}"))
    assert result.outcome == "warn"
    assert f"{up} NVLinks up, 6, 8, 12 or 18 on known boards behind switches" in result.sentence


@pytest.mark.parametrize(
    ("up", "number"), [(6, 8), (8, 8), (12, 8), (18, 8), (6, 16), (4, 4), (6, 4)]
)
def test_a_matrix_of_a_known_machine_is_well(up: int, number: int) -> None:
    """DGX-2, A800, A100 and H100 baseboards, and four GPUs that are joined directly."""
    assert pasted(matrix({}, number, f"NV{up}")).outcome == "ok"


@pytest.mark.parametrize("number", [7, 15])
def test_a_number_that_is_left_of_a_machine_is_a_finding(number: int) -> None:
    """Where no number is expected, seven GPUs are an eight-GPU machine that lost one."""
    result = judge_count(None, node(number, H100).gpus)
    assert (result.outcome, result.sentence.startswith(f"{number} GPUs; no known")) == (
        "warn",
        True,
    )
    assert judge_count(number, node(number, H100).gpus).outcome == "ok"
    # NVML counts what is there, whatever is missing.
    assert judge_count(None, node(number, H100).gpus, counted=number).outcome == "warn"
    others = node(number + 1, H100).gpus or ()
    assert judge_count(None, (*others[:3], *others[4:]), counted=number).outcome == "ok"
    assert all(judge_count(None, node(n, H100).gpus).outcome == "ok" for n in (1, 2, 3, 4, 6, 8))


def _cliques(*cliques: str) -> Facts:
    return facts(
        gpus=tuple(gpu(at, health=health(fabric_domain=each)) for at, each in enumerate(cliques))
    )


def test_a_gpu_in_another_clique_is_a_finding() -> None:
    """It joined a fabric, and not that of the others: no NVLink leads there."""
    result = verdict("gpu.fabric", _cliques("a/1", "a/1", "a/2", "a/1"))
    assert (result.outcome, result.sentence.startswith("GPU2 ")) == ("warn", True)
    assert "NVLink clique a/2, a/1 on 3 of 4 GPUs of this node" in result.sentence
    whole = _cliques(*["a/1"] * 4)
    alone = verdict("gpu.fabric", _cliques(*["b/1"] * 4), whole, whole, whole)
    assert (alone.outcome, "a/1 on 3 of 4 nodes of group" in alone.sentence) == ("warn", True)
    torn = _cliques("a/1", "a/2", "a/1", "a/2")
    two_racks = [_cliques(*["b/1"] * 4)] * 2
    assert verdict("gpu.fabric", torn, *[whole] * 4, *two_racks).outcome == "warn"
    racks = [_cliques(*["b/1"] * 4)] * 2 + [whole] * 4
    assert not any(verdict("gpu.fabric", each, *racks).makes_not_ready for each in racks)


def test_no_check_calls_a_reading_of_a_lost_gpu_ok() -> None:
    """GPU3 is listed and answers nothing: it is counted as missing, and nothing of it is well."""
    own: dict[str, object] = {"links": None, "memory_total_mib": None, "mig_enabled": None}
    names = (*GpuHealth.__struct_fields__, *own)
    silent = GpuHealth(errors=tuple(f"{name}: GPU is lost" for name in names))
    lost = gpu(3, health=silent, **own)
    one = facts(gpus=(*gpus(3), lost, *(gpu(at) for at in range(4, 8))))
    for expected in (Expected(), Expected(gpus=8)):
        verdicts = {
            check: judge(check, one, expected=expected) for check in (*ALL_CHECKS, "gpu.count")
        }
        verdicts["gpu.topology"] = verdict("gpu.topology", one, expected=expected)
        fine = {check for check, each in verdicts.items() if each.outcome in ("ok", "warn")}
        assert fine <= {"gpu.driver_slow", "gpu.model", "gpu.software"}
        assert verdicts["gpu.count"].outcome == verdicts["gpu.readings"].outcome == "fail"
        assert verdicts["gpu.count"].sentence.startswith("7 of 8 GPUs answer")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_less_memory_is_a_failure_as_long_as_one_beside_has_it_all(number: int) -> None:
    """Half of the GPUs are no better than one: peers have no majority, but the board tells."""
    whole = node(4, GB200)
    each = list(whole.gpus or ())
    for at in range(number):
        each[at] = replace(each[at], memory_total_mib=MEMORY_MIB[GB200] // 2)
    said = verdict("gpu.memory", replace(whole, gpus=tuple(each)))
    assert said.outcome == "fail"
    assert said.evidence["gpus"] == list(range(number))


def among(name: str, **readings: tuple[int, ...]) -> Facts:
    """Eight GPUs of one kind with these readings, in their order."""
    each = tuple(
        replace(one, health=replace(one.health, **{key: its[at] for key, its in readings.items()}))
        for at, one in enumerate(node(8, name).gpus or ())
        if one.health
    )
    return facts(gpus=each)


@pytest.mark.parametrize("bad", [1, 4, 7])
@pytest.mark.parametrize(
    ("check", "name", "field", "values"),
    [
        ("gpu.pcie", H100, "pcie_width", (8, 16)),
        ("gpu.pcie", H100, "pcie_gen_max", (4, 5)),
        ("gpu.pcie", "NVIDIA L40S", "pcie_gen_max", (1, 4)),
        ("gpu.power", H100, "power_limit_w", (350, 700)),
        ("gpu.power", "NVIDIA L40S", "power_limit_w", (350, 700)),
        ("gpu.mode", "Tesla T4", "ecc_on", (False, True)),
    ],
)
def test_a_whole_gpu_beside_worse_ones_shows_what_they_lack(
    check: str, name: str, field: str, values: tuple[int, int], bad: int
) -> None:
    """However many they are: half and half is no way to build a machine around this board."""
    one = among(name, **{field: values[:1] * bad + values[1:] * (8 - bad)})
    said = verdict(check, one)
    assert (said.outcome, said.evidence["gpus"]) == ("fail", list(range(bad))), said.sentence


@pytest.mark.parametrize("bad", [1, 4, 7])
def test_nvlinks_of_a_whole_gpu_show_what_the_others_lack(bad: int) -> None:
    """Links that are down, or at half of their speed."""
    whole = node(8, H100).gpus or ()
    slow = tuple(quiet_link(n, mbps=13281) for n in range(18))
    for check, worse in (
        ("gpu.topology", [replace(one, links=links(17, 1)) for one in whole]),
        ("gpu.nvlink", [replace(one, health=replace(one.health, link_errors=slow))
                        for one in whole if one.health]),
    ):  # fmt: skip
        said = verdict(check, facts(gpus=(*worse[:bad], *whole[bad:])))
        assert said.outcome == "fail", (check, said.sentence)


def test_cards_in_two_kinds_of_slots_keep_no_node_from_its_job() -> None:
    """Four slots of 16 lanes and four of 8, two generations, two kinds of cards: so built."""
    for name in CARDS:
        assert not verdict("gpu.pcie", among(name, pcie_gen_max=(3, 4) * 4)).makes_not_ready
        assert not verdict("gpu.pcie", among(name, pcie_width=(8, 16) * 4)).makes_not_ready
    mixed = [*(node(8, A100).gpus or ())[:5], *(node(8, "Tesla T4").gpus or ())[5:]]
    watts = [400.0] * 5 + [70.0] * 3
    limits = tuple(
        replace(one, health=health(power_limit_w=of_one, power_default_w=of_one))
        for one, of_one in zip(mixed, watts, strict=True)
    )
    assert verdict("gpu.power", facts(gpus=limits)).outcome == "ok"


def test_memory_that_all_gpus_lack_is_a_failure_where_the_inventory_names_the_model() -> None:
    """Then the board's number is the inventory's."""
    odd = node(8, H100, memory_total_mib=40960)
    said = verdict("gpu.memory", odd, expected=Expected(gpu_model="H100 80GB"))
    assert (said.outcome, "74.5 GiB on its board" in said.sentence) == ("fail", True)


def test_ecc_that_is_off_on_all_gpus_is_a_finding() -> None:
    """A warning on a node alone; a whole group with it off has chosen so."""
    off = among(H100, ecc_on=(False,) * 8, ecc_pending=(False,) * 8)
    assert verdict("gpu.mode", off).outcome == "warn"
    assert verdict("gpu.mode", off, off, off).outcome == "ok"
