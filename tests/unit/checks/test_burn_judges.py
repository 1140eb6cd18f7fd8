"""The checks of the burn-in, on made-up burn-ins: what each finds, passes, and cannot know."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.burn.test_burn_in import (
    judge_device,
    judge_integrity,
    judge_nic,
    judge_p2p,
    judge_speed,
    judge_sustained,
)
from preflight.facts.burn import Absent, Burned, NoTime, Proof, Ready, Trouble
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.burn.builders import UNKNOWN, burned, clocks, judged, lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.burn import Burn, Measure
    from preflight.verdict import Verdict

    Judge = Callable[[Burn | None], Verdict]

JUDGES: dict[str, Judge] = {
    **{name: partial(judge_speed, name) for name in ("gemm", "memory", "pcie", "launch", "host")},
    "p2p": judge_p2p,
    "sustained": judge_sustained,
    "nic": judge_nic,
}
MEASURES: dict[str, tuple[Measure, ...]] = {
    "gemm": ("gemm_tflops",),
    "memory": ("memory_gbs",),
    "pcie": ("h2d_gbs", "d2h_gbs"),
    "p2p": ("p2p_gbs",),
    "launch": ("launch_us",),
    "sustained": ("sustained_tflops",),
    "host": ("host_copy_gbs", "host_gflops"),
    "nic": ("nic_gbits",),
}


@pytest.mark.proves("burn.gemm", passes="eight H100 that differ by 0.5 %")
@pytest.mark.proves("burn.memory", passes="eight H100 that differ by 0.5 %")
@pytest.mark.proves("burn.pcie", passes="eight H100 on two sockets")
@pytest.mark.proves("burn.p2p", passes="eight H100 joined by NVLink")
@pytest.mark.proves("burn.launch", passes="eight H100 that differ by 0.5 %")
@pytest.mark.proves("burn.sustained", passes="eight H100 at their power limit")
@pytest.mark.proves("burn.host", passes="two sockets of two nodes")
@pytest.mark.proves("burn.nic", passes="eight NICs of 400 Gb/s")
@pytest.mark.proves("burn.device", passes="eight GPUs without a fault")
@pytest.mark.proves("burn.integrity", passes="eight GPUs with one exact product")
def test_two_healthy_nodes_pass_everything() -> None:
    """Each sentence has what was seen, the limit, and which number set it."""
    for burn in judged(burned(), burned()):
        for name, judge in JUDGES.items():
            verdict = judge(burn)
            assert verdict.outcome is Outcome.OK, (name, verdict)
            assert "limit " in verdict.sentence, name
            assert "of the median of" in verdict.sentence, name
        assert judge_device(burn).sentence == "8 GPUs came through 41 s of burn-in"
        assert judge_integrity(burn).outcome is Outcome.OK


@pytest.mark.proves("burn.gemm", finds="one GPU of eight at 60 % of its peers")
def test_a_slow_gpu_is_named_with_its_peers_and_its_clocks() -> None:
    """Number, peers' median, limit, who set it, and what the clocks did; one culprit, one cause."""
    node = burned({("gemm_tflops", 5): 0.6})
    cold = tuple(clocks(n, mhz=1095) if n == 5 else clocks(n) for n in range(8))
    verdict = judge_speed("gemm", judged(replace(node, clocks=cold))[0])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU 5: bf16 GEMM 446 TFLOPS at 1,095 MHz, 62 C, 690 W; ")
    assert "peers' median 744 TFLOPS, limit 654 TFLOPS (0.88 of the median" in verdict.sentence
    assert verdict.cause == "GPU 5"
    assert "GPU 5" in verdict.advice


@pytest.mark.proves("burn.memory", finds="one GPU whose memory copies at 80 %")
@pytest.mark.proves("burn.pcie", finds="a GPU whose PCIe link runs at half width")
@pytest.mark.proves("burn.p2p", finds="a GPU with half of its NVLinks gone")
@pytest.mark.proves(
    "burn.launch", finds="a GPU with kernels that take three times as long to start"
)
@pytest.mark.parametrize(
    ("name", "factor", "start"),
    [
        ("memory", 0.8, "GPU 3: memory copy 2,332 GB/s"),
        ("pcie", 0.5, "GPU 3 with NUMA node 0: host copies 27.6 GB/s to it"),
        ("p2p", 0.5, "GPU 3 to 0: copy 191 GB/s"),
        ("launch", 3.0, "GPU 3: kernel launch 23.9 us"),
    ],
)
def test_a_slow_part_is_named(name: str, factor: float, start: str) -> None:
    """Each check names the part that is slow in its own measure, and is silent about others'."""
    node = burned({(measure, 3): factor for measure in MEASURES[name]})
    (burn,) = judged(node)
    verdict = JUDGES[name](burn)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith(start), verdict.sentence
    others = (other for other in ("gemm", "memory", "pcie", "p2p", "launch") if other != name)
    assert all(JUDGES[other](burn).outcome is Outcome.OK for other in others)


