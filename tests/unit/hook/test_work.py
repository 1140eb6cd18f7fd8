"""Who this node is and what it is expected, before anything is asked of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import shipped_checks as checks
from preflight.errors import UsageError
from preflight.hook.hook_values import HookConfig
from preflight.hook.work import inspect_node, node_fleet, node_name

if TYPE_CHECKING:
    from pathlib import Path

INVENTORY = '[group.train]\nnodes = "gpu[001-004]"\ngpus = 8\n'


def _config(folder: Path, text: str = INVENTORY, **more: object) -> HookConfig:
    (folder / "fleet.toml").write_text(text)
    return HookConfig(inventory=folder / "fleet.toml", **more)  # type: ignore[arg-type]


def test_a_node_is_called_as_its_scheduler_calls_it() -> None:
    """What was typed comes first, then slurmd's word, then the host's own name without domain."""
    assert node_name({"SLURMD_NODENAME": "gpu001"}, "typed") == "typed"
    assert node_name({"SLURMD_NODENAME": "gpu001"}) == "gpu001"
    assert "." not in node_name({})


def test_its_promise_is_its_groups(tmp_path: Path) -> None:
    """The one node, reached as this machine whatever the inventory says of logins."""
    text = INVENTORY.replace("gpus", 'user = "root"\ntransport = "ssh"\ngpus')
    (host,) = node_fleet("gpu003", _config(tmp_path, text), checks()).hosts
    assert (host.name, host.transport, host.expected.gpus) == ("gpu003", "local", 8)
    nothing = node_fleet("gpu003", HookConfig(), checks()).hosts[0]
    assert nothing.expected.gpus is None


@pytest.mark.parametrize(("name", "named"), [("gpu009", "gpu009"), ("gpu001", "nets")])
def test_an_inventory_that_is_of_no_use_is_named(tmp_path: Path, name: str, named: str) -> None:
    """A node that it does not know, or an unknown key: an error of preflight, in one line."""
    config = _config(tmp_path, INVENTORY + ("nets = 3\n" if name == "gpu001" else ""))
    assessment = inspect_node(name, config, "prolog", {}, time.monotonic() + 5).assessment
    assert named in assessment.trouble
    assert (assessment.findings, assessment.passed) == ((), ())


def test_an_inventory_that_is_not_there_is_set_in_hook_toml(tmp_path: Path) -> None:
    """The hook has no option for it: what it advises can be done."""
    problems = []
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    for name in ("nowhere.toml", "latin.toml"):
        config = HookConfig(inventory=tmp_path / name)
        assessment = inspect_node("gpu001", config, "prolog", {}, time.monotonic() + 5).assessment
        problems.append(assessment.trouble.removeprefix("cannot read the inventory of hook.toml, "))
    assert problems == [
        f"{tmp_path}/nowhere.toml: No such file or directory; give a readable TOML file",
        f"{tmp_path}/latin.toml: not UTF-8 text; give a readable TOML file",
    ]


def test_a_check_is_left_out_by_its_name(tmp_path: Path) -> None:
    """`skip` switches it off for this node; a name that no check has is refused, not ignored."""
    (host,) = node_fleet("gpu001", _config(tmp_path, skip=("gpu.ecc",)), checks()).hosts
    assert host.off == {"gpu.ecc": "hook.toml"}
    with pytest.raises(UsageError, match=r"did you mean 'gpu\.ecc'"):
        node_fleet("gpu001", _config(tmp_path, skip=("gpu.ec",)), checks())


@pytest.mark.parametrize("name", ["", "@all", "n[1-9]", "a b", "../x", "x" * 300, "\x1b[2J"])
def test_what_is_no_name_starts_nothing(name: str) -> None:
    """A group could start a command of the site's: no name but a plain one goes any further."""
    assessment = inspect_node(name, HookConfig(), "prolog", {}, time.monotonic() + 5).assessment
    assert "is not a node name" in assessment.trouble
    assert assessment.trouble.isprintable()
