"""NVLink between nodes: which nodes are paired, and which node a bad measurement names."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.fabric.test_pairs import judge_nvlink_domain
from preflight.core.thresholds import SHIPPED
from preflight.fabric.judge import Decoded
from preflight.fabric.nvlink_domain import judge_domains
from preflight.fabric.roster import neighbours
from preflight.fabric.samples import End, PairSamples, Sweep, Timing
from preflight.facts.burn import Inside, OverNvlink, nvlink_domain
from preflight.facts.gpu import GpuHealth
from preflight.run.run import was_swept
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import hosts
from tests.unit.facts.builders import gpus, links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.verdict import Verdict

LARGE = 256 << 20
OVER = "P2P MNNVL"


def swept(count: int, bad: Mapping[str, End], fine_gbs: float = 600.0) -> Sweep:
    """So many nodes with two GPUs; what the rail 1 of `bad` nodes says of all of their pairs."""
    names = [f"h{number}" for number in range(1, count + 1)]
    domains = dict.fromkeys(names, "rack/1")
    pairs = []
    for number, around in enumerate(neighbours(names, domains)):
        for a, b in around:
            for rail in (0, 1):
                first, second = (
                    replace(bad[name], node=name)
                    if rail and name in bad
                    else end(fine_gbs, node=name)
                    for name in (a, b)
                )
                slowest = max(
                    (each for each in (first, second) if each.timings),
                    key=lambda each: each.timings[0].times_us,
                )
                first, second = (
                    replace(each, timings=slowest.timings, net=slowest.net)
                    if each.timings
                    else each
                    for each in (first, second)
                )
                pairs.append(PairSamples(a, b, rail, number, "nccl", first, second))
    return Sweep((), (), (), domains=domains, domain=tuple(pairs))


def end(gbs: float, *, node: str = "", net: str = OVER) -> End:
    """An end that measured one size: so fast, over that."""
    us = LARGE / gbs / 1e3
    return End(node, "measured", (Timing(LARGE, (us,) * 5, (1.0,) * 5),), net=net)


def verdicts(sweep: Sweep, count: int) -> dict[str, Verdict]:
    """The check's verdict of each node."""
    found = judge_domains(sweep, hosts(count))
    return {name: judge_nvlink_domain(name, one, limit=SHIPPED) for name, one in found.items()}


@pytest.mark.parametrize("count", range(1, 20))
def test_every_node_meets_the_one_before_and_the_one_after_it(count: int) -> None:
    """Two rounds, three for an odd number; no node is twice in a round; rails do not matter."""
    names = [f"h{number}" for number in range(count)]
    rounds = neighbours(["x", *names], dict.fromkeys(names, "rack/1") | {"x": "rack/2"})
    met = [name for pair in chain(*rounds) for name in pair]
    assert all(met.count(name) == min(2, count - 1) for name in names)
    assert "x" not in met
    assert len(rounds) == (0 if count == 1 else 1 if count == 2 else 2 + count % 2)
    for around in rounds:
        assert len({name for pair in around for name in pair}) == 2 * len(around)


@pytest.mark.proves(
    "fabric.nvlink_domain",
    finds="a node without IMEX, and a node that uses its NICs in place of NVLink",
)
@pytest.mark.parametrize("count", [3, 4, 18])
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (end(150.0), "150 GB/s at best at 256 MiB on GPU 1"),
        (end(46.0, net="NET/IB mlx5_1 GDRDMA"), "not over NVLink, which joins the"),
        (End("", "error", error="unhandled system error (MNNVL is not working)"), "MNNVL is not"),
        (End("", "hung", error="its measuring process stood still for 10 s"), "hung"),
    ],
    ids=["slow", "NET", "IMEX", "hung"],
)
def test_a_bad_node_is_named_and_its_neighbours_are_not(count: int, end: End, words: str) -> None:
    """It is bad with both neighbours, each of which is fine with another node."""
    found = verdicts(swept(count, {"h2": end}), count)
    assert {name for name, one in found.items() if one.outcome is not Outcome.OK} == {"h2"}
    assert found["h2"].outcome is Outcome.FAIL
    assert words in found["h2"].sentence


@pytest.mark.proves(
    "fabric.nvlink_domain", unknown="two nodes, one of them slow: which one is not known"
)
def test_of_two_nodes_it_is_unknown_which_is_bad() -> None:
    """Both are `unknown`, but for the one at which NCCL itself says that NVLink does not work."""
    found = verdicts(swept(2, {"h2": end(46.0, net="NET/IB mlx5_1")}), 2)
    assert {one.outcome for one in found.values()} == {Outcome.UNKNOWN}
    assert "whether h1 is at fault is not known" in found["h1"].sentence
    found = verdicts(swept(2, {"h2": End("", "error", error="MNNVL is not working")}), 2)
    assert [found[name].outcome for name in ("h1", "h2")] == [Outcome.UNKNOWN, Outcome.FAIL]


