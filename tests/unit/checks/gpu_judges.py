"""Every check of GPU readings behind one call, as the frame sees them: node, promise and group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.checks.gpu.test_answers import judge_driver_slow as driver_slow
from preflight.checks.gpu.test_answers import judge_readings as readings
from preflight.checks.gpu.test_errors import judge_ecc as ecc
from preflight.checks.gpu.test_errors import judge_inforom as inforom
from preflight.checks.gpu.test_errors import judge_recovery as recovery
from preflight.checks.gpu.test_errors import judge_remap as remap
from preflight.checks.gpu.test_heat import judge_power as power
from preflight.checks.gpu.test_heat import judge_temperature as temperature
from preflight.checks.gpu.test_heat import judge_throttle as throttle
from preflight.checks.gpu.test_links import judge_fabric as fabric
from preflight.checks.gpu.test_links import judge_nvlink as nvlink
from preflight.checks.gpu.test_links import judge_pcie as pcie
from preflight.checks.gpu.test_settings import judge_memory as memory
from preflight.checks.gpu.test_settings import judge_mode as mode
from preflight.checks.gpu.test_settings import judge_model as model
from preflight.checks.gpu.test_settings import judge_software as software
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