@pytest.mark.proves("burn.host", finds="a NUMA node whose memory runs at half speed")
@pytest.mark.proves("burn.nic", finds="a NIC in a slot of half width")
@pytest.mark.parametrize(
    ("name", "measure", "part"),
    [("host", "host_copy_gbs", {"side": 1}), ("nic", "nic_gbits", {"name": "mlx5_3"})],
)
def test_a_slow_part_of_the_host(name: str, measure: str, part: dict[str, object]) -> None:
    """Sides of the host and NICs are held against those of other nodes as well."""
    node = burned()
    readings = tuple(
        replace(one, samples=tuple(value / 2 for value in one.samples))
        if one.measure == measure and all(getattr(one, k) == v for k, v in part.items())
        else one
        for one in node.readings
    )
    slow, fine = judged(replace(node, readings=readings), burned())
    assert JUDGES[name](fine).outcome is Outcome.OK
    verdict = JUDGES[name](slow)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith(("NUMA node 1: ", "mlx5_3: "))


@pytest.mark.proves("burn.sustained", finds="a GPU that heat slows under load")
def test_heat_under_load_is_the_reason_that_is_given() -> None:
    """A GPU that throttles is slow as well; what NVML says is the better sentence."""
    node = burned({("sustained_tflops", 2): 0.7})
    hot = tuple(clocks(n, "hw_thermal", mhz=1200) if n == 2 else clocks(n) for n in range(8))
    verdict = judge_sustained(judged(replace(node, clocks=hot))[0])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU 2: hw_thermal held its clocks down in 40 of 40 looks")
    assert "air flow" in verdict.advice
    assert verdict.cause == "GPU 2"


@pytest.mark.proves("burn.integrity", finds="a GPU with one product that differs")
def test_a_single_wrong_bit_fails_the_node() -> None:
    """Whatever else is missing of that node, and even if it fell out later."""
    bad = Proof(
        device=4, what="product", rounds=200, wrong=1, digest="0",
        first="element 7,9 came out as 12 in product 31, before as 14", size="8192x256",
    )  # fmt: skip
    node = burned()
    proofs = tuple(bad if (p.device, p.what) == (4, "product") else p for p in node.proofs)
    whole = replace(node, proofs=proofs)
    cut = replace(whole, done=False, trouble="the connection to it was lost")
    for one in (whole, cut):
        verdict = judge_integrity(judged(one)[0])
        assert verdict.outcome is Outcome.FAIL
        assert verdict.sentence.startswith("GPU 4: an exact product came out wrong (1 of 200 times")


@pytest.mark.proves("burn.integrity", finds="a GPU that computes the same wrong result every time")
def test_who_is_wrong_each_time_differs_from_the_others() -> None:
    """Exact products are equal on every device; the odd one is named, and none in a tie."""
    node = burned()
    proofs = tuple(
        replace(p, digest="0bad0bad0bad0bad") if (p.device, p.what) == (1, "product") else p
        for p in node.proofs
    )
    verdict = judge_integrity(judged(replace(node, proofs=proofs), burned())[0])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU 1: an exact product came out wrong, the same each time")
    two = burned(gpus=2)
    odd = tuple(replace(p, digest="0bad") if p.device == 1 and p.digest else p for p in two.proofs)
    assert not judged(replace(two, proofs=odd), expectation=Expected(gpus=2))[0].wrong


@pytest.mark.proves("burn.integrity", finds="words of GPU memory that changed")
@pytest.mark.parametrize(
    ("what", "to", "start"),
    [
        ("memory", None, "GPU 0: its memory did not keep what was written (3 words in 4 passes"),
        ("p2p", 6, "GPU 0 to 6: what arrived was not what was sent"),
        ("load", None, "GPU 0: a product under load came out different"),
    ],
)
def test_wrong_data_anywhere(what: str, to: int | None, start: str) -> None:
    """Memory, a way between two GPUs, and a product while the GPU is hot."""
    bad = Proof(device=0, to=to, what=what, rounds=4, wrong=3, first="word 5", size="1 MiB")  # type: ignore[arg-type]
    node = burned()
    others = tuple(p for p in node.proofs if (p.device, p.what) != (0, what))
    verdict = judge_integrity(judged(replace(node, proofs=(*others, bad)))[0])
    assert (verdict.outcome, verdict.sentence.startswith(start)) == (Outcome.FAIL, True)


