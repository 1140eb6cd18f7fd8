"""What versions mean: an old driver, a torch for other GPUs, one odd node, a plugin not there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.checks.software import test_versions
from preflight.checks.software.test_versions import (
    judge_arch,
    judge_drift,
    judge_driver,
    minimum_drivers,
    requested_plugin,
    runs_on,
    version,
)
from preflight.checks.software.test_versions import judge_nccl_plugin as judge_plugin
from preflight.core.files import shipped_table
from preflight.facts.machine import Software, Torch
from preflight.facts.model import Driver, Facts, Python
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, group, software, with_gpu

CPU = Torch("2.6.0+cpu")
HUNG = facts(software=None)


def _driver(number: str) -> Driver:
    return Driver("answered", version=number)


def _torch(**changes: object) -> Facts:
    return facts(software=software(torch=replace(software().torch or CPU, **changes)))


@pytest.mark.proves("software.driver", finds="a driver too old for the CUDA of torch")
@pytest.mark.proves("software.driver", passes="driver 570 and CUDA 12.4")
@pytest.mark.proves("software.driver", unknown="the Python's file system hangs")
def test_the_driver_is_held_against_the_cuda_of_torch() -> None:
    """Both versions and the needed one are reported; minor versions of one CUDA need the same."""
    fine = judge_driver(facts())
    assert (fine.outcome, fine.sentence) == (
        Outcome.OK,
        "driver 570.86.15, CUDA 12.4 of torch needs 525.60.13 or later",
    )
    old = judge_driver(facts(driver=_driver("470.256.02")))
    assert old.outcome is Outcome.FAIL
    assert old.sentence == "driver 470.256.02, CUDA 12.4 of torch needs 525.60.13 or later"
    assert judge_driver(facts(driver=_driver("525.60.13"))).outcome is Outcome.OK
    thirteen = replace(_torch(cuda="13.0"), driver=_driver("575.57.08"))
    assert judge_driver(thirteen).outcome is Outcome.FAIL
    assert judge_driver(HUNG).outcome is Outcome.UNKNOWN
    assert judge_driver(facts(driver=_driver(""))).outcome is Outcome.UNKNOWN


def test_who_may_have_the_driver_in_a_library_is_warned_only() -> None:
    """Forward compatibility works if the job's loader finds it, which files do not tell."""
    both = facts(driver=_driver("470.256.02"), software=software(cuda_compat="560.35.05"))
    assert judge_driver(both).outcome is Outcome.WARN
    older = facts(driver=_driver("450.51"), software=software(cuda_compat="495.29.05"))
    assert judge_driver(older).outcome is Outcome.FAIL


def test_where_no_torch_needs_the_driver_it_is_not_judged() -> None:
    """Without a driver, a torch, or CUDA in it; and of a CUDA that came later than this code."""
    nothing = facts(software=Software())
    for one in (facts(driver=Driver("absent")), nothing, _torch(cuda=None), _torch(cuda="19.1")):
        assert judge_driver(one).outcome is Outcome.NOT_RUN
    assert "--preflight-python" in judge_driver(nothing).sentence
    assert all(map(version, minimum_drivers().values()))
    drivers = shipped_table(test_versions.__file__, "cuda_drivers.toml")
    assert all(entry["source"] for entry in drivers.values())


@pytest.mark.proves("software.arch", finds="a torch without kernels for the GPUs")
@pytest.mark.proves("software.arch", finds="a torch without CUDA on GPUs")
@pytest.mark.proves("software.arch", passes="a torch with sm_90 on H100")
@pytest.mark.proves("software.arch", unknown="a library whose table cannot be read")
def test_torch_has_kernels_for_the_gpus() -> None:
    """Code of the same major version, or PTX of an older one; else no kernel is there."""
    assert judge_arch(facts()).outcome is Outcome.OK
    old = judge_arch(_torch(archs=("sm_70", "sm_80")))
    assert old.outcome is Outcome.FAIL
    assert old.sentence == (
        "torch 2.6.0+cu124 is built for sm_70, sm_80; 8 of 8 GPUs are sm_90: no kernel runs on them"
    )
    mixed = judge_arch(with_gpu(3, _torch(archs=("sm_90",)), compute="10.0"))
    assert "1 of 8 GPUs are sm_100" in mixed.sentence
    cpu = judge_arch(facts(software=software(torch=CPU)))
    assert cpu.outcome is Outcome.FAIL
    assert cpu.sentence == "torch 2.6.0+cpu is built without CUDA, and 8 GPUs of NVIDIA are here"
    rocm = facts(software=software(torch=Torch("2.6.0+rocm6.2", hip="6.2")))
    assert "built for ROCm 6.2" in judge_arch(rocm).sentence
    unread = (HUNG, _torch(archs=None), with_gpu(0, compute=None))
    assert [judge_arch(one).outcome for one in unread] == [Outcome.UNKNOWN] * 3
    for one in (facts(gpus=()), facts(gpus=None), facts(software=Software())):
        assert judge_arch(one).outcome is Outcome.NOT_RUN


