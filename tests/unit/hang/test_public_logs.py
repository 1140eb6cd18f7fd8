"""Forms of public logs that were once read wrongly: each a few lines in the words of its tools."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.unit.hang.logs import communicator, explained, timed_out

LOGS = tomllib.loads(Path(__file__).with_name("public_logs.toml").read_text())
SUMMARY = """\
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-10-05_{at}
  host      : n7
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 77)
  error_file: <N/A>
"""
ENDED = "slurmstepd: error: *** JOB 7 ON n7 CANCELLED AT 2026-10-05T12:00:00 DUE TO {} ***\n"
FRAMES = """\
  File "/home/u/train.py", line 12, in main
    cache.put(table)
  File "/home/u/cache.py", line 105, in put
    os.replace(old, new)
"""


@pytest.mark.parametrize("name", LOGS)
def test_the_cause_is_named(tmp_path: Path, name: str) -> None:
    """Although the line is broken, quoted, or followed by what looks graver."""
    case = LOGS[name]
    answer = explained(tmp_path, case["log"])
    named = answer.category, case["words"] in answer.sentence
    assert named == (case["category"], True), answer.sentence
    assert answer.confidence == case.get("confidence", answer.confidence)


def test_a_rank_that_ended_before_the_others_time_outs_is_the_missing_one(tmp_path: Path) -> None:
    """Torchrun reports its end ten minutes before; later, it may be one of those that waited."""
    waits = timed_out(0, seq=2, at="10:10:05.1")
    answer = explained(tmp_path, SUMMARY.format(at="10:00:00", rank=4, code=1) + waits)
    assert answer.culprits == ("rank 4", "node n7")
    assert "rank 0 waited for it" in answer.sentence
    late = explained(tmp_path, SUMMARY.format(at="10:10:09", rank=4, code=1) + waits)
    assert late.culprits == ()


def test_an_abort_is_no_exception_without_record(tmp_path: Path) -> None:
    """SIGABRT comes from a watchdog or a failed check: @record would not keep it."""
    answer = explained(tmp_path, SUMMARY.format(at="10:00:00", rank=4, code=-6))
    assert "SIGABRT" in answer.cause
    assert "@record" not in answer.advice


def test_ranks_whose_messages_differ_in_a_number_fail_alike(tmp_path: Path) -> None:
    """Each names itself in its message; no single one is at fault."""
    raised = (
        "[rank{0}]: Traceback (most recent call last):\n"
        '[rank{0}]:   File "/home/u/train.py", line 9, in main\n'
        "[rank{0}]: AssertionError: [{0}]: the query does not have the required shape\n"
    )
    answer = explained(tmp_path, "".join(raised.format(rank) for rank in (2, 0, 1)))
    assert answer.culprits == ("rank 0", "rank 1", "rank 2")
    assert "not one node's fault" in answer.advice


def test_a_traceback_without_its_beginning_is_less_sure(tmp_path: Path) -> None:
    """The line that is cut off may report that Python ignored it."""
    ended = "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/x'\n"
    log = "Traceback (most recent call last):\n" + FRAMES + ended
    whole = explained(tmp_path, log)
    assert whole.confidence > explained(tmp_path, FRAMES + ended).confidence
    task = "Task exception was never retrieved\nfuture: <Task finished name='Task-7'>\n"
    for times in (1, 9):
        assert whole.confidence > explained(tmp_path, (task + log) * times).confidence
    assert "exist and readable on every node" in whole.advice


def test_a_hang_before_the_time_limit_is_not_denied(tmp_path: Path) -> None:
    """More time does not help a job that stands still: the log may not show which it was."""
    answer = explained(tmp_path, "step 1/10\n" + ENDED.format("TIME LIMIT"))
    assert answer.confidence < 0.8
    assert "stood still" in answer.advice


def test_sockets_are_no_finding_where_all_ranks_are_on_one_node(tmp_path: Path) -> None:
    """Their transport is NVLink or shared memory; on two nodes it matters."""
    uses = "n1:100:9 [0] NCCL INFO NET/Socket : Using [0]ens5:10.1.1.1<0>\n"
    one = uses + communicator(0, 2) + communicator(1, 2)
    assert explained(tmp_path, one).category == "no_failure"
    two = uses + communicator(0, 2) + communicator(1, 2, host="n2")
    assert explained(tmp_path, two).category == "wrong_interface"


@pytest.mark.parametrize(
    "line",
    [
        "(TaskRunner pid=7) step:6 - response/aborted_ratio:0.0 - actor/entropy:7.5",
        "216: slurmstepd: error: _is_a_lwp: open() /proc/7/status failed: No such file",
        "Invalid or no transfer protocol specified, using default protocol.",
        "[17.8] [n3:77:f] vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left",
        "Job started. Streaming logs... (Ctrl-C to exit log streaming; job will not be killed)",
        "n1:5:6 [2] int create():208 NCCL WARN NET/OFI Failed to initialize sendrecv protocol",
        "df: /root/.triton/autotune: No such file or directory",
        "rm: cannot remove './results/': No such file or directory",
        "CondaError: Run 'conda init' before 'conda deactivate'",
        "Cannot find suitable count function for <class 'PReLU'>. Treat it as zero FLOPs.",
        "Exception ignored while calling deallocator <function A.__del__ at 0x7f>:\n"
        "Traceback (most recent call last):\n" + FRAMES + "PythonFinalizationError: too late",
    ],
)
def test_a_healthy_line_reports_no_failure(tmp_path: Path, line: str) -> None:
    """A measured share, and a plugin that NCCL does without."""
    assert explained(tmp_path, f"{line}\nstep:7\n").category == "no_failure"


def test_what_one_process_raises_again_and_again_it_catches(tmp_path: Path) -> None:
    """Such an exception did not end it, although nothing else explains the log."""
    raised = (
        "(Worker pid=77) Traceback (most recent call last):\n"
        '(Worker pid=77)   File "/home/u/env.py", line 270, in extract\n'
        "(Worker pid=77) TypeError: cannot unpack non-iterable NoneType object\n"
        "(Worker pid=77) sample {} is left out\n"
    )
    once = explained(tmp_path, raised.format(1))
    often = explained(tmp_path, "".join(map(raised.format, range(5))))
    assert once.confidence >= 0.8
    assert often.confidence < 0.5
    assert "several times" in often.sentence


def test_an_unknown_failure_before_further_steps_did_not_end_the_job(tmp_path: Path) -> None:
    """As one before the first step did not."""
    first = "step 1/100 loss 2.5\n/usr/bin/ld: cannot find -lmesh: No such file or directory\n"
    steps = "".join(f"step {number}/100 loss 2.5\n" for number in range(2, 40))
    assert explained(tmp_path, first + steps).category == "no_failure"
    assert "cannot find -lmesh" in explained(tmp_path, first).sentence


def test_cuda_itself_out_of_memory_is_less_sure(tmp_path: Path) -> None:
    """Torch's allocator says how much it wanted; CUDA alone may fail on a faulty GPU."""
    text = "Traceback (most recent call last):\n" + FRAMES + "RuntimeError: CUDA {}\n"
    cuda = explained(tmp_path, text.format("error: out of memory"))
    torch = explained(tmp_path, text.format("out of memory. Tried to allocate 2.00 GiB."))
    assert cuda.confidence < 0.8 <= torch.confidence


