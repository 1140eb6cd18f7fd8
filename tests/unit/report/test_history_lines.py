"""What a person reads of the history: dates, units, one line per measure, nothing wider than 80."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.commands import cli
from preflight.fleet.nodeset import fold
from preflight.history.place import NAME
from preflight.history.run_record import Numbers, PairCoverage, Past
from preflight.history.writing import writing
from tests.unit.history.nights import UNDER, found, gemm, kept, machine, made, night, slots

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.history.run_record import Night

ECC = found("gpu.ecc", "h1", sentence="GPU 1 has 4 uncorrectable errors, 0 expected")


def _night(number: int) -> Night:
    """h1's GPU 1 is bad every third night; in the last one it is slower, and its rail is late."""
    is_bad, is_last = number % 3 == 0, number == 11
    slow, late_us = (640.0, 31.0) if is_last else (700.0 + number % 2, 20.0)
    times = Numbers(node="h1", measure="allreduce_p50_us", under="nccl, 8 B",
                    units=("rail 0", "rail 1"), values=(20.0, late_us))  # fmt: skip
    return night(
        number,
        machine(
            "h1", "not_ready" if is_bad else "ready", serial="SN-1", gpus=slots("GPU-a", "GPU-b")
        ),
        machine("h2", "flaky" if number in (4, 5) else "ready"),
        machine("h3"),
        machine("h4"),
        findings=(ECC,) if is_bad else (),
        fine={} if is_bad else {"gpu.ecc": frozenset({"h1"})},
        numbers=(gemm("h1", 705.0, slow), times),
        folded="h[1-4]",
    )


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve nights, in the last of which pairs were measured."""
    folder = tmp_path_factory.mktemp("history") / "n"
    place = made(folder)
    kept(place, *map(_night, range(11)))
    with writing(place) as writer:
        pairs = PairCoverage(pairs=6, pairs_run=2, pairs_known=4, leaf_pairs=1, leaf_pairs_known=1)
        writer.add(_night(11), lambda _: (Past(runs=1), pairs))
    return folder


@pytest.fixture
def folder(nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of those nights, which a test may change."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(nights, tmp_path / "n")


def _told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.main(["history", "--history", "n", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


@pytest.mark.usefixtures("folder")
def test_a_node_is_told_with_its_trends(capsys: pytest.CaptureFixture[str]) -> None:
    """What is slower than on its nights is pointed at; a time that grew is slower, too."""
    assert _told(capsys, "h1") == [
        "node       h1, serial SN-1",
        "seen       2023-11-14 to 2023-11-25",
        "30 nights  not ready in 4 of 12 runs; last 2023-11-23: gpu.ecc 4",
        "GPUs       0  GPU-a  H100, since 2023-11-14",
        "           1  GPU-b  H100, since 2023-11-14",
        "past       gpu.ecc fail, 4 times, 4 runs 2023-11-14 to 2023-11-23, ok on",
        "           2023-11-24: GPU 1 has 4 uncorrectable errors, 0 expected",
        "trends     allreduce_p50: 20 to 31 us (nccl, 8 B); WORSE: rail 1 31, -35.5 % of",
        "           speed against its median 20 of 11 nights",
        f"           gemm: 640 to 705 TFLOPS ({UNDER}); WORSE:",
        "           GPU 1 640, -8.6 % of speed against its median 700 of 11 nights",
    ]


def test_what_was_not_looked_at_again_is_dated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last number is not last night's, and an old finding is neither open news nor gone."""
    place = made(folder)
    kept(
        place,
        night(12, machine("h1", "not_ready"), findings=(ECC,), numbers=(gemm("h1", 705.0, 700.0),)),
    )
    kept(place, night(13, machine("h1"), numbers=(gemm("h1", 705.0, 701.0),)))
    lines = _told(capsys, "h1")
    assert any("allreduce_p50 on 2023-11-25: 20 to 31 us" in line for line in lines)
    assert any(line.startswith("           gemm: 701 to 705 TFLOPS") for line in lines)
    assert any(
        line.startswith("not judged h1  gpu.ecc fail, 1 run since") for line in _told(capsys)
    )


