"""Words of a failure in settings, help texts, questions and data of the training are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import explained

if TYPE_CHECKING:
    from pathlib import Path

ECC = "CUDA error: uncorrectable ECC error encountered"
FULL = "CUDA out of memory"
STEPS = "".join(f"step {step} loss 2.5\n" for step in range(1, 9))


@pytest.mark.parametrize(
    "quoted",
    [
        f'retry_on: ["{ECC}", "Address already in use"]',
        f'{{"lr": 0.1, "transient": ["{ECC}", "Xid 79"]}}',
        f"Namespace(tries=3, again_after='{ECC}')",
        f"error_regex = ({ECC}|No space left on device)",
        f"  - {ECC}",
        f"  - {ECC[12:]}",
        f'  --tries N    retries after "{FULL}" (default: 3)',
        f"  --requeue-on-ecc  start again after a {ECC}",
        f"HEAD is now at 3fa21c9 Fix {FULL} in the evaluation (#12)",
        f"    Handle {ECC} by draining the node",
        f"has anyone seen '{ECC}' on such nodes?",
        f"[2026-10-05 10:00:00] INFO how do I avoid {FULL}?",
        f"sample 3: and then {ECC} ended the story",
        f"generated: the job died of {FULL}",
        f"Issue #14: {FULL} with two nodes",
        f"# {ECC}: drain the node",
        f"    // legacy: {FULL}",
        f"; {ECC}",
        f"tries: 3  # of {FULL}",
        f"on_message: {ECC}",
        f"  match: RuntimeError: {FULL}",
        f"restart-word = {ECC}",
        f"export AGAIN_ON={ECC}",
        f"+ grep -c '{ECC}' job.log",
        f"the supervisor restarts the job when it sees {ECC}",
        f"known issue: {FULL} with long samples",
        f"{ECC} is handled by the supervisor",
        f"INFO rule 3: {ECC} -> requeue",
        f"WARNING {FULL} may appear with long samples",
        f"did somebody get {FULL}, too?",
    ],
)
def test_a_quoted_failure_is_no_cause(tmp_path: Path, quoted: str) -> None:
    """A real one in the same log is named; the log without one shows none, or is unclear."""
    assert explained(tmp_path, quoted + "\n" + STEPS).confidence < 0.5
    real = explained(tmp_path, f"{quoted}\n{STEPS}[rank4]: RuntimeError: {ECC}\n")
    assert (real.category, real.culprits, real.confidence) == ("gpu_hardware", ("rank 4",), 0.97)


@pytest.mark.parametrize(
    "line",
    [
        f'level=error msg="{ECC}"',
        f"failed to handle {ECC}",
        f"RuntimeError('{ECC}')",
        f"NCCL WARN Cuda failure 214 '{ECC}'",
        f'"rank 3 failed": {ECC}',
        f"Test CUDA failure common.cu:9 '{ECC}'",
        f"retries=0 lost=2 {ECC}",
        f"    reason: {ECC}",
        f"last_error = {ECC}",
        f"my_trainer: RuntimeError: {ECC}",
        f"gpu_node_3: {ECC}",
        f"#3 {ECC}",
    ],
)
def test_a_failure_in_the_words_of_a_log_is_one(tmp_path: Path, line: str) -> None:
    """A structured log quotes its message, NCCL that of CUDA, Python that of an error."""
    assert explained(tmp_path, line + "\n").category == "gpu_hardware"


def test_a_log_within_comments_is_one(tmp_path: Path) -> None:
    """A person's notes, of which each line is a comment."""
    notes = f"# On node n4:\n#   RuntimeError: {ECC}\n"
    assert explained(tmp_path, notes).category == "gpu_hardware"
