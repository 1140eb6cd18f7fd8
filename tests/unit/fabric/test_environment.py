"""NCCL and gloo in the job's environment: what counts there, and what the sweep decides itself."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from sweep import plan, process_groups, transports

from preflight.fleet.job_environment import SWEEP_VARIABLES
from tests.unit.fabric.ends import GO


class Nccl:
    """Stands for ProcessGroupNCCL: the environment counts at the moment when it is made.

    NCCL reads its variables once, at its first call (v2.30, misc/param.cc ncclInitEnv).
    """

    Options = SimpleNamespace

    def __init__(self, *_: object) -> None:
        self.environ = dict(os.environ)

    def allreduce(self, *_: object) -> Any:
        """Done at once."""
        return SimpleNamespace(wait=lambda: None)


class Cuda:
    """A torch with GPUs, as far as a group needs it."""

    int32 = "int32"
    distributed = SimpleNamespace(
        ProcessGroupNCCL=Nccl,
        AllreduceOptions=SimpleNamespace,
        ReduceOp=SimpleNamespace(SUM=0, MIN=1),
    )
    cuda = SimpleNamespace(set_device=lambda _: None, synchronize=lambda *_: None)

    @staticmethod
    def device(*names: object) -> tuple[object, ...]:
        """A name."""
        return names

    @staticmethod
    def zeros(*_: object, **__: object) -> None:
        """Nothing is sent."""


def rail(**changes: object) -> plan.Rail:
    """Rail 0 of a node whose way to the others is over the loopback."""
    return plan.Rail(plan.read({**GO, "backend": "nccl", **changes}), 0, "127.0.0.1", ("a", 1))


def environ_of(one: plan.Rail) -> dict[str, str]:
    """What NCCL finds in its environment."""
    raw: Nccl = process_groups.connect(Cuda, None, 0, one)._raw
    return raw.environ


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.parametrize(
    ("changes", "ifname"),
    [
        ({}, "eth7"),
        ({"pinned": True}, "=lo"),
        ({"interface": "eth0"}, "=eth0"),
        ({"interface": "eth0", "pinned": True}, "=eth0"),
    ],
)
def test_which_interface_nccl_gets(changes: dict[str, object], ifname: str) -> None:
    """One that was named, else the job's, else the one by which this node reaches the others."""
    os.environ.update(NCCL_SOCKET_IFNAME="eth7", NCCL_IB_TC="106", NCCL_ALGO="Tree")
    os.environ.update(NCCL_COMM_ID="h1:1", NCCL_TOPO_DUMP_FILE="x", NCCL_BLOCKING_WAIT="1")
    found = environ_of(rail(**changes))
    assert (found["NCCL_SOCKET_IFNAME"], found["NCCL_IB_TC"]) == (ifname, "106")
    assert found["NCCL_ALGO"] == "Ring"
    assert found.keys().isdisjoint(process_groups.UNSET)


def test_which_interfaces_gloo_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's, one device each; where no job is known the route decides."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7,eth8")
    assert transports.gloo_interfaces(rail()) == ["eth7", "eth8"]
    assert transports.gloo_interfaces(rail(pinned=True)) == []
    assert transports.gloo_interfaces(rail(interface="eth0")) == ["eth0"]


def test_the_controller_knows_what_the_sweep_sets_itself() -> None:
    """The header says of these that the job's do not count: both sides hold the same list."""
    before = dict(os.environ)
    transports.NcclLog().begin()
    logs = {name for name in os.environ if os.environ[name] != before.get(name)}
    sets = {name for name in process_groups.NCCL_ENVIRONMENT if not name.startswith("TORCH_")}
    assert sets | logs | set(process_groups.UNSET) == SWEEP_VARIABLES
