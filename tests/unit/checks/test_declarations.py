"""Every shipped check has a stable id, a page in the manual and a file of readable length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import load_folder, shipped_folder

if TYPE_CHECKING:
    from preflight.core.registry import Registered

ROOT = Path(__file__).resolve().parents[3]
CHECKS = load_folder(shipped_folder())
HEADINGS = ("## What", "## Why", "## Cost", "## Fix")


def test_the_checks_of_this_room_are_there() -> None:
    """Ids are a promise to whoever drains, alerts or silences by them."""
    ids = {registered.check.id for registered in CHECKS}
    steps = ("name", "route", "hostkey", "login", "python", "answer")
    assert {f"reach.{step}" for step in steps} <= ids
    assert {"host.driver_hung", "host.stale_processes", "net.ports"} <= ids
    assert {"gpu.count", "gpu.topology", "env.cuda_visible_devices"} <= ids


@pytest.mark.parametrize("registered", CHECKS, ids=lambda registered: registered.check.id)
def test_a_check_has_a_page_and_a_short_file(registered: Registered) -> None:
    """A check's file has at most 450 lines; its page says what, why, at what cost, and the fix."""
    check = registered.check
    assert len(registered.path.read_text().splitlines()) <= 450
    page = (ROOT / "docs" / "checks" / f"{check.id}.md").read_text()
    assert page.startswith(f"# {check.id}\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == list(HEADINGS)


def test_only_sure_signs_of_a_bad_machine_drain_it() -> None:
    """A drain costs a node: leftovers and settings are fixed without one."""
    passive = [
        registered.check
        for registered in CHECKS
        if registered.check.stage not in ("local", "fabric")
    ]
    drains = {check.id for check in passive if check.drains}
    settings = {"gpu.mode", "gpu.model", "gpu.power", "gpu.software"}
    gpu = {check.id for check in passive if check.id.startswith("gpu.")}
    log = {"net.kernel_log", "host.hardware_errors"}
    nic = {"ib.count", "ib.pcie", "ib.port", "ib.rate"}
    assert drains == {"host.dimms", "host.driver_hung", *log, *(gpu - settings), *nic}