_RAISED = """\
Traceback (most recent call last):
  File "{script}", line {line}, in <module>
    main()
{error}
"""


def test_of_several_starts_in_one_log_the_last_counts(tmp_path: Path) -> None:
    """One script ends by one exception after another, without ranks; the last is less sure."""
    first = _RAISED.format(script="train.py", line=137, error="ValueError: too many values")
    last = _RAISED.format(script="train.py", line=140, error="KeyError: 'labels'")
    usage = "train.py: error: unrecognized arguments: --fast\n"
    missing = "python: can't open file '/home/u/train.py': [Errno 2] No such file or directory\n"
    for begin in (first, first + usage, usage, missing):
        assert explained(tmp_path, begin).confidence >= 0.8
        answer = explained(tmp_path, begin + last)
        assert "raised KeyError: 'labels'" in answer.sentence
        assert answer.sentence.endswith("an earlier start in this log failed, too")
        assert 0.5 < answer.confidence < 0.8
    other = last.replace("train.py", "plot.py")  # a later step of the same job
    assert "too many values" in explained(tmp_path, first + other).sentence


def test_a_usage_error_after_a_normal_end_is_the_failure_of_another_start(tmp_path: Path) -> None:
    """The parser of a command that is no script says it in the same words."""
    ended = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    usage = "lm-cli: error: the following arguments are required: --output_dir\n"
    assert explained(tmp_path, ended).category == "no_failure"
    assert explained(tmp_path, ended + usage).category == "env_misconfig"