@pytest.mark.parametrize(
    ("arch", "compute", "runs"),
    [
        ("sm_90", "9.0", True), ("sm_80", "8.6", True), ("sm_86", "8.0", False),
        ("sm_80", "9.0", False), ("compute_80", "9.0", True), ("compute_90", "8.0", False),
        ("sm_90a", "9.0", True), ("sm_100a", "10.3", False), ("compute_90a", "10.0", False),
        ("sm_100f", "10.3", True), ("sm_100", "10.0", True), ("sm_100", "12.0", False),
        ("compute_120", "12.1", True), ("sm_x", "9.0", False), ("sm_90", "", False),
    ],
)  # fmt: skip
def test_what_runs_where(arch: str, compute: str, runs: bool) -> None:  # noqa: FBT001
    """Code is for one major version, PTX for all that came later."""
    assert runs_on((arch,), compute) is runs


@pytest.mark.proves("software.drift", finds="one node with another torch")
@pytest.mark.proves("software.drift", passes="three nodes with the same versions")
@pytest.mark.proves("software.drift", unknown="one node's Python cannot be read")
def test_one_odd_node_is_named_with_what_differs() -> None:
    """By majority, once: another torch brings its own CUDA and NCCL."""
    assert judge_drift((group(facts(), facts(), facts()),)).sentence == (
        "torch 2.6.0+cu124 on 3 nodes"
    )
    other = software(torch=Torch("2.5.1+cu121", cuda="12.1"), nccl="2.20.5")
    odd = judge_drift((group(facts(), facts(), facts(software=other)),))
    assert (odd.outcome, odd.culprits) == (Outcome.FAIL, ("h3",))
    assert odd.sentence == "torch 2.5.1+cu121 on h3, 2.6.0+cu124 on 2 of 3 nodes"
    none = judge_drift((group(facts(), facts(), facts(software=Software())),))
    assert none.sentence == "torch none on h3, 2.6.0+cu124 on 2 of 3 nodes"
    nccl = judge_drift((group(facts(), facts(), facts(software=software(nccl="2.19.3"))),))
    assert nccl.sentence == "NCCL 2.19.3 on h3, 2.21.5 on 2 of 3 nodes"
    unread = judge_drift((group(facts(), facts(), HUNG),))
    assert (unread.outcome, unread.culprits) == (Outcome.UNKNOWN, ("h3",))


def test_without_a_majority_no_node_is_blamed() -> None:
    """Two nodes that differ are not ready together, and neither is known to be the wrong one."""
    other = software(torch=Torch("2.5.1+cu121", cuda="12.1"))
    two = judge_drift((group(facts(), facts(software=other)),))
    assert (two.outcome, two.culprits) == (Outcome.FAIL, ())
    assert two.sentence == (
        "torch 2.6.0+cu124 on h1, and there is no majority; "
        "torch 2.5.1+cu121 on h2, and there is no majority"
    )


def test_what_no_job_dies_of_is_a_warning() -> None:
    """CuDNN and the Python's minor version; and groups are not held against each other."""
    cudnn = judge_drift((group(facts(), facts(), facts(software=software(cudnn="9.0.0"))),))
    assert (cudnn.outcome, cudnn.culprits) == (Outcome.WARN, ("h3",))
    python = facts(python=Python("3.12.1", "/usr/bin/python3"))
    assert judge_drift((group(facts(), facts(), python),)).outcome is Outcome.WARN
    other = facts(software=software(nccl="2.19.3"))
    assert judge_drift((group(facts(), facts()), group(other, other))).outcome is Outcome.OK
    assert judge_drift((group(facts()),)).outcome is Outcome.NOT_RUN
    bare = facts(software=Software())
    assert judge_drift((group(bare, bare),)).outcome is Outcome.NOT_RUN


@pytest.mark.proves("software.nccl_plugin", finds="a named plugin that is not installed")
@pytest.mark.proves("software.nccl_plugin", passes="aws-ofi-nccl in the loader's path")
@pytest.mark.proves("software.nccl_plugin", unknown="the libraries could not be listed")
def test_the_plugin_that_a_job_names_must_be_there() -> None:
    """By suffix, by path, by the name of its network; another one in its place is a warning."""
    ofi = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    have = facts(software=software(net_plugins=(ofi,)))
    plain = facts(software=software(net_plugins=("/opt/hpcx/lib/libnccl-net.so",)))
    suffix, network = {"NCCL_NET_PLUGIN": "ofi"}, {"NCCL_NET": "AWS Libfabric"}
    assert judge_plugin(suffix, have).sentence == f"NCCL_NET_PLUGIN=ofi: {ofi}"
    assert judge_plugin({"NCCL_NET_PLUGIN": ofi}, have).outcome is Outcome.OK
    assert judge_plugin(network, have).outcome is Outcome.OK
    gone = judge_plugin(suffix, facts())
    assert gone.outcome is Outcome.FAIL
    assert gone.sentence == (
        "NCCL_NET_PLUGIN=ofi: libnccl-net-ofi.so is not where the loader looks: "
        "NCCL goes over sockets or plain IB"
    )
    assert judge_plugin(network, facts()).sentence.endswith("the job ends with an error")
    assert judge_plugin(suffix, plain).outcome is Outcome.WARN
    assert judge_plugin(suffix, HUNG).outcome is Outcome.UNKNOWN


def test_what_needs_no_plugin_asks_for_none() -> None:
    """NCCL's own networks, "none", and a job that says nothing or is not known."""
    for environ in ({}, {"NCCL_NET": "IB"}, {"NCCL_NET": "Socket"}, {"NCCL_NET_PLUGIN": "none"}):
        assert requested_plugin(environ) is None
        assert judge_plugin(environ, facts()).outcome is Outcome.NOT_RUN
    assert judge_plugin(None, facts()).outcome is Outcome.NOT_RUN
