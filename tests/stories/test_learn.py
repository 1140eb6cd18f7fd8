"""`preflight learn` writes what is there; what it wrote loads, and a run by it is ready."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.inventory import read_inventory
from tests import warm
from tests.stories.conftest import LONGEST_S, clean_environment

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

FACTS = ("-m", "preflight_reach or preflight_facts", "--preflight-fail-fast=never")


def _learn(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = ["learn", *map(str, arguments)]
    return warm.run("preflight", words, cwd=folder, env=clean_environment(), timeout=LONGEST_S)


def _local(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(
        f'[defaults]\ntransport = "local"\npython = "{sys.executable}"\ngpus = 8\n'
        '[group.train]\nnodes = "n[1-3]"\n'
        + "".join(f'[node.n{i}]\naddress = "127.0.0.1"\n' for i in (1, 2, 3))
    )
    return path


def test_this_machine_is_learned_and_judged_by_it(
    tmp_path: Path, preflight: Callable[..., Told]
) -> None:
    """Without targets it is this machine; the text goes to standard output, as valid TOML."""
    done = _learn(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Learned by preflight ")
    (tmp_path / "here.toml").write_text(done.stdout)
    inventory = read_inventory(tmp_path / "here.toml")
    (name,) = inventory.names
    host = inventory.host(name)
    assert (host.transport, host.python) == ("local", (sys.executable,))
    assert ", learned 20" in host.expected.origin
    told = preflight("--preflight-inventory", str(tmp_path / "here.toml"), *FACTS)
    expected = {"gpu.count", "gpu.topology"}
    assert not {check for check, _ in told.found()} & expected, told.out


def test_a_run_that_another_user_wrote_names_no_hostile_node(
    tmp_path: Path, preflight: Callable[..., Told]
) -> None:
    """A name of measured.json that is none is refused in one line, without what drives a screen."""
    preflight("--preflight-report=run", *FACTS)
    measured = next(tmp_path.rglob("measured.json"))
    name = next(iter(json.loads(measured.read_bytes())["reach"]))
    hostile = json.dumps("v\x1b[31mm\n-o;reboot")
    measured.write_text(measured.read_text().replace(json.dumps(name), hostile))
    done = _learn(tmp_path, measured.parent)
    assert (done.returncode, done.stdout) == (4, "")
    assert "is not a node name" in done.stderr
    assert done.stderr.removesuffix("\n").isprintable()


def test_promises_are_replaced_ways_in_are_kept_and_nothing_is_overwritten(tmp_path: Path) -> None:
    """Three nodes alike are one folded group; their expectation of eight GPUs was wrong."""
    out = tmp_path / "new.toml"
    done = _learn(tmp_path, "--inventory", _local(tmp_path), "-o", out)
    assert done.returncode == 0, done.stderr
    assert f"preflight check -i {out}" in done.stderr
    learned = tomllib.loads(out.read_text())
    assert learned["group"]["train"]["nodes"] == "n[1-3]"
    assert learned["group"]["train"]["learned"].year >= 2026
    assert learned["node"]["n2"] == {"address": "127.0.0.1"}
    assert learned["group"]["train"].get("gpus") != 8 or "gpu_model" in learned["group"]["train"]
    before = out.read_bytes()
    again = _learn(tmp_path, "--inventory", _local(tmp_path), "-o", out)
    assert again.returncode == 4
    assert "exists already: give another file, or --force to replace it" in again.stderr
    assert out.read_bytes() == before
    assert _learn(tmp_path, "--inventory", _local(tmp_path), "-o", out, "--force").returncode == 0


def test_who_does_not_answer_is_named_and_not_invented(tmp_path: Path) -> None:
    """Exit 1 with the rest written; exit 3 and no file where nobody answers."""
    path = _local(tmp_path)
    path.write_text(path.read_text() + 'python = "/nonexistent/python3"\n')
    some = _learn(tmp_path, "--inventory", path)
    assert some.returncode == 1
    assert "# not learned: n3: " in some.stdout
    assert 'nodes = "n[1-2]"' in some.stdout
    none = _learn(tmp_path, "--inventory", path, "--nodes", "n3", "-o", tmp_path / "none.toml")
    assert none.returncode == 3
    assert not (tmp_path / "none.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "h[1-99999999]"], "more than 65536 nodes"),
        (["./nosuchrun"], "measurements nosuchrun: No such file or directory; give a run"),
        (["--inventory", "nosuch.toml"], "cannot read the inventory"),
        (["-o", "nosuch/new.toml"], "there is no folder"),
        (["-o", "/proc/new.toml"], "/proc takes no new file; give another file"),
        (["--nods", "h1"], "did you mean '--nodes'? See: preflight learn --help"),
    ],
)
def test_wrong_usage_of_learn(tmp_path: Path, arguments: list[str], said: str) -> None:
    """One line with the remedy, exit 4, no traceback."""
    done = _learn(tmp_path, *arguments)
    assert done.returncode == 4
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def one_gpu_less(lab: Lab) -> Iterator[Lab]:
    """Four hosts with eight GPUs each, but one of them lost its GPU 3."""
    lab.hosts["h4"].set_scenario(lab.hosts["h4"].scenario.without_gpu(3))
    yield lab
    lab.heal()


@pytest.mark.lab
def test_a_fleet_is_learned_by_kind_and_ready_by_what_was_learned(
    one_gpu_less: Lab, tmp_path: Path, preflight: Callable[..., Told]
) -> None:
    """The odd host is a group of its own that says how it differs; from the run's folder alike."""
    out = tmp_path / "new.toml"
    done = _learn(tmp_path, "--inventory", one_gpu_less.inventory(), "-o", out)
    assert done.returncode == 0, done.stderr
    groups = tomllib.loads(out.read_text())["group"]
    usual = next(group for group in groups.values() if group["nodes"] == "h[1-3]")
    odd = next(group for group in groups.values() if group["nodes"] == "h4")
    assert (usual["gpus"], odd["gpus"]) == (8, 7)
    assert "H100" in usual["gpu_model"]
    for group in (usual, odd):
        assert (group["mig"], group["ecc"], group["power_limit_w"]) == (False, True, 700)
    assert "gpus 7, not 8" in out.read_text()
    told = preflight("--preflight-inventory", str(out), *FACTS)
    assert told.exit == 0, told.out
    again = _learn(tmp_path, told.folder, "--inventory", out)
    assert tomllib.loads(again.stdout)["group"] == groups