def test_a_thread_that_died_is_not_the_cause_if_the_process_raised(tmp_path: Path) -> None:
    """Writers lose their queue when the process ends; alone, the thread is all that is known."""
    thread = "Exception in thread Thread-3:\n" + _RAISED.format(
        script="/usr/lib/python3.10/threading.py", line=1016, error="OSError: handle is closed"
    )
    raised = _RAISED.format(script="train.py", line=12, error="RuntimeError: permute: 6 and 5")
    assert "handle is closed" in explained(tmp_path, thread).sentence
    answer = explained(tmp_path, thread + raised)
    assert ("permute" in answer.sentence, answer.confidence) == (True, 0.8)


def test_all_ranks_that_raise_alike_are_named_whichever_node_reports_first(tmp_path: Path) -> None:
    """Two nodes' summaries have times, but no node is at fault."""
    raised = "".join(
        f"[rank{rank}]: {line}\n"
        for rank in range(4)
        for line in _RAISED.format(script="t.py", line=3, error="NameError: x").splitlines()
    )
    ends = SUMMARY.format(at="10:00:09", rank=2, code=1) + SUMMARY.format(
        at="10:00:05", rank=0, code=1
    )
    answer = explained(tmp_path, raised + ends)
    assert answer.culprits == ("rank 0", "rank 1", "rank 2", "rank 3")


def test_a_request_that_a_server_rejected_is_a_doubtful_failure(tmp_path: Path) -> None:
    """It answers with a 4xx status right after the traceback; other exceptions still count."""
    raised = "Traceback (most recent call last):\n" + FRAMES
    raised += "ValueError: the request has {} tokens, at most 4096\n"
    rejected = 'INFO:     10.0.0.1:4001 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
    log = raised.format(5000) + rejected
    assert explained(tmp_path, log).confidence < 0.8 <= explained(tmp_path, raised).confidence
    assert "has 6000 tokens" in explained(tmp_path, log + raised.format(6000)).sentence
    assert "has 6000 tokens" in explained(tmp_path, raised.format(6000) + log).sentence


def test_the_node_that_reports_a_lost_peer_is_not_blamed(tmp_path: Path) -> None:
    """Any node of the test of nccl-tests may have ended the others."""
    log = "n7: Test NCCL failure common.cu:401 'remote process exited / '\n"
    assert explained(tmp_path, log).culprits == ()


def test_an_exception_without_a_message_is_shown_with_its_line_of_code(tmp_path: Path) -> None:
    """The last one outside of libraries, which the traceback quotes below its frame."""
    frames = FRAMES + '  File "/lib/python3.11/site-packages/x.py", line 3, in f\n    raise Bad\n'
    log = f"Traceback (most recent call last):\n{frames}AssertionError\n"
    assert "raised AssertionError: os.replace(old, new) at" in explained(tmp_path, log).sentence


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/slurmd/job7/slurm_script: line 4: ./run.sh: Permission denied\n",
        "/var/spool/slurmd/job7/slurm_script: line 4: conda: command not found\n",
        'Lmod has detected the following error: The module(s) are unknown: "cuda/12.9"\n',
    ],
)
def test_what_a_script_cannot_start_counts_at_the_end_of_its_log(tmp_path: Path, line: str) -> None:
    """Where many lines follow, the script may do without it."""
    assert explained(tmp_path, line).confidence >= 0.6
    assert explained(tmp_path, line + "computing\n" * 30).confidence <= 0.5


