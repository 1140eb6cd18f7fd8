"""The interface that was named for the sweep is a setting of all nodes: told of as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fabric.judge import judge_sweep
from preflight.facts.node_network import ConfFile, ConfSetting, Gid
from preflight.fleet.model import Fleet
from preflight.fleet.sources import FleetRequest, resolve
from preflight.run.interface_stage import Mismatches, add_mismatches, interface_mismatches
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.facts.builders import facts, interface, network, nic, rdma_port

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
    with pytest.raises(UsageError, match=r"--preflight-interface = lo: .* leave it out .*=eth0"):
        resolve(FleetRequest(nodes="h1,h2", interface="lo"))
    path = tmp_path / "fleet.toml"
    path.write_text('[job]\ninterface = "lo"\n[group.g]\nnodes = "h[1-2]"\n')
    with pytest.raises(UsageError, match=r"fleet.toml: \[job\] interface = lo: no node reaches"):
        resolve(FleetRequest(inventory=str(path)))


def test_loopback_on_one_machine_is_fine() -> None:
    """Several nodes that are processes of this machine, or one node, reach themselves by it."""
    assert resolve(FleetRequest(nodes="localhost", interface="lo")).interface == "lo"
    assert resolve(FleetRequest(nodes="h1", interface="lo")).interface == "lo"
    assert resolve(FleetRequest(nodes="h1,h2", transport="local", interface="lo")).interface == "lo"


def test_an_interface_that_no_node_has_is_a_wrong_setting() -> None:
    """The option is named as the cause, with what there is; no node is blamed."""
    with pytest.raises(UsageError) as refused:
        interface_mismatches(fleet("nope0"), told("h1"))
    assert str(refused.value) == (
        "--preflight-interface = nope0: no node has such an interface, h[1-4] have bond0, eth0; "
        "give one that all nodes have (--preflight-interface=NAME), or leave it away: each node "
        "then takes its way to the others"
    )


def test_an_interface_that_some_nodes_lack_is_one_finding_over_them() -> None:
    """They are left out and not ready; the sentence names option and nodes, the same for each."""
    out = interface_mismatches(fleet("bond0"), told("h1", "h2"))
    assert list(out.reasons) == ["h3", "h4"]
    swept = add_mismatches(replace(sweep(hosts(2), lambda _a, _b: 1.0), left_out=out.reasons), out)
    pairs = judge_sweep(swept, hosts(4)).pairs
    sentences = {one.error for one in pairs.values() if one.trouble}
    assert sentences == {
        (
            "h[3-4] were left out: no interface bond0 there (--preflight-interface = bond0); "
            "there is eth0"
        )
    }
    assert {one.blamed for one in pairs.values() if one.trouble} == {"h3", "h4", "h3 and h4"}
    assert len({one.advice for one in pairs.values() if one.trouble}) == 1
    assert "give one that all nodes have" in out.advice["h3"]


@pytest.mark.parametrize("named", [None, "eth0"])
def test_what_all_have_or_nobody_named_is_no_finding(named: str | None) -> None:
    """Nodes that did not tell what they have are not doubted either."""
    assert interface_mismatches(fleet(named), told()) == Mismatches()
    assert interface_mismatches(fleet("bond0"), {"h1": facts("h1", network=None)}) == Mismatches()


def test_a_node_that_told_of_as_many_as_it_may_is_not_doubted() -> None:
    """Of hundreds of interfaces only the first 64 are told: the one that is named may be there."""
    many = network(*(interface(f"veth{number}") for number in range(63)))
    assert interface_mismatches(fleet("bond0"), {"h1": facts("h1", network=many)}) == Mismatches()


def job(environ: str, path: Path, count: int = 4) -> Fleet:
    """As many nodes, and a job whose environment is in a file."""
    (path / "job.env").write_text(environ)
    return resolve(FleetRequest(nodes=f"h[1-{count}]", env_file=str(path / "job.env")))


def nodes(*of_h3: str, **changes: object) -> dict[str, Facts]:
    """What four nodes with GPUs tell: eth0 and docker0, and on h3 what is given."""
    usual = network(
        interface("docker0", "172.17.0.1/16", physical=False),
        interface("eth0", "10.0.0.1/24"),
        source_address="10.0.0.1",
    )
    other = network(*(interface(name, f"10.0.9.{at}/24") for at, name in enumerate(of_h3)))
    return {
        host.name: facts(
            host.name, **{"network": other if of_h3 and host.name == "h3" else usual, **changes}
        )
        for host in hosts(4)
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("foo", "it selects no interface of any node"),
        ("=eth", "it selects no interface of any node"),
        ("^eth,docker,lo", "it selects no interface of any node"),
        ("lo", "no node reaches another by loopback"),
        # Excluding is all but: loopback comes first, as NCCL lists it.
        ("^docker", "no node reaches another by loopback"),
        ("eth", ""),
        ("=eth0", ""),
        ("ib,eth", ""),
        ("^docker,lo", ""),
        # NCCL takes no notice of a single character.
        ("x", ""),
    ],
)
def test_an_interface_of_the_jobs_environment_is_read_as_nccl_does(
    value: str, said: str, tmp_path: Path
) -> None:
    """One that no node has is a wrong setting: file, variable, value, what there is, what to do."""
    one = job(f"NCCL_SOCKET_IFNAME={value}\n", tmp_path)
    if not said:
        assert interface_mismatches(one, nodes()) == Mismatches()
        return
    with pytest.raises(UsageError) as refused:
        interface_mismatches(one, nodes())
    assert str(refused.value) == (
        f"job.env: NCCL_SOCKET_IFNAME={value}: {said}, h[1-4] have docker0, eth0; "
        "write one that all nodes have (as in NCCL_SOCKET_IFNAME=eth0), or measure over another "
        "than the job's: --preflight-interface=eth0"
    )


def test_the_option_wins_over_the_jobs_environment(tmp_path: Path) -> None:
    """As it does in the sweep; loopback is fine where all nodes are one machine."""
    one = job("NCCL_SOCKET_IFNAME=foo\nGLOO_SOCKET_IFNAME=foo\n", tmp_path)
    assert interface_mismatches(replace(one, interface="eth0"), nodes()) == Mismatches()
    here = tuple(replace(host, transport="local") for host in hosts(4))
    looped = replace(job("NCCL_SOCKET_IFNAME=lo\n", tmp_path), hosts=here)
    assert interface_mismatches(looped, nodes()) == Mismatches()


def test_the_job_selects_no_interface_on_one_node(tmp_path: Path) -> None:
    """That node is named with the variable; the others are measured."""
    out = interface_mismatches(job("NCCL_SOCKET_IFNAME==eth0\n", tmp_path), nodes("net9"))
    assert out.reasons == {
        "h3": "no interface there that the job selects (job.env: NCCL_SOCKET_IFNAME==eth0); "
        "there is net9"
    }
    assert out.advice["h3"].endswith("; where it should be, bring it up on h3")


def test_the_nodes_own_nccl_conf_is_named() -> None:
    """Where the job's environment does not say it, NCCL reads it from there."""
    conf = ConfFile("/etc/nccl.conf", "system", (ConfSetting("NCCL_SOCKET_IFNAME", "foo"),))
    with pytest.raises(UsageError, match=r"^/etc/nccl.conf: NCCL_SOCKET_IFNAME=foo: it selects no"):
        interface_mismatches(fleet(None), nodes(nccl_conf=(conf,)))


