"""The situations of the rehearsal, once each: four SSH hosts with two GPUs each, fake CUDA."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.stored import read_stored
from tests.lab import wire
from tests.lab.named import named
from tests.lab.rehearsal.scenario import Machine, rehearsed
from tests.lab.rehearsal.situations import SITUATIONS, hosts_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.lab.named import Named
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

BY_NAME = {one.name: one for one in SITUATIONS}
TOGETHER = (("GPU missing", "NVLink fallback", "NIC port down"),
            ("slow exit", "init skew", "host stalls"),
            ("no connection", "connection breaks"),
            ("slow rail", "wrong sum"),
            ("slow node", "hung once"),
            ("socket fallback", "spikes"))  # fmt: skip
"""Situations that do not mix, each on a host of its own, in one run: the machine has two cores."""

LEFT_OUT = ("healthy", "hung always")
"""The first has a test of its own; `connection breaks` is a hang of which NCCL says why."""

ALONE = [(name,) for name in BY_NAME if not any(name in some for some in (LEFT_OUT, *TOGETHER))]


@pytest.mark.parametrize("names", [*ALONE, *TOGETHER], ids="+".join)
def test_the_culprit_is_named_and_nobody_healthy(
    lab: Lab, preflight: Callable[..., Told], names: tuple[str, ...]
) -> None:
    """NCCL over SSH: what is planted on a host is named, and what is no fault blames nobody."""
    planted = {f"h{number}": BY_NAME[name] for number, name in enumerate(names, 2)}
    with ExitStack() as stack:
        rehearsal = stack.enter_context(rehearsed(lab, Machine(gpus=2)))
        if names == TOGETHER[1]:
            for each in lab.hosts.values():
                stack.enter_context(wire.more_networks(each))
        for host, situation in planted.items():
            situation.plant(rehearsal, host, 1)
        told = preflight(
            f"--preflight-inventory={rehearsal.inventory()}",
            "--preflight-fail-fast=never",
            "--preflight-budget=240",
        )
    for host, situation in planted.items():
        said = _without(named(told.folder), planted.keys() - {host})
        assert not (off := situation.off(said, host)), f"{off}\n{told.out}"
        assert situation.reason in str(told.report), told.out
    assert {pair["backend"] for pair in told.report["pairs"]} == {"nccl"}, told.out
    if (
        names == TOGETHER[1]
    ):  # no environment of a job is known: measured over the way to the others
        assert {("net.interface", name) for name in lab.hosts} <= told.found(), told.out
        assert "NCCL's own choice selects ib0 (10.98." in told.out


def test_nccl_is_measured_in_the_environment_of_the_job(
    lab: Lab, preflight: Callable[..., Told], tmp_path: Path
) -> None:
    """A healthy RoCE fleet is ready; NCCL finds the job's variables, and the header says which."""
    environ = tmp_path / "job.env"
    environ.write_text(
        "NCCL_SOCKET_IFNAME=job0\nNCCL_IB_TC=106\nNCCL_IB_GID_INDEX=3\nNCCL_ALGO=Tree\n"
        "LD_LIBRARY_PATH=/opt/nccl/lib\nCUDA_VISIBLE_DEVICES=0,1\n"
    )
    wanted = {"NCCL_SOCKET_IFNAME": "job0", "NCCL_IB_TC": "106", "NCCL_IB_GID_INDEX": "3"}
    wanted |= {"LD_LIBRARY_PATH": "/opt/nccl/lib", "NCCL_ALGO": "Ring"}
    with ExitStack() as stack:
        rehearsal = stack.enter_context(rehearsed(lab, Machine(gpus=2, roce=True)))
        for host in lab.hosts.values():
            stack.enter_context(wire.more_networks(host))
        told = preflight(
            f"--preflight-inventory={rehearsal.inventory()}",
            f"--preflight-env-file={environ}",
            "--preflight-fail-fast=never",
            "--preflight-budget=240",
        )
        seen = {name: rehearsal.environs(name) for name in lab.hosts}
    assert not (off := BY_NAME["healthy"].off(named(told.folder), "h2")), f"{off}\n{told.out}"
    for name, found in seen.items():
        assert found, name
        assert all(wanted.items() <= one.items() for one in found), (name, found[:1])
    assert (
        "environ burn-in and sweep run with the job's LD_LIBRARY_PATH, NCCL_IB_GID_INDEX, "
        "NCCL_IB_TC, NCCL_SOCKET_IFNAME; without NCCL_ALGO (the sweep has its own)"
    ) in " ".join(told.out.split())
    sweep = read_stored(told.folder).sweep
    assert sweep is not None
    ways = {end.net for pair in sweep.pairs for end in (pair.first, pair.second) if end}
    assert all(" RoCE " in way for way in ways), ways
    verdicts = told.report["verdicts"]
    assert {one["outcome"] for one in verdicts if one["check"] == "ib.gid"} == {"ok"}, told.out


def _without(said: Named, others: set[str]) -> Named:
    """What a run says, but for what it says of these hosts."""
    kept = [
        tuple(name for name in names if others.isdisjoint(hosts_of(name)))
        for names in (said.components, said.open)
    ]
    return replace(said, components=kept[0], open=kept[1], exit=said.exit if any(kept) else 0)
