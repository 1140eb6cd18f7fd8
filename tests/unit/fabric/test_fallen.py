"""NCCL over sockets where InfiniBand is expected: the rail is named, or node, or a shared cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from sweep import transports

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.judge import judge_sweep
from preflight.fleet.model import Expected
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.fabric.test_nccl_log import log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.judge import Decoded
    from preflight.fabric.samples import Backend, End

NICS = Expected(nics=2, origin="fleet.toml [group.train]")
HCAS = Expected(hcas=("mlx5_0", "mlx5_1"), origin="fleet.toml")

_SOCKET = log_of(
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.41<0>",
    "Using network Socket",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
)
SOCKET = transports.parse_log(_SOCKET, _SOCKET)


def ib(number: int) -> str:
    """What NCCL's log comes to over that device."""
    log = log_of(
        f"NET/IB : Using [0]mlx5_{number}:1/IB [RO]; OOB eth0:10.0.0.41<0>",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    )
    return transports.parse_log(log, log)


def decoded(
    count: int,
    net: Callable[[str, str, int], str],
    *,
    expected: Expected = NICS,
    backend: Backend = "nccl",
    gbs: Callable[[str, str], float] = lambda *_: 46.0,
) -> Decoded:
    """Judge a sweep in which `net(node, partner, rail)` carried that node's end."""
    fleet = hosts(count, expected)

    def over(end: End | None, other: str, rail: int) -> End:
        assert end is not None
        return replace(end, net=net(end.node, other, rail))

    made = sweep(fleet, gbs, backend=backend, rails=2)
    pairs = tuple(
        replace(
            pair,
            first=over(pair.first, pair.b, pair.rail),
            second=over(pair.second, pair.a, pair.rail),
        )
        for pair in made.pairs
    )
    return judge_sweep(replace(made, pairs=pairs), fleet)


def failed(found: Decoded) -> set[tuple[str, str]]:
    """The pairs whose check fails."""
    return {
        ends for ends, pair in found.pairs.items() if judge_allreduce(pair).outcome is Outcome.FAIL
    }


def test_one_rail_on_sockets_is_named_with_what_was_promised() -> None:
    """Fast enough or not: h3's rail 1 fails with each partner, the others' pairs stay fit."""
    found = decoded(4, lambda node, _, rail: SOCKET if (node, rail) == ("h3", 1) else ib(rail))
    (one,) = found.blames
    assert (one.kind, one.component, one.rail) == ("endpoint", "h3", 1)
    assert one.sentence == (
        "NET/Socket eth0 carried rail 1 of h3 with each of its 3 partners; expected: 2 NICs "
        "(fleet.toml [group.train]); elsewhere NET/IB mlx5_1 GDRDMA"
    )
    assert one.advice.startswith("on h3 look for NCCL_IB_DISABLE, NCCL_IB_HCA")
    assert failed(found) == {("h1", "h3"), ("h2", "h3"), ("h3", "h4")}


def test_both_ends_of_its_pairs_say_sockets_and_still_it_is_the_one_node() -> None:
    """Its partners went over InfiniBand with each other; being slow is the same one fault."""
    found = decoded(
        4,
        lambda node, other, rail: SOCKET if "h3" in (node, other) else ib(rail),
        gbs=lambda a, b: 1.2 if "h3" in (a, b) else 46.0,
    )
    (one,) = found.blames
    assert (one.kind, one.component, one.rail) == ("node", "h3", None)
    assert "NET/Socket eth0 carried h3 with each of its 3 partners" in one.sentence
    assert "1.2 GB/s at 64 MiB" in one.sentence


def test_two_nodes_are_separated_by_their_own_logs() -> None:
    """Only one end fell back: that one; both on one rail of two: not determined."""
    (one,) = decoded(2, lambda node, _, rail: SOCKET if node == "h2" else ib(rail)).blames
    assert (one.kind, one.component) == ("node", "h2")
    (either,) = decoded(2, lambda _, __, rail: SOCKET if rail else ib(rail)).blames
    assert (either.kind, either.component) == ("unresolved", "h1 or h2")
    assert "carried rail 1 of h1 or h2" in either.sentence


