"""Collectors of logs and launchers put words before each line; the answer is as without them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.unit.hang.logs import communicator, explained, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from preflight.hang.explain.explanation import Explanation

    Prefix = Callable[[int, int, str], str]
    """The line of a rank at a second, with what stands before it."""

STEP = "[rank0]: step {} loss 0.25"
TRACE = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 41, in <module>',
    "    main()",
    '  File "/home/u/train.py", line {line}, in {code}',
    "    row = batch[key]",
    "{what}",
)


def trace(rank: int, line: int, code: str, what: str) -> list[tuple[int, str]]:
    """A traceback as torch prints it."""
    return [(rank, f"[rank{rank}]: {one.format(line=line, code=code, what=what)}") for one in TRACE]


def woven(*stories: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """One line of each in turn."""
    longest = max(map(len, stories))
    return [story[at] for at in range(longest) for story in stories if at < len(story)]


def of(rank: int, text: str) -> list[tuple[int, str]]:
    """The lines of one rank."""
    return [(rank, line) for line in text.splitlines()]


ECHO = "RuntimeError: NCCL communicator was aborted."
COMMUNICATORS = [(rank, communicator(rank, 4).rstrip()) for rank in range(4)]
LOGS: dict[str, list[tuple[int, str]]] = {
    "two tracebacks": woven(
        trace(3, 57, "load", "KeyError: 'labels'"), trace(1, 90, "step", ECHO)
    ),
    "memory": woven(
        trace(2, 9, "step", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
        trace(0, 90, "step", ECHO),
    ),
    "a summary of torchrun": of(0, (
        "E1005 10:00:01.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed "
        "(exitcode: -11) local_rank: 1 (pid: 9) of binary: python\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-10-05_10:00:00\n"
        "  host      : n7\n  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 9)\n"
        "  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 9"
    )),
    "a mismatch in three lines": woven(of(2, (
        "[rank2]: RuntimeError: Detected mismatch between collectives on ranks.\n"
        "[rank2]: Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=7, "
        "OpType=BROADCAST),\n"
        "[rank2]: but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=7, "
        "OpType=ALLREDUCE)."
    )), [(0, STEP.format(at)) for at in range(3)]),
    "a call that failed": woven(of(1, (
        "[rank1]:[E1005 10:00:00.1 ProcessGroupNCCL.cpp:612] [Rank 1] Collective WorkNCCL(SeqNum=7,"
        " OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) raised the following async "
        "exception: NCCL error: invalid usage, NCCL version 2.28.9\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "NET/Socket : peer 10.8.0.4<41200> message truncated : receiving 98304 bytes instead of 512"
    )), trace(3, 90, "step", ECHO)),
    "a report of torch": of(0, (
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
        "\n\t   - [3] finished collective #7, but didn't join collective #8 (count from 1)"
    )),
    "a barrier of JAX": of(0, (
        "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: start. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:9\n/job:jax_worker/replica:0/task:12"
    )),
    "the driver": of(0, (
        "NVRM: The NVIDIA GPU 0000:1a:00.0\n"
        "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )),
    "an exit that deepspeed reports": [*COMMUNICATORS, *of(0, (
        "[2026-10-05 10:00:09,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py', "
        "'--local_rank=1'] exits with return code = -11"
    ))],
    "text of the data": of(0, "user: CUDA out of memory. Tried to allocate 2.00 GiB"),
}  # fmt: skip


def _cri(at: int, text: str, kind: str = "F", stream: str = "stderr") -> str:
    return f"2026-10-05T10:00:{at:02d}.123456789Z {stream} {kind} {text}"


def _cri_in_parts(_: int, at: int, text: str) -> str:
    """Kubernetes cuts lines at 16 KiB; another stream's line may come between the parts."""
    if not text:
        return _cri(at, "")
    parts = [text[: len(text) // 2], _cri(at, "step", stream="stdout"), text[len(text) // 2 :]]
    return "\n".join((_cri(at, parts[0], "P"), parts[1], _cri(at, parts[2])))


def _docker(_: int, at: int, text: str) -> str:
    time = f"2026-10-05T10:00:{at:02d}.123456789Z"
    line = json.dumps({"log": f"{text}\n", "stream": "stderr", "time": time}, separators=(",", ":"))
    return line.replace("<", "\\u003c").replace(">", "\\u003e")


ONE_PROCESS: dict[str, Prefix] = {
    "Kubernetes": lambda _, at, text: _cri(at, text),
    "Kubernetes, in parts": _cri_in_parts,
    "docker": _docker,
    "docker compose": lambda _, __, text: f"train-worker-1  | {text}",
    "docker compose -t": lambda _, at, text: f"worker-1  | 2026-10-05T10:00:{at:02d}.12Z {text}",
    "journalctl": lambda _, at, text: f"Oct  5 10:00:{at:02d} n1 train[123]: {text}",
    "journalctl -o short-iso": lambda _, at, text: (
        f"2026-10-05T10:00:{at:02d}+0000 n1 t[1]: {text}"
    ),
    "kubectl logs --timestamps": lambda _, at, text: f"2026-10-05T10:00:{at:02d}.123456Z {text}",
    "kubectl logs --prefix": lambda _, __, text: f"[pod/train-worker-0/pytorch] {text}",
}
"""Prefixes that show the container or the host."""
MANY_PROCESSES: dict[str, Prefix] = {
    "Ray": lambda rank, _, text: f"(RayTrainWorker pid={85 + rank}, ip=10.0.0.3) {text}",
    "torchrun --tee": lambda rank, _, text: f"[default{rank}]:{text}",
    "torchrun --role": lambda rank, _, text: f"[trainer{rank}]:{text}",
    "mpirun": lambda rank, _, text: f"[1,{rank}]<stderr>:{text}",
    "srun --label": lambda rank, _, text: f"{rank}: {text}",
    "srun --label in Kubernetes": lambda rank, at, text: _cri(at, f"{rank}: {text}"),
    "a pod per rank": lambda rank, _, text: f"[pod/train-worker-{rank}/pytorch] {text}",
    "docker compose": lambda rank, _, text: f"worker-{rank}  | {text}",
    "stern": lambda rank, _, text: f"train-worker-{rank} pytorch {text}",
}
"""Prefixes that show the process, or a container of its own."""


def _written(log: Iterable[tuple[int, str]], prefix: Prefix) -> str:
    return "".join(f"{prefix(rank, at, text)}\n" for at, (rank, text) in enumerate(log))


def _ranks(culprits: Iterable[str]) -> set[str]:
    return {one for one in culprits if one.startswith(("rank", "task", "gpu"))}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Explanation]:
    """Explain a log without any prefix, once."""
    folder = tmp_path_factory.mktemp("bare")
    return cache(lambda name: explained(folder, _written(_log(name), lambda _, __, text: text)))


def _log(name: str) -> Iterable[tuple[int, str]]:
    """Its lines, each with its rank; where all ranks speak, also ahead of the fault."""
    warming = [(rank, "[rank0]: warming up") for rank in range(2)]
    return [*warming * (name != "text of the data"), *LOGS[name]]


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("prefix", [*ONE_PROCESS, *(f"each: {one}" for one in MANY_PROCESSES)])
def test_a_prefix_before_each_line_changes_no_answer(
    tmp_path: Path, bare: Callable[[str], Explanation], name: str, prefix: str
) -> None:
    """The same category, and the same rank, whichever processes' lines come between."""
    put = ONE_PROCESS.get(prefix) or MANY_PROCESSES[prefix.removeprefix("each: ")]
    plain, answer = bare(name), explained(tmp_path, _written(_log(name), put))
    assert (plain.category, bool(plain.confidence)) == (answer.category, bool(answer.confidence))
    assert _ranks(plain.culprits) <= _ranks(answer.culprits)
    assert (len(_ranks(plain.culprits)) or 1) >= len(_ranks(answer.culprits))


@pytest.mark.parametrize("prefix", [one for one in MANY_PROCESSES if "stern" not in one])
def test_tracebacks_of_two_processes_come_apart_by_their_prefixes(
    tmp_path: Path, prefix: str
) -> None:
    """Without a rank of torch in any line."""
    lines = woven(trace(3, 57, "load", "KeyError: 'labels'"), trace(1, 90, "step", ECHO))
    log = [(rank, text.partition(": ")[2]) for rank, text in lines]
    answer = explained(tmp_path, _written(log, MANY_PROCESSES[prefix]))
    assert answer.category == "other"
    assert "KeyError: 'labels' at /home/u/train.py:57 (load)" in answer.sentence


@pytest.mark.slow
def test_facts_of_many_ranks_hide_no_cause(tmp_path: Path) -> None:
    """Only so many hits are kept, and those of failures come after all ranks' first lines."""
    log = "".join(communicator(rank, 21_000, host=f"n{rank // 8}") for rank in range(21_000))
    cause = "[rank7]: CUDA error: uncorrectable ECC error encountered\n"
    assert explained(tmp_path, log + cause).category == "gpu_hardware"


def test_a_host_that_runs_only_the_launcher_is_no_culprit(tmp_path: Path) -> None:
    """NCCL's lines name the nodes of the ranks."""
    log = [(rank, communicator(rank, 4, host="n5").rstrip()) for rank in range(4)]
    log += of(0, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert explained(tmp_path, _written(log, ONE_PROCESS["journalctl"])).culprits == ()


def test_a_summary_behind_a_label_shows_that_labels_are_no_ranks(tmp_path: Path) -> None:
    """Mpirun and srun may start one torchrun on each node."""
    killed = of(1, "E1005 10:00:01.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] "
                   "failed (exitcode: -9) local_rank: 1 (pid: 9) of binary: python")  # fmt: skip
    summary = LOGS["a summary of torchrun"][1:]
    log = killed + [(1, text.replace("-11", "-9")) for _, text in summary]
    for prefix in ("mpirun", "srun --label"):
        answer = explained(tmp_path, _written([(0, "hello"), *log], MANY_PROCESSES[prefix]))
        assert "rank 1" not in answer.culprits


def test_a_line_that_is_repeated_with_another_address_is_known(tmp_path: Path) -> None:
    """Not so if the rank, the size or the process differs: the largest communicator counts."""
    small = [(rank, communicator(rank % 2, 2, pid=100 + rank - rank % 2)) for rank in range(4)]
    large = [(rank, communicator(rank, 4)) for rank in range(4)]
    log = [
        (rank, text.rstrip().replace("0x5555", f"0x55{at}{rank}5"))
        for at in range(9)
        for rank, text in small + large
    ]
    log += [(2, "n1:102:7 [2] NCCL WARN CUDA error: uncorrectable ECC error encountered")]
    for prefix in (ONE_PROCESS["kubectl logs --timestamps"], lambda _, __, text: text):
        assert "rank 2" in explained(tmp_path, _written(log, prefix)).culprits


@pytest.mark.parametrize(
    "line",
    [
        "2026-10-05T10:00:00 ERROR train[55]: CUDA error: uncorrectable ECC error encountered",
        "Worker exited pid=55 (code 1) after CUDA error: uncorrectable ECC error encountered",
        "2026-10-05 10:00:00 | ERROR | CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_words_of_the_program_are_no_prefix(tmp_path: Path, line: str) -> None:
    """A logger's level is no node."""
    answer = explained(tmp_path, f"{line}\n")
    assert (answer.category, answer.culprits) == ("gpu_hardware", ())


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nnodes 8 --nproc-per-node 8 train.py",
        "W1005 10:00:00.000000 42 torch/distributed/run.py:792] Setting OMP_NUM_THREADS",
        "E1005 10:00:00.0 9 api.py:882] failed (exitcode: 1) local_rank: 5 (pid: 1003) of: x",
        "[rank40]: step 1 loss 2.5",
        communicator(40, 64, host="n5").rstrip(),
    ],
)
def test_a_line_of_torchrun_behind_a_label_shows_that_labels_are_no_ranks(
    tmp_path: Path, line: str
) -> None:
    """Its tasks have several ranks each; the line itself may tell of no failure."""
    failed = [(5, text.partition(": ")[2]) for _, text in trace(5, 9, "f", "KeyError: 0")]
    answer = explained(
        tmp_path, _written([(0, "hello"), (5, line), *failed], MANY_PROCESSES["srun --label"])
    )
    assert "KeyError: 0 at /home/u/train.py:9" in answer.sentence
    assert answer.culprits == ()


@pytest.mark.parametrize(
    "prefix",
    [
        "Mon Oct  5 10:00:00 2026<stderr>: ",
        "Mon Oct  5 10:00:00 2026[1,3]<stderr>:",
        "[prterun-n1-77@1,3]<stderr>: ",
        "Mon Oct  5 10:00:00 2026[prterun-n1-77@1,3]<stderr>: ",
    ],
)
def test_mpirun_s_times_and_tags_are_no_words_of_the_program(tmp_path: Path, prefix: str) -> None:
    """Of `--timestamp-output`, and of `--output tag,timestamp` since Open MPI 5."""
    lines = [text.partition(": ")[2] for _, text in trace(3, 9, "f", "KeyError: 0")]
    answer = explained(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))
    assert "KeyError: 0 at /home/u/train.py:9 (f)" in answer.sentence
    assert answer.culprits == (("rank 3",) if "3]" in prefix else ())


FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
RAY = "(RayTrainWorker pid={}, ip=10.0.0.{}) "


@pytest.mark.parametrize(
    "earlier",
    [
        RAY.format(123, 7) + "[rank=3] setup\n",
        RAY.format(123, 7) + "[rank=3, world_size=8] setup\n",
        RAY.format(123, 7) + "[Rank 3] setup\n",
        "(TrainController pid=9) - (node_id=ab, ip=10.0.0.7, pid=123) world_rank=3, local_rank=1\n",
    ],
)
def test_a_rank_of_ray_is_known_by_its_process(tmp_path: Path, earlier: str) -> None:
    """An earlier line has it, in which nothing failed; the same pid on two nodes shows none."""
    failed = RAY.format(123, 7) + FULL
    assert explained(tmp_path, earlier + failed).culprits == ("rank 3",)
    other = RAY.format(124, 7) + FULL
    assert explained(tmp_path, earlier + other).culprits == ()
    two = earlier + earlier.replace("10.0.0.7", "10.0.0.8").replace("=3", "=4").replace(
        " 3]", " 4]"
    )
    bare = "(RayTrainWorker pid=123) " + FULL
    assert explained(tmp_path, two + bare).culprits == ()


@pytest.mark.parametrize("label", ["{}: ", "[1,{}]<stdout>:", "[prterun-n1-77@1,{}]<stdout>: "])
def test_a_rank_that_wrote_only_quiet_lines_is_missing(tmp_path: Path, label: str) -> None:
    """The labels of srun and mpirun show which ranks wrote, unless a line shows otherwise."""
    log = "".join(f"{label.format(rank)}epoch 1 is over\n" for rank in range(8))
    log += "".join(label.format(rank) + timed_out(rank, 9) for rank in range(8) if rank != 5)
    assert explained(tmp_path, log).culprits == ("rank 5",)
    torchrun = label.format(0) + "torchrun --nnodes=8 train.py\n"
    assert explained(tmp_path, torchrun + log).culprits == ()
    none = log.replace(label.format(5) + "epoch 1 is over\n", "")
    assert explained(tmp_path, none).culprits == ()


def test_no_rank_is_missing_where_ray_left_lines_out(tmp_path: Path) -> None:
    """It prints one of several lines that differ only in numbers, and none after its end."""
    log = "".join(f"{RAY.format(rank, 7)}[rank{rank}]: epoch 1\n" for rank in range(8))
    log += "".join(RAY.format(rank, 7) + timed_out(rank, 9) for rank in range(6))
    assert explained(tmp_path, log).culprits == ()
    last = RAY.format(6, 7) + timed_out(6, 9)
    assert explained(tmp_path, log + last).culprits == ("rank 7",)
    more = last.replace("\n", " [repeated 2x across cluster]\n")
    assert explained(tmp_path, log + more).culprits == ()


def test_the_rank_in_the_words_of_a_process_that_ends(tmp_path: Path) -> None:
    """Torch before 2.2 has no prefix: only what the runtime prints at the end has the rank."""
    answer = explained(
        tmp_path,
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an "
        "illegal memory access was encountered\n",
    )
    assert (answer.category, answer.culprits) == ("other", ("rank 3",))