def test_gloo_takes_whole_names(tmp_path: Path) -> None:
    """Without GPUs gloo measures: its variable counts; with GPUs NCCL does, and NCCL's."""
    one = job("NCCL_SOCKET_IFNAME=foo\nGLOO_SOCKET_IFNAME=eth\n", tmp_path)
    with pytest.raises(UsageError, match=r"^job.env: GLOO_SOCKET_IFNAME=eth: it selects no"):
        interface_mismatches(one, nodes(gpus=None))
    with pytest.raises(UsageError, match=r"GLOO_SOCKET_IFNAME=lo: no node reaches another by loop"):
        interface_mismatches(job("GLOO_SOCKET_IFNAME=lo\n", tmp_path), nodes(gpus=None))
    assert interface_mismatches(job("GLOO_SOCKET_IFNAME=eth\n", tmp_path), nodes()) == Mismatches()


def test_an_rdma_device_that_a_node_does_not_have(tmp_path: Path) -> None:
    """Of no node: a wrong setting. Of one: that node is named. Without RDMA it changes nothing."""
    one = job("NCCL_IB_HCA=mlx4\n", tmp_path)
    with pytest.raises(UsageError, match=r"^job.env: NCCL_IB_HCA=mlx4: it selects no RDMA device"):
        interface_mismatches(one, nodes())
    assert interface_mismatches(one, nodes(nics=())) == Mismatches()
    assert (
        interface_mismatches(job("NCCL_IB_HCA=mlx4\nNCCL_IB_DISABLE=1\n", tmp_path), nodes())
        == Mismatches()
    )
    all_but_one = nodes()
    all_but_one["h3"] = facts("h3", nics=(nic(0, name="bnxt_re0"),))
    out = interface_mismatches(job("NCCL_IB_HCA=mlx5\n", tmp_path), all_but_one)
    assert out.reasons == {
        "h3": "no RDMA device there that the job selects (job.env: NCCL_IB_HCA=mlx5); "
        "there is bnxt_re0"
    }


def test_a_gid_that_no_roce_port_has(tmp_path: Path) -> None:
    """NCCL ends with it at its first connect; InfiniBand ports and tables not read are fine."""
    gids = tuple(Gid(at, "RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0001") for at in (0, 3))
    roce = nic(0, ports=(rdma_port(link_layer="Ethernet", gids=gids),))
    one = job("NCCL_IB_GID_INDEX=5\n", tmp_path)
    with pytest.raises(
        UsageError, match=r"NCCL_IB_GID_INDEX=5: no RoCE port .* have 0, 3; take it"
    ):
        interface_mismatches(one, nodes(nics=(roce,)))
    assert (
        interface_mismatches(job("NCCL_IB_GID_INDEX=3\n", tmp_path), nodes(nics=(roce,)))
        == Mismatches()
    )
    assert (
        interface_mismatches(job("NCCL_IB_GID_INDEX=99\n", tmp_path), nodes(nics=(roce,)))
        == Mismatches()
    )
    assert interface_mismatches(one, nodes()) == Mismatches()
