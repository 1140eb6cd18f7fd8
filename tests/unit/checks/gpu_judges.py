"""Every check of GPU readings behind one call, as the frame sees them: node, promise and group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.test_gpu_driver_slow import judge as driver_slow
from checks.test_gpu_ecc import judge as ecc
from checks.test_gpu_fabric import judge as fabric
from checks.test_gpu_inforom import judge as inforom
from checks.test_gpu_memory import judge as memory
from checks.test_gpu_mode import judge as mode
from checks.test_gpu_model import judge as model
from checks.test_gpu_nvlink import judge as nvlink
from checks.test_gpu_pcie import judge as pcie
from checks.test_gpu_power import judge as power
from checks.test_gpu_readings import judge as readings
from checks.test_gpu_recovery import judge as recovery
from checks.test_gpu_remap import judge as remap
from checks.test_gpu_software import judge as software
from checks.test_gpu_temperature import judge as temperature
from checks.test_gpu_throttle import judge as throttle
from preflight.fleet.model import Promise
from tests.unit.facts.builders import group as make_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.model import Facts
    from preflight.facts.node import Group
    from preflight.verdict import Verdict

ALONE: dict[str, Callable[[int | None, Facts], Verdict]] = {
    "gpu.driver_slow": driver_slow,
    "gpu.ecc": ecc,
    "gpu.fabric": fabric,
    "gpu.inforom": inforom,
    "gpu.readings": readings,
    "gpu.recovery": recovery,
    "gpu.remap": remap,
    "gpu.temperature": temperature,
    "gpu.throttle": throttle,
}
WITH_PEERS: dict[str, Callable[[int | None, Facts, Group], Verdict]] = {
    "gpu.memory": memory,
    "gpu.nvlink": nvlink,
    "gpu.pcie": pcie,
    "gpu.software": software,
}
WITH_PROMISE: dict[str, Callable[[Promise, Facts, Group], Verdict]] = {
    "gpu.mode": mode,
    "gpu.model": model,
    "gpu.power": power,
}
CHECKS = sorted([*ALONE, *WITH_PEERS, *WITH_PROMISE])


def judge(check: str, facts: Facts, *peers: Facts, promised: Promise | None = None) -> Verdict:
    """What the check says of a node whose group is itself and these peers."""
    promise = promised or Promise(gpus=8)
    group = make_group(facts, *peers)
    if check in ALONE:
        return ALONE[check](promise.gpus, facts)
    if check in WITH_PEERS:
        return WITH_PEERS[check](promise.gpus, facts, group)
    return WITH_PROMISE[check](promise, facts, group)
