"""Inside a node: peers first, then inventory and floor; the GPU is named if it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.checks.fabric.test_pairs import judge_intra_node
from preflight.core.thresholds import SHIPPED
from preflight.fabric.judge import judge_sweep
from preflight.fabric.samples import End, InsideSamples, Moved, Rung, Sweep, Timing
from preflight.fabric.sweep_plan import NCCL_INSIDE
from preflight.facts.boards import nvlink_gbs
from preflight.facts.burn import Inside
from preflight.facts.model import NvLink
from preflight.fleet.baselines import gpu_floor
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import hosts
from tests.unit.facts.builders import gpus, links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fabric.samples import Backend, PairState
    from preflight.fleet.model import Host
    from preflight.verdict import Verdict

SMALL, LARGE, RAILS = 8, 64 << 20, 4
BUS = 2 * (RAILS - 1) / RAILS


def node(
    name: str, gbs: float, *, backend: Backend = "nccl", net: str = "P2P", latency_us: float = 20.0
) -> InsideSamples:
    """A node of four rails, all as fast: thirty operations of two sizes."""
    large_us = LARGE * BUS / gbs / 1e3
    timings = tuple(
        Timing(at, (us,) * 30, (1.0,) * 30) for at, us in ((SMALL, latency_us), (LARGE, large_us))
    )
    end = End(name, "measured", timings, net=net)
    return InsideSamples(name, backend, (end,) * RAILS)


def broken(one: InsideSamples, *states: PairState, errors: Sequence[str] = ()) -> InsideSamples:
    """The same with these states of its first rails, and what they say."""
    errors = (*errors, *("Timed out waiting",) * len(states))
    ends = [
        end if end is None or state == "measured" else replace(end, state=state, error=error)
        for end, state, error in zip(one.rails, states, errors, strict=False)
    ]
    return replace(one, rails=(*ends, *one.rails[len(ends) :]))


def spiky(one: InsideSamples, rail: int, times: int, *, own_gap: bool) -> InsideSamples:
    """So many operations took 50 ms on all rails but one, which began late or was as slow."""
    spike_us = 50e3

    def end(number: int, of: End | None) -> End:
        assert of is not None
        small, large = of.timings
        late = own_gap and number == rail
        took = (small.times_us[0] if late else spike_us,) * times + small.times_us[times:]
        gaps = (spike_us if late else 1.0,) * times + small.gaps_us[times:]
        return replace(of, timings=(replace(small, times_us=took, gaps_us=gaps), large))

    return replace(one, rails=tuple(end(number, of) for number, of in enumerate(one.rails)))


def verdicts(
    insides: Sequence[InsideSamples], fleet: Sequence[Host], **more: object
) -> dict[str, Verdict]:
    """What the check says of each node of the fleet."""
    ladder = (Rung(SMALL, 1, 30), Rung(LARGE, 1, 30))
    sweep = replace(Sweep(ladder, (), (), inside=tuple(insides)), **more)
    found = judge_sweep(sweep, fleet).inside
    return {
        host.name: judge_intra_node(host.name, found.get(host.name), limit=SHIPPED)
        for host in fleet
    }


def four(**odd: InsideSamples) -> list[InsideSamples]:
    """h1 to h4 at 350 to 356 GB/s, but for those that are given."""
    return [odd.get(f"h{n}", node(f"h{n}", 348.0 + 2 * n)) for n in (1, 2, 3, 4)]


@pytest.mark.proves("fabric.intra_node", finds="a node slower than its peers")
def test_a_node_slower_than_its_peers_is_named_with_both_numbers() -> None:
    """15 % less than the others, over another way than theirs; the others are fine."""
    judged = verdicts(four(h3=node("h3", 300.0, net="SHM")), hosts(4))
    assert {name for name, one in judged.items() if one.outcome is not Outcome.OK} == {"h3"}
    assert judged["h3"].outcome is Outcome.FAIL
    assert judged["h3"].sentence == (
        "median 300 GB/s at 64 MiB among its 4 rails; peers' median 352 GB/s, limit 317 GB/s "
        "(0.9 of the peers' median); carried by SHM, at its peers by P2P"
    )
    assert "h3" in judged["h3"].advice
    assert judged["h1"].sentence == (
        "350 GB/s at best at 64 MiB among 4 rails (limit 317 GB/s, 0.9 of the peers' median), 20 us"
    )


def test_small_messages_are_held_against_the_peers_too() -> None:
    """Four times their latency at 8 B."""
    judged = verdicts(four(h2=node("h2", 350.0, latency_us=90.0)), hosts(4))
    assert judged["h2"].outcome is Outcome.FAIL
    words = "90 us at 8 B among its 4 rails; peers' median 20 us, limit 60 us"
    assert words in judged["h2"].sentence


def test_a_scattered_fleet_fails_no_node() -> None:
    """Where peers differ by a third among themselves, a third is no fault."""
    speeds = (250.0, 300.0, 340.0, 380.0, 330.0)
    judged = verdicts([node(f"h{n}", gbs) for n, gbs in enumerate(speeds, 1)], hosts(5))
    assert {one.outcome for one in judged.values()} == {Outcome.OK}


@pytest.mark.parametrize(
    ("gbs", "expected", "outcome", "words"),
    [
        (5.0, None, Outcome.OK, "limit 2 GB/s, shipped floor for nccl"),
        (1.0, None, Outcome.FAIL, "limit 2 GB/s (shipped floor for nccl)"),
        (300.0, 340.0, Outcome.FAIL, "limit 340 GB/s (expected by fleet.toml)"),
    ],
)
def test_without_peers_promise_and_floor_decide(
    gbs: float, expected: float | None, outcome: Outcome, words: str
) -> None:
    """Two nodes are each other's only peer, which is none."""
    fleet = hosts(2, Expected(intra_node_min_gbs=expected, origin="fleet.toml"))
    judged = verdicts([node(name, gbs) for name in ("h1", "h2")], fleet)
    assert (judged["h1"].outcome, words in judged["h1"].sentence) == (outcome, True)


