"""What nodes have becomes groups and text: nothing is guessed, and the text can be read again."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.commands.learn import inventory_text
from preflight.commands.learned_groups import Baseline, expected_of, learned_groups, unlearnable
from preflight.facts.model import Driver, Facts, NicPort
from preflight.fleet.baselines import gpu_floor
from preflight.fleet.inventory import inventory_of
from preflight.fleet.model import Host
from tests.unit.burn.builders import burned
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import facts, gpus, nic, with_gpu

if TYPE_CHECKING:
    from preflight.fabric.samples import End, Sweep
    from preflight.fleet.baselines import Measure

DAY = date(2026, 11, 22)
NDR = NicPort(1, "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "InfiniBand")


def _swept(fleet: list[Host], gbs: float) -> Sweep:
    """Every pair by NCCL at that speed, at 16 MiB."""
    measured = sweep(fleet, lambda *_: gbs, backend="nccl", rails=1)

    def large(end: End | None) -> End | None:
        if end is None:
            return None
        *small, one = end.timings
        times = tuple(at * (16 << 20) / one.size_bytes for at in one.times_us)
        return replace(end, timings=(*small, replace(one, size_bytes=16 << 20, times_us=times)))

    pairs = [replace(p, first=large(p.first), second=large(p.second)) for p in measured.pairs]
    return replace(measured, pairs=tuple(pairs))


def _with_rails(base: Facts, *ports: NicPort) -> Facts:
    return replace(base, nics=tuple(nic(i, ports=(port,)) for i, port in enumerate(ports)))


def test_what_a_node_has_is_told_as_a_promise() -> None:
    """GPUs, model, links that are up, live NICs of the fabric with their rate and kind."""
    has = expected_of(_with_rails(facts(), *[NDR] * 8))
    assert (has.gpus, has.gpu_model, has.nvlinks_per_gpu) == (8, "NVIDIA H100 80GB HBM3", 18)
    assert (has.nics, has.nic_gbits, has.nic_link) == (8, 400, "ib")


def test_what_differs_within_a_node_is_promised_to_nobody() -> None:
    """Front ends of another kind do not count; rates and models that differ are left out."""
    front = replace(NDR, rate="100 Gb/sec (4X EDR)", link_layer="Ethernet")
    dead = replace(NDR, state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    has = expected_of(_with_rails(facts(), NDR, NDR, front, dead))
    assert (has.nics, has.nic_gbits, has.nic_link) == (2, 400, "ib")
    slow = replace(NDR, rate="200 Gb/sec (4X HDR)")
    assert expected_of(_with_rails(facts(), NDR, slow)).nic_gbits is None
    mixed = expected_of(with_gpu(3, name="NVIDIA A100-SXM4-80GB", links=()))
    assert (mixed.gpus, mixed.gpu_model, mixed.nvlinks_per_gpu) == (8, None, None)
    bare = expected_of(replace(facts(), gpus=(), nics=None))
    assert (bare.gpus, bare.nics, bare.nic_link) == (None, None, None)


def test_a_node_that_hides_its_gpus_is_not_learned_as_one_without() -> None:
    """A driver that hangs, errs or lost a GPU would be written down as less hardware."""
    assert unlearnable(facts()) == ""
    assert unlearnable(replace(facts(), gpus=None, driver=Driver("absent"))) == ""
    for driver in (Driver("hung"), Driver("error", error="Driver/library version mismatch")):
        assert "does not answer" in unlearnable(replace(facts(), gpus=None, driver=driver))
    assert "GPU is lost" in unlearnable(replace(facts(), problems=("GPU 3: GPU is lost",)))


def test_alike_nodes_are_one_group_and_the_odd_one_says_how_it_differs() -> None:
    """The larger part keeps the name; NCCL's numbers become baselines with their story."""
    fleet = hosts(4)
    odd = facts("h4", gpus=gpus(7))
    known = {f"h{i}": facts(f"h{i}") for i in (1, 2, 3)} | {"h4": odd}
    usual, other = learned_groups(fleet, known, _swept(fleet, 46.0))
    assert usual.baselines == {"rail": Baseline(46.0, "3 pairs")}
    assert other.baselines == {}
    assert [host.name for host in usual.hosts] == ["h1", "h2", "h3"]
    assert usual.name == "h100-80gb-hbm3-x8"
    assert other.remark == ""
    same = [replace(host, group="train") for host in fleet]
    usual, other = learned_groups(same, known, None)
    assert (usual.name, other.name) == ("train", "train-2")
    assert other.remark == "unlike train: gpus 7, not 8"
    usual = replace(usual, baselines={"rail": Baseline(46.0, "3 pairs")})
    text = inventory_text((usual, other), {"h9": "nobody\nanswers"}, "a test", DAY)
    assert "# not learned: h9: nobody answers\n" in text
    read = inventory_of(Path("x.toml"), text)
    assert read.host("h4").expected.gpus == 7
    assert read.host("h1").expected.origin == "x.toml [group.train], learned 2026-11-22"
    assert read.host("h2").address == "10.0.0.2"
    baseline = read.host("h1").expected.baselines["rail"]
    assert baseline.where == "x.toml [group.train], learned 2026-11-22, 3 pairs, GB/s busbw"


def test_a_burn_in_of_gpus_becomes_the_group_s_baselines() -> None:
    """The best of each GPU, the median over all, near side and NVLink only; by it all are fine."""
    node = [Host(name="h1", address="h1", group="train")]
    known = {"h1": facts("h1")}
    (group,) = learned_groups(node, known, None, {"h1": burned()})
    assert set(group.baselines) == {"gemm_bf16", "hbm_copy", "h2d", "d2h", "p2p", "launch"}
    assert group.baselines["gemm_bf16"].basis == "8 readings"
    assert group.baselines["p2p"].basis == "56 readings"
    text = inventory_text([group], {}, "a test", DAY)
    expectation = inventory_of(Path("x.toml"), text).host("h1").expected
    for measure, one in group.baselines.items():
        floor = gpu_floor(expectation, cast("Measure", measure))
        assert floor is not None
        assert " of the baseline " in floor.origin
        assert (floor.value > one.value) == (measure == "launch")
    (cpus,) = learned_groups(node, known, None, {"h1": burned(kind="cpu", gpus=2)})
    assert cpus.baselines == {}


@pytest.mark.slow
@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 16))
def test_whatever_a_node_calls_its_gpus_the_text_is_toml(
    model: str, group: str, number: int
) -> None:
    """Quotes, signs, other scripts: the name is data, never syntax."""
    clean = "".join(letter for letter in model if letter.isprintable())
    node = replace(
        facts(), gpus=tuple(replace(gpu, name=clean) for gpu in gpus(8)[: max(1, number % 9)])
    )
    host = Host(name="h1", address="10.0.0.1", group=group or "all")
    text = inventory_text(learned_groups([host], {"h1": node}, None), {}, "a test", DAY)
    assert inventory_of(Path("x.toml"), text).host("h1").expected.gpu_model == clean
