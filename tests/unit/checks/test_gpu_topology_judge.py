"""`gpu.topology`: the odd GPU, link or rail is named; a machine built unevenly by design is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.checks.gpu.test_links import judge_topology
from preflight.facts.boards import gpu_codes
from preflight.facts.model import Facts, NvLink
from preflight.fleet.model import Expected
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, gpu, gpus, group, links, mig_gpu, nic, pairs, with_gpu

HGX = Expected(gpus=8, nvlinks_per_gpu=18)
NOTHING = Expected()


def alone(one: Facts, expected: Expected = NOTHING) -> Verdict:
    """The verdict on a node that has no peers."""
    return judge_topology(expected, one, group(one))


def among(one: Facts, *others: Facts, expected: Expected = NOTHING) -> Verdict:
    """The verdict on a node in a group with three healthy ones, or with these."""
    return judge_topology(expected, one, group(one, *(others or (facts(), facts(), facts()))))


def bridged(other: int | None, up: int = 4) -> tuple[NvLink, ...]:
    """Links of a card with a bridge to another one, or the dead links of a card without."""
    remote = "" if other is None else gpu(other).bus_id.upper()[4:]
    return tuple(NvLink(n, up=other is not None and n < up, remote=remote) for n in range(4))


def test_a_healthy_node_is_ok_alone_and_among_peers() -> None:
    """Eight GPUs joined by 18 NVLinks with a NIC each are as they should be."""
    for verdict in (alone(facts()), alone(facts(), HGX), among(facts(), expected=HGX)):
        assert verdict.outcome is Outcome.OK
        assert verdict.sentence == "8 GPUs joined by NV18, 8 NICs"


def test_no_gpus() -> None:
    """Never expected is not run; expected and not read is unknown."""
    bare = facts(gpus=None, gpu_pairs=None)
    assert alone(bare).outcome is Outcome.NOT_RUN
    assert alone(bare, HGX).outcome is Outcome.UNKNOWN


def test_a_link_that_is_down_is_named() -> None:
    """Expected, by the group, or by the other GPUs: 17 of 18 links fail with GPU and link."""
    torn = with_gpu(3, links=links(17, 1))
    for verdict, origin in (
        (alone(torn, HGX), "18 expected"),
        (among(torn), "18 up on 3 of 4 nodes of group train"),
        (alone(torn), "18 up on its peers"),
    ):
        assert verdict.outcome is Outcome.FAIL
        assert verdict.sentence == (
            f"GPU3 (00000000:4B:00.0): 17 NVLinks up, {origin} (down: link 17)"
        )
        assert "reseat" in verdict.advice


def meshed(dead: dict[int, tuple[int, ...]], count: int = 7) -> Facts:
    """GPUs with six links each to others, of which these are dead."""
    joined = tuple(
        replace(
            gpu(at, name="Tesla V100-SXM2-32GB"),
            bus_id="",
            links=tuple(NvLink(n, up=n not in dead.get(at, ())) for n in range(6)),
        )
        for at in range(count)
    )
    return facts(gpus=joined, gpu_pairs=None)


def test_the_dead_ends_of_a_missing_gpu_blame_no_other() -> None:
    """Seven of eight GPUs whose six dead links are as many as one has: the eighth is missing."""
    verdict = alone(meshed({3: (3, 5), 4: (1,), 5: (0, 4), 6: (1,)}))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "a GPU is missing: 7 are listed, 8 expected, and the 6 dead NVLinks of the others "
        "(GPU3 link 3, 5; GPU4 link 1; GPU5 link 0, 4; GPU6 link 1) are as many as one GPU has"
    )
    assert "lspci" in verdict.advice


def test_dead_links_that_no_missing_gpu_explains_are_their_gpus() -> None:
    """Too few of them, all of one GPU, or a full machine: then the GPU with them is named."""
    for torn in (meshed({3: (3,)}), meshed({3: (3, 5), 4: (1, 2, 3, 5)}, 8)):
        assert alone(torn).sentence.startswith("GPU3: ")
    assert alone(meshed({3: tuple(range(6))})).sentence.startswith("GPU3: 0 NVLinks up")


def test_every_torn_gpu_is_counted_and_listed() -> None:
    """Two torn GPUs are one verdict whose evidence lists both."""
    torn = with_gpu(5, with_gpu(3, links=links(0, 18)), links=links(9, 9))
    verdict = alone(torn, HGX)
    assert verdict.sentence.startswith("GPU3")
    assert verdict.sentence.endswith("(and 1 more)")
    assert [line[:4] for line in verdict.evidence["findings"]] == ["GPU3", "GPU5"]


@pytest.mark.proves("gpu.topology", unknown="NVML does not report the NVLinks")
def test_unread_links_with_a_promise_are_unknown() -> None:
    """An expectation that could not be checked is not kept."""
    verdict = alone(with_gpu(0, links=None), HGX)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "NVLinks" in verdict.sentence


def test_a_card_without_a_bridge_is_no_fault() -> None:
    """Two bridged cards and a single one are sold so; a lone single among many is worth a look."""
    three = tuple(
        gpu(index, links=bridged({0: 1, 1: 0}.get(index)), name="NVIDIA RTX A6000")
        for index in range(3)
    )
    assert alone(facts(gpus=three, gpu_pairs=pairs(3))).outcome is Outcome.OK
    mates = {0: 1, 1: 0, 2: 3, 3: 2}
    card = "NVIDIA RTX A6000"
    five = tuple(gpu(at, links=bridged(mates.get(at)), name=card) for at in range(5))
    verdict = alone(facts(gpus=five, gpu_pairs=pairs(5)))
    assert verdict.outcome is Outcome.WARN
    assert "GPU4" in verdict.sentence
    assert among(*(facts(gpus=five, gpu_pairs=pairs(5)),) * 4).outcome is Outcome.OK


@pytest.mark.parametrize("blind", [{"links": None}, {"bus_id": ""}])
def test_a_gpu_whose_link_ends_are_unread_is_joined_in_no_other_way(blind: dict[str, None]) -> None:
    """Its peers know of links to it: that is no PCI path, no lopsided link and no odd pair."""
    whole = facts(
        gpus=tuple(
            gpu(
                a,
                links=tuple(NvLink(b, up=True, remote=gpu(b).bus_id) for b in range(4) if b != a),
                name="NVIDIA RTX A6000",
            )
            for a in range(4)
        ),
        gpu_pairs=pairs(4),
        nics=None,
    )
    assert {code for *_, code in gpu_codes(whole) or ()} == {"NV1"}
    one = with_gpu(2, whole, **blind)
    assert gpu_codes(one) is None
    assert among(one, *[whole] * 5).outcome is Outcome.OK


def test_links_that_differ_from_both_ends_are_named() -> None:
    """Three live links there and four back cannot be true of one bridge."""
    card = "NVIDIA RTX A6000"
    two = (gpu(0, links=bridged(1, up=3), name=card), gpu(1, links=bridged(0), name=card))
    verdict = alone(facts(gpus=two, gpu_pairs=pairs(2)))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == "GPU0 has 3 live NVLinks to GPU1, 4 back"


def test_mig_switches_nvlinks_off_by_design() -> None:
    """A GPU in MIG mode need not have its NVLinks and is not asked to."""
    mixed = facts(gpus=(*gpus(7), mig_gpu(7, 2)))
    assert not alone(mixed, HGX).makes_not_ready


@pytest.mark.proves("gpu.topology", finds="a pair of GPUs without peer access")
def test_a_refused_peer_is_named() -> None:
    """One pair without peer access among 27 with it is odd; all without is how that machine is."""
    refused = replace(pairs()[0], p2p_read="chipset not supported")
    verdict = alone(facts(gpu_pairs=(refused, *pairs()[1:])))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU0-GPU1 (NV18): no peer access, chipset not supported")
    none = tuple(replace(pair, p2p_read="disabled by regkey") for pair in pairs())
    assert alone(facts(gpu_pairs=none)).outcome is Outcome.OK


@pytest.mark.proves("gpu.topology", finds="NVLinks that are down on every second GPU")
def test_links_are_missed_where_three_gpus_have_all_of_theirs() -> None:
    """No number of links is of most GPUs here, and still three whole ones show what is torn."""
    torn = tuple(gpu(index, links=links(18 - index, index)) for index in (1, 2, 3, 4))
    whole = tuple(gpu(index) for index in (0, 5, 6))
    verdict = alone(facts(gpus=(*whole[:1], *torn, *whole[1:])))
    assert verdict.outcome is Outcome.FAIL
    assert "GPU1 (00000000:2B:00.0): 17 NVLinks up, 18 up on its peers" in verdict.sentence
    few = alone(facts(gpus=(*torn, *whole[:2])))
    assert few.outcome is Outcome.FAIL
    assert "17 NVLinks up, 18 on its board" in few.sentence
    cards = tuple(replace(one, name="NVIDIA H100 NVL") for one in (*torn, *whole[:2]))
    assert alone(facts(gpus=cards)).outcome is Outcome.OK


def test_a_board_alone_keeps_no_node_from_its_job() -> None:
    """A GPU alone in a virtual machine has no link partner; a whole group is as built."""
    assert alone(facts(gpus=(gpu(links=links(0, 18)),))).outcome is Outcome.OK
    dark = facts(gpus=tuple(gpu(index, links=links(0, 18)) for index in range(8)))
    assert alone(dark).outcome is Outcome.FAIL
    assert among(dark, dark, dark).outcome is Outcome.WARN
    assert alone(facts(gpus=tuple(mig_gpu(index, 2) for index in range(8)))).outcome is Outcome.OK


def test_peer_access_alone() -> None:
    """Where only peer access is known, one refusal or a ban for all is reported."""
    unknown = tuple(replace(pair, ancestor="unknown") for pair in pairs())
    bare = facts(gpus=tuple(gpu(index, links=None) for index in range(8)), nics=None)
    refused = replace(unknown[3], p2p_read="chipset not supported")
    one = alone(replace(bare, gpu_pairs=(*unknown[:3], refused, *unknown[4:])))
    assert (one.outcome, "GPU0-GPU4" in one.sentence) == (Outcome.FAIL, True)
    banned = tuple(replace(pair, p2p_read="chipset not supported") for pair in unknown)
    everyone = alone(replace(bare, gpu_pairs=banned))
    assert everyone.outcome is Outcome.WARN
    assert "no GPU may reach another's memory: chipset not supported" in everyone.sentence
    assert alone(replace(bare, gpu_pairs=unknown)).outcome is Outcome.OK


@pytest.mark.parametrize(("number", "outcome"), [(3, "warn"), (4, "warn"), (8, "fail")])
def test_a_gpu_without_any_peer_is_named(number: int, outcome: str) -> None:
    """Refused with each of the others, which reach each other: it is that GPU, not its pairs."""
    gone = number - 1
    lone = tuple(
        replace(pair, ancestor="unknown", p2p_read="not supported" if pair.b == gone else "ok")
        for pair in pairs()
        if pair.b < number
    )
    bare = facts(gpus=tuple(gpu(at, links=None) for at in range(number)), nics=None)
    verdict = alone(replace(bare, gpu_pairs=lone))
    assert verdict.outcome == outcome
    named = f"GPU{gone} (unknown way): no peer access to any other GPU, not supported"
    assert verdict.sentence.startswith(named)


def test_a_pair_joined_otherwise_than_in_the_group_is_named() -> None:
    """PCIe GPUs that sit on other sockets than on most nodes: the minority is odd, not the rest."""
    plain = facts(gpus=tuple(gpu(at, links=(), name="NVIDIA H100 PCIe") for at in range(8)))
    moved = replace(plain, gpu_pairs=(replace(pairs()[0], ancestor="SYS"), *pairs()[1:]))
    verdict = among(moved, plain, plain, plain)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "GPU0-GPU1 is joined by SYS here, by NODE on 3 of 4 nodes of group train"
    )
    assert judge_topology(NOTHING, plain, group(moved, plain, plain, plain)).outcome is Outcome.OK
    assert among(moved, plain).outcome is Outcome.OK  # one against one: no majority


def test_fewer_gpus_than_the_group_are_reported_as_such() -> None:
    """Without an expectation the group still says that a GPU is missing."""
    verdict = among(facts(gpus=gpus(7), gpu_pairs=pairs(7)))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("7 GPUs here, 8 on 3 of 4 nodes")


@pytest.mark.proves("gpu.topology", finds="a NIC in the wrong slot")
def test_a_rail_whose_nic_is_far_is_named() -> None:
    """A NIC in the wrong slot: SYS against PIX, by the group or by the seven other rails."""
    nics = tuple(nic(index) for index in range(7))
    moved = facts(nics=(*nics, nic(7, pci_path=("pci0000:99", "0000:99:01.0", "n"), numa=0)))
    for verdict, origin in (
        (among(moved), "on 3 of 4 nodes of group train"),
        (alone(moved), "for every other GPU here"),
    ):
        assert verdict.outcome is Outcome.FAIL
        assert verdict.sentence.startswith("rail 7: the NIC nearest to GPU7 (mlx5_4, mlx5_5")
        assert verdict.sentence.endswith(f"is at NODE, at PIX {origin}")


def test_a_nic_whose_place_could_not_be_read_is_no_far_one() -> None:
    """Which NIC is the nearest is not known then; a device without a slot does not count."""
    nics = facts().nics or ()
    unread = facts(nics=(nic(0, pci_path=()), *nics[1:]))
    assert (alone(unread).outcome, among(unread).outcome) == (Outcome.OK, Outcome.OK)
    gone = facts(nics=(nic(0, pci_path=None), *nics[1:]))
    assert alone(gone).outcome is Outcome.FAIL


def test_uneven_rails_by_design_are_no_fault() -> None:
    """Two NICs near some GPUs, on every node alike, or one GPU nearer than most: as built."""
    two = facts(nics=(nic(4), nic(6)))
    assert alone(two).outcome is Outcome.OK
    assert among(two, two, two).outcome is Outcome.OK
    assert alone(facts(nics=(nic(0),))).outcome is Outcome.OK


def test_another_numa_node_than_in_the_group_is_a_warning() -> None:
    """A BIOS that numbers NUMA otherwise costs speed, not the job."""
    verdict = among(with_gpu(2, numa=3))
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence == ("GPU2 is at NUMA node 3 here, at 0 on 3 of 4 nodes of group train")


def printed(code: str, back: str = "") -> str:
    """nvidia-smi's matrix of two GPUs."""
    return f"\tGPU0\tGPU1\nGPU0\t X \t{code}\nGPU1\t{back or code}\t X \n"


def test_nvidia_smi_is_held_against_nvml() -> None:
    """One driver with two stories is a mixed installation; a contradiction in itself fails."""
    two = facts(gpus=gpus(2), gpu_pairs=pairs(2))
    assert alone(replace(two, topo_text=printed("NV18"))).outcome is Outcome.OK
    verdict = alone(replace(two, topo_text=printed("SYS")))
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence == "GPU0-GPU1: nvidia-smi says SYS, NVML says NV18"
    lopsided = alone(replace(two, topo_text=printed("NV18", "NV17")))
    assert lopsided.outcome is Outcome.FAIL
    assert "GPU0 to GPU1 by NV18, but GPU1 to GPU0 by NV17" in lopsided.sentence
    more = alone(replace(facts(), topo_text=printed("NV18")))
    assert more.sentence == "nvidia-smi prints 2 GPUs, NVML has 8"


def test_an_unreadable_matrix_is_noted_and_no_fault() -> None:
    """nvidia-smi's text may be cut; NVML alone is enough."""
    verdict = alone(facts(topo_text="\tGPU0\tGPU1\nGPU0\t X \n"))
    assert verdict.outcome is Outcome.OK
    assert "row of GPU0 has 1 of 2 cells" in verdict.evidence["note"]
