"""What a run keeps on disk is its own: nobody else decides where it goes or what is read back."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.run.measured import Measured
from tests.unit.fabric.synthetic import hosts, sweep

if TYPE_CHECKING:
    from tests.stories.here import Here

RECORDED = Path(__file__).parents[1] / "frozen" / "runs"
STRANGER = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")
REACH = ("-m", "preflight_reach")


@root_only
@pytest.mark.parametrize("trap", ["link", "folder", "open"])
def test_a_report_folder_of_a_stranger(here: Here, trap: str) -> None:
    """A link, a folder of another user in /tmp, a folder that is open to all: exit 4."""
    shared, victim = here.folder / "shared", here.folder / "victim"
    shared.mkdir()
    victim.mkdir()
    shared.chmod(0o1777)
    runs = shared / "runs"
    if trap == "link":
        runs.symlink_to(victim)
    else:
        runs.mkdir()
        runs.chmod(0o777 if trap == "open" else 0o755)
    if trap != "open":
        os.lchown(runs, STRANGER, STRANGER)
    told = here.judge_all(*REACH, f"--preflight-report={runs}")
    assert told.exit == 4
    assert "--preflight-report: " in told.err
    assert "give a folder of your own" in told.err
    assert "probing" not in told.out
    assert list(victim.iterdir()) == []


def test_links_in_the_place_of_our_files(here: Here) -> None:
    """A planted report.json, ready.hosts or measured.json is replaced; its target stays."""
    victim = here.folder / "victim"
    victim.write_text("precious")
    folder = here.folder / "planted"
    folder.mkdir()
    for name in ("report.json", "ready.hosts", "measured.json"):
        (folder / name).symlink_to(victim)
    told = here.judge_all(*REACH, f"--preflight-report={folder}")
    assert told.exit == 0, told.out
    assert victim.read_text() == "precious"
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_workers_judge_what_was_measured_and_nothing_else(here: Here) -> None:
    """A measured.json swapped behind the controller's back is judged by no worker, and told."""
    here.check("site.a", "conclude(ok('fine'))")
    (here.folder / "conftest.py").write_text(
        "import msgspec, pathlib\n"
        "def pytest_configure_node(node):\n"
        "    told = msgspec.msgpack.decode(node.workerinput['preflight'])\n"
        "    path = pathlib.Path(told['path'])\n"
        "    path.write_bytes(path.read_bytes().replace(b'n2', b'n4'))\n"
    )
    told = here.judge("-n", "2")
    assert told.exit == 3, told.out
    assert told.outcomes() == {("site.a", f"n{i}", "broken") for i in (1, 2, 3)}
    assert "was changed during the run" in " ".join(told.out.split())
    assert "Traceback" not in told.out
    assert told.report["fleet"]["ready"] == []


def test_workers_do_not_read_an_older_runs_measurements(here: Here) -> None:
    """A replay into the folder of an earlier run judges the replayed file, with workers too."""
    here.check("site.a", "conclude(ok(node.facts.nonce))")
    kept = here.folder / "kept.json"
    kept.write_bytes((here.judge().folder / "measured.json").read_bytes())
    here.judge()
    again = here.judge(f"--preflight-replay={kept}", "-n", "2")
    nonce = json.loads(kept.read_text())["nonce"]
    assert {v["sentence"] for v in again.report["verdicts"]} == {nonce}


def test_only_a_plain_file_is_replayed(here: Here) -> None:
    """A pipe, a device and a document nested without end are exit 4 at once."""
    here.check("site.a", "conclude(ok('fine'))")
    pipe, deep = here.folder / "pipe", here.folder / "deep.json"
    os.mkfifo(pipe)
    deep.write_text('{"nonce":"n","skipped":{"net":{"outcome":"ok","sentence":"","evidence":'
                    + '{"a":' * 100_000 + "1" + "}" * 100_003)  # fmt: skip
    for path in (pipe, "/dev/zero", deep):
        told = here.judge(f"--preflight-replay={path}")
        assert told.exit == 4
        assert "give a run's folder, or its measured.json" in told.err


def test_measurements_that_cannot_be_are_refused(here: Here) -> None:
    """A timing without times in a measured.json: exit 4, the file and the place, no traceback."""
    swept = sweep(hosts(2), lambda *_: 1.0)
    measured = json.loads(Measured(nonce="ab", sweep=swept).encode())
    measured["sweep"]["pairs"][0]["first"]["timings"][0].update(times_us=[], gaps_us=[])
    path = here.folder / "odd.json"
    path.write_text(json.dumps(measured))
    told = here.preflight(f"--preflight-replay={path}")
    assert told.exit == 4
    assert "odd.json: " in told.err
    assert "$.sweep.pairs[0].first.timings[0].times_us" in told.err
    assert "Traceback" not in told.out + told.err


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize("name", ["lab-three-culprits", "rehearsal-nvlink-domain"])
def test_a_replay_leaves_out_who_is_excluded(
    here: Here, name: str, workers: tuple[str, ...]
) -> None:
    """The node, its pairs and the ports that were tried on it: the others are judged alone."""
    packed = RECORDED / name / "measured.json.gz"
    path = here.folder / "whole.json"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    told = here.preflight(
        f"--preflight-replay={path}", "--preflight-nodes=h[1-4]", "--preflight-exclude=h1",
        "--preflight-fail-fast=never", *workers,
    )  # fmt: skip
    assert told.exit == 1, told.out
    assert "INTERNALERROR" not in told.out + told.err
    assert told.report["fleet"]["nodes"] == ["h2", "h3", "h4"]
    rows = told.report["verdicts"]
    assert {"h2", "h3-h4"} <= {row["subject"] for row in rows}
    assert not [row for row in rows if "h1" in row["subject"] or row["outcome"] == "broken"]


def test_a_replay_of_who_was_not_measured_is_refused(here: Here) -> None:
    """Nobody is ready of whom nothing is known: one line that names the node."""
    here.check("site.a", "conclude(ok('fine'))")
    kept = here.folder / "kept.json"
    kept.write_bytes((here.judge("--preflight-exclude=n3").folder / "measured.json").read_bytes())
    told = here.judge(f"--preflight-replay={kept}")
    assert told.exit == 4
    assert "kept.json: it holds no data of n3: leave it out with --preflight-exclude=n3" in told.err
    assert here.judge(f"--preflight-replay={kept}", "--preflight-exclude=n3").exit == 0
    others = here.judge(f"--preflight-replay={kept}", "--preflight-nodes=n3")
    assert "it holds no data of n3: type --preflight-nodes=n[1-2]" in others.err
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"reach": {}}))
    ended = here.judge(f"--preflight-replay={kept}")
    assert "no data of n[1-3]: give a run that reached nodes" in ended.err