def test_peers_are_of_the_same_group() -> None:
    """PCIe boxes beside NVLink boxes: each kind is compared with itself, or with the floor."""
    fleet = hosts(5)
    fleet[3:] = [replace(host, group="pcie") for host in fleet[3:]]
    judged = verdicts([node(f"h{n}", 20.0 if n > 3 else 350.0) for n in range(1, 6)], fleet)
    assert {one.outcome for one in judged.values()} == {Outcome.OK}


ALL_CORRUPT: list[PairState] = ["corrupt"] * RAILS
ALL_HUNG: list[PairState] = ["hung"] * RAILS
WRONG = "8 B: element 3 came out as 0x1, must be 0x5; its own sum of the same data is {}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda one: broken(one, "measured", "corrupt", errors=("", WRONG.format("right"))),
            "sums came out wrong on GPU 1 of h2 (GPU 1: 8 B: element 3",
        ),
        (
            lambda one: broken(
                one,
                *ALL_CORRUPT,
                errors=[
                    WRONG.format("WRONG: it is this device" if n == 2 else "right")
                    for n in range(4)
                ],
            ),
            "sums came out wrong on GPU 2 of h2 (",
        ),
        (
            lambda one: broken(one, *ALL_CORRUPT, errors=[WRONG.format("right")] * 4),
            "sums came out wrong (GPU 0: 8 B",
        ),
        (
            lambda one: broken(
                one,
                *ALL_HUNG,
                errors=("Timed out", "its measuring process stood still for 6 s"),
            ),
            "the all-reduce among its 4 rails hung on GPU 1 of h2 (GPU 1: its measuring process",
        ),
        (
            lambda one: replace(
                broken(
                    one,
                    "absent",
                    "absent",
                    "absent",
                    errors=["rail 3 of this node did not come"] * 3,
                ),
                rails=(*broken(one, "absent", "absent", "absent").rails[:3], None),
            ),
            "the all-reduce among its 4 rails never began on GPU 3 of h2 (GPU 3: it never",
        ),
        (
            lambda one: broken(one, *ALL_HUNG),
            "the all-reduce among its 4 rails hung (GPU 0: Timed out waiting)",
        ),
    ],
)
def test_the_gpu_is_named_where_it_shows_itself(
    change: Callable[[InsideSamples], InsideSamples], words: str
) -> None:
    """Wrong data where they came out, who stood still, who never came; or else the node."""
    judged = verdicts(four(h2=change(node("h2", 350.0))), hosts(4))
    assert judged["h2"].outcome is Outcome.FAIL
    assert judged["h2"].sentence.startswith(words)
    assert {one.outcome for name, one in judged.items() if name != "h2"} == {Outcome.OK}


def test_a_rail_that_keeps_the_others_waiting_is_flaky_and_named() -> None:
    """Six late starts of rail 1 by its own clock; once it is the whole node, no rail is named."""
    judged = verdicts(four(h4=spiky(node("h4", 350.0), 1, 6, own_gap=True)), hosts(4))
    assert judged["h4"].outcome is Outcome.FLAKY
    assert judged["h4"].sentence == (
        "6 of 60: GPU 1 of h4 kept the others waiting, up to 50 ms, by its own clock; at the worst "
        "of its 3 peers none"
    )
    whole = verdicts(four(h4=spiky(node("h4", 350.0), 1, 6, own_gap=False)), hosts(4))["h4"]
    assert "operations among the rails of h4 took up to 50 ms" in whole.sentence


