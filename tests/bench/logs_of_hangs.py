"""Logs of jobs that died, with what ended them: drawn by seed, in the words of real programs.

`case(seed)` gives the text and its label. Seeds 0-499 may be looked at while the engine changes.
The words are those of torch 2.1-2.8 (ProcessGroupNCCL.cpp, TCPStore.cpp, elastic), NCCL 2.18-2.26,
srun and slurmstepd, Open MPI, DeepSpeed's launcher, Ray, and the Linux kernel.
"""

# ruff: noqa: E501, ISC004, ARG001, FBT003, PLR0917, PLR0911  texts as they are; one form of function

from __future__ import annotations

import random
import re
import textwrap
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preflight.hang.explain.explanation import Explanation

LOOKED_AT, UNSEEN = range(500), range(1000, 1500)
SURE = 0.8
CLEAR = 0.5


class Label(NamedTuple):
    """What ended the job, as far as its log can show."""

    kind: str
    categories: frozenset[str]
    """Each of them is right."""
    ranks: frozenset[int]
    """No other rank may be named; empty: none is at fault."""
    named: bool
    """The log shows which rank: an answer without it is unclear."""
    look: str
    """Launcher and what was done to the text."""


def verdict(answer: Explanation, label: Label) -> str:
    """`right`, `unclear`, `wrong`, or `confidently wrong`."""
    ranks = {int(one.split()[1]) for one in answer.culprits if re.fullmatch(r"rank \d+", one)}
    known = answer.category in label.categories and ranks <= label.ranks
    if known and (ranks or not label.named or "unknown" in label.categories):
        return "right"
    if answer.category in ("unknown", "no_failure") or answer.confidence < CLEAR:
        return "unclear" if label.kind != "healthy" and answer.category != "no_failure" else "wrong"
    if known:
        return "unclear"
    return "confidently wrong" if answer.confidence >= SURE else "wrong"


@dataclass
class _Job:
    choose: random.Random
    launcher: str
    world: int
    per_node: int
    prefixed: bool
    """torch's own `[rank3]:`, since 2.3."""
    start: datetime
    skew_s: list[float]
    hosts: list[str]
    out: list[tuple[float, int | None, str]] = field(default_factory=list)

    def node(self, rank: int) -> int:
        return rank // self.per_node

    def host(self, rank: int) -> str:
        return self.hosts[self.node(rank)]

    def pid(self, rank: int) -> int:
        return 31_000 + 100 * self.node(rank) + rank % self.per_node

    def clock(self, at: float, rank: int | None) -> datetime:
        skew = self.skew_s[self.node(rank)] if rank is not None else 0.0
        return self.start + timedelta(seconds=at + skew)

    def say(self, at: float, rank: int | None, text: str) -> None:
        """One or more lines of a process, which stay together: one write."""
        self.out.append((at, rank, text))

    def lines(self, at: float, rank: int | None, text: str) -> None:
        """Lines that others' lines may come between."""
        for place, line in enumerate(text.splitlines()):
            self.out.append((at + place * 0.002, rank, line))

    def glog(self, at: float, rank: int, text: str, level: str = "E", where: str = "") -> str:
        when = self.clock(at, rank)
        where = where or f"ProcessGroupNCCL.cpp:{self.choose.choice((628, 632, 1895, 2268))}"
        stamp = f"{when.month}{when.day:02d} {when:%H:%M:%S}.{when.microsecond:06d}"
        if not self.prefixed:
            return f"[{level} {where}] {text}"
        return f"[rank{rank}]:[{level}{stamp}417 {where}] {text}"

    def pg(self, rank: int) -> str:
        return f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]" if self.prefixed else f"[Rank {rank}]"


_OPS = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST", "ALLTOALL_BASE")


def _traceback(job: _Job, rank: int, kind: str, message: str) -> str:
    line = job.choose.randrange(20, 900)
    file, code, source = job.choose.choice((
        ("/home/ml/run/train.py", "train_step", "loss = model(**batch)"),
        ("/workspace/src/data/loader.py", "collate", "return fn(items)"),
        ("/app/trainer/loop.py", "fit", "self.step(batch)"),
    ))  # fmt: skip
    body = (
        "Traceback (most recent call last):\n"
        f'  File "/home/ml/run/train.py", line {line + 40}, in <module>\n    main()\n'
        f'  File "{file}", line {line}, in {code}\n    {source}\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1739, '
        "in _wrapped_call_impl\n    return self._call_impl(*args, **kwargs)\n"
    )
    body += f"{kind}: {message}" if message else kind
    if job.prefixed and job.choose.random() < 0.8:
        body = "\n".join(f"[rank{rank}]: {one}" for one in body.splitlines())
    return body


