"""Leaf switches come from an option, the inventory or Slurm, and never from a guess."""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.fleet import leaf_switches as leaves_module
from preflight.fleet.leaf_switches import parse_switches, read_switches
from preflight.fleet.sources import FleetRequest, resolve

if TYPE_CHECKING:
    from pathlib import Path

TWO_LEAVES = (
    "SwitchName=s0 Nodes=h[1-2]\nSwitchName=s1 Nodes=h[3-4]\nSwitchName=s2 Switches=s[0-1]\n"
)
OF_TWO = {"h1": "s0", "h2": "s0", "h3": "s1", "h4": "s1"}

SCONTROL = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=h[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=h[3-4]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=h[1-4] Switches=s[0-1]
"""


def test_leaf_switches_are_those_without_switches_below() -> None:
    """The file and scontrol's answer say the same, comments, case and joined lines aside."""
    assert parse_switches(TWO_LEAVES, "t") == OF_TWO
    assert parse_switches(SCONTROL, "t") == OF_TWO
    odd = "# SwitchName=x Nodes=y\n\nswitchname=s0 \\\n  NODES=h1,h2 # two\n"
    assert parse_switches(odd + "SwitchName=s1 Nodes=h[3-4]", "t") == OF_TWO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t has no leaf switch with nodes: write lines such as SwitchName=leaf1"),
        ("SwitchName=top Switches=s[0-3]", "t has no leaf switch"),
        ("SwitchName=s0 Nodes=h1\nNodes=h2", "t line 2: it has no SwitchName, but 'nodes'"),
        ("\n\nfoo", "t line 3: 'foo' is not KEY=VALUE"),
        ("SwitchName=s0", "t line 1: s0 has neither Nodes nor Switches"),
        ("SwitchName=s0 Nodes=(null)", "t line 1: s0 has neither Nodes nor Switches"),
        ("SwitchName=s0 Nodes=h[1-", "t line 1: cannot read the node list 'h[1-'"),
        ("SwitchName=s0 Nodes=h[1-99999999]", "t line 1: 'h[1-99999999]' names more than 65536"),
        ("SwitchName=s0 Nodes=h1\nSwitchName=s0 Nodes=h2", "t line 2: s0 is declared in line 1"),
        ("SwitchName=s0 Nodes=h1\nSwitchName=s1 Nodes=h[1-2]", "t line 2: h1 is on s0 and on s1"),
        ("SwitchName=\x1b[31m Nodes=h1", "t line 1: '\\x1b[31m' is not a switch name"),
        ("BlockName=b1 Nodes=h[1-4]", "t line 1: a block topology names no switches"),
    ],
)
def test_a_bad_line_is_named_by_its_number(text: str, message: str) -> None:
    """So is what to write instead."""
    with pytest.raises(UsageError) as refused:
        parse_switches(text, "t")
    assert str(refused.value).startswith(message)
    assert ": " in str(refused.value)


