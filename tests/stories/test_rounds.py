"""Rounds of pairs as the operator asks for them: how many, which, and night after night."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stories.conftest import Told
    from tests.stories.here import Here

_CHECK = "--preflight-checks=fabric.allreduce"
_TWENTY = ("--preflight-nodes=h[01-20].invalid", "--co", "-q")


def _pairs(told: Told) -> list[str]:
    assert told.exit == 0, told.out + told.err
    return re.findall(r"fabric\.allreduce\[(\S+)\]", told.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preflight-sweep=0"], "--preflight-sweep='0': give a number of rounds, 1 or more"),
        (["--preflight-seed=-1"], "--preflight-seed=-1: give a number, 0 to 4294967295"),
        (["--preflight-topology=topology.conf"], "topology.conf line 2: 'foo' is not KEY=VALUE"),
        (["--preflight-history="], "--preflight-history is empty: give a folder that stays"),
        (
            ["--preflight-history=mysql://h/d"],
            "a history in 'mysql' is not supported: give",
        ),
    ],
)
def test_wrong_usage(
    preflight: Callable[..., Told], tmp_path: Path, arguments: list[str], said: str
) -> None:
    """Each mistake is exit 4 and one line with the remedy, before anybody is asked anything."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "topology.conf").write_text("SwitchName=s0 Nodes=h1\nfoo\n")
    told = preflight("--preflight-nodes=h[1-3].invalid", *arguments)
    assert told.exit == 4
    assert said in told.err
    assert "Traceback" not in told.out + told.err
    assert not told.folder.exists()


def test_the_seed_decides_which_pairs_there_are(preflight: Callable[..., Told]) -> None:
    """Two rounds of twenty nodes are twenty pairs: the same for the same seed, else others."""
    first = _pairs(preflight(*_TWENTY, _CHECK, "--preflight-sweep=2", "--preflight-seed=5"))
    again = _pairs(preflight(*_TWENTY, _CHECK, "--preflight-sweep=2", "--preflight-seed=5"))
    other = _pairs(preflight(*_TWENTY, _CHECK, "--preflight-sweep=2"))
    assert len(first) == len(set(first)) == 20
    assert first == again != other


def test_exhaustive_is_every_pair_and_auto_is_some(preflight: Callable[..., Told]) -> None:
    """Of twenty nodes there are 190 pairs; nine rounds measure 90 of them."""
    assert len(set(_pairs(preflight(*_TWENTY, _CHECK, "--preflight-sweep=exhaustive")))) == 190
    assert len(set(_pairs(preflight(*_TWENTY, _CHECK, "--preflight-budget=120")))) == 90


def test_the_header_says_what_has_no_time_and_how_to_have_it(
    preflight: Callable[..., Told], tmp_path: Path
) -> None:
    """64 nodes of 8 GPUs: some of nine rounds in a minute, all of them in the time it proposes."""
    (tmp_path / "fleet.toml").write_text('[group.train]\nnodes = "g[01-64].invalid"\ngpus = 8\n')
    gpus = (f"--preflight-inventory={tmp_path}/fleet.toml", "--co", _CHECK)
    head = preflight(*gpus).out
    told = [line for line in head.splitlines() if line.startswith(("time ", "left out "))]
    assert max(map(len, told)) <= 80
    said = re.search(
        r"time     about \d+ s facts, \d+ s sweep \((\d) of 9 rounds\) of 60 s\n"
        r"left out (\d) of 9 rounds: no time in 60 s; "
        r"--preflight-budget=(\d+) has time for\s+all\n",
        head,
    )
    assert said is not None, head
    planned, left_out, budget = map(int, said.groups())
    assert planned + left_out == 9
    assert f"\nrounds   {planned} of 63, " in head
    enough = preflight(*gpus, f"--preflight-budget={budget}").out
    assert f"s sweep (9 rounds) of {budget} s\n" in enough
    assert "left out" not in enough


def test_a_topology_file_puts_leaves_into_the_header(
    preflight: Callable[..., Told], tmp_path: Path
) -> None:
    """The header says how many leaves, by which file, and of whom nothing is known."""
    (tmp_path / "t.conf").write_text(
        "SwitchName=s0 Nodes=h[01-10].invalid\nSwitchName=s1 Nodes=h[11-19].invalid\n"
    )
    told = preflight(*_TWENTY[:-1], _CHECK, "--preflight-seed=3",
                     f"--preflight-topology={tmp_path}/t.conf")  # fmt: skip
    head = " ".join(told.out.split())
    assert f"of 19, seed 3; 2 leaves by {tmp_path}/t.conf, none known of h20.invalid" in head


@pytest.fixture
def two_leaves(here: Here) -> Here:
    """Three nodes of this machine, the third below another leaf."""
    leaves = here.inventory.read_text().replace('nodes = "n[1-3]"', 'nodes = "n[1-3]"\nleaf = "s0"')
    here.inventory.write_text(leaves.replace("[node.n3]", '[node.n3]\nleaf = "s1"'))
    return here


@pytest.mark.busy
def test_runs_add_up_to_all_pairs(two_leaves: Here) -> None:
    """Three nodes, one round a run and a pair for whom it leaves out: in the end all are known."""
    once = (_CHECK, "--preflight-sweep=1", "--preflight-history=../history",
            "--preflight-even-if-busy")  # fmt: skip
    told, reports = [], []
    for _ in range(3):
        told.append(two_leaves.judge_all(*once))
        reports.append(told[-1].report)
    seen = [report["coverage"] for report in reports]
    assert [report["exit"] for report in reports] == [0, 0, 0]
    assert [row["runs_left"] for row in seen] == [2, 1, 0]
    assert [row["pairs_run"] for row in seen] == [2, 2, 2]
    assert (seen[0]["pairs_known"], seen[2]["pairs_known"]) == (2, 3)
    measured = {(pair["a"], pair["b"]) for report in reports for pair in report["pairs"]}
    assert measured == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    first, _, last = (" ".join(one.out.split()) for one in told)
    assert "coverage 2 of 3 pairs of nodes measured; all in 2 more runs" in first
    assert "2 of 3 pairs of nodes measured, all with earlier runs; 1 of 1 pairs of leaf" in last
    assert seen[2]["leaf_pairs_known"] == seen[2]["leaf_pairs"] == 1
    assert seen[0]["topology"] == "the inventory"
    assert f"seed {seen[0]['seed']};" in told[0].out


@pytest.mark.busy
def test_an_exhaustive_run_knows_all_pairs_at_once(two_leaves: Here) -> None:
    """Also beside two workers of xdist; without a history, nothing earlier is counted."""
    everything = two_leaves.judge_all(
        _CHECK, "--preflight-sweep=exhaustive", "--preflight-even-if-busy", "-n2"
    )
    assert "coverage all 3 pairs of nodes measured; 1 of 1 pairs" in " ".join(
        everything.out.split()
    )
    assert everything.report["coverage"]["pairs_known"] is None
