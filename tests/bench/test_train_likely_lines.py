"""Learning which line states why a job ended."""

import json
from pathlib import Path

import pytest

from tests.bench.train_likely_lines import cross_validated, learn, main, read, table

_STEPS = "".join(f"step {step} loss 2.5\n" for step in range(20))


def _labels(folder: Path) -> Path:
    """Twelve logs of twelve repositories: four of each kind."""
    rows = ["number\tsource\tkind\tlines\twho\ttruth\tdoubt"]
    for at in range(4):
        for kind, number, lines, end in (
            ("stated", 100 + at, "21", f"RuntimeError: shape {at} is wrong\nwarning: exit\n"),
            ("healthy", 200 + at, "-", "Training finished\n"),
            ("inferred", 300 + at, "20", f"batch {at}"),
        ):
            (folder / f"{number}.txt").write_text(f"{_STEPS}{end}")
            rows.append(f"{number}\tlab{number}/x:job.log@0\t{kind}\t{lines}\t-\t-\t")
    file = folder / "labels.tsv"
    file.write_text("\n".join(rows) + "\n")
    return file


def test_the_line_is_found_in_logs_of_repositories_not_seen(tmp_path: Path) -> None:
    """And none in healthy and in cut off logs."""
    logs = [*read([_labels(tmp_path)])]
    assert [*table(cross_validated(logs))] == [
        "healthy: 4 logs: no failure 4",
        "inferred: 4 logs: cut off 4",
        "stated: 4 logs: the line 4",
    ]


def test_features_of_too_few_repositories_have_no_weight(tmp_path: Path) -> None:
    """A word of one project shows nothing about others."""
    logs = [*read([_labels(tmp_path)])]
    assert "is runtime error" in learn(logs)
    assert "is runtime error" not in learn([log for log in logs if "100" in log.repository])


def test_the_command_writes_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their names, which a difference of two versions shows."""
    out = tmp_path / "weights.json"
    assert main([str(_labels(tmp_path)), f"--out={out}"]) == 0
    names = [*json.loads(out.read_text())]
    assert names == sorted(names)
    assert capsys.readouterr().out.startswith(f"12 logs, {len(names)} weights: ")