@given(st.text(alphabet="SwitchName=Nodes s0[1-2],\\\n#(null)\x00é", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a sentence comes out of a file that is none."""
    with suppress(UsageError):
        assert all(parse_switches(text, "t").values())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A folder, binary rubbish, nothing at all: named, with what to give."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in (".", "binary", "absent"):
        with pytest.raises(UsageError, match=r"cannot read the topology .*: .*; give a topology"):
            read_switches(tmp_path / name)


def test_the_inventory_says_it_per_group_or_node(tmp_path: Path) -> None:
    """The nearest layer wins; the fleet knows where it comes from."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[group.a]\nnodes = "h[1-2]"\nleaf = "s0"\n[group.b]\nnodes = "h[3-5]"\n'
        '[node.h3]\nleaf = "s1"\n[node.h4]\nleaf = "s1"\n'
    )
    fleet = resolve(FleetRequest(inventory=str(path)))
    assert (fleet.leaves, fleet.topology) == (OF_TWO, "the inventory")
    path.write_text('[group.a]\nnodes = "h[1-2]"\nleaf = "two words"\n')
    with pytest.raises(UsageError, match=r"leaf in \[group.a\] is 'two words': give a switch's"):
        resolve(FleetRequest(inventory=str(path)))


def test_ansible_says_it_by_a_variable(tmp_path: Path) -> None:
    """preflight_leaf, like every other expectation."""
    path = tmp_path / "inventory.json"
    path.write_text(
        '{"all": {"hosts": ["h1", "h2"]}, "_meta": {"hostvars": {"h1": {"preflight_leaf": "s0"}}}}'
    )
    fleet = resolve(FleetRequest(inventory=str(path)))
    assert fleet.leaves == {"h1": "s0"}
    assert fleet.topology == "the inventory"


def test_the_option_outranks_the_inventory_and_knows_short_names(tmp_path: Path) -> None:
    """A file that names no node of the fleet is the operator's mistake."""
    inventory, file = tmp_path / "fleet.toml", tmp_path / "topology.conf"
    inventory.write_text('[group.a]\nnodes = "h[1-4].example.org"\nleaf = "other"\n')
    file.write_text(TWO_LEAVES)
    fleet = resolve(FleetRequest(inventory=str(inventory), topology=str(file)))
    assert fleet.topology == str(file)
    assert list(fleet.leaves.values()) == ["s0", "s0", "s1", "s1"]
    file.write_text("SwitchName=s0 Nodes=h1\n")
    partly = resolve(FleetRequest(inventory=str(inventory), topology=str(file)))
    assert partly.leaves == {"h1.example.org": "s0"}
    with pytest.raises(UsageError, match=r"topology.conf knows no leaf of x\[1-2\]: give the"):
        resolve(FleetRequest(nodes="x[1-2]", topology=str(file)))
    with pytest.raises(UsageError, match="--preflight-topology is empty"):
        resolve(FleetRequest(nodes="h1", topology=""))


def test_a_fleet_without_topology_has_no_leaves() -> None:
    """Outside Slurm no program is asked."""
    fleet = resolve(FleetRequest(nodes="h[1-4]"))
    assert (fleet.leaves, fleet.topology, fleet.topology_remark) == ({}, "", "")


class TestInsideSlurm:
    """In an allocation Slurm is asked, and its own file is read where it does not say."""

    @pytest.fixture
    def job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        """A job's environment, with no scontrol and no topology on this machine."""
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(leaves_module, "SLURM_TOPOLOGY", tmp_path / "etc" / "topology.conf")
        self._answer(tmp_path, "", status=1)
        return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-4]"}

    @staticmethod
    def _answer(folder: Path, text: str, status: int = 0) -> None:
        scontrol = folder / "bin" / "scontrol"
        scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {status}\n")
        scontrol.chmod(stat.S_IRWXU)

    def test_scontrol_answers(self, tmp_path: Path, job: dict[str, str]) -> None:
        """Its answer is taken, and named."""
        self._answer(tmp_path, SCONTROL)
        fleet = resolve(FleetRequest(environ=job))
        assert (fleet.leaves, fleet.topology) == (OF_TWO, "scontrol show topology")

    def test_scontrol_takes_no_configuration_of_the_jobs_user(
        self, tmp_path: Path, job: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SLURM_CONF_SERVER names a machine whose configuration may load any plugin."""
        monkeypatch.setenv("SLURM_CONF_SERVER", "127.0.0.1:6817")
        monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
        scontrol = tmp_path / "bin" / "scontrol"
        scontrol.write_text(f"#!/bin/sh\nenv >{tmp_path}/seen\n")
        resolve(FleetRequest(environ=job))
        seen = (tmp_path / "seen").read_text()
        assert "SLURM_CONF=/etc/slurm/slurm.conf" in seen
        assert "SLURM_CONF_SERVER" not in seen

    def test_slurms_own_file(self, tmp_path: Path, job: dict[str, str]) -> None:
        """Beside the slurm.conf that is in use, or in its usual place."""
        assert resolve(FleetRequest(environ=job)).leaves == {}
        for folder in ("etc", "elsewhere"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "topology.conf").write_text(TWO_LEAVES)
        fleet = resolve(FleetRequest(environ=job))
        assert (fleet.leaves, fleet.topology) == (OF_TWO, str(tmp_path / "etc" / "topology.conf"))
        conf = str(tmp_path / "elsewhere" / "slurm.conf")
        fleet = resolve(FleetRequest(environ={**job, "SLURM_CONF": conf}))
        assert fleet.topology == str(tmp_path / "elsewhere" / "topology.conf")

    def test_an_unnamed_file_stops_no_run(self, tmp_path: Path, job: dict[str, str]) -> None:
        """Slurm's file is not the operator's to mend: the header tells of it, the run goes on."""
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "topology.conf").write_text("BlockName=b1 Nodes=h[1-4]\n")
        fleet = resolve(FleetRequest(environ=job))
        assert fleet.leaves == {}
        assert "topology.conf line 1: a block topology" in fleet.topology_remark
