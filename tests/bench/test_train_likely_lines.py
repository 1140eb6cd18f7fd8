"""Learning which line states why a job ended."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.train_likely_lines import cross_validated, learn, main, read, table

_STEPS = "".join(f"step {step} loss 2.5\n" for step in range(20))
_NOISE = "warning: no cache\n"


def _labels(folder: Path) -> Path:
    """Twelve logs of twelve repositories, four of each kind; each begins with a harmless line."""
    rows = ["number\tsource\tkind\tlines\twho\ttruth\tdoubt"]
    for at in range(4):
        for kind, number, lines, end in (
            ("stated", 100 + at, "22-23", f"RuntimeError: shape {at} is wrong\nexit\n"),
            ("healthy", 200 + at, "-", "Training finished\n"),
            ("inferred", 300 + at, "21", f"batch {at}"),
        ):
            (folder / f"{number}.txt").write_text(f"{_NOISE}{_STEPS}{end}")
            rows.append(f"{number}\tlab{number}/x:job.log@0\t{kind}\t{lines}\t-\t-\t")
    file = folder / "labels.tsv"
    file.write_text("\n".join(rows) + "\n")
    return file


def test_the_line_is_found_in_logs_of_repositories_not_seen(tmp_path: Path) -> None:
    """And none in healthy and in cut off logs."""
    logs = [*read([_labels(tmp_path)])]
    assert [log.numbers for log in logs if log.kind == "stated"] == 4 * [[1, 22, 23]]
    assert [*table(cross_validated(logs))] == [
        "healthy: 4 logs: no failure 4",
        "inferred: 4 logs: cut off 4",
        "stated: 4 logs: the line 4",
    ]


def test_no_log_of_a_repository_is_judged_by_what_was_learned_from_it(tmp_path: Path) -> None:
    """If all are of one repository but for healthy ones, nothing is known of failures."""
    logs = [*read([_labels(tmp_path)])]
    one = [replace(log, repository="one") if log.kind != "healthy" else log for log in logs]
    found = [*table(cross_validated(one))]
    assert found[0] == "healthy: 4 logs: no failure 4"
    assert "the line" not in found[2]


def test_features_of_too_few_repositories_have_no_weight(tmp_path: Path) -> None:
    """A word of one project, or of two, shows nothing about others."""
    logs = [*read([_labels(tmp_path)])]
    stated = [log for log in logs if log.kind == "stated"]
    assert "is runtime error" in learn(logs)
    of_two = [replace(log, repository=log.repository[:5]) for log in stated[:2]]
    assert "is runtime error" not in learn([*(log for log in logs if log not in stated), *of_two])


def test_labels_of_too_few_repositories_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As is a file of something else."""
    file = tmp_path / "labels.tsv"
    file.write_text("number\tsource\n")
    with pytest.raises(SystemExit):
        main([str(file)])
    assert "fewer than 5 repositories" in capsys.readouterr().err


def test_the_command_writes_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their names, which a difference of two versions shows."""
    out = tmp_path / "weights.json"
    assert main([str(_labels(tmp_path)), f"--out={out}"]) == 0
    names = [*json.loads(out.read_text())]
    assert names == sorted(names)
    assert capsys.readouterr().out.startswith(f"12 logs, {len(names)} weights: ")
