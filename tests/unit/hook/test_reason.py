"""What Slurm shows of a drain is short, plain, and differs from what others write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.core.registry import load_folder, shipped_folder
from preflight.hook.decision import drain_reason, is_own_reason


def test_it_reads_as_documented() -> None:
    """Check, number, whose fault and job; the health check has no job, nor a prolog by hand."""
    reason = drain_reason("gpu.count", "7 of 8 GPUs answer", "81723")
    assert reason == "pf:gpu.count 7 of 8 GPUs answer [node] job 81723"
    checked = drain_reason("gpu.ecc", "GPU 3: 2 errors", occasion="healthcheck")
    assert checked.endswith(" GPU 3: 2 errors [node] health check")
    nameless = drain_reason("gpu.ecc", "GPU 3: 2 errors")
    assert nameless.endswith(" GPU 3: 2 errors [node] prolog")
    assert all(map(is_own_reason, (reason, checked, nameless)))


@given(st.text(max_size=60), st.text(max_size=400), st.text(max_size=60))
def test_any_words_make_a_reason(check: str, sentence: str, job: str) -> None:
    """Whatever a node or a job says: ASCII, one line, at most 120 characters, ours when read."""
    for reason in (drain_reason(check, sentence, job), drain_reason("gpu.count", sentence, job)):
        assert reason.startswith("pf:")
        assert len(reason) <= 120
        assert reason.isascii()
        assert reason.isprintable()
        assert not set(reason) & set("\"'`=,\\")
    assert is_own_reason(drain_reason("gpu.count", sentence, job))


def test_a_long_sentence_keeps_its_number_and_the_job() -> None:
    """Its end is cut, at a word, and the end of the reason stays."""
    reason = drain_reason(
        "gpu.xid", "GPU 3 (0000:5d:00): Xid 79 (off the bus), " + "and more " * 40, "7"
    )
    assert len(reason) <= 120
    assert reason.startswith("pf:gpu.xid GPU 3 (0000:5d:00): Xid 79 (off the bus); and more")
    assert reason.endswith(".. [node] job 7")


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "Prolog error",
        "Not responding",
        "NHC: check_hw_ib failed",
        "pf:gpu.count",
        "pf:gpu.count 7 of 8 GPUs answer [node] job 7 RMA 4711, do not touch",
        "RMA pf:gpu.count 7 of 8 GPUs answer [node] job 7",
        "pf:gpu.count 7 of 8 [node] job 7\nRMA 4711",
        "pf:gpu.count " + "x" * 120 + " [node] job 7",
    ],
)
def test_what_others_write_is_not_ours(reason: str) -> None:
    """A reason that an operator has added to belongs to the operator."""
    assert not is_own_reason(reason)


def test_twenty_characters_tell_the_checks_apart() -> None:
    """`sinfo -R` shows no more; no two shipped checks look alike in them."""
    ids = [one.check.id for one in load_folder(shipped_folder())]
    assert len({drain_reason(each, "x")[:20] for each in ids}) == len(ids)