@pytest.mark.usefixtures("folder")
def test_a_fleet_is_told_with_its_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    """The last run, what it changed, and the worst."""
    assert _told(capsys) == [
        "history    n/history.sqlite, runs since 2023-11-14",
        "last run   2023-11-25 22:13 UTC, deep, 4 nodes h[1-4]: 4 ready, 0 not ready",
        "coverage   4 of 6 pairs measured in its runs, 2 in the last; 1 of 1 leaf pairs",
        "before     2023-11-24 22:13 UTC",
        "changes    none: nothing was found, before and now",
        "worst      h1  not ready in 4 of 12 runs; last 2023-11-23: gpu.ecc 4",
        "           h2  not ready in 2 of 12 runs, 2 of them flaky (17 % of its runs);",
        "           last 2023-11-19",
    ]


def test_one_cause_in_two_waves_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same words on both waves' nodes, and on each as a whole; the night is both of them."""
    place = made(folder)
    for at, names in enumerate((("h1", "h2"), ("h3", "h4"))):
        bent = [found("gpu.ecc", name, sentence="bent") for name in names]
        mixed = found(
            "host.drift", "fleet:all", "warn", sentence="mixed", nodes=(), is_node_or_pair=False
        )
        one = night(20, *(machine(name, "not_ready") for name in names), findings=(*bent, mixed))
        kept(
            place, replace(one, sweep="s", started_s=one.started_s + 1800 * at, folded=fold(names))
        )
    said = [
        "last night 2023-12-04 22:13 UTC, deep, 4 nodes h[1-4] in 2 runs: 0 ready, 4 not",
        "           ready, one shared cause is likely: it counts against no node",
    ]
    lines = _told(capsys)
    assert lines[1:3] == said
    assert [line for line in lines if "since 2023-12-04" in line] == [
        "new        h[1-4]  gpu.ecc fail, 1 run since 2023-12-04: bent",
        "           fleet:all  host.drift warn, 1 run since 2023-12-04: mixed",
    ]
    assert _told(capsys, "--worst")[1:3] == said


@pytest.mark.usefixtures("folder")
def test_a_gpu_is_told_wherever_it_sat(capsys: pytest.CaptureFixture[str]) -> None:
    """Its findings are those that name its slot."""
    lines = _told(capsys, "--gpu", "GPU-b")
    assert lines[:3] == [
        "GPU        GPU-b, H100",
        "was in     h1, GPU 1, since 2023-11-14",
        "past       h1  gpu.ecc fail, 4 times, 4 runs 2023-11-14 to 2023-11-23, ok on",
    ]
    assert _told(capsys, "--gpu", "GPU-a")[2] == "findings   none in any run"


@pytest.mark.usefixtures("folder")
def test_everything_is_data_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    """Every night's number is in it."""
    assert cli.main(["history", "h1", "--json", "--history", "n"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    trend = next(one for one in told["node"]["trends"] if one["unit"] == "GPU 1")
    assert len(trend["points"]) == 12
    assert (told["changes"], told["gpu"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no history is given: type preflight history --history=DIR"),
        (["--history", "n", "h1", "--worst"], "give only one of NODE, --gpu and --worst"),
        (["--history", "n", "--nights", "0"], "--nights=0: give a number, 1 to 3660"),
        (["--history", "n", "h11"], "had a node 'h11'; did you mean 'h1'?"),
        (["--history", "n", "--gpu", "x"], "had a GPU 'x': give its UUID, as"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_is_a_line(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends with what to type."""
    monkeypatch.delenv("PREFLIGHT_HISTORY", raising=False)
    assert cli.main(["history", *arguments]) == 4
    assert said in capsys.readouterr().err


def test_what_no_run_wrote_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody's hand was in it: nothing that could be told would be true."""
    with closing(sqlite3.connect(folder / NAME)) as other:
        other.execute("UPDATE runs SET started_s = 'yesterday'")
        other.commit()
    assert cli.main(["history", "--history", "n"]) == 4
    assert "holds values that no run wrote" in capsys.readouterr().err


def test_help_teaches_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an example of each question."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["history", "--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "preflight history gpu041 --history" in said


def test_the_variable_names_the_history(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody types it twice."""
    monkeypatch.setenv("PREFLIGHT_HISTORY", str(folder))
    assert cli.main(["history", "--worst"]) == 0
    assert "h1  not ready in 4 of 12 runs" in capsys.readouterr().out
