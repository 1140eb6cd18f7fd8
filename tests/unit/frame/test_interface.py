"""The interface that was named for the sweep is a setting of all nodes: told of as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fabric.judge import judge_sweep
from preflight.fleet.model import Fleet
from preflight.fleet.sources import Wish, resolve
from preflight.stages.interface import Strangers, strangers, told_of
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import facts, interface, network

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Facts

OPTION = "--preflight-interface"


def fleet(named: str | None) -> Fleet:
    """Four nodes, and what the sweep is to go over."""
    return Fleet(hosts=tuple(hosts(4)), origin="a test", interface=named, interface_origin=OPTION)


def told(*with_bond: str) -> dict[str, Facts]:
    """What four nodes say of themselves: all have eth0, some have bond0."""
    eth0, bond0 = interface("eth0", "10.0.0.1/24"), interface("bond0", "10.1.0.1/24")
    return {
        host.name: facts(
            host.name, network=network(*([bond0, eth0] if host.name in with_bond else [eth0]))
        )
        for host in hosts(4)
    }


def test_loopback_between_machines_is_refused_at_once(tmp_path: Path) -> None:
    """Nobody is contacted; the sentence says who named it and what to type."""
    with pytest.raises(UsageError, match=r"--preflight-interface = lo: .* leave it away .*=eth0"):
        resolve(Wish(nodes="h1,h2", interface="lo"))
    path = tmp_path / "fleet.toml"
    path.write_text('[job]\ninterface = "lo"\n[group.g]\nnodes = "h[1-2]"\n')
    with pytest.raises(UsageError, match=r"fleet.toml: \[job\] interface = lo: no node reaches"):
        resolve(Wish(inventory=str(path)))


def test_loopback_on_one_machine_is_fine() -> None:
    """Several nodes that are processes of this machine, or one node, reach themselves by it."""
    assert resolve(Wish(nodes="localhost", interface="lo")).interface == "lo"
    assert resolve(Wish(nodes="h1", interface="lo")).interface == "lo"
    assert resolve(Wish(nodes="h1,h2", transport="local", interface="lo")).interface == "lo"


def test_an_interface_that_no_node_has_is_a_wrong_setting() -> None:
    """The option is named as the cause, with what there is; no node is blamed."""
    with pytest.raises(UsageError) as refused:
        strangers(fleet("nope0"), told("h1"))
    assert str(refused.value) == (
        "--preflight-interface = nope0: no node has such an interface, h[1-4] has bond0, eth0; "
        "give one that all nodes have, or leave it away: each node then takes its way to the others"
    )


def test_an_interface_that_some_nodes_lack_is_one_finding_over_them() -> None:
    """They are left out and not ready; the sentence names option and nodes, the same for each."""
    out = strangers(fleet("bond0"), told("h1", "h2"))
    assert out.nodes == ("h3", "h4")
    left = dict.fromkeys(out.nodes, out.reason)
    swept = told_of(replace(sweep(hosts(2), lambda _a, _b: 1.0), left_out=left), out)
    pairs = judge_sweep(swept, hosts(4)).pairs
    sentences = {one.error for one in pairs.values() if one.trouble}
    assert sentences == {
        "h[3-4] were left out: no interface bond0 there (--preflight-interface), only eth0"
    }
    assert {one.blamed for one in pairs.values() if one.trouble} == {"h3", "h4", "h3 and h4"}
    assert len({one.advice for one in pairs.values() if one.trouble}) == 1
    assert "give an interface that all nodes have" in out.advice


@pytest.mark.parametrize("named", [None, "eth0"])
def test_what_all_have_or_nobody_named_is_no_finding(named: str | None) -> None:
    """Nodes that did not tell what they have are not doubted either."""
    assert strangers(fleet(named), told()) == Strangers()
    assert strangers(fleet("bond0"), {"h1": facts("h1", network=None)}) == Strangers()


def test_a_node_that_told_of_as_many_as_it_may_is_not_doubted() -> None:
    """Of hundreds of interfaces only the first 64 are told: the one that is named may be there."""
    many = network(*(interface(f"veth{number}") for number in range(63)))
    assert strangers(fleet("bond0"), {"h1": facts("h1", network=many)}) == Strangers()
