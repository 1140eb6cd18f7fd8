"""A diagnosis fits a terminal: the sentence first, then who, where, and what to do."""

from __future__ import annotations

from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.diagnosis import lines
from preflight.hang.diagnose.job_state import Diagnosis, PlaceRow

TOLD = Diagnosis(
    category="odd_rank",
    culprits=("rank 17", "rank 18", "node gpu003"),
    sentence="rank 17 (gpu003, GPU 1) is in its DataLoader at train.py:88, while 30 ranks wait",
    advice="find out why its next batch does not come",
    line="/home/u/train.py:88 in train",
    evidence=("rank 17: train.py:88 in train", "30 of 30 that wait stood there in both looks"),
    confidence=0.92,
    alternatives=(Alternative(category="straggler", sentence="it is only slow", confidence=0.3),),
    standings=(
        PlaceRow(ranks=(*range(17), *range(19, 32)), where="all_reduce (train.py:41)",
                 what="waits in all_reduce (train.py:41)"),
        PlaceRow(ranks=(17, 18), where="DataLoader (train.py:88)", what="is in its DataLoader"),
    ),
    next="preflight lint SCRIPT",
    unseen=("node gpu009: timed out",),
)  # fmt: skip


def test_the_lines_of_a_diagnosis() -> None:
    """Exactly these, in 80 columns."""
    assert (
        "\n".join(lines(TOLD, 80))
        == """\
odd_rank  (92 % sure)
what      rank 17 (gpu003, GPU 1) is in its DataLoader at train.py:88, while 30
          ranks wait
who       ranks 17-18, node gpu003
line      /home/u/train.py:88 in train
do        find out why its next batch does not come
next      preflight lint SCRIPT
proof     rank 17: train.py:88 in train
          30 of 30 that wait stood there in both looks
or        straggler (30 %): it is only slow
ranks     0-16,19-31  wait in all_reduce (train.py:41)
          17-18  are in their DataLoader
unseen    node gpu009: timed out"""
    )


def test_a_long_table_is_cut_and_says_so() -> None:
    """Forty rows are for --json."""
    rows = tuple(PlaceRow(ranks=(n,), where=f"at {n}") for n in range(40))
    shown = lines(Diagnosis(category="unknown", sentence="s", advice="a", confidence=0.0,
                            standings=rows), 80)  # fmt: skip
    assert shown[-1].strip() == "and 28 more rows: --json"
    assert shown[0] == "unknown"


def test_control_characters_and_endless_words_stay_harmless() -> None:
    """A function may be called anything."""
    hostile = Diagnosis(
        category="odd_rank", sentence="is in \x1b[31m\x07evil\u202e at " + "x" * 3000,
        advice="a\nb",
        line="/tmp/\x1b]0;t\x07.py:1", confidence=0.5,
    )  # fmt: skip
    for line in lines(hostile, 80):
        assert line.isprintable()
        assert len(line) <= 80
