"""Logs of real jobs with known causes: the answer has the category, or is `unknown`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "nccl_logs"
CASES = sorted(path for path in CORPUS.glob("*.txt") if path.with_suffix(".json").exists())

BEYOND = {
    "llama_chat_sigkill_host": "SIGKILL is told as one; the label knows that the author was unsure",
    "medusa_sigkill_unknown": "the same: the log is no other than those whose cause is known",
    "nvrx_flight_recorder_gpu_error_2nd": "dumps of a flight recorder in a form of its own",
    "stas_gdb_sigabrt_watchdog_cleanup": "the cause is not in the backtrace",
    "vllm_dtype_pickle_sender_times_out": "that the receivers were dead is told elsewhere",
}


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus of real outputs is not beside the project")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_category_of_a_real_log(path: Path) -> None:
    """As its label says; where the text cannot tell, nothing else is claimed with certainty."""
    label = json.loads(path.with_suffix(".json").read_text())
    answer = explain(Scanner(shipped()).read([path]))
    if path.stem in BEYOND:
        assert answer.confidence <= 0.5
        return
    assert answer.category == label["category"], answer.sentence


@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus of real outputs is not beside the project")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_ranks_of_a_real_log(path: Path) -> None:
    """Whom the answer names is among those whom the label names, where it names any."""
    label = json.loads(path.with_suffix(".json").read_text())
    answer = explain(Scanner(shipped()).read([path]))
    named = {int(one.split()[1]) for one in answer.culprits if one.startswith("rank ")}
    known = label.get("faulty_ranks")
    if isinstance(known, list) and named:
        assert named <= set(known)