def test_a_gpu_that_another_process_has_to_itself_is_not_run() -> None:
    """Exclusive-process mode: no finding, unless another device did not come through."""
    held = lost(3, how="held", phase="open")
    verdict = judge_device(judged(replace(burned(), lost=(held,)), burned())[0])
    assert verdict.outcome is Outcome.NOT_RUN
    assert verdict.sentence.startswith("GPU 3 was not available in coming up: ")
    both = judge_device(judged(replace(burned(), lost=(held, lost(2))), burned())[0])
    assert (both.outcome, both.cause) == (Outcome.FAIL, "GPU 2")


@pytest.mark.proves("burn.device", finds="a GPU that hangs")
def test_a_gpu_that_hangs_is_the_nodes_only_finding() -> None:
    """The others are judged all the same, and nothing is reported twice."""
    node = burned()
    readings = tuple(one for one in node.readings if 3 not in (one.device, one.to))
    whole = replace(
        node,
        readings=readings,
        proofs=tuple(p for p in node.proofs if p.device != 3),
        clocks=node.clocks[:3] + node.clocks[4:],
        lost=(lost(3),),
    )
    burn = judged(whole, burned())[0]
    verdict = judge_device(burn)
    assert (verdict.outcome, verdict.blocks, verdict.cause) == (Outcome.FAIL, False, "GPU 3")
    assert verdict.sentence.startswith("GPU 3 hung in the GEMM: it stood still for 30 s")
    assert all(judge(burn).outcome is Outcome.OK for judge in JUDGES.values())
    assert judge_integrity(burn).outcome is Outcome.OK


def test_a_process_that_had_no_cpu_fails_no_device() -> None:
    """It was late because others had the CPU: a warning that says so."""
    verdict = judge_device(judged(replace(burned(), lost=(lost(3, starved=True),)))[0])
    assert verdict.outcome is Outcome.WARN
    assert "what else runs" in verdict.advice


def test_gpus_without_a_pci_address_are_reported() -> None:
    """They were loaded, and are like their peers; their clocks and NUMA nodes went unchecked."""
    whole = burned()
    lost = (replace(whole.opened[0], bus_id="", numa=None), *whole.opened[1:])
    node = judged(replace(whole, opened=lost))[0]
    verdict = judge_device(node)
    assert (verdict.outcome, node.unplaced) == (Outcome.OK, 1)
    assert verdict.sentence.endswith(
        "; of 1 the PCI address is unknown: clocks and NUMA not checked"
    )
    assert judge_speed("gemm", node).outcome is Outcome.OK


def test_gpus_that_were_not_loaded_are_reported() -> None:
    """CUDA_VISIBLE_DEVICES or a cgroup hides some of them: those are not judged."""
    verdict = judge_device(judged(burned(gpus=4))[0])
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.WARN,
        "torch sees 4 of 8 GPUs, the others were not loaded",
    )


@pytest.mark.proves("burn.device", unknown="a node without a result of the burn-in")
@pytest.mark.proves("burn.device", unknown="GPUs that the job's torch does not see")
@pytest.mark.parametrize(
    ("node", "words"),
    [
        (Burned(trouble="the connection to it was lost"), "the connection to it was lost"),
        (
            Burned(ready=Ready(torch="2.9.0+cpu", kind="cpu", devices=2), done=True),
            "0 of 8 GPUs",
        ),
        (Burned(ready=Ready(torch="2.9.0", kind="cuda", devices=0), done=True), "no device"),
    ],
)
def test_a_node_without_results_is_unknown(node: Burned, words: str) -> None:
    """Never a pass; and what is behind the gate waits for it."""
    (burn,) = judged(node)
    verdict = judge_device(burn)
    assert verdict.outcome is Outcome.UNKNOWN
    assert words in verdict.sentence
    assert verdict.advice
    if burn.state != "measured":
        assert judge_integrity(burn).outcome is Outcome.NOT_RUN


@pytest.mark.proves("burn.integrity", unknown="devices that sent no proof")
def test_no_proof_is_no_pass() -> None:
    """One GPU of eight has no result for its memory."""
    node = burned()
    proofs = tuple(p for p in node.proofs if (p.device, p.what) != (7, "memory"))
    verdict = judge_integrity(judged(replace(node, proofs=proofs))[0])
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence.startswith("7 of 8 devices proved")


@pytest.mark.proves("burn.gemm", unknown="a GPU without peers, expected value and floor")
@pytest.mark.proves("burn.memory", unknown="a GPU without peers, expected value and floor")
@pytest.mark.proves("burn.pcie", unknown="a GPU without peers, expected value and floor")
@pytest.mark.proves("burn.p2p", unknown="a GPU without peers, expected value and floor")
@pytest.mark.proves("burn.launch", unknown="a GPU without peers, expected value and floor")
@pytest.mark.proves("burn.nic", unknown="a NIC without peers")
@pytest.mark.proves("burn.host", unknown="NUMA nodes without peers")
@pytest.mark.parametrize("name", ["gemm", "memory", "pcie", "p2p", "launch", "host", "nic"])
def test_without_anything_to_hold_it_against(name: str) -> None:
    """The numbers are shown, and nothing is known of them; no expectation covers a host's."""
    node = burned(gpus=2, model=UNKNOWN)
    verdict = JUDGES[name](judged(node, expectation=Expected(gpus=2))[0])
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence.startswith("no peers: ")
    assert verdict.makes_not_ready == (name != "host")
    assert "gpu_model" in verdict.advice or name == "host"


