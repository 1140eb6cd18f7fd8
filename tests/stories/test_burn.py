"""A burn-in as an operator sees it, on nodes without GPUs: the same code on their CPUs."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stories.terminal import Terminal
from tests.unit.fabric.nodes import wait_for

if TYPE_CHECKING:
    from tests.stories.here import Here

pytestmark = [
    pytest.mark.busy,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch in this Python"),
]

IN_BURN_IN = r"burn-in +(\d+)/\d+ "
"""How many of its phases one node is through, as the progress shows it."""

STAGE = ("--preflight-tier=standard", "-m", "preflight_local", "--preflight-fail-fast=never")


def test_three_nodes_are_burned_in(here: Here) -> None:
    """Tier standard says what it will do, shows progress, and judges every device; quick does not.

    Nothing is asserted of speeds: other programs on this machine may take the CPUs.
    """
    told = here.judge_all(*STAGE)
    assert "burn-in  every device of every node" in told.out
    assert re.search(r"burn-in  (\d+)/\1  ", told.out)
    verdicts = {(v["check"], v["subject"]): v for v in told.report["verdicts"]}
    for name in ("n1", "n2", "n3"):
        assert verdicts["burn.device", name]["outcome"] == "ok", told.out
        assert verdicts["burn.integrity", name]["sentence"].startswith("2 devices: ")
        assert verdicts["burn.p2p", name]["outcome"] == "not_run"
        parts = verdicts["burn.gemm", name]["evidence"]["parts"]
        assert [part["name"] for part in parts] == ["slot 0", "slot 1"]
    assert "preflight-cpu" not in told.out


def test_a_promised_gpu_that_torch_does_not_see_is_unknown(here: Here) -> None:
    """CPUs do not stand for GPUs that were expected: nothing of them is called healthy."""
    text = here.inventory.read_text()
    here.inventory.write_text(text.replace("[group.train]\n", "[group.train]\ngpus = 8\n"))
    told = here.judge_all(*STAGE)
    assert told.exit == 1
    outcomes = {(check, outcome) for check, _, outcome in told.outcomes() if "burn" in check}
    assert not [one for one in outcomes if one[1] == "ok"]


def test_an_interrupted_burn_in_tells_what_it_found(tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit 2, the device that was lost until then is told, nothing is left.

    What was not judged is said to be open: the node is no longer called ready.
    """
    inventory = tmp_path / "fleet.toml"
    inventory.write_text(
        f'[defaults]\ntransport = "local"\npython = "env PF_STORY={tmp_path} {sys.executable}"\n'
        '[group.train]\nnodes = "n1"\n[node.n1]\naddress = "127.0.0.1"\n'
    )
    run = Terminal(tmp_path, [f"--preflight-inventory={inventory}", *STAGE])
    try:
        run.wait_for(IN_BURN_IN, 2)
        os.kill(running(tmp_path)["preflight-cpu1"], signal.SIGKILL)
        run.wait_for(IN_BURN_IN, 4)
        os.killpg(run.process.pid, signal.SIGINT)
        told = run.told()
        assert wait_for(lambda: [] if running(tmp_path) else [1], 10), running(tmp_path)
    finally:
        run.end()
    assert told.exit == 2, told.out
    assert "slot 1 died in" in told.out
    assert "SIGKILL" in told.out
    assert ("burn.device", "n1", "fail") in told.outcomes()
    judged = ("burn.device", "burn.integrity")  # the other slot's proofs are whole by then
    outcomes = {outcome for check, _, outcome in told.outcomes() if check not in judged}
    assert outcomes == {"not_run"}
    assert ("burn.integrity", "n1", "fail") not in told.outcomes()
    assert told.report["interrupted"] is True
    assert told.report["fleet"]["ready"] == []
    assert "Traceback" not in told.out


def running(mark: Path) -> dict[str, int]:
    """What runs on the nodes of that run, by the name of the process."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"PF_STORY={mark}\0".encode() in (place / "environ").read_bytes():
                found[(place / "comm").read_text().strip()] = int(place.name)
    return found