def test_one_bad_pair_blames_neither_of_its_nodes() -> None:
    """Each of both is fine with its other neighbour: the path is open, and no node is."""
    sweep = swept(4, {})
    one = sweep.domain[0]
    slow = tuple(end(46.0, node=name) for name in (one.a, one.b))
    sweep = replace(sweep, domain=(replace(one, first=slow[0], second=slow[1]), *sweep.domain[1:]))
    found = verdicts(sweep, 4)
    odd = {name for name, each in found.items() if each.outcome is Outcome.UNKNOWN}
    assert odd == {one.a, one.b}
    assert all("both are fine with another node" in found[name].sentence for name in odd)


def test_a_whole_domain_that_is_slow_fails_by_what_nvlink_carries() -> None:
    """GB200: 900 GB/s each way; 90 on all nodes is no NVLink, though all peers agree."""
    found = judge_domains(swept(4, {}, fine_gbs=90.0), hosts(4))
    gb200 = tuple(replace(gpu, name="NVIDIA GB200", links=links(18)) for gpu in gpus(2))
    verdict = judge_nvlink_domain("h1", found["h1"], gb200, limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert "their NVLinks carry 900 GB/s each way" in verdict.sentence
    assert judge_nvlink_domain("h1", found["h1"], gpus(2), limit=SHIPPED).outcome is Outcome.OK


def test_what_was_not_measured_says_why() -> None:
    """No domain, no other node of it, left out, fallen out of the sweep, or no time."""
    assert judge_nvlink_domain("h1", None, limit=SHIPPED).outcome is Outcome.NOT_RUN
    alone = Sweep((), (), (), domains={"h1": "rack/1"})
    assert "no other node of its NVLink domain" in verdicts(alone, 2)["h1"].sentence
    sweep = replace(swept(4, {}), left_out={"h1": "busy"}, troubles={"h2": "killed"})
    found = verdicts(sweep, 4)
    assert (found["h1"].outcome, found["h1"].sentence) == (Outcome.NOT_RUN, "busy")
    assert found["h2"].outcome is Outcome.UNKNOWN
    unmeasured = tuple(replace(pair, first=None, second=None) for pair in swept(4, {}).domain)
    late = verdicts(replace(sweep, domain=unmeasured, unfinished="the time was up"), 4)
    assert late["h3"].sentence == "the time was up"


def test_a_sweep_that_is_cut_short_between_two_pairs_blames_no_node() -> None:
    """With one pair of two, a bad path looks like a bad node; wrong sums are a fault all the same.

    h2 was measured with h1 only, over a bad path, and h1 is fine with h4.
    """
    sweep = swept(4, {"h3": End("", "corrupt", error="GPU 1 got 3.0 where 2.0 was right")})
    slow = tuple(end(46.0, node=name) for name in ("h1", "h2"))
    pairs = []
    for pair in sweep.domain:
        one = pair
        if {pair.a, pair.b} == {"h1", "h2"}:
            one = replace(pair, first=slow[0], second=slow[1])
        elif {pair.a, pair.b} == {"h2", "h3"}:
            one = replace(pair, second=None) if pair.a == "h2" else replace(pair, first=None)
        pairs.append(one)
    cut = replace(sweep, domain=tuple(pairs), unfinished="interrupted before it was measured")
    found = verdicts(cut, 4)
    assert found["h2"].outcome is Outcome.NOT_RUN
    assert found["h2"].sentence == cut.unfinished
    assert found["h1"].outcome is found["h4"].outcome is Outcome.OK
    assert found["h3"].outcome is Outcome.FAIL


@pytest.mark.parametrize("domain", ["measured", "not_run"])
@pytest.mark.parametrize("inside", ["measured", "not_run"])
def test_an_interrupted_run_judges_each_part_by_its_own_measurement(
    inside: str, domain: str
) -> None:
    """The all-reduce inside of a node is not NVLink between nodes."""
    decoded = Decoded(
        inside={"h1": Inside(state=inside)},  # type: ignore[arg-type]
        over_nvlink={"h1": OverNvlink(state=domain)},  # type: ignore[arg-type]
    )
    assert was_swept(decoded, "fabric.intra_node", ("h1",)) == (inside == "measured")
    assert was_swept(decoded, "fabric.nvlink_domain", ("h1",)) == (domain == "measured")


def test_a_node_is_in_a_domain_if_all_of_its_gpus_are() -> None:
    """One GPU that has not joined, or joined another one, and the node has none."""

    def node(*domains: str | None) -> str | None:
        return nvlink_domain(
            [
                replace(gpu, health=GpuHealth(fabric_domain=domain))
                for gpu, domain in zip(gpus(len(domains)), domains, strict=True)
            ]
        )

    assert node("rack/1", "rack/1") == "rack/1"
    assert node("rack/1", None) is node("rack/1", "rack/2") is node(None, None) is None
    assert nvlink_domain(()) is None