def test_one_gpu_has_no_other_to_copy_to() -> None:
    """That is no measurement that is missing."""
    verdict = JUDGES["p2p"](judged(burned(gpus=1), expectation=Expected(gpus=1))[0])
    assert verdict.outcome is Outcome.NOT_RUN
    assert verdict.sentence == "1 GPU here: no other to copy to"


@pytest.mark.proves("burn.sustained", unknown="a load without a result")
@pytest.mark.parametrize("name", ["gemm", "memory", "launch", "sustained"])
def test_a_device_without_results_is_unknown(name: str) -> None:
    """Seven of eight are fine; the eighth was neither measured nor lost."""
    node = burned()
    readings = tuple(one for one in node.readings if one.device != 7)
    verdict = JUDGES[name](judged(replace(node, readings=readings))[0])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "1 device of 8 returned no result" in verdict.sentence


def test_a_nic_that_fails_is_unknown_and_none_is_not_run() -> None:
    """The tool's error is shown; without the tool no NIC is measured."""
    node = burned()
    others = tuple(one for one in node.readings if one.name != "mlx5_2")
    failed = replace(
        node, readings=others, troubles=(Trouble(what="nic", error="mlx5_2: Couldn't allocate MR"),)
    )
    verdict = judge_nic(judged(failed)[0])
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence == "ib_write_bw failed on mlx5_2: Couldn't allocate MR"
    none = replace(
        node,
        readings=tuple(one for one in node.readings if not one.name),
        absent=(Absent(what="nic", error="ib_write_bw (perftest) is not installed"),),
    )
    assert judge_nic(judged(none)[0]).outcome is Outcome.NOT_RUN


def test_what_was_not_run_is_not_judged() -> None:
    """Busy, out of time, or no burn-in at all: every check says why."""
    busy = judged(Burned(left_out="busy: pid 7 (python train.py) works on its GPUs"))[0]
    late = judged(Burned(ready=burned().ready, stopped=True, trouble="its time was up"))[0]
    for judge in (*JUDGES.values(), judge_device, judge_integrity):
        assert judge(None).outcome is Outcome.NOT_RUN
        assert "pid 7" in judge(busy).sentence
        assert judge(late).outcome is Outcome.NOT_RUN
        assert judge(late).evidence["stopped"] is True


LATE = {"done": False, "stopped": True, "trouble": "its time was up (in nic)"}


def test_what_was_measured_before_the_time_was_up_is_judged() -> None:
    """Results of all devices count; how many NICs, ways and sides were to come is not known."""
    late = judged(replace(burned(), **LATE))[0]
    for name, judge in {**JUDGES, "integrity": judge_integrity}.items():
        verdict = judge(late)
        if name in ("p2p", "host", "nic"):
            assert verdict.outcome is Outcome.NOT_RUN
            assert verdict.evidence["stopped"] is True
            assert "its time was up (in nic); measured until then, nothing slow" in verdict.sentence
        else:
            assert verdict.outcome is Outcome.OK, name
    assert judge_device(late).outcome is Outcome.NOT_RUN


def test_what_was_slow_before_the_time_was_up_is_named() -> None:
    """And what only some devices measured is not run, not passed."""
    slow = replace(burned({("gemm_tflops", 1): 0.5}), **LATE)
    few = tuple(one for one in slow.readings if one.measure != "memory_gbs" or one.device == 0)
    one = judged(replace(slow, readings=few), burned())[0]
    assert judge_speed("gemm", one).outcome is Outcome.FAIL
    assert judge_speed("memory", one).outcome is Outcome.NOT_RUN
    assert (
        judge_integrity(judged(replace(slow, proofs=slow.proofs[:3]))[0]).outcome is Outcome.NOT_RUN
    )


def test_nics_without_a_turn_are_named() -> None:
    """A pass of four is no pass of eight: the sentence says which had no time."""
    node = burned()
    left = ("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7")
    some = tuple(one for one in node.readings if one.name not in left)
    verdict = judge_nic(
        judged(replace(node, readings=some, no_time=(NoTime(what="nic", names=left),)))[0]
    )
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence.endswith("; no time for 4 of 8 NICs: mlx5_4, mlx5_5, mlx5_6, mlx5_7")
