# ruff: noqa: T201  # a command for people: it prints
"""`make demo`: a fleet with planted faults is judged, and every culprit must be named.

As root the fleet is four hosts of the lab; else four local processes with emulated GPUs, and the
faults that need a host of their own are left out, which is said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import inventory, processes, wire
from tests.lab.cluster import Lab, why_not
from tests.lab.nvml.build import build
from tests.lab.nvml.scenario import h100

if TYPE_CHECKING:
    from collections.abc import Mapping

Culprits = dict[tuple[str, str], str]
"""(node, check that must condemn it) → what was done to it."""

_PLANTED: Culprits = {
    ("h1", "host.stale_processes"): "a rank of a dead job holds the master port and 40 GiB",
    ("h2", "gpu.count"): "GPU 3 has fallen off the bus",
    ("h4", "fabric.allreduce"): "its link is slowed to 200 Mbit/s",
}


def main() -> int:
    """Run the demo; 0 when every planted culprit was named, and nobody else."""
    forced = "--processes was given" if "--processes" in sys.argv else None
    reason = forced or why_not()
    with tempfile.TemporaryDirectory(prefix="preflight-demo-") as folder:
        working = Path(folder)
        planted = _in_processes(working, reason) if reason else _in_a_lab(working)
        if kept := next((x[7:] for x in sys.argv if x.startswith("--keep=")), ""):
            shutil.copytree(working / "report", kept)
        return _verdict(working / "report" / "report.json", planted)


def _in_a_lab(working: Path) -> Culprits:
    _say("four hosts come up: namespaces, real sshd, 8 emulated H100 each", _PLANTED)
    with Lab(hosts=4) as lab, ExitStack() as faults:
        h1, h2, h4 = (lab.hosts[name] for name in ("h1", "h2", "h4"))
        faults.enter_context(processes.stale_rank(h1, port=29500))
        h2.set_scenario(h2.scenario.without_gpu(3))
        faults.enter_context(wire.slow_link(h4))
        (working / "fleet.toml").write_text(lab.inventory().read_text())
        _judge(working)
    return _PLANTED


def _in_processes(working: Path, reason: str) -> Culprits:
    planted = {key: what for key, what in _PLANTED.items() if key == ("h2", "gpu.count")}
    left_out = [what for key, what in _PLANTED.items() if key not in planted]
    _say(f"no lab here: {reason}\nfour local processes stand for the hosts", planted)
    print(f"left out: {'; '.join(left_out)}; ssh; network cards", flush=True)
    library = build(working / "nvml")
    nodes = {}
    for name in ("h1", "h2", "h3", "h4"):
        scenario = h100(name)
        path = working / f"{name}.scenario"
        path.write_text((scenario.without_gpu(3) if name == "h2" else scenario).text())
        nodes[name] = {"python": ["env", f"PREFLIGHT_NVML_SCENARIO={path}",
                                  f"LD_LIBRARY_PATH={library.parent}", sys.executable]}  # fmt: skip
    tables: Mapping[str, object] = {
        "defaults": {"transport": "local"},
        "group": {"local": {"nodes": "h[1-4]", "gpus": 8, "nvlinks_per_gpu": 18}},
        "node": {name: {"address": "127.0.0.1", **node} for name, node in nodes.items()},
    }
    (working / "fleet.toml").write_text(inventory.toml(dict(tables)))
    _judge(working)
    return planted


def _say(first: str, planted: Culprits) -> None:
    print(f"demo: {first}")
    for (node, _), what in planted.items():
        print(f"planted on {node}: {what}")
    print("$ pytest --preflight --preflight-inventory=fleet.toml --preflight-fail-fast=never\n",
          flush=True)  # fmt: skip


def _judge(working: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--preflight", "-p", "no:cacheprovider"]
    options = ["--preflight-inventory", "fleet.toml", "--preflight-fail-fast=never",
               "--preflight-report", "report"]  # fmt: skip
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SLURM_"))}
    subprocess.run([*command, *options], cwd=working, env=environ, check=False)


def _verdict(path: Path, planted: Culprits) -> int:
    """Hold the report against what was planted."""
    if not path.exists():
        print("demo: no report was written")
        return 1
    report = json.loads(path.read_text())
    condemned = {(v["blame"] or v["subject"], v["check"]) for v in report["verdicts"]
                 if v["outcome"] == "fail"}  # fmt: skip
    missed = [f"{node} by {check}" for node, check in planted if (node, check) not in condemned]
    strangers = sorted({node for node, _ in condemned} - {node for node, _ in planted})
    print(f"\ndemo: {len(planted) - len(missed)} of {len(planted)} planted culprits named, "
          f"{len(strangers)} healthy nodes blamed")  # fmt: skip
    if missed or strangers:
        print(f"missed: {missed or 'none'}; wrongly blamed: {strangers or 'none'}")
    return 1 if missed or strangers else 0


if __name__ == "__main__":
    sys.exit(main())
