"""The estimate from a log's words, and what an answer owes to it."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from preflight.hang.explain import likely_lines
from preflight.hang.explain.explanation import Explanation
from preflight.hang.explain.likely_lines import END_BYTES, LEAST_LINES, Estimate, estimate
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain

_STEPS = [f"step {step} loss {9 / step:.3f} lr 0.001" for step in range(1, 200)]
_RAISED = [
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 88, in <module>',
    "    loss = model(batch)",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Double",
]
_MISSING = "/home/u/run.sh: line 3: /opt/tool/setup.sh: No such file or directory"


def _explained(folder: Path, *logs: list[str]) -> Explanation:
    files = [folder / f"{number}.log" for number in range(len(logs))]
    for file, lines in zip(files, logs, strict=True):
        file.write_text("\n".join(lines) + "\n")
    return explain(Scanner(shipped()).read(files))


def _best(lines: list[str]) -> tuple[int, float]:
    return estimate("\n".join(["", *lines]).encode(), len(lines)).best


def test_the_exception_that_ends_a_log_is_the_likeliest_line() -> None:
    """Of a log whose end alone is read, too: its number counts from the log's first line."""
    lines = [_MISSING, *_STEPS[:30], *_RAISED]
    line, share = _best(lines)
    assert (line, share > 0.9) == (len(lines), True)
    long = [*_STEPS * (END_BYTES // 4000), *_RAISED]
    text = "\n".join(long).encode()
    assert len(text) > END_BYTES
    assert estimate(text[-END_BYTES:], len(long)).best[0] == len(long)


def test_a_log_that_ends_in_order_did_not_fail() -> None:
    """With a warning on the way."""
    lines = [*_STEPS[:60], "UserWarning: grad is None", *_STEPS[60:], "Training finished."]
    healthy = estimate("\n".join(["", *lines]).encode(), len(lines))
    assert healthy.no_failure > 0.7
    assert healthy.no_failure + sum(healthy.by_line.values()) <= 1.000001


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \n", b"\n" + b"\xff\xfe error \x00" * 9])
def test_any_bytes_have_an_estimate(end: bytes) -> None:
    """Also those without a line that may state a cause."""
    line, share = estimate(end, end.count(b"\n")).best
    assert 0 <= line <= end.count(b"\n")
    assert 0 <= share <= 1


def test_the_line_of_a_later_start_is_explained_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    """A program that was missing at the first start did not end the last one."""
    missing = "python: can't open file '/home/u/x.py': [Errno 2] No such file or directory"
    file = tmp_path / "job.log"
    file.write_text("\n".join([missing, *["computing"] * 30, *_RAISED]) + "\n")
    alone, both = Scanner(shipped()).read([file]), Scanner(shipped()).read([file])
    alone.__dict__["estimate"] = None
    assert "/home/u/x.py that the job starts is not there" in explain(alone).sentence
    assert ("mat1 and mat2" in explain(both).sentence, explain(both).confidence) == (True, 0.7)


def test_lines_are_numbered_alike_in_parts_of_a_file(tmp_path: Path) -> None:
    """Also where a part ends within a line, and where a file is given twice."""
    file = tmp_path / "job.log"
    lines = [*_STEPS[:30], *_RAISED, "x" * (3 << 20), *_STEPS[:3]]
    file.write_text("\n".join(lines) + "\n")
    estimated = Scanner(shipped()).read([file]).estimate
    assert estimated is not None
    assert estimated.best[0] == 34
    file.write_text("\n".join(lines[:34]) + "\n")
    twice = Scanner(shipped()).read([file, file]).estimate
    assert twice is not None
    assert twice.best[0] == 34


_UNKNOWN = "the solver reports: failed to converge in domain 7"
_XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
_CUT = "ValueError: bad shape"
_WAITED = (
    "[E1005 10:00:00.1 ProcessGroupNCCL.cpp:7] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for "
    "600010 milliseconds before timing out."
)
_FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("failure", "estimated", "category", "confidence"),
    [
        (_UNKNOWN, Estimate({31: 0.4}, 0.3), "unknown", 0.2),
        (_UNKNOWN, Estimate({31: 0.6}, 0.3), "other", 0.5),
        (_UNKNOWN, Estimate({31: 0.1}, 0.9), "no_failure", 0.0),
        (_FULL, Estimate({31: 0.6}, 0.3), "other", 0.8),
        (_FULL, Estimate({31: 0.2, 7: 0.6}, 0.1), "other", 0.75),
        (_FULL, Estimate({31: 0.2, 7: 0.8}, 0.0), "other", 0.55),
        (_FULL, Estimate({}, 0.99), "other", 0.75),
        (f"[rank3]: {_FULL}", Estimate({31: 0.2, 7: 0.8}, 0.0), "other", 0.8),
        (_XID, Estimate({31: 0.0, 7: 0.9}, 0.0), "gpu_hardware", 0.95),
        (_XID, Estimate({}, 0.99), "gpu_hardware", 0.95),
        (_CUT, Estimate({31: 0.0}, 0.95), "other", 0.45),
        (_CUT, Estimate({31: 0.0}, 0.85), "other", 0.5),
        (_WAITED, Estimate({}, 0.99), "unknown", 0.3),
    ],
)
def test_an_answer_is_as_sure_as_the_estimate_allows(
    tmp_path: Path, failure: str, estimated: Estimate, category: str, confidence: float
) -> None:
    """Where both agree nothing is lost; an answer that names a rank keeps its confidence."""
    file = tmp_path / "job.log"
    file.write_text("\n".join([*_STEPS[:30], failure, *["computing"] * 25]) + "\n")
    scan = Scanner(shipped()).read([file])
    scan.__dict__["estimate"] = estimated
    answer = explain(scan)
    assert (answer.category, answer.confidence) == (category, confidence)
    if category == "no_failure":
        assert f"{_UNKNOWN}, but the words of the log are those of jobs that" in answer.sentence


def test_a_line_that_may_follow_from_the_answer_does_not_replace_it(tmp_path: Path) -> None:
    """Within 20 lines; and a quoted failure near the end of a log is one."""
    file = tmp_path / "job.log"
    for between, sentence, confidence in ((5, "No space left", 0.55), (30, "mat1 and mat2", 0.7)):
        lines = [*_STEPS[:30], _FULL, *["computing"] * between, *_RAISED, *["computing"] * 5]
        file.write_text("\n".join(lines) + "\n")
        scan = Scanner(shipped()).read([file])
        scan.__dict__["estimate"] = Estimate({lines.index(_RAISED[-1]) + 1: 0.9}, 0.0)
        answer = explain(scan)
        assert sentence in answer.sentence
        assert answer.confidence == confidence
    file.write_text("\n".join([*_STEPS[:30], f"{_UNKNOWN}, give up", *_STEPS[:2]]) + "\n")
    scan = Scanner(shipped()).read([file])
    scan.__dict__["estimate"] = Estimate({}, 0.99)
    answer = explain(scan)
    assert (answer.category, answer.confidence) == ("other", 0.5)


def test_an_excerpt_and_several_logs_have_no_estimate(tmp_path: Path) -> None:
    """The weights were learned from single logs."""
    file, other = tmp_path / "a.log", tmp_path / "b.log"
    file.write_text("\n".join(_STEPS[: LEAST_LINES - 1]) + "\n")
    other.write_text("\n".join(_STEPS) + "\n")
    assert Scanner(shipped()).read([file]).estimate is None
    assert Scanner(shipped()).read([file, other]).estimate is None
    assert Scanner(shipped()).read([other]).estimate is not None


def test_every_weight_has_the_name_of_a_feature() -> None:
    """In the order of names, so that a change shows what was learned."""
    file = Path(likely_lines.__file__).with_suffix(".json")
    weights = json.loads(file.read_text())
    assert all(one < two for one, two in pairwise(weights))
    assert all(isinstance(weight, int) and weight for weight in weights.values())
    text = "\n".join(["", _MISSING, *_STEPS, *_RAISED, f"ERROR {_RAISED[-1]}"]).encode()
    _numbers, features = likely_lines.features_of(text)

    def kind(name: str) -> str:
        ending = re.match("(?:no failure|cut off): ", name)
        head = ending[0] if ending else ""
        return head + re.split(r"[ =]", name[len(head) :], maxsplit=1)[0]

    assert {*map(kind, weights)} <= {kind(name) for names in features for name in names}