def test_what_peers_show_too_or_a_cpu_explains_is_no_fault() -> None:
    """Few, or about as costly at a peer; on gloo, ranks that only waited for a CPU."""
    odd = spiky(node("h4", 350.0), 1, 6, own_gap=True)
    peer = spiky(node("h1", 350.0), 0, 2, own_gap=False)
    few = spiky(node("h4", 350.0), 1, 3, own_gap=True)
    for insides in (four(h4=odd, h1=peer), four(h4=few)):
        assert verdicts(insides, hosts(4))["h4"].outcome is Outcome.OK

    def waited(one: InsideSamples, by: float) -> InsideSamples:
        moved = (Moved("cpu wait_s", by),)
        ends = (replace(end, moved=moved) if end else None for end in one.rails)
        return replace(one, backend="gloo", rails=tuple(ends))

    gloo = [replace(one, backend="gloo") for one in four(h4=odd)]
    assert verdicts([*gloo[:3], waited(odd, 0.001)], hosts(4))["h4"].outcome is Outcome.FLAKY
    assert verdicts([*gloo[:3], waited(odd, 0.1)], hosts(4))["h4"].outcome is Outcome.OK


@pytest.mark.proves("fabric.intra_node", unknown="a node that was not measured")
def test_what_was_not_measured_says_why() -> None:
    """One rail, left out, its time up, fallen out of the sweep: only the last one is a finding."""
    judged = verdicts(
        [node("h1", 350.0), InsideSamples("h3", "nccl", (None,) * 4)],
        hosts(4),
        left_out={"h4": "busy: another run"},
        troubles={"h3": "its agent was killed"},
    )
    assert {name: one.outcome for name, one in judged.items()} == {
        "h1": Outcome.OK,
        "h2": Outcome.NOT_RUN,
        "h3": Outcome.UNKNOWN,
        "h4": Outcome.NOT_RUN,
    }
    assert judged["h2"].sentence.startswith("it has one rail")
    assert judged["h3"].sentence == "h3 fell out of the sweep: its agent was killed"
    held = "exclusive process: pid 4711 (python) holds GPU 2"
    awaited = "rail 2 of this node did not come"
    states: tuple[PairState, ...] = ("absent", "absent", "not_run", "absent")
    errors = (awaited, awaited, held, awaited)
    one = verdicts([broken(node("h1", 350.0), *states, errors=errors)], hosts(1))["h1"]
    assert (one.outcome, one.sentence) == (Outcome.NOT_RUN, held)
    late = verdicts([InsideSamples("h1", "nccl", (None,) * 4)], hosts(1), unfinished="time was up")
    assert (late["h1"].outcome, late["h1"].sentence) == (Outcome.NOT_RUN, "time was up")


def test_a_rail_without_gpu_memory_is_no_hang() -> None:
    """The others of the node stood still for it: headline and advice are those of its cause."""
    still, own = "its measuring process stood still for 6 s", "CUDA out of memory. Tried to allo"
    states: tuple[PairState, ...] = ("hung", "hung", "error", "hung")
    one = verdicts(
        [broken(node("h1", 350.0), *states, errors=(still, still, own, still))], hosts(1)
    )["h1"]
    assert "broke off" in one.sentence
    assert own in one.sentence
    assert "hung" not in one.sentence
    assert one.advice.startswith("on h1: nvidia-smi shows which process holds the GPU's memory")


def test_the_gpu_on_which_nccl_failed_is_named_and_not_those_that_it_left() -> None:
    """One says why, the others only that it closed its connections."""
    left = (
        "remote process exited or there was a network error, NCCL version 2.28.9; NCCL: "
        "socketProgress: Connection closed by remote peer 10.0.0.2<38111>"
    )
    own = (
        "unhandled system error, NCCL version 2.28.9; NCCL: Error while creating shared memory "
        "segment /dev/shm/nccl-Ab12, error: No space left on device (28)"
    )
    states: tuple[PairState, ...] = ("no_connect",) * 4
    one = verdicts([broken(node("h1", 350.0), *states, errors=(left, left, own, left))], hosts(1))
    assert f"on GPU 2 of h1 (GPU 2: {own})" in one["h1"].sentence
    assert one["h1"].advice.startswith("make room in /tmp, /var/tmp and /dev/shm of h1")


H100 = Expected(gpu_model="H100 80GB HBM3", origin="fleet.toml [group.train]")