def test_a_request_that_failed_did_not_end_the_server(tmp_path: Path) -> None:
    """Unless its engine died, and no further requests are answered."""
    failed = "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
    failed += FRAMES + "ValueError: the prompt is too long\n"
    answered = 'INFO:     10.0.0.1:4{:04} - "POST /v1/completions HTTP/1.1" 200 OK\n'
    log = "".join(map(answered.format, range(120)))
    alone = explained(tmp_path, failed)
    assert (alone.category, 0.5 < alone.confidence < 0.8) == ("other", True)
    assert explained(tmp_path, failed + log).confidence < 0.5
    unknown = "ERROR: the request failed\n"
    assert explained(tmp_path, unknown).category == "other"  # the last line of the log
    assert explained(tmp_path, unknown + log).category == "no_failure"
    ended = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert explained(tmp_path, failed + log + ended).category == "oom_one_rank"


@pytest.mark.parametrize(
    ("raised", "advice"),
    [
        ("EOFError: Ran out of input", "empty or cut off"),
        (
            "yaml.scanner.ScannerError: while scanning for the next token",
            "its syntax or encoding is wrong",
        ),
        ("sqlite3.OperationalError: database is locked", "a local disk of the node"),
        ("sqlite3.OperationalError: unable to open database file", "make that path exist"),
        ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "proxy"),
        ("AttributeError: module 'numpy' has no attribute 'bool'", "the version of that library"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x2)", "sizes in that"),
        ("FileExistsError: [Errno 17] File exists: '/out'", "let only one rank make it"),
        (
            "botocore.exceptions.ClientError: An error occurred (403) when calling GetObject: no",
            "the right to that storage",
        ),
        ("google.auth.exceptions.DefaultCredentialsError: none were found", "its role"),
        ("ValueError: 3 heads for 8 ranks", "correct the code"),
    ],
)
def test_the_advice_fits_the_kind_of_the_exception(
    tmp_path: Path, raised: str, advice: str
) -> None:
    """A broken file, a database or a server is not mended in the code."""
    log = f"Traceback (most recent call last):\n{FRAMES}{raised}\n"
    assert advice in explained(tmp_path, log).advice


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "NameResolutionError: Failed to resolve 'huggingface.co' (Name or service not known)",
            "https_proxy",
        ),
        (
            "ssh: Could not resolve hostname worker-0.worker.ml.svc: Name or service not known",
            "hostfile",
        ),
        (
            "DistNetworkError: failed to resolve host gpu-0: Name or service not known",
            "give an address",
        ),
    ],
)
def test_the_advice_fits_what_a_name_is_for(tmp_path: Path, line: str, advice: str) -> None:
    """A server in the internet is no MASTER_ADDR, nor is a host of ssh."""
    answer = explained(tmp_path, f"{line}\n")
    assert (answer.category, advice in answer.advice) == ("env_misconfig", True), answer.advice


def test_a_shell_reports_a_killed_program(tmp_path: Path) -> None:
    """Its script's name and line come first: no setting of printed YAML."""
    log = "run_train.sh: line 10: 4711 Killed                  python main.py --a 1\n"
    assert "SIGKILL" in explained(tmp_path, log).sentence


def test_of_several_starts_that_refused_their_options_the_last_counts(tmp_path: Path) -> None:
    """Each ends before it begins, so that the next one is another start."""
    log = "a.py: error: argument --fp16: got s\n" * 2
    log = f"a.py: error: argument --type: got p\n{log}"
    assert "--fp16" in explained(tmp_path, log).sentence
    step = (
        "srun: error: Unable to create step for job 9: More processors requested than permitted\n"
    )
    loop = "At least one pair of MPI processes are unable to reach each other for\n"
    assert explained(tmp_path, step + loop).category == "wrong_interface"


def test_a_job_that_writes_until_its_time_limit_has_not_stood_still(tmp_path: Path) -> None:
    """Lines that are no steps count as well; the scheduler's own do not."""
    log = "2026-01-02 01:00:00,1 [INFO] epoch 1 step 5 loss 2\n"
    work = "2026-01-02 09:59:25,2 [INFO] Evaluating on val.\n"
    end = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT\n"
    assert explained(tmp_path, log + end).category == "timeout_rank_missing"
    assert explained(tmp_path, log + work + end).category == "other"