def test_a_path_on_sockets_leaves_both_nodes_fit() -> None:
    """h1 and h2 keep InfiniBand with all others."""
    found = decoded(5, lambda a, b, rail: SOCKET if {a, b} == {"h1", "h2"} else ib(rail))
    (one,) = found.blames
    assert (one.kind, one.component) == ("path", "pair h1-h2")
    assert failed(found) == {("h1", "h2")}


@pytest.mark.parametrize("count", [2, 4])
def test_all_on_sockets_is_a_setting_and_not_that_many_faults(count: int) -> None:
    """One blame for the whole fleet, which names what to look for in the job."""
    found = decoded(count, lambda *_: SOCKET, gbs=lambda *_: 0.5)
    (one,) = found.blames
    assert one.culprits == tuple(f"h{n + 1}" for n in range(count))
    assert f"NET/Socket eth0 carried {count} of {count} nodes; expected: 2 NICs" in one.sentence
    assert "one setting of the job or its container is likelier" in one.sentence
    assert "NCCL_IB_DISABLE" in one.advice
    verdict = judge_allreduce(found.pairs["h1", "h2"])
    assert (verdict.outcome, verdict.culprits) == (Outcome.FAIL, one.culprits)


def test_three_nodes_of_eight_are_reported_as_one_cause() -> None:
    """Over a quarter and at least three."""
    bad = {"h2", "h5", "h7"}
    found = decoded(8, lambda node, _, rail: SOCKET if node in bad else ib(rail))
    (one,) = found.blames
    assert one.culprits == ("h2", "h5", "h7")
    assert "3 of 8 nodes" in one.sentence


def test_another_rails_nic_is_named_where_the_devices_are_promised() -> None:
    """Rail 1 of h2 over mlx5_0, which hides its own NIC from every measurement."""
    found = decoded(3, lambda node, _, rail: ib(0 if node == "h2" else rail), expected=HCAS)
    (one,) = found.blames
    assert (one.component, one.rail) == ("h2", 1)
    assert one.sentence == (
        "NET/IB mlx5_0 GDRDMA carried rail 1 of h2 with each of its 2 partners; expected: mlx5_1 "
        "(fleet.toml); elsewhere NET/IB mlx5_1 GDRDMA"
    )


@pytest.mark.parametrize(
    ("expected", "backend", "net"),
    [
        (NICS, "gloo", "tcp eth0"),
        (NICS, "gloo", "NET/Socket eth0"),
        (Expected(), "nccl", SOCKET),
        (NICS, "nccl", "NET/OFI GDRDMA"),
        (NICS, "nccl", ""),
        (HCAS, "nccl", "NET/IB GDRDMA"),
        (HCAS, "nccl", "NET/IB GDRDMA(PCI)"),
        (HCAS, "nccl", "NET/IB mlx5_0+mlx5_1 RoCE GDRDMA"),
        (HCAS, "nccl", "P2P MNNVL"),
    ],
)
def test_what_is_no_broken_promise(expected: Expected, backend: Backend, net: str) -> None:
    """Gloo, nothing expected, another fabric, or a log that does not say: no node is blamed."""
    assert decoded(4, lambda *_: net, expected=expected, backend=backend).blames == ()


def test_a_node_whose_only_judged_pair_fell_back_is_suspected_alone() -> None:
    """h1 is cleared by h2, and what h2 and h3 did inside their rack says nothing of h3's NICs."""
    rack, fell = {"h2", "h3"}, {"h1", "h3"}
    ways = {frozenset(rack): "P2P MNNVL", frozenset(fell): SOCKET}
    found = decoded(3, lambda a, b, rail: ways.get(frozenset((a, b)), ib(rail)))
    (one,) = found.blames
    assert (one.kind, one.component, one.suspects) == ("unresolved", "h3", ("h3",))
    assert "NET/Socket eth0 carried h3" in one.sentence


def test_a_rack_over_nvlink_proves_no_nic() -> None:
    """h3 over sockets with h4; what the others did inside their rack says nothing of their NICs."""
    pair = {"h3", "h4"}
    found = decoded(4, lambda a, b, _: SOCKET if {a, b} == pair else "P2P MNNVL")
    (one,) = found.blames
    assert (one.kind, one.component) == ("unresolved", "h3 or h4")
    assert "elsewhere" not in one.sentence