def inside(
    gbs: float, *, size_bytes: int = LARGE, way: str = "SHM/direct", rails: int = 8
) -> Inside:
    """A node that reached so much, above the shipped floor, with no peer and no expectation."""
    return Inside(
        state="measured", rails=rails, backend="nccl", at_bytes=size_bytes, busbw_gbs=gbs,
        best_gbs=gbs, limit_gbs=2.0, limit_origin="shipped floor", latency_us=30.0, way=way,
    )  # fmt: skip


@pytest.mark.proves("fabric.intra_node", finds="NVLinks that carry nothing, with no inventory")
@pytest.mark.parametrize("gbs", [2.5, 20.0, 50.0])
def test_gpus_that_fall_back_from_nvlink_fail_by_themselves(gbs: float) -> None:
    """Two GB/s over PCIe passed as healthy on H100. NVML knows of 18 links: no peer is needed."""
    verdict = judge_intra_node("h1", inside(gbs), gpus(8), limit=SHIPPED)
    assert verdict.outcome == "fail"
    assert f"{gbs:g} GB/s at best at 64 MiB among 8 GPUs, carried by SHM" in verdict.sentence
    assert "their NVLinks carry 450 GB/s each way, and at least 72 GB/s" in verdict.sentence
    assert "NCCL_P2P_DISABLE" in verdict.advice


@pytest.mark.parametrize(
    ("board", "inside"),
    [
        ({}, inside(230.0)),  # H100 at 64 MiB
        ({"name": "NVIDIA A100-SXM4-40GB", "links": links(12)}, inside(178.0)),
        ({}, inside(20.0, size_bytes=1 << 20)),
        ({"name": "NVIDIA H100 PCIe", "links": ()}, inside(20.0)),
        ({"name": "NVIDIA H100 NVL", "links": links(12)}, inside(20.0)),
        ({"name": "NVIDIA GH200 480GB", "links": links(18)}, inside(20.0)),
        ({"links": links(17, 1)}, inside(20.0)),  # gpu.topology's
        ({"links": None}, inside(20.0)),
        ({"mig_enabled": True}, inside(20.0)),
    ],
)
def test_a_healthy_board_is_never_held_to_nvlink_that_it_has_not(
    board: dict[str, Any], inside: Inside
) -> None:
    """PCIe cards, bridged pairs, unknown boards, links that are down or unknown: the old floor."""
    assert (
        judge_intra_node(
            "h1", inside, tuple(replace(gpu, **board) for gpu in gpus(8)), limit=SHIPPED
        ).outcome
        == "ok"
    )


def test_links_from_gpu_to_gpu_join_only_all_of_them() -> None:
    """Four V100 as a mesh: all four must take part; links into another machine's part tell none."""
    mesh = [
        replace(gpu, name="Tesla V100-SXM2-16GB", links=tuple(
            NvLink(link=n, up=True, remote=f"00000000:{(gpu.index + 1 + n // 2) % 4 + 1}B:00.0",
                   remote_kind="gpu")
            for n in range(6)
        ))
        for gpu in gpus(4)
    ]  # fmt: skip
    assert nvlink_gbs(mesh, 4) == 150
    assert nvlink_gbs(mesh, 2) is None
    assert nvlink_gbs(mesh[:2], 2) is None
    assert nvlink_gbs((), 2) is None


def test_the_floor_of_a_promised_board_is_judged_at_a_size_that_is_measured() -> None:
    """It counted from 1 GiB on, and nothing was measured there."""
    floor = gpu_floor(H100, "all_reduce", algorithm="ring")
    assert floor is not None
    assert (floor.value, floor.from_bytes) == (245.0, 256 << 20)
    assert NCCL_INSIDE[-1].size_bytes >= floor.from_bytes
    slow = [broader(node("h1", 100.0))]
    verdict = verdicts(slow, hosts(1, H100))["h1"]
    assert verdict.outcome == "fail"
    assert "100 GB/s at 256 MiB among its 4 rails; limit 245 GB/s (floor for H100 SXM by ring" in (
        verdict.sentence
    )
    assert verdicts([broader(node("h1", 320.0))], hosts(1, H100))["h1"].outcome == "ok"


def broader(one: InsideSamples) -> InsideSamples:
    """The same with 256 MiB on top."""

    def end(of: End | None) -> End:
        assert of is not None
        large = of.timings[-1]
        times = tuple(4 * time for time in large.times_us)
        return replace(
            of, timings=(*of.timings, replace(large, size_bytes=1 << 28, times_us=times))
        )

    return replace(one, rails=tuple(map(end, one.rails)))