def _time_out(job: _Job, at: float, rank: int, seq: int, op: str, numel: int, done: int) -> None:
    after = 600_000
    work = (
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, "
        f"Timeout(ms)={after}) ran for {after + job.choose.randrange(900)} milliseconds before "
        "timing out."
    )
    caught = f"[Rank {rank}] Watchdog caught collective operation timeout: {work}"
    job.say(at, rank, job.glog(at, rank, caught))
    if job.prefixed:
        job.say(at + 0.01, rank, job.glog(at, rank, (
            f"{job.pg(rank)}  failure detected by watchdog at work sequence id: {seq} PG status: "
            f"last enqueued work: {done}, last completed work: {seq - 1}")))  # fmt: skip
    job.say(at + 0.2, rank, job.glog(at, rank, (
        f"[Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete "
        "data.")))  # fmt: skip
    job.say(at + 0.2, rank, job.glog(at, rank, (
        f"[Rank {rank}] To avoid data inconsistency, we are taking the entire process down.")))  # fmt: skip
    what = f"{job.pg(rank)} Process group watchdog thread terminated with exception: {caught}"
    job.say(at + 0.3, rank, job.glog(at, rank, what))
    if job.choose.random() < 0.6:
        job.say(at + 0.35, rank, (
            "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/"
            "ProcessGroupNCCL.cpp:632 (most recent call first):\nframe #0: c10::Error::Error("
            "c10::SourceLocation, std::string) + 0x98 (0x7f1c in /opt/venv/lib/python3.11/"
            "site-packages/torch/lib/libc10.so)\nframe #1: <unknown function> + 0xdbbf4 (0x7f1d in "
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6)\n"))  # fmt: skip
        job.say(at + 0.4, rank, (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            f"  what():  {what}"))  # fmt: skip


def _peer_lost(job: _Job, at: float, rank: int, gone: int) -> None:
    """What a rank prints whose peer has ended."""
    kind = job.choose.randrange(3)
    peer = f"10.0.{job.node(gone)}.7<{40_000 + gone}>"
    if kind == 0:
        job.say(at, rank, (
            f"{job.host(rank)}:{job.pid(rank)}:{job.pid(rank) + 900} [{rank % job.per_node}] "
            f"misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {peer}"
        ))  # fmt: skip
        job.lines(at + 0.1, rank, _traceback(job, rank, "torch.distributed.DistBackendError", (
            "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2395, remote "
            "process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A "
            "call failed possibly due to a network error or a remote process exiting prematurely.\n"
            f"Last error:\nsocketProgress: Connection closed by remote peer {peer}")))  # fmt: skip
    elif kind == 1:
        fd = job.choose.randrange(60, 99)
        socket = (
            f"SocketImpl(fd={fd}, addr=[{job.host(rank)}]:{50_000 + rank}, "
            f"remote=[{job.hosts[0]}]:29500)"
        )
        job.say(at, rank, job.glog(
            at, rank, f"[c10d] sendBytes failed on {socket}: Broken pipe", "W", "TCPStore.cpp:106"
        ))  # fmt: skip
        job.say(at + 0.1, rank, job.glog(at, rank, (
            f'{job.pg(rank)} Failed to check the "should dump" flag on TCPStore, (maybe TCPStore '
            "server has shut down too early), with error: Broken pipe"), "W"))  # fmt: skip
    else:
        job.lines(at, rank, _traceback(job, rank, "RuntimeError", (
            f"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            f"[10.0.{job.node(gone)}.7]:{40_000 + gone}")))  # fmt: skip


def _end(job: _Job, at: float, codes: dict[int, int], why: dict[int, str] | None = None) -> None:
    """How the launcher reports it; `codes` in order of death."""
    first, code = next(iter(codes.items()))
    if job.launcher in ("torchrun", "accelerate", "k8s"):
        _torchrun_end(job, at, codes, why or {})
    elif job.launcher == "deepspeed":
        when = f"{job.clock(at, first):%Y-%m-%d %H:%M:%S},{job.choose.randrange(1000):03d}"
        for rank in range(job.world):
            job.say(at, first, (
                f"[{when}] [INFO] [launch.py:319:sigkill_handler] Killing subprocess "
                f"{job.pid(rank)}"))  # fmt: skip
        job.say(at + 0.1, first, (
            f"[{when}] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', "
            f"'train.py', '--local_rank={first % job.per_node}'] exits with return code = "
            f"{code}"))  # fmt: skip
    elif job.launcher == "srun":
        _srun_end(job, at, codes)
    elif job.launcher == "mpirun":
        job.say(at, None, "-" * 74)
        if code < 0:
            signal = {-9: "9 (Killed)", -11: "11 (Segmentation fault)", -6: "6 (Aborted)"}[code]
            job.say(at, None, (
                f"mpirun noticed that process rank {first} with PID {job.pid(first)} on node "
                f"{job.host(first)} exited on signal {signal}."))  # fmt: skip
        else:
            job.say(at, None, (
                "mpirun detected that one or more processes exited with non-zero status, thus "
                "causing\nthe job to be terminated. The first process to do so was:\n\n  Process "
                f"name: [[48121,1],{first}]\n  Exit code:    {code}"))  # fmt: skip
        job.say(at, None, "-" * 74)
    elif job.launcher == "ray":
        job.say(at, None, (
            f"(raylet, ip=10.0.{job.node(first)}.7) A worker died or was killed while executing a "
            "task by an unexpected system error." if code < 0 else
            f"2026-10-05 10:59:59,100\tERROR tune_controller.py:1331 -- Trial task failed for "
            f"trial TorchTrainer_{first:05x}"))  # fmt: skip


def _torchrun_end(job: _Job, at: float, codes: dict[int, int], why: dict[int, str]) -> None:
    first, code = next(iter(codes.items()))
    agent = job.node(first)
    api = "torch/distributed/elastic/multiprocessing/api.py"
    stamp = f"{job.clock(at, first):%m%d %H:%M:%S}.{job.choose.randrange(1000):03d}000"
    here = [r for r in range(job.world) if job.node(r) == agent and r not in codes]
    for rank in here:
        job.say(at, None, (
            f"W{stamp} {30_000 + agent} {api}:900] Sending process {job.pid(rank)} closing signal "
            "SIGTERM"))  # fmt: skip
    job.say(at + 0.5, None, (
        f"E{stamp} {30_000 + agent} {api}:874] failed (exitcode: {code}) local_rank: "
        f"{first % job.per_node} (pid: {job.pid(first)}) of binary: /opt/venv/bin/python3"))  # fmt: skip
    job.lines(at + 1, None, (
        'Traceback (most recent call last):\n  File "/opt/venv/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 918, in '
        "main\n    run(args)\n"
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line '
        "269, in launch_agent\n    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "))  # fmt: skip
    names = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS"}

    def record(place: int, rank: int) -> str:
        number = codes[rank]
        said = (
            f"Signal {-number} ({names[number]}) received by PID {job.pid(rank)}"
            if number < 0
            else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        )
        return (
            f"[{place}]:\n  time      : {job.clock(at - 1, rank):%Y-%m-%d_%H:%M:%S}\n"
            f"  host      : {job.host(rank)}\n  rank      : {rank} (local_rank: "
            f"{rank % job.per_node})\n  exitcode  : {number} (pid: {job.pid(rank)})\n"
            f"  error_file: <N/A>\n  traceback : {why.get(rank, said)}\n"
        )

    others = [rank for rank in codes if rank != first and job.node(rank) == agent]
    listed = "".join(record(place, rank) for place, rank in enumerate(others, 1))
    rule = "-" * 60
    job.lines(at + 1.1, None, (
        f"{'=' * 60}\ntrain.py FAILED\n{rule}\nFailures:\n{listed or '  <NO_OTHER_FAILURES>' + chr(10)}"
        f"{rule}\nRoot Cause (first observed failure):\n{record(0, first)}{'=' * 60}"))  # fmt: skip


def _srun_end(job: _Job, at: float, codes: dict[int, int]) -> None:
    for rank, code in codes.items():
        how = {-9: "Killed", -11: "Segmentation fault (core dumped)", -6: "Aborted (core dumped)"}
        words = how.get(code, f"Exited with exit code {code}")
        job.say(at, None, f"srun: error: {job.host(rank)}: task {rank}: {words}")
        at += 0.01
    if job.choose.random() < 0.6:
        when = f"{job.clock(at, 0):%Y-%m-%dT%H:%M:%S}"
        job.say(at + 1, None, "srun: Terminating StepId=48121.0")
        job.say(at + 1, None, (
            f"slurmstepd: error: *** STEP 48121.0 ON {job.hosts[0]} CANCELLED AT {when} ***"))  # fmt: skip


def _others_follow(job: _Job, at: float, gone: int, seq: int) -> dict[int, int]:
    """Peers that lose their connection soon or time out after ten minutes; their exit codes."""
    codes: dict[int, int] = {}
    waits = job.choose.random() < 0.5
    some = [rank for rank in range(job.world) if rank != gone]
    job.choose.shuffle(some)
    for rank in some[: job.choose.randrange(1, len(some) + 1)]:
        if waits:
            _time_out(job, at + 600 + job.choose.random(), rank, seq, "ALLREDUCE", 4096, seq)
        else:
            _peer_lost(job, at + job.choose.uniform(0.2, 4), rank, gone)
        codes[rank] = -6 if waits else 1
    return codes


_RAISES = (
    ("KeyError", "'input_ids'"),
    ("ValueError", "Expected input batch_size (16) to match target batch_size (15)."),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/shards/00871.tar'"),
    ("RuntimeError", "The size of tensor a (2048) must match the size of tensor b (1024) at "
     "non-singleton dimension 1"),
    ("AssertionError", "loss is nan at step 4711"),
    ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid start "
     "byte"),
    ("json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
    ("ZeroDivisionError", "float division by zero"),
    ("StopIteration", ""),
    ("IndexError", "list index out of range"),
    ("safetensors_rust.SafetensorError", "Error while deserializing header: HeaderTooLarge"),
    ("PIL.UnidentifiedImageError", "cannot identify image file '/data/img/0091.jpg'"),
)  # fmt: skip


def _exception(job: _Job, at: float, rank: int) -> Label:
    kind, message = job.choose.choice(_RAISES)
    job.lines(at, rank, _traceback(job, rank, kind, message))
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 412)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("exception", "other", rank)


def _oom(job: _Job, at: float, rank: int) -> Label:
    gpu = rank % job.per_node
    job.lines(at, rank, _traceback(job, rank, "torch.OutOfMemoryError", (
        f"CUDA out of memory. Tried to allocate 2.50 GiB. GPU {gpu} has a total capacity of 79.15 "
        "GiB of which 1.44 GiB is free. Including non-PyTorch memory, this process has 77.70 GiB "
        "memory in use. Of the allocated memory 74.21 GiB is allocated by PyTorch, and 2.02 GiB is "
        "reserved by PyTorch but unallocated.")))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 33)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("oom", "oom_one_rank", rank)


def _killed(job: _Job, at: float, rank: int) -> Label:
    if job.launcher == "srun" and job.choose.random() < 0.6:
        job.say(at + 2, None, (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=48121.0. Some of the step tasks "
            "have been OOM Killed."))  # fmt: skip
    codes = {rank: -9} | _others_follow(job, at, rank, 90)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("killed", "other", rank, named=job.launcher not in ("ray", "deepspeed"))


def _crashed(job: _Job, at: float, rank: int) -> Label:
    if job.choose.random() < 0.5:
        job.lines(at, rank, (
            'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f12 (most recent call '
            'first):\n  File "/workspace/ops/kernel.py", line 88 in launch\n'
            '  File "/home/ml/run/train.py", line 410 in main'))  # fmt: skip
    codes = {rank: -11} | _others_follow(job, at, rank, 90)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("crashed", "other", rank, named=job.launcher not in ("ray", "deepspeed"))


def _xid(job: _Job, at: float, rank: int) -> Label:
    when = f"{job.clock(at, rank):%b %d %H:%M:%S}"
    words = job.choose.choice((
        f"{when} {job.host(rank)} kernel: NVRM: Xid (PCI:0000:{rank % 8 + 17:02x}:00): 79, "
        f"pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        f"{job.host(rank)}: Xid 79 detected (GPU fallen off bus)",
        f"node-monitor: {job.host(rank)} GPU {rank % job.per_node}: XID error 94 reported by DCGM "
        "(contained ECC error)",
    ))  # fmt: skip
    job.say(at, None, words)
    job.lines(at + 1, rank, _traceback(job, rank, "RuntimeError", job.choose.choice((
        "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.\nCompile "
        "with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "CUDA error: unknown error"))))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 90)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("xid", "gpu_hardware", rank, named=False)


def _ecc(job: _Job, at: float, rank: int) -> Label:
    job.lines(at, rank, _traceback(job, rank, "torch.AcceleratorError", (
        "CUDA error: uncorrectable ECC error encountered")))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 90)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("ecc", "gpu_hardware", rank)


def _all_time_out(
    job: _Job, at: float, call: Callable[[int], tuple[int, str, int, int] | None]
) -> dict[int, int]:
    codes: dict[int, int] = {}
    order = list(range(job.world))
    job.choose.shuffle(order)
    for rank in order:
        one = call(rank)
        if one is not None:
            seq, op, numel, done = one
            _time_out(job, at + job.choose.random(), rank, seq, op, numel, done)
            codes[rank] = -6
    return codes


def _mismatch(job: _Job, at: float, rank: int) -> Label:
    seq, numel = job.choose.randrange(10, 9000), 1 << job.choose.randrange(6, 24)
    op, other = job.choose.sample(_OPS, 2)
    same = job.choose.random() < 0.4
    odd = (seq, op if same else other, numel + 7 if same else numel, seq)
    codes = _all_time_out(job, at, lambda one: odd if one == rank else (seq, op, numel, seq))
    _end(job, at + 3, codes)
    label = _label("mismatch", "collective_mismatch", rank)
    return label if job.world > 2 else label._replace(ranks=frozenset((0, 1)))


def _behind(job: _Job, at: float, rank: int) -> Label:
    """It waits in an earlier collective than the others."""
    seq = job.choose.randrange(10, 9000)
    late = job.choose.randrange(1, 9)
    codes = _all_time_out(job, at, lambda one: (
        (seq - late, "ALLREDUCE", 64, seq - late) if one == rank else (seq, "ALLREDUCE", 64, seq)
    ))  # fmt: skip
    _end(job, at + 3, codes)
    return _label("behind", "timeout_rank_missing", rank, "collective_mismatch")


def _missing(job: _Job, at: float, rank: int) -> Label:
    """All others wait; it wrote lines before, and is stopped by the launcher."""
    seq = job.choose.randrange(10, 9000)
    op = job.choose.choice(_OPS)
    codes = _all_time_out(job, at, lambda one: None if one == rank else (seq, op, 512, seq))
    if job.prefixed:
        job.say(at + 2, rank, job.glog(at + 2, rank, (
            f"{job.pg(rank)} Observed flight recorder dump signal from another rank via TCPStore."
        )))  # fmt: skip
        job.say(at + 2.1, rank, job.glog(at + 2, rank, (
            f"{job.pg(rank)} Received a dump signal due to a collective timeout from  rank "
            f"{next(iter(codes))} and we will try our best to dump the debug info. Last enqueued "
            f"NCCL work: {seq - 1}, last completed NCCL work: {seq - 1}.This is most likely caused "
            "by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
            "collectives is not same for all ranks or the scheduled collective, for some reason, "
            "didn't run.")))  # fmt: skip
    _end(job, at + 3, codes)
    return _label("missing", "timeout_rank_missing", rank, named=job.prefixed)


def _some_time_out(job: _Job, at: float, rank: int) -> Label:
    """Only one rank's lines are here: nobody can be named."""
    _time_out(job, at, rank, 77, "ALLREDUCE", 64, 77)
    _end(job, at + 3, {rank: -6})
    return Label("unknown", frozenset({"unknown", "timeout_rank_missing"}), frozenset(), False, "")


def _link(job: _Job, at: float, rank: int) -> Label:
    far = (job.node(rank) + 1) % len(job.hosts)
    job.say(at, rank, (
        f"{job.host(rank)}:{job.pid(rank)}:{job.pid(rank) + 900} [{rank % job.per_node}] "
        f"transport/net_ib.cc:2262 NCCL WARN NET/IB : Got completion from peer 10.0.{far}.7<52334> "
        "with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 remoteGids fe80::2 "
        f"hca mlx5_{rank % 8}"))  # fmt: skip
    _time_out(job, at + 600, rank, 55, "ALLREDUCE", 512, 55)
    _end(job, at + 603, {rank: -6})
    return Label("link", frozenset({"nic_or_ib_link"}), frozenset({rank}), False, "")


def _port(job: _Job, at: float, rank: int) -> Label:
    job.out[:] = [one for one in job.out if one[0] < 1]  # no step of the training follows
    job.lines(1, 0, _traceback(job, 0, "torch.distributed.DistNetworkError", (
        "The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use")))  # fmt: skip
    for other in range(1, min(job.world, 4)):
        _peer_lost(job, 5, other, 0)
    _end(job, 8, {0: 1})
    return Label("port", frozenset({"port_in_use"}), frozenset({0}), False, "")


def _disk(job: _Job, at: float, rank: int) -> Label:
    job.lines(at, rank, _traceback(job, rank, "OSError", (
        "[Errno 28] No space left on device: '/ckpt/step_4000/model_00.pt'")))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 33)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return Label("disk", frozenset({"other", "timeout_rank_missing"}), frozenset({rank}), True, "")


def _worker(job: _Job, at: float, rank: int) -> Label:
    job.lines(at, rank, _traceback(job, rank, "RuntimeError", (
        "DataLoader worker (pid(s) 41877) exited unexpectedly")))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 33)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("worker", "other", rank)


def _errno(job: _Job, at: float, rank: int) -> Label:
    job.lines(at, rank, _traceback(job, rank, "RuntimeError", job.choose.choice((
        "Unknown error -12", "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot "
        "allocate memory)"))))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 33)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("errno", "other", rank)


def _assert(job: _Job, at: float, rank: int) -> Label:
    job.say(at, rank, (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectSmallIndex: block: [5,0,0],"
        " thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed."))  # fmt: skip
    job.lines(at + 0.1, rank, _traceback(job, rank, "RuntimeError", (
        "CUDA error: device-side assert triggered")))  # fmt: skip
    codes = {rank: 1} | _others_follow(job, at + 1, rank, 33)
    _end(job, at + (610 if -6 in codes.values() else 6), codes)
    return _label("assert", "other", rank)


def _limit(job: _Job, at: float, rank: int) -> Label:
    when = f"{job.clock(at, 0):%Y-%m-%dT%H:%M:%S}"
    job.say(at, None, (
        f"slurmstepd: error: *** JOB 48121 ON {job.hosts[0]} CANCELLED AT {when} DUE TO "
        f"{job.choose.choice(('TIME LIMIT', 'PREEMPTION', 'NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS'))} ***"))  # fmt: skip
    for other in range(min(job.world, 3)):
        _peer_lost(job, at + 2, other, job.world - 1)
    return Label("limit", frozenset({"other"}), frozenset(), False, "")


def _healthy(job: _Job, at: float, rank: int) -> Label:
    job.say(2, rank, "wandb: WARNING Failed to find git repository, continuing without it")
    job.say(3, rank, "UserWarning: lr_scheduler.step() called before optimizer.step()")
    return Label("healthy", frozenset({"no_failure"}), frozenset(), False, "")


def _label(kind: str, category: str, rank: int, *more: str, named: bool = True) -> Label:
    return Label(kind, frozenset({category, *more}), frozenset({rank}), named, "")


_FAULTS = {
    _exception: 8, _oom: 3, _killed: 4, _crashed: 3, _xid: 2, _ecc: 1, _mismatch: 4, _behind: 3,
    _missing: 4, _some_time_out: 1, _link: 2, _port: 1, _disk: 2, _worker: 1, _errno: 2,
    _assert: 1, _limit: 1, _healthy: 3,
}  # fmt: skip
_LAUNCHERS = ("torchrun", "srun", "mpirun", "ray", "k8s", "accelerate", "deepspeed")


def case(seed: int) -> tuple[str, Label]:
    """The text of one log, and its label."""
    choose = random.Random(seed)  # noqa: S311  the same log each time
    nodes, per_node = choose.choice(((1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (4, 4)))
    skewed = choose.random() < 0.3
    job = _Job(
        choose=choose,
        launcher=choose.choice(_LAUNCHERS),
        world=nodes * per_node,
        per_node=per_node,
        prefixed=choose.random() < 0.75,
        start=datetime(2026, choose.randrange(1, 13), choose.randrange(1, 28), 10, 4),  # noqa: DTZ001
        skew_s=[choose.uniform(-150, 150) if skewed and node else 0.0 for node in range(nodes)],
        hosts=[
            f"{choose.choice(('gpu', 'node-', 'trn'))}{choose.randrange(900):03d}x{n}"
            for n in range(nodes)
        ],
    )
    fault = choose.choices(list(_FAULTS), list(_FAULTS.values()))[0]
    at = choose.uniform(30, 3000)
    _steps(job, at)
    label = fault(job, at, choose.randrange(job.world))
    lines = [
        line
        for spot, rank, text in sorted(job.out, key=lambda one: one[0])
        for line in _spoken(job, spot, rank, text)
    ]
    look = [job.launcher]
    if not job.prefixed and job.launcher in ("ray", "deepspeed"):
        label = label._replace(named=False)
    if label.kind != "healthy" and choose.random() < 0.15:
        lines, cut = _head_cut(lines), "head cut"
        look.append(cut)
    text = "\n".join(lines) + "\n"
    for chance, name, change in (
        (0.12, "wrapped", _wrapped),
        (0.12, "fenced", _fenced),
        (0.06, "quoted", _quoted),
    ):
        if choose.random() < chance:
            text = change(text)
            look.append(name)
            break
    return text, label._replace(look=", ".join(look))


def _steps(job: _Job, until: float) -> None:
    for rank in range(job.world):
        if job.choose.random() < 0.7 or rank == 0:
            job.say(0.5 + rank / 100, rank, (
                f"{job.host(rank)}:{job.pid(rank)}:{job.pid(rank) + 900} [{rank % job.per_node}] "
                f"NCCL INFO comm 0x55d0c{rank:03d} rank {rank} nranks {job.world} cudaDev "
                f"{rank % job.per_node} nvmlDev {rank % job.per_node} busId {rank % 8 + 17:02x}000 "
                "commId 0xa1 - Init COMPLETE"))  # fmt: skip
    for step in range(job.choose.randrange(3, 40)):
        spot = 10 + (until - 11) * step / 40
        when = f"{job.clock(spot, 0):%Y-%m-%d %H:%M:%S},{step:03d}"
        job.say(spot, 0, f"{when} [INFO] train.py:88 step {step * 10} loss {9 / (step + 1):.4f}")


def _spoken(job: _Job, at: float, rank: int | None, text: str) -> Iterable[str]:
    """Behind the prefix of the launcher."""
    for line in text.splitlines():
        yield _prefix(job, at, rank) + line


def _prefix(job: _Job, at: float, rank: int | None) -> str:
    if rank is None:
        return ""
    if job.launcher == "srun":
        return f"{rank:>{len(str(job.world - 1))}}: "
    if job.launcher == "mpirun":
        return f"[1,{rank}]<stderr>:"
    if job.launcher == "ray":
        ip = f", ip=10.0.{job.node(rank)}.7" if job.node(rank) else ""
        return f"(RayTrainWorker pid={job.pid(rank)}{ip}) "
    if job.launcher == "k8s":
        return f"train-worker-{job.node(rank)} pytorch "
    if job.launcher == "deepspeed" and len(job.hosts) > 1:
        return f"{job.host(rank)}: "
    return ""


def _head_cut(lines: list[str]) -> list[str]:
    """The scroll-back began in the middle of the first traceback, or of the first failure."""
    for place, line in enumerate(lines):
        if "Traceback (most recent" in line:
            for end in range(place, len(lines)):
                if re.search(r"\w(?:Error|Iteration)\b", lines[end]):
                    return lines[end:]
    return lines[len(lines) // 3 :]


def _wrapped(text: str) -> str:
    """As copied from a terminal of 120 columns."""
    return "\n".join(
        line[at : at + 120] for line in text.splitlines() for at in range(0, max(len(line), 1), 120)
    )


def _fenced(text: str) -> str:
    return f"## Bug\n\nThe job dies, see below:\n\n```shell\n{text}```\n\nAny ideas?\n"


def _quoted(text: str) -> str:
    return "The output:\n\n" + textwrap.indent(text, "> ", lambda _: True)
