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
        f'    "message": "{ECC}",',
        f'"error": "{ECC}"',
        f'    "{ECC}": "restart",',
        f'    {{"name": "ecc", "message": "{ECC}", "channel": "#ml"}},',
        f'    {{"name": "ecc", "message": "{ECC}"}}',
        f'{{"lr": 0.1, "alerts": [{{"name": "ecc", "message": "{ECC}"}}]}}',
        f'INFO config: {{"lr": 0.1, "on": {{"error": "{ECC}"}}}}',
        f"config: {{'lr': 0.1, 'alerts': [{{'message': '{ECC}'}}]}}",
        f'on_error: "{ECC}"',
        f'    error: "{ECC}"',
        f"    - event: '{ECC}'",
        f'    raise RuntimeError("{ECC}")',
        f'raise RuntimeError("{ECC}")',
        f'    raise torch.cuda.OutOfMemoryError(f"{FULL} on {{rank}}") from error',
        f'        logger.error("{ECC}")',
        f'logging.critical(f"rank {{rank}}: {ECC}")',
        f"+        print('{ECC}')",
        f'-    raise RuntimeError("{ECC}")',
        f'   12      raise RuntimeError("{ECC}")',
        f'12:    sys.exit("{ECC}")',
        f'    if "{ECC}" in str(error):',
        "    except torch.OutOfMemoryError as error:",
        f"    elif str(e).startswith('{ECC}'):",
        f'assert free > 0, "{ECC}"',
        f'    throw std::runtime_error("{ECC}");',
        f'    TORCH_CHECK(free > 0, "{ECC}");',
        f'  fprintf(stderr, "{ECC}\\n");',
    ],
)
def test_a_quoted_failure_is_no_cause(tmp_path: Path, quoted: str) -> None:
    """A real one in the same log is named; the log without one shows none, or is unclear."""
    assert explained(tmp_path, quoted + "\n" + STEPS).confidence < 0.5
    real = explained(tmp_path, f"{quoted}\n{STEPS}[rank4]: RuntimeError: {ECC}\n")
    assert (real.category, real.culprits, real.confidence) == ("gpu_hardware", ("rank 4",), 0.97)


@pytest.mark.parametrize("words", [FULL, ECC, "Xid 79", "Address already in use"])
def test_settings_that_are_not_indented(tmp_path: Path, words: str) -> None:
    """Other settings stand beside them, unlike in the lines of several processes."""
    for settings in ("model: x\nlr: 0.1\nagain: {}\n", "again: {}\nlr: 0.1\nhosts:\n  - n1\n"):
        assert explained(tmp_path, settings.format(words) + STEPS).category == "no_failure"
    hosts = "host-a: step 1\nhost-b: step 1\nhost-c: RuntimeError: {}\n"
    assert explained(tmp_path, hosts.format(words)).confidence > 0


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
        f'{{"level": "error", "rank": 3, "detail": {{"message": "{ECC}"}}}}',
        f'{{"message": {{"message": "RuntimeError: {ECC}", "extraInfo": {{"timestamp": "1"}}}}}}',
        f'2026-10-05 10:00:00 ERROR step failed {{"error": "{ECC}"}}',
        f'ERROR: raise of "rank 3" failed: {ECC}',
        f"ExceptionGroup('ranks', [RuntimeError('{ECC}')])",
        f'print_error: RuntimeError("{ECC}")',
        f"    error: {ECC}",
        f"    return code 1: {ECC}",
    ],
)
def test_a_failure_in_the_words_of_a_log_is_one(tmp_path: Path, line: str) -> None:
    """A structured log quotes its message, NCCL that of CUDA, Python that of an error."""
    assert explained(tmp_path, line + "\n").category == "gpu_hardware"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ('"reason": "OOMKilled",\n"exitCode": 137,', "memory of its node"),
        ("reason: OOMKilled\nexitCode: 137", "memory of its node"),
        ('"exitCode": 137,\n"reason": "Error",', "killed from outside"),
        ('"exitCode": 139,\n"reason": "Error",', "a rank crashed"),
        ('"message": "[rank3]:   File \\"/a/b.py\\", line 2, in f\\n[rank3]: KeyError: 7\\n",',
         "rank 3 raised KeyError: 7"),
    ],
)  # fmt: skip
def test_how_a_container_ended_is_a_failure(tmp_path: Path, state: str, expected: str) -> None:
    """As `kubectl get pod -o json` and `-o yaml` print it."""
    lines = "".join(f"        {line}\n" for line in state.split("\n"))
    answer = explained(tmp_path, f'    "terminated": {{\n{lines}    }}\n')
    assert (answer.category, expected in answer.sentence) == ("other", True), answer.sentence
    completed = '"exitCode": 0,\n"reason": "Completed",'
    assert explained(tmp_path, f'"terminated": {{\n{completed}\n}}\n').category == "no_failure"


def test_a_log_within_comments_is_one(tmp_path: Path) -> None:
    """A person's notes, of which each line is a comment."""
    notes = f"# On node n4:\n#   RuntimeError: {ECC}\n"
    assert explained(tmp_path, notes).category == "gpu_hardware"


def test_the_source_lines_of_a_traceback_belong_to_it(tmp_path: Path) -> None:
    """What they quote is no failure of its own; the last line is."""
    log = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/a/train.py", line 7, in step\n'
        f'[rank3]:     raise RuntimeError("{ECC}")\n'
        "[rank3]: RuntimeError: {}\n"
    )
    answer = explained(tmp_path, log.format(ECC))
    assert (answer.category, answer.culprits) == ("gpu_hardware", ("rank 3",))
    other = explained(tmp_path, log.format("no batch is left"))
    assert (other.category, other.culprits) == ("other", ("rank 3",))
    assert "no batch is left at /a/train.py:7 (step)" in other.sentence
